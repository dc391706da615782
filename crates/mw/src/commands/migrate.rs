//! `mw migrate`: moves a shop from MongoDB to the embedded engine or to Cassandra while its programs write.
//!
//! While `run` is at it, the other commands ask that process: through a socket in a target directory, which one process opens, or
//! through the target itself where it is a cluster. Otherwise they open the store themselves (`target.rs`).

mod run;
mod show;
mod target;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use mw_migrate::control::{Request, Response};
use mw_migrate::{CutOver, Cutover, Phase, Settings, Source, clear_target, finish, status};
use target::{Reached, Target, ask_or_open, free_bytes};

use crate::config::{Config, ConfigArgs, Engine};
use crate::{runtime, terminal};

/// Move a shop from MongoDB to the embedded engine or to Cassandra while its programs write
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The source is a replica set or a sharded cluster with the collections products, orders and carts, in the shape of any program; the \
database is the path of its URI, or mobile_world. The target is the data directory (--data), or a cluster with the schema \
(--store cassandra). Commands other than plan and run reach the running migration through a socket in that directory, or from any \
machine through the cluster. docs/migration.md has the whole course.

Examples:
  mw migrate plan --from mongodb://db1,db2/shop?replicaSet=rs0
  mw migrate run --from mongodb://db1,db2/shop?replicaSet=rs0 --data /var/lib/mw
  mw migrate run --from mongodb://db1,db2/shop?replicaSet=rs0 --store cassandra --config mw.toml
  mw migrate status --data /var/lib/mw
  mw migrate rejected --data /var/lib/mw --json | jq '.items[] | select(.blocking)'
  mw migrate verify --data /var/lib/mw
  mw migrate cutover --data /var/lib/mw
  mw migrate finish --from mongodb://db1,db2/shop?replicaSet=rs0 --data /var/lib/mw")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Args)]
