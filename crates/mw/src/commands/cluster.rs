//! `mw cluster`: which data centre sells, and moving that to another one.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Subcommand;
use mw_store_cassandra::Class;
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::selling::{Relocation, RelocationStep, Selling, SellingSetting};
use serde::Serialize;

use crate::config::{Config, ConfigArgs};
use crate::{runtime, terminal};

/// Show and move the data centre of a Cassandra cluster that sells
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Where LWTs are decided inside one data centre (serial = \"LOCAL_SERIAL\", the default), one data centre sells: orders, \
reservations, order status and stock change there. Processes of the others refuse these with 503 and serve reads, carts and \
sessions. The first process of a shop stores its own data centre.

Examples:
  mw cluster status
  mw cluster sell-from dc2
  mw cluster sell-from dc2 --yes")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print which data centre sells
    #[command(after_help = "\
Examples:
  mw cluster status
  mw cluster status --json | jq -r .selling_dc")]
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        config: ConfigArgs,
    },

    /// Move selling to another data centre; without --yes print what would be done
    #[command(after_help = "\
First no data centre sells. The command waits until every process of the old one has stopped and what was in flight has \
ended, then the new one sells: for about a minute and a half the shop takes no orders. An interrupted command leaves a shop that does \
not sell; run it again to finish, or name the old data centre to go back.

The new data centre sells what its replicas know: after an outage of its nodes that was longer than the hint window, repair \
the keyspaces first. Where the old data centre is lost for good, remove it from the replication of the keyspaces first (ALTER \
KEYSPACE): the setting needs a quorum over all data centres.

Examples:
  mw cluster sell-from dc2
  mw cluster sell-from dc2 --yes")]
    SellFrom {
        /// The data centre that sells from then on
        dc: String,

        /// Execute it
        #[arg(long)]
        yes: bool,

        #[command(flatten)]
        config: ConfigArgs,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Status { json, config } => status(&Config::load(&config.sources())?, *json),
        Command::SellFrom { dc, yes, config } => sell_from(&Config::load(&config.sources())?, dc, *yes),
    }
}

async fn open(config: &Config) -> Result<Relocation> {
    let options = config.cassandra.clone();
    let session = connect(&options).await.context("connect to Cassandra")?;
    options.schema().check(&session).await.context("check the schema")?;
    Relocation::on(session, options).await.context("read the selling data centre")
}

