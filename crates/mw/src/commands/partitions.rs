//! `mw partitions`: bucket plans, that is how many buckets the partitions of a key are divided into, and from when.

use anyhow::{Context, Result, anyhow, ensure};
use clap::Subcommand;
use mw_domain::Timestamp;
use mw_domain::buckets::Plan;
use mw_shop::{Clock, SystemClock};
use mw_store_cassandra::{CassandraStore, KeyPlan, PLANNED, Table};
use serde::Serialize;

use crate::config::{Config, ConfigArgs, Engine};
use crate::runtime;
use crate::storage::Storage;
use crate::terminal::{self, columns};

const NO_PARTITIONS: &str =
    "the embedded engine has no partitions to plan: name a cluster with --store cassandra";

/// Show and set the bucket plans of a cluster's partitions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Lists that grow without bound are divided into buckets, each a partition: a user's orders by month, a day's orders by \
shard, a category by price band. A plan changes the number of buckets of one key from an instant on. Rows that were written \
before stay in their buckets, and lists are read across both.

Examples:
  mw partitions plans --store cassandra
  mw partitions plan set orders_by_customer wholesaler-7 --buckets 8 --from 2027-01-01 --store cassandra")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the plans that were made for a key, and the default number of buckets of each table
    #[command(after_help = "\
Examples:
  mw partitions plans --store cassandra
  mw partitions plans --table orders_by_customer --json | jq '.items[] | select(.state == \"coming\")'")]
    Plans(Plans),

    /// Set a plan
    Plan {
        #[command(subcommand)]
        command: PlanCommand,
    },
}

#[derive(Debug, clap::Args)]
struct Plans {
    /// Only plans of this table
    #[arg(long, value_name = "TABLE", value_parser = planned_table)]
    table: Option<Table>,

    /// Only plans of this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// Divide the partitions of one key into more or fewer buckets, from an instant in the future
    #[command(after_help = "\
A plan starts a minute from now or later: every process reads the plans every ten seconds, and all must have read it before \
it starts. Until then the same command with another --buckets replaces it; once it has started, a later plan follows it.

Examples:
  mw partitions plan set orders_by_customer wholesaler-7 --buckets 8 --from 2027-01-01 --store cassandra
  mw partitions plan set orders_by_day --buckets 16 --from 2026-11-27T00:00:00+03:00 --store cassandra")]
    Set(Set),
}

#[derive(Debug, clap::Args)]
struct Set {
    /// The table; `mw partitions plans` lists the tables with plans
    #[arg(value_name = "TABLE", value_parser = planned_table)]
    table: Table,

    /// The key: a user id, a zone or a category; none for `orders_by_day`, which has one list for the whole shop
    #[arg(value_name = "KEY", default_value = "", hide_default_value = true)]
    key: String,

    /// Number of buckets of a month, a day or a price band
    #[arg(long, value_name = "COUNT")]
    buckets: u32,

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
        format!("the tables with bucket plans are {}", names.join(", "))
    })
}

fn instant(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).map_err(|_| {
        "expected a time such as 2027-01-01T09:00:00+03:00, or a date such as 2027-01-01".to_owned()
    })
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Plans(args) => show(args),
        Command::Plan { command: PlanCommand::Set(args) } => set(args),
    }
}

fn show(args: &Plans) -> Result<()> {
    let plans = on_cluster(&args.config, async |store| store.key_plans().await.context("read the plans"))?;
    let is_selected = |plan: &KeyPlan| {
        args.table.is_none_or(|table| table == plan.table)
            && args.key.as_ref().is_none_or(|key| *key == plan.key)
    };
    let now = SystemClock.now();
    let items: Vec<PlanRow> =
        plans.iter().filter(|plan| is_selected(plan)).map(|plan| plan_row(plan, &plans, now)).collect();
    let defaults = PLANNED.iter().filter(|planned| args.table.is_none_or(|table| table == planned.table));
    let defaults = defaults.map(|planned| DefaultRow {
        table: planned.table.name(),
        buckets: planned.default_buckets,
        buckets_max: planned.buckets_max,
        divides: planned.what,
    });
    print(&PlanList { items, defaults: defaults.collect() }, args.json, PlanList::text)
}

fn set(args: &Set) -> Result<()> {
    let plan = Plan { starts_at: args.from, buckets: args.buckets };
    let made = KeyPlan { table: args.table, key: args.key.clone(), plan };
    let now = SystemClock.now();
    on_cluster(&args.config, async |store| {
        store.set_plan(args.table, &args.key, plan, now).await.context("set the plan")
    })?;
    let row = plan_row(&made, std::slice::from_ref(&made), now);
    print(&row, args.json, |row| {
        let of = if row.key.is_empty() { String::new() } else { format!(" of {}", row.key) };
        let buckets = if row.buckets == 1 { "bucket" } else { "buckets" };
        format!("{}{of} is divided into {} {buckets} from {} on\n", row.table, row.buckets, row.from)
    })
}