struct FromArgs {
    /// The MongoDB URI of the source; its path names the database, else `mobile_world`
    #[arg(long = "from", value_name = "URI")]
    uri: String,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read the source and say whether and how it can be migrated; exit code 1: not as it is
    Plan {
        #[command(flatten)]
        from: FromArgs,

        #[command(flatten)]
        common: Common,
    },
    /// Copy and follow the source until the cutover; run again after an interruption
    Run {
        #[command(flatten)]
        from: FromArgs,

        /// Copy at most so many documents a second
        #[arg(long, value_name = "N/s", value_parser = rate)]
        rate: Option<u32>,

        /// Open a new change stream and read every document again, after the history was lost (error 286)
        #[arg(long)]
        recopy: bool,

        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Print how far the migration is
    Status {
        #[command(flatten)]
        common: Common,
    },
    /// List the documents that could not be taken, with what to do about each
    Rejected {
        #[command(flatten)]
        common: Common,
    },
    /// Compare both sides document by document; exit code 1: they differ, with the list
    Verify {
        /// Read the documents that differ again, write them again and compare once more
        #[arg(long)]
        repair: bool,

        #[command(flatten)]
        common: Common,
    },
    /// Stop the writes at the source, take the last changes and hand over to the target
    Cutover {
        /// Beyond it everything goes back to following
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
        timeout: Duration,

        /// Do not block writes at the source: its programs are stopped already
        #[arg(long)]
        no_block: bool,

        /// Leave rejected documents behind
        #[arg(long)]
        accept_rejected: bool,

        #[command(flatten)]
        config: ConfigArgs,
    },
    /// After the cutover: let the source take writes again and remove the state of the migration
    Finish {
        #[command(flatten)]
        from: FromArgs,

        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Drop the migration and everything that it copied
    Abort {
        /// Really
        #[arg(long)]
        yes: bool,

        #[command(flatten)]
        config: ConfigArgs,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Plan { from, common } => plan(&load(&common.config)?, &from.uri, common.json),
        Command::Run { from, rate, recopy, config } => {
            let options = mw_migrate::RunOptions { rate: *rate, recopy: *recopy };
            run::run(&load(config)?, &from.uri, options)
        }
        Command::Status { common } => status_of(&load(&common.config)?, common.json),
        Command::Rejected { common } => rejected(&load(&common.config)?, common.json),
        Command::Verify { repair, common } => verify(&load(&common.config)?, *repair, common.json),
        Command::Cutover { timeout, no_block, accept_rejected, config } => {
            let cutover = Cutover { timeout: *timeout, block: !no_block, accept_rejected: *accept_rejected };
            cut_over(&load(config)?, cutover)
        }
        Command::Finish { from, config } => end(&load(config)?, &from.uri),
        Command::Abort { yes, config } => abort(&load(config)?, *yes),
    }
}

fn load(args: &ConfigArgs) -> Result<Config> {
    let config = Config::load(&args.sources())?.without_listener();
    terminal::log(&config.log);
    ensure!(
        config.engine != Engine::Mongodb,
        "the target of a migration is the embedded engine (--store embedded) or Cassandra (--store cassandra)"
    );
    Ok(config)
}

/// `500/s`, or `500`.
fn rate(text: &str) -> Result<u32> {
    let number = text.strip_suffix("/s").unwrap_or(text).parse().ok();
    number.filter(|rate| *rate > 0).context("expected a number of documents a second, such as 500/s")
}

fn duration(text: &str) -> Result<Duration> {
    super::bench::duration(text)
}

fn settings(config: &Config) -> Settings {
    Settings {
        statuses: config.migration.statuses.clone(),
        zones: config.migration.zones.clone(),
        cart_lifetime: config.shop.carts,
    }
}

async fn connect(config: &Config, uri: &str) -> Result<Source> {
    ensure!(
        uri.starts_with("mongodb://") || uri.starts_with("mongodb+srv://"),
        "--from: a source is the URI of a MongoDB replica set or of mongos: mongodb://…"
    );
    let options = mw_migrate::source_options(uri, &config.mongodb).await?;
    Ok(Source::connect(&options).await?)
}

fn plan(config: &Config, uri: &str, json: bool) -> Result<ExitCode> {
    let plan = runtime::single()?.block_on(async {
        let source = connect(config, uri).await?;
        let free = free_bytes(config);
        let plan = mw_migrate::plan::plan(&source, &settings(config), free).await;
        source.close().await;
        plan.context("plan the migration")
    })?;
    terminal::print(&if json { show::plan_json(&plan)? } else { show::plan_text(&plan) })?;
    Ok(if plan.is_possible() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn status_of(config: &Config, json: bool) -> Result<ExitCode> {
    let status = runtime::single()?.block_on(async {
        match ask_or_open(config, Request::Status).await? {
            Reached::Running(Response::Status(status)) => anyhow::Ok(status),
            Reached::Running(_) => bail!(OTHER_ANSWER),
            Reached::Stopped(target) => {
                let status = status::stopped(&*target.store).await;
                target.close().await;
                status?.context("the target holds no migration")
            }
        }
    })?;
    terminal::print(&if json { show::status_json(&status)? } else { show::status_text(&status) })?;
    Ok(ExitCode::SUCCESS)
}

fn rejected(config: &Config, json: bool) -> Result<ExitCode> {
    let rejected = runtime::single()?.block_on(async {
        match ask_or_open(config, Request::Rejected).await? {
            Reached::Running(Response::Rejected(rejected)) => anyhow::Ok(rejected),
            Reached::Running(_) => bail!(OTHER_ANSWER),
            Reached::Stopped(target) => {
                let rejected = status::rejected(&*target.store).await;
                target.close().await;
                Ok(rejected?)
            }
        }
    })?;
    terminal::print(&if json { show::rejected_json(&rejected)? } else { show::rejected_text(&rejected) })?;
    Ok(ExitCode::SUCCESS)
}

const OTHER_ANSWER: &str = "the running migration gave another answer";
const NOT_RUNNING: &str = "no process runs the migration: start `mw migrate run` and repeat the command";

/// Asks the running migration, which must be there.
fn ask_running(config: &Config, request: Request) -> Result<Response> {
    runtime::single()?.block_on(async {
        match ask_or_open(config, request).await? {
            Reached::Running(answer) => Ok(answer),
            Reached::Stopped(target) => {
                target.close().await;
                bail!(NOT_RUNNING)
            }
        }
    })
}

fn verify(config: &Config, repair: bool, json: bool) -> Result<ExitCode> {
    let Response::Verified(verified) = ask_running(config, Request::Verify { repair })? else {
        bail!(OTHER_ANSWER)
    };
    terminal::print(&if json { show::verified_json(&verified)? } else { show::verified_text(&verified) })?;
    Ok(if verified.is_equal() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cut_over(config: &Config, cutover: Cutover) -> Result<ExitCode> {
    let Response::CutOver(done) = ask_running(config, Request::CutOver(cutover))? else {
        bail!(OTHER_ANSWER)
    };
    terminal::print(&show::cutover_text(&done, cutover))?;
    Ok(if matches!(done, CutOver::Done { .. }) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn end(config: &Config, uri: &str) -> Result<ExitCode> {
    runtime::single()?.block_on(async {
        let Reached::Stopped(target) = ask_or_open(config, Request::Status).await? else {
            bail!("finish: the migration is running; cut over first")
        };
        let source = connect(config, uri).await?;
        let finished = finish(&source, &*target.store).await;
        source.close().await;
        target.close().await;
        finished.context("finish the migration")
    })?;
    terminal::print(
        "the migration is finished: the source takes writes again, and the target has no state of the migration left\n",
    )?;
    Ok(ExitCode::SUCCESS)
}

fn abort(config: &Config, yes: bool) -> Result<ExitCode> {
    if !yes {
        terminal::print(
            "With --yes: drop the migration and everything that it copied to the target. Nothing was changed.\n",
        )?;
        return Ok(ExitCode::FAILURE);
    }
    runtime::single()?.block_on(async {
        if let Reached::Stopped(target) = ask_or_open(config, Request::Abort).await? {
            let aborted = abort_stopped(&target).await;
            target.close().await;
            aborted?;
        }
        anyhow::Ok(())
    })?;
    terminal::print("the migration is aborted, and what it copied is dropped\n")?;
    Ok(ExitCode::SUCCESS)
}

async fn abort_stopped(target: &Target) -> Result<()> {
    let phase = status::stopped(&*target.store).await?.map(|status| status.phase);
    ensure!(
        phase != Some(Phase::Done),
        "abort: the cutover is done and the target is the shop; `mw migrate finish` ends the migration"
    );
    ensure!(
        phase != Some(Phase::Cutover),
        "abort: a cutover was interrupted and writes at the source may be blocked: start `mw migrate run`, which lets them go on, \
         and repeat the command"
    );
    Ok(clear_target(&*target.store).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_of_documents_a_second() {
        assert_eq!(rate("500/s").unwrap(), 500);
        assert_eq!(rate("7").unwrap(), 7);
        for text in ["", "0", "0/s", "fast", "5/m"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
