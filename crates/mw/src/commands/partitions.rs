//! `mw partitions`: how finely the partitions of a cluster are cut, and from when.

use anyhow::{Context, Result, anyhow, ensure};
use clap::Subcommand;
use mw_domain::Timestamp;
use mw_domain::bucket::Plan;
use mw_shop::{Clock, SystemClock};
use mw_store_cassandra::{CassandraStore, KeyPlan, PLANNED, Table};
use serde::Serialize;

use crate::config::{Config, ConfigArgs, Engine};
use crate::runtime;
use crate::storage::Storage;
use crate::terminal::{self, columns};

const NO_PARTITIONS: &str = "the embedded engine has no partitions, so there is nothing to plan: name a cluster with --store cassandra";

/// Look after the partitions of a cluster
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Rows that grow without end are cut into partitions: a customer's orders by month, a day's orders by shard, a category by \
price band. A plan cuts those of one key finer, from an instant on; what was written before stays where it is, and lists \
are read across both.

Examples:
  mw partitions plans --store cassandra
  mw partitions plan set orders_by_customer wholesaler-7 --cut 8 --from 2027-01-01 --store cassandra")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the plans: the usual ones, and those that were made for a key
    #[command(after_help = "\
Examples:
  mw partitions plans --store cassandra
  mw partitions plans --table orders_by_customer --json | jq '.made[] | select(.state == \"coming\")'")]
    Plans(Plans),

    /// Make a plan
    Plan {
        #[command(subcommand)]
        command: PlanCommand,
    },
}

#[derive(Debug, clap::Args)]
struct Plans {
    /// Only of this table
    #[arg(long, value_name = "TABLE", value_parser = planned_table)]
    table: Option<Table>,

    /// Only those made for this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Print them as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// Cut the partitions of one key finer or coarser, from an instant in the future
    #[command(after_help = "\
A plan starts a minute from now or later: every process reads the plans again each ten seconds, and all must know it before \
it counts. Until then the same command with another --cut replaces it; once it has started, a later plan follows it.

Examples:
  mw partitions plan set orders_by_customer wholesaler-7 --cut 8 --from 2027-01-01 --store cassandra
  mw partitions plan set orders_by_zone_day moscow --cut 16 --from 2026-11-27T00:00:00+03:00 --store cassandra
  mw partitions plan set orders_by_day --cut 16 --from 2026-11-27 --store cassandra")]
    Set(Set),
}

#[derive(Debug, clap::Args)]
struct Set {
    /// The table to cut; `mw partitions plans` lists those that can be
    #[arg(value_name = "TABLE", value_parser = planned_table)]
    table: Table,

    /// Whose partitions: a user id, a zone, a category; nothing for `orders_by_day`, which is the whole shop's
    #[arg(value_name = "KEY", default_value = "", hide_default_value = true)]
    key: String,

    /// Pieces: of a month, a day, or a price band
    #[arg(long, value_name = "PIECES")]
    cut: u32,

    /// When it starts: RFC 3339, or a date as its midnight in UTC
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    from: Timestamp,

    /// Print the plan as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

fn planned_table(text: &str) -> Result<Table, String> {
    let found = PLANNED.iter().find(|planned| planned.table.name() == text);
    found.map(|planned| planned.table).ok_or_else(|| {
        let names = PLANNED.map(|planned| planned.table.name());
        format!("the tables that plans cut are {}", names.join(", "))
    })
}

fn instant(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).map_err(|_| "a time is like 2027-01-01T09:00:00+03:00, or 2027-01-01".to_owned())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Plans(args) => show(args),
        Command::Plan { command: PlanCommand::Set(args) } => set(args),
    }
}

fn show(args: &Plans) -> Result<()> {
    let plans = on_cluster(&args.config, async |store| store.key_plans().await.context("read the plans"))?;
    let is_asked = |plan: &KeyPlan| {
        args.table.is_none_or(|table| table == plan.table)
            && args.key.as_ref().is_none_or(|key| *key == plan.key)
    };
    let now = SystemClock.now();
    let made: Vec<MadeRow> =
        plans.iter().filter(|plan| is_asked(plan)).map(|plan| made_row(plan, &plans, now)).collect();
    let usual = PLANNED.iter().filter(|planned| args.table.is_none_or(|table| table == planned.table));
    let usual = usual.map(|planned| UsualRow {
        table: planned.table.name(),
        cut: planned.usual_cut,
        cut_max: planned.cut_max,
        what: planned.what,
    });
    print(&Printed { usual: usual.collect(), made }, args.json, Printed::text)
}

fn set(args: &Set) -> Result<()> {
    let plan = Plan { starts_at: args.from, cut: args.cut };
    let made = KeyPlan { table: args.table, key: args.key.clone(), plan };
    let now = SystemClock.now();
    on_cluster(&args.config, async |store| {
        store.set_plan(args.table, &args.key, plan, now).await.context("set the plan")
    })?;
    let row = made_row(&made, std::slice::from_ref(&made), now);
    print(&row, args.json, |row| {
        let of = if row.key.is_empty() { String::new() } else { format!(" of {}", row.key) };
        format!("{}{of} is cut into {} from {} on\n", row.table, row.cut, row.from)
    })
}

