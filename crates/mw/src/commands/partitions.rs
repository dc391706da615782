//! `mw partitions`: hot and wide partitions, and bucket plans: into how many buckets the partitions of a key are divided, from when.

use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use mw_domain::Timestamp;
use mw_http::{ChangedPlanView, PartitionListView, PlanListView, PlanView};
use mw_shop::operations::{Operations, PlanChange, RankBy, Run};
use mw_store::audit::Operator;
use mw_store::partitions::BucketPlan;
use mw_store_cassandra::BUCKETED;
use serde_json::{Value, json};

use crate::config::{Config, ConfigArgs, Engine};
use crate::replies::{self, print, query};
use crate::shop_client::RemoteArgs;
use crate::storage::Storage;
use crate::terminal::{self, columns};
use crate::{operations, runtime};

const NO_PARTITIONS: &str = "this engine has no partitions to plan: name a cluster with --store cassandra";
const NO_STATISTICS: &str = "this engine keeps its statistics in the serving process: name it with --url, such as \
     --url http://127.0.0.1:8080";
/// The name of changes that were made with the command itself, in the audit log.
const OPERATOR: &str = "mw partitions";

/// Show hot and wide partitions; show, set and end the bucket plans of a cluster's partitions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Lists that grow without bound are divided into buckets, each a partition: a user's orders by month, a day's orders by \
shard, a category by price band. A plan changes the number of buckets of one key from an instant on. Rows that were written \
before stay in their buckets, and lists are read across both. Plans are also made and ended by the serving processes \
(operate.partitions.adapt).

Examples:
  mw partitions top --url http://127.0.0.1:8080
  mw partitions plans --store cassandra
  mw partitions plan set orders_by_customer wholesaler-7 --buckets 8 --from 2027-01-01 --yes --store cassandra")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the noteworthy partitions of the last window, the heaviest first
    #[command(after_help = "\
Rates are lower bounds, merged over all processes. A partition is hot over 1 % of its table's traffic and over 200 accesses a \
second in two windows in a row, and wide over a tenth of operate.partitions.wide.

Examples:
  mw partitions top --store cassandra
  mw partitions top --url http://127.0.0.1:8080 --by bytes
  mw partitions top --json | jq '.items[] | select(.verdict != \"ok\")'")]
    Top(Top),

    /// Print the plans that were made for a key, and the default number of buckets of each table
    #[command(after_help = "\
Examples:
  mw partitions plans --store cassandra
  mw partitions plans --table orders_by_customer --json | jq '.items[] | select(.state == \"coming\")'")]
    Plans(Plans),

    /// Set or end a plan
    Plan {
        #[command(subcommand)]
        command: PlanCommand,
    },
}

#[derive(Debug, clap::Args)]
struct Top {
    /// Only partitions of this table
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,

    /// The order of the list
    #[arg(long, value_name = "WHAT", default_value = "rate", value_parser = ["rate", "bytes"])]
    by: String,

    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct Plans {
    /// Only plans of this table
    #[arg(long, value_name = "TABLE", value_parser = planned_table)]
    table: Option<String>,

    /// Only plans of this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    #[command(flatten)]
    target: Target,
}

/// Which shop, and how to print.
#[derive(Debug, clap::Args)]
struct Target {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    remote: RemoteArgs,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// Divide the partitions of one key into more or fewer buckets, from an instant in the future; without --yes print what
    /// would be done
    #[command(after_help = "\
A plan starts a minute from now or later: every process reads the plans every ten seconds, and all must have read it before \
it starts. Until then the same command with another --buckets replaces it; once it has started, a later plan follows it.

Examples:
  mw partitions plan set orders_by_customer wholesaler-7 --buckets 8 --from 2027-01-01 --yes --store cassandra
  mw partitions plan set orders_by_day --buckets 16 --from 2026-11-27T00:00:00+03:00 --store cassandra")]
    Set(Set),

    /// Let the default number of buckets of the table apply to a key again; without --yes print what would be done
    #[command(after_help = "\
Examples:
  mw partitions plan end orders_by_customer wholesaler-7 --yes --store cassandra")]
    End(End),
}

/// The plan that is changed.
#[derive(Debug, clap::Args)]
struct Planned {
    /// The table; `mw partitions plans` lists the tables with plans
    #[arg(value_name = "TABLE", value_parser = planned_table)]
    table: String,