/// Opens the store for one operation.
fn on_cluster<T>(args: &ConfigArgs, operation: impl AsyncFnOnce(&CassandraStore) -> Result<T>) -> Result<T> {
    let config = Config::load(&args.sources())?.without_listener();
    // Before anything is opened: the embedded engine would make a directory.
    ensure!(config.engine == Engine::Cassandra, NO_PARTITIONS);
    terminal::log(&config.log);
    runtime::single()?.block_on(async {
        let storage = Storage::open(&config).await?;
        let result = match &storage {
            Storage::Cassandra { store, .. } => operation(store).await,
            Storage::Embedded { .. } => Err(anyhow!(NO_PARTITIONS)),
        };
        storage.close().await;
        result
    })
}

fn print<T: Serialize>(result: &T, json: bool, text: impl FnOnce(&T) -> String) -> Result<()> {
    if json {
        let json = serde_json::to_string_pretty(result).context("write the plans as JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&text(result))
}

#[derive(Debug, Serialize)]
struct PlanList {
    items: Vec<PlanRow>,
    /// For keys without a plan.
    defaults: Vec<DefaultRow>,
}

#[derive(Debug, Serialize)]
struct DefaultRow {
    table: &'static str,
    buckets: u32,
    buckets_max: u32,
    /// What is divided, and what the key is.
    divides: &'static str,
}

#[derive(Debug, Serialize)]
struct PlanRow {
    table: &'static str,
    key: String,
    buckets: u32,
    from: String,
    /// Plans are made by operators only.
    made_by: &'static str,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// A later plan of the key has started.
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
fn plan_row(made: &KeyPlan, all: &[KeyPlan], now: Timestamp) -> PlanRow {
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
    PlanRow {
        table: made.table.name(),
        key: made.key.clone(),
        buckets: made.plan.buckets,
        from: starts_at.to_string(),
        made_by: "operator",
        state,
    }
}

impl PlanList {
    fn text(&self) -> String {
        let mut defaults = vec![["table", "buckets", "at most", "divides"].map(str::to_owned).to_vec()];
        defaults.extend(self.defaults.iter().map(|row| {
            vec![
                row.table.to_owned(),
                row.buckets.to_string(),
                row.buckets_max.to_string(),
                row.divides.to_owned(),
            ]
        }));
        let heads = ["table", "key", "buckets", "from", "made by", "state"];
        let mut plans = vec![heads.map(str::to_owned).to_vec()];
        plans.extend(self.items.iter().map(|row| {
            let (made_by, state) = (row.made_by.to_owned(), row.state.name().to_owned());
            let (buckets, from) = (row.buckets.to_string(), row.from.clone());
            vec![row.table.to_owned(), row.key.clone(), buckets, from, made_by, state]
        }));
        let plans = if self.items.is_empty() { "No key has a plan.\n" } else { &columns(&plans) };
        format!("Buckets of keys without a plan.\n\n{}\n{}", columns(&defaults), plans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    fn plan(key: &str, in_seconds: i64, buckets: u32) -> KeyPlan {
        let plan = Plan { starts_at: NOW.plus_seconds(in_seconds), buckets };
        KeyPlan { table: Table::OrdersByCustomer, key: key.to_owned(), plan }
    }

    #[test]
    fn the_last_started_plan_of_a_key_is_current() {
        let plans = [plan("u-1", -200, 2), plan("u-1", -100, 4), plan("u-1", 100, 8), plan("u-2", -300, 3)];
        let states: Vec<State> = plans.iter().map(|plan| plan_row(plan, &plans, NOW).state).collect();
        assert_eq!(states, [State::Past, State::Current, State::Coming, State::Current]);
    }

    #[test]
    fn the_list_has_the_defaults_and_the_plans_of_keys() {
        let defaults = PLANNED.iter().map(|planned| DefaultRow {
            table: planned.table.name(),
            buckets: planned.default_buckets,
            buckets_max: planned.buckets_max,
            divides: planned.what,
        });
        let none = PlanList { items: Vec::new(), defaults: defaults.collect() };
        let text = none.text();
        assert!(
            text.contains("\norders_by_day         6144     46080    a day of the shop and of its zones; there is no key\n"),
            "{text}"
        );
        assert!(text.ends_with("\n\nNo key has a plan.\n"), "{text}");
        let made = [plan("u-1", 100, 8)];
        let items = made.iter().map(|plan| plan_row(plan, &made, NOW)).collect();
        let text = PlanList { items, ..none }.text();
        assert!(
            text.ends_with("orders_by_customer  u-1  8        2026-09-21T14:15:00.000Z  operator  coming\n"),
            "{text}"
        );
    }

    #[test]
    fn a_wrong_table_or_time_is_refused() {
        assert_eq!(planned_table("orders_by_day"), Ok(Table::OrdersByDay));
        let error = planned_table("stock").unwrap_err();
        assert!(error.starts_with("the tables with bucket plans are orders_by_customer, "), "{error}");
        assert!(instant("tomorrow").is_err());
        assert_eq!(instant("2027-01-01").unwrap().to_string(), "2027-01-01T00:00:00.000Z");
    }
}