/// Opens the cluster for one question.
fn on_cluster<T>(args: &ConfigArgs, ask: impl AsyncFnOnce(&CassandraStore) -> Result<T>) -> Result<T> {
    let config = Config::load(&args.sources())?;
    // Before anything is opened: the embedded engine would make a directory.
    ensure!(config.engine == Engine::Cassandra, NO_PARTITIONS);
    terminal::log(&config.log);
    runtime::single()?.block_on(async {
        let storage = Storage::open(&config).await?;
        let answer = match &storage {
            Storage::Cassandra { store, .. } => ask(store).await,
            Storage::Embedded { .. } => Err(anyhow!(NO_PARTITIONS)),
        };
        storage.close().await;
        answer
    })
}

fn print<T: Serialize>(answer: &T, json: bool, text: impl FnOnce(&T) -> String) -> Result<()> {
    if json {
        let json = serde_json::to_string_pretty(answer).context("write the answer as JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&text(answer))
}

#[derive(Debug, Serialize)]
struct Printed {
    /// Where no plan was made for a key.
    usual: Vec<UsualRow>,
    made: Vec<MadeRow>,
}

#[derive(Debug, Serialize)]
struct UsualRow {
    table: &'static str,
    cut: u32,
    cut_max: u32,
    what: &'static str,
}

#[derive(Debug, Serialize)]
struct MadeRow {
    table: &'static str,
    key: String,
    from: String,
    cut: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// A later plan has started.
    Past,
    Current,
    Coming,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Past => "past",
            Self::Current => "current",
            Self::Coming => "coming",
        }
    }
}

/// `all` has every plan of the same key.
fn made_row(made: &KeyPlan, all: &[KeyPlan], now: Timestamp) -> MadeRow {
    let starts_at = made.plan.starts_at;
    let is_over = all.iter().any(|other| {
        let follows = other.plan.starts_at > starts_at && other.plan.starts_at <= now;
        (other.table, &other.key) == (made.table, &made.key) && follows
    });
    let state = match starts_at > now {
        true => State::Coming,
        false if is_over => State::Past,
        false => State::Current,
    };
    let (table, from) = (made.table.name(), starts_at.to_string());
    MadeRow { table, key: made.key.clone(), from, cut: made.plan.cut, state }
}

impl Printed {
    fn text(&self) -> String {
        let mut usual = vec![["table", "cut", "at most", "of what"].map(str::to_owned).to_vec()];
        usual.extend(self.usual.iter().map(|row| {
            vec![row.table.to_owned(), row.cut.to_string(), row.cut_max.to_string(), row.what.to_owned()]
        }));
        let mut made = vec![["table", "key", "from", "cut", "state"].map(str::to_owned).to_vec()];
        made.extend(self.made.iter().map(|row| {
            let state = row.state.name().to_owned();
            vec![row.table.to_owned(), row.key.clone(), row.from.clone(), row.cut.to_string(), state]
        }));
        let made = if self.made.is_empty() { "No plan was made for a key.\n" } else { &columns(&made) };
        format!("Where no plan was made for a key.\n\n{}\n{}", columns(&usual), made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    fn plan(key: &str, in_seconds: i64, cut: u32) -> KeyPlan {
        let plan = Plan { starts_at: NOW.plus_seconds(in_seconds), cut };
        KeyPlan { table: Table::OrdersByCustomer, key: key.to_owned(), plan }
    }

    #[test]
    fn of_the_plans_of_a_key_the_last_that_started_is_current() {
        let plans = [plan("u-1", -200, 2), plan("u-1", -100, 4), plan("u-1", 100, 8), plan("u-2", -300, 3)];
        let states: Vec<State> = plans.iter().map(|plan| made_row(plan, &plans, NOW).state).collect();
        assert_eq!(states, [State::Past, State::Current, State::Coming, State::Current]);
    }

    #[test]
    fn a_list_says_what_is_cut_and_for_whom() {
        let usual = PLANNED.iter().map(|planned| UsualRow {
            table: planned.table.name(),
            cut: planned.usual_cut,
            cut_max: planned.cut_max,
            what: planned.what,
        });
        let none = Printed { usual: usual.collect(), made: Vec::new() };
        let text = none.text();
        assert!(
            text.contains("\norders_by_zone_day    4    64       a day of a zone; the key is a zone\n"),
            "{text}"
        );
        assert!(text.ends_with("\n\nNo plan was made for a key.\n"), "{text}");
        let made = [plan("u-1", 100, 8)];
        let rows = made.iter().map(|plan| made_row(plan, &made, NOW)).collect();
        let text = Printed { made: rows, ..none }.text();
        assert!(text.ends_with("orders_by_customer  u-1  2026-09-21T14:15:00.000Z  8    coming\n"), "{text}");
    }

    #[test]
    fn tables_and_times_are_told_when_they_are_wrong() {
        assert_eq!(planned_table("orders_by_day"), Ok(Table::OrdersByDay));
        let said = planned_table("stock").unwrap_err();
        assert!(said.starts_with("the tables that plans cut are orders_by_customer, "), "{said}");
        assert!(instant("tomorrow").is_err());
        assert_eq!(instant("2027-01-01").unwrap().to_string(), "2027-01-01T00:00:00.000Z");
    }
}