    /// The key: a user id, a zone or a category; none for `orders_by_day`, which has one list for the whole shop
    #[arg(value_name = "KEY", default_value = "", hide_default_value = true)]
    key: String,

    /// When it starts: RFC 3339, or a date as its midnight in UTC [default: as soon as every process knows it]
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    from: Option<Timestamp>,

    /// Execute it
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct Set {
    #[command(flatten)]
    planned: Planned,

    /// Number of buckets of a month, a day or a price band
    #[arg(long, value_name = "COUNT")]
    buckets: u32,

    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct End {
    #[command(flatten)]
    planned: Planned,

    #[command(flatten)]
    target: Target,
}

fn planned_table(text: &str) -> Result<String, String> {
    if BUCKETED.iter().any(|bucketed| bucketed.table == text) {
        return Ok(text.to_owned());
    }
    Err(format!("the tables with bucket plans are {}", BUCKETED.map(|bucketed| bucketed.table).join(", ")))
}

fn instant(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).map_err(|_| {
        "expected a time such as 2027-01-01T09:00:00+03:00, or a date such as 2027-01-01".to_owned()
    })
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Top(args) => top(args),
        Command::Plans(args) => plans(args),
        Command::Plan { command: PlanCommand::Set(args) } => {
            change(&args.planned, Some(args.buckets), &args.target)
        }
        Command::Plan { command: PlanCommand::End(args) } => change(&args.planned, None, &args.target),
    }
}

fn top(args: &Top) -> Result<()> {
    if let Some(shop) = args.target.remote.client()? {
        let parameters = [("by", Some(args.by.as_str())), ("table", args.table.as_deref())];
        let path = format!("/v1/operations/partitions{}", query(&parameters));
        let list = runtime::single()?.block_on(shop.get_json(&path))?;
        return print(&list, args.target.json, |list| replies::table(list, &TOP_COLUMNS, NONE_NOTEWORTHY));
    }
    let by = if args.by == "bytes" { RankBy::Bytes } else { RankBy::Rate };
    let list = on_cluster(&args.target.config, NO_STATISTICS, async |operations| {
        let partitions = operations.top_partitions(args.table.as_deref(), by).await;
        Ok(PartitionListView::new(partitions.context("read the partition statistics")?, operations.now()))
    })?;
    print(&list, args.target.json, |list| {
        let cells = list.cells();
        if cells.len() == 1 { format!("{NONE_NOTEWORTHY}\n") } else { columns(&cells) }
    })
}

fn plans(args: &Plans) -> Result<()> {
    let selected = (args.table.as_deref(), args.key.as_deref());
    if let Some(shop) = args.target.remote.client()? {
        let path = format!(
            "/v1/operations/partitions/plans{}",
            query(&[("table", selected.0), ("key", selected.1)])
        );
        let list = runtime::single()?.block_on(shop.get_json(&path))?;
        return print(&list, args.target.json, |list| replies::table(list, &PLAN_COLUMNS, NO_PLAN));
    }
    let list = on_cluster(&args.target.config, NO_PARTITIONS, async |operations| {
        let plans = operations.bucket_plans().await.context("read the plans")?;
        Ok(PlanListView::new(&plans, operations.bucketed_tables(), selected, operations.now()))
    })?;
    print(&list, args.target.json, |list| {
        let plans = list.plan_cells();
        let plans = if plans.is_empty() { format!("{NO_PLAN}\n") } else { columns(&plans) };
        format!("Buckets of keys without a plan.\n\n{}\n{}", columns(&list.default_cells()), plans)
    })
}

fn change(planned: &Planned, buckets: Option<u32>, target: &Target) -> Result<()> {
    let Planned { table, key, from, yes } = planned;
    let what = if buckets.is_some() { "set the plan" } else { "end the plan" };
    if let Some(shop) = target.remote.client()? {
        let mut body = json!({"table": table, "key": key, "confirm": yes});
        let mut path = "/v1/operations/partitions/plans/end";
        if let Some(members) = body.as_object_mut() {
            members.extend(from.map(|from| ("from".to_owned(), Value::from(from.to_string()))));
            if let Some(buckets) = buckets {
                members.insert("buckets".to_owned(), Value::from(buckets));
                path = "/v1/operations/partitions/plans";
            }
        }
        let made = runtime::single()?.block_on(shop.post_json(path, &body))?;
        return print(&made, target.json, |made| {
            let note = if *yes { "" } else { DRY };
            format!("{}{note}", replies::table(made, &PLAN_COLUMNS, NO_PLAN))
        });
    }
    let change = PlanChange { table: table.clone(), key: key.clone(), buckets, from: *from };
    let run = if *yes { Run::Confirmed } else { Run::Dry };
    let (plan, view) = on_cluster(&target.config, NO_PARTITIONS, async |operations| {
        let operator = Operator { token: OPERATOR.to_owned(), address: "local".to_owned() };
        let plan = operations.change_plan(change, run, operator).await.context(what)?;
        let view = PlanView::new(&plan, std::slice::from_ref(&plan), operations.now());
        Ok((plan, ChangedPlanView { done: *yes, plan: view }))
    })?;
    print(&view, target.json, |_| sentence(&plan, *yes))
}

fn sentence(plan: &BucketPlan, done: bool) -> String {
    let of = if plan.key.is_empty() { String::new() } else { format!(" of {}", plan.key) };
    let buckets = if plan.buckets == 1 { "bucket" } else { "buckets" };
    let (is, note) = if done { ("is", "") } else { ("would be", DRY) };
    format!("{}{of} {is} divided into {} {buckets} from {} on\n{note}", plan.table, plan.buckets, plan.from)
}

/// Opens the store for one operation.
fn on_cluster<T>(
    args: &ConfigArgs,
    otherwise: &'static str,
    operation: impl AsyncFnOnce(&Operations) -> Result<T>,
) -> Result<T> {
    let config = Config::load(&args.sources())?.without_listener();
    // Before anything is opened: the embedded engine would make a directory.
    ensure!(config.engine == Engine::Cassandra, otherwise);
    terminal::log(&config.log);
    runtime::single()?.block_on(async {
        let storage = Storage::open(&config).await?;
        let result = operation(&operations::of(&storage, &config.operate)).await;
        storage.close().await;
        result
    })
}

/// The members of a service's reply that are printed for people.
const TOP_COLUMNS: [&str; 10] =
    ["table", "key", "bucket", "reads_per_s", "writes_per_s", "rows", "bytes", "share", "verdict", "plan"];
const NONE_NOTEWORTHY: &str = "No partition is noteworthy.";
const NO_PLAN: &str = "No key has a plan.";
const DRY: &str = "Nothing was changed: add --yes to execute it.\n";
const PLAN_COLUMNS: [&str; 6] = ["table", "key", "buckets", "from", "made_by", "state"];

#[cfg(test)]
mod tests {
    use super::*;
    use mw_store::partitions::MadeBy;

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    fn plan(key: &str, in_seconds: i64, buckets: u32) -> BucketPlan {
        let from = NOW.plus_seconds(in_seconds);
        let table = "orders_by_customer".to_owned();
        BucketPlan { table, key: key.to_owned(), buckets, from, made_by: MadeBy::Operator }
    }