fn status(config: &Config, json: bool) -> Result<()> {
    terminal::log(&config.log);
    let (setting, every_dc_sells) = runtime::single()?.block_on(async {
        let relocation = open(config).await?;
        let setting = relocation.setting().await.context("read the selling data centre")?;
        anyhow::Ok((setting, relocation.every_dc_sells()))
    })?;
    let core = config.cassandra.replication.of(Class::Core);
    let data_centres = core.keys().map(String::as_str).collect();
    let report = Report::of(&setting, every_dc_sells, &config.cassandra.local_dc, data_centres);
    if json {
        let json = serde_json::to_string_pretty(&report).context("write the status as JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&report.text())
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    local_dc: &'a str,
    /// With replicas of the stock.
    data_centres: Vec<&'a str>,
    /// `None` while selling moves, and where every data centre sells.
    selling_dc: Option<&'a str>,
    moving_to: Option<&'a str>,
    every_dc_sells: bool,
    generation: u64,
}

impl<'a> Report<'a> {
    fn of(
        setting: &'a SellingSetting,
        every_dc_sells: bool,
        local_dc: &'a str,
        data_centres: Vec<&'a str>,
    ) -> Self {
        let (selling_dc, moving_to) = match &setting.selling {
            _ if every_dc_sells => (None, None),
            Selling::In(dc) => (Some(dc.as_str()), None),
            Selling::Moving { to, .. } => (None, Some(to.as_str())),
        };
        Self { local_dc, data_centres, selling_dc, moving_to, every_dc_sells, generation: setting.generation }
    }

    fn text(&self) -> String {
        let replicas = format!("Replicas of the stock: {}.\n", self.data_centres.join(", "));
        let state = match (self.selling_dc, self.moving_to) {
            (Some(dc), _) => format!("Data centre {dc} sells.\n"),
            (None, Some(to)) => format!(
                "No data centre sells: selling moves to {to}. If no `mw cluster sell-from {to}` is running, run it again.\n"
            ),
            (None, None) => {
                "Every data centre sells: all sales are decided across them (SERIAL).\n".to_owned()
            }
        };
        state + &replicas
    }
}

fn sell_from(config: &Config, to: &str, yes: bool) -> Result<()> {
    terminal::log(&config.log);
    let wait = Relocation::safe_wait(config.server.request_timeout);
    let done = runtime::single()?.block_on(async {
        let relocation = open(config).await?;
        relocation.check_target(to).with_context(|| format!("sell from {to}"))?;
        let setting = relocation.setting().await.context("read the selling data centre")?;
        if !yes {
            return Ok(plan(&setting, to, relocation.every_dc_sells(), wait));
        }
        let moved = relocation.run(to, wait, &show).await;
        moved.with_context(|| format!("sell from {to}"))?;
        anyhow::Ok(format!("Data centre {to} sells.\n"))
    })?;
    terminal::print(&done)
}

fn show(step: RelocationStep<'_>) {
    terminal::note(&match step {
        RelocationStep::Stopping { from } => format!("1/3 stop selling in {from}"),
        RelocationStep::Waiting(wait) => {
            format!(
                "2/3 wait {} until its processes have stopped and what was in flight has ended",
                seconds(wait)
            )
        }
        RelocationStep::Starting { to } => format!("3/3 sell from {to}"),
    });
}

fn plan(setting: &SellingSetting, to: &str, every_dc_sells: bool, wait: Duration) -> String {
    if every_dc_sells {
        return "Every data centre sells already: all sales are decided across them (SERIAL). The setting would change and have \
             no effect.\n"
            .to_owned();
    }
    let (now, from) = match &setting.selling {
        Selling::In(dc) if dc == to => return format!("Data centre {to} sells already: nothing to do.\n"),
        Selling::In(dc) => (format!("Data centre {dc} sells."), dc),
        Selling::Moving { from, to } => {
            (format!("No data centre sells: a move from {from} to {to} was begun."), from)
        }
    };
    format!(
        "{now} With --yes:\n  \
         1. no data centre sells: processes of {from} refuse changes of stock within a second or two\n  \
         2. wait {} until all have stopped, also those that cannot read the setting, and what was in flight has ended\n  \
         3. data centre {to} sells\n\
         Repair the keyspaces first if nodes of {to} were down for longer than the hint window: it sells what its replicas know.\n\
         Nothing was changed.\n",
        seconds(wait)
    )
}

fn seconds(wait: Duration) -> String {
    format!("{} s", wait.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(75);

    fn setting(selling: Selling) -> SellingSetting {
        SellingSetting { generation: 4, selling }
    }

    fn moving() -> SellingSetting {
        setting(Selling::Moving { from: "dc1".to_owned(), to: "dc2".to_owned() })
    }

    #[test]
    fn the_status_says_which_data_centre_sells() {
        let of = |setting: &SellingSetting, every_dc_sells| {
            let report = Report::of(setting, every_dc_sells, "dc1", vec!["dc1", "dc2"]);
            (report.text(), serde_json::to_value(report).unwrap())
        };
        let (text, json) = of(&setting(Selling::In("dc1".to_owned())), false);
        assert_eq!(text, "Data centre dc1 sells.\nReplicas of the stock: dc1, dc2.\n");
        assert_eq!((&json["selling_dc"], &json["generation"]), (&"dc1".into(), &4.into()));
        let (text, json) = of(&moving(), false);
        assert!(text.starts_with("No data centre sells: selling moves to dc2. "), "{text}");
        assert_eq!((&json["selling_dc"], &json["moving_to"]), (&serde_json::Value::Null, &"dc2".into()));
        assert!(of(&moving(), true).0.starts_with("Every data centre sells"));
    }

    #[test]
    fn the_plan_says_what_a_move_would_do() {
        let text = plan(&setting(Selling::In("dc1".to_owned())), "dc2", false, WAIT);
        assert!(text.starts_with("Data centre dc1 sells. With --yes:\n"), "{text}");
        assert!(text.contains("2. wait 75 s until") && text.ends_with("Nothing was changed.\n"), "{text}");
        assert!(
            plan(&moving(), "dc1", false, WAIT)
                .starts_with("No data centre sells: a move from dc1 to dc2 was begun.")
        );
        assert!(plan(&setting(Selling::In("dc1".to_owned())), "dc1", false, WAIT).contains("nothing to do"));
        assert!(plan(&moving(), "dc2", true, WAIT).contains("no effect"));
    }
}