    #[test]
    fn the_last_started_plan_of_a_key_is_current() {
        let plans = [plan("u-1", -200, 2), plan("u-1", -100, 4), plan("u-1", 100, 8), plan("u-2", -300, 3)];
        let list = PlanListView::new(&plans, &BUCKETED, (None, None), NOW);
        let states: Vec<String> = list.plan_cells().iter().skip(1).map(|row| row[5].clone()).collect();
        assert_eq!(states, ["past", "current", "coming", "current"]);
    }

    #[test]
    fn a_dry_run_says_that_nothing_was_changed() {
        let made = sentence(&plan("u-1", 100, 8), true);
        assert_eq!(
            made,
            "orders_by_customer of u-1 is divided into 8 buckets from 2026-09-21T14:15:00.000Z on\n"
        );
        let dry = sentence(&plan("", 100, 1), false);
        assert!(dry.starts_with("orders_by_customer would be divided into 1 bucket from"), "{dry}");
        assert!(dry.ends_with("Nothing was changed: add --yes to execute it.\n"), "{dry}");
    }

    #[test]
    fn a_wrong_table_or_time_is_refused() {
        assert_eq!(planned_table("orders_by_day"), Ok("orders_by_day".to_owned()));
        let error = planned_table("stock").unwrap_err();
        assert!(error.starts_with("the tables with bucket plans are orders_by_customer, "), "{error}");
        assert!(instant("tomorrow").is_err());
        assert_eq!(instant("2027-01-01").unwrap().to_string(), "2027-01-01T00:00:00.000Z");
    }
}
