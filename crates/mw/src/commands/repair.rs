//! `mw repair`: deadlines of the tables, running and pausing repair, blackout windows.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use mw_http::{RepairListView, WindowListView};
use mw_shop::operations::{Operations, Run};
use mw_shop::{Clock, SystemClock};
use mw_store::audit::Operator;
use mw_store::cluster::BlackoutWindow;
use serde_json::{Value, json};

use crate::config::{Config, ConfigArgs, Engine};
use crate::shop_client::{RemoteArgs, ShopClient};
use crate::storage::Storage;
use crate::terminal::{self, columns};
use crate::{operations, replies, runtime};

/// The name of changes that were made with the command itself, in the audit log.
const OPERATOR: &str = "mw repair";
const PATH: &str = "/v1/operations/repair";
/// Between two looks at a repair that a running shop was asked for.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Show the repair deadlines of a cluster's tables; run, pause and resume repair
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A table must be repaired as a whole within gc_grace of its last whole repair, or deleted rows may come back. Cassandra's own \
auto-repair does the work; it is watched and steered by the serving processes through the JMX agents of the nodes \
(operate.jolokia). A run counts only if no range of it failed or was skipped.

Examples:
  mw repair status --store cassandra
  mw repair status --url http://127.0.0.1:8080
  mw repair run stock --yes --store cassandra
  mw repair pause --yes --url http://127.0.0.1:8080")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print how the repair of every table stands; exits with 1 where a deadline is missed
    Status(Look),
    /// Repair tables now; without --yes print what would be done
    #[command(after_help = "\
With JMX agents every node repairs its primary ranges. Without them the table is read as a whole at ALL, range by range, which \
heals what read repair can heal.")]
    Run {
        /// The tables; `mw repair status` lists them
        #[arg(value_name = "TABLE", required = true)]
        tables: Vec<String>,
        #[command(flatten)]
        change: Change,
    },
    /// Switch auto-repair off on every node; without --yes print what would be done
    Pause(Change),
    /// Switch auto-repair on again on every node; without --yes print what would be done
    Resume(Change),
    /// Print the blackout windows, and whether one is open
    Windows(Look),
}

#[derive(Debug, clap::Args)]
struct Look {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Execute it
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Status(look) => return status(look),
        Command::Run { tables, change } => run_now(tables, change)?,
        Command::Pause(change) => set_paused(change, true)?,
        Command::Resume(change) => set_paused(change, false)?,
        Command::Windows(look) => windows(look)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the store for one operation.
fn on_cluster<T>(args: &ConfigArgs, operation: impl AsyncFnOnce(&Operations) -> Result<T>) -> Result<T> {
    let config = Config::load(&args.sources())?.without_listener();
    ensure!(
        config.engine == Engine::Cassandra,
        "the configured engine has no replicas to repair: name a cluster with --store cassandra"
    );
    terminal::log(&config.log);
    runtime::single()?.block_on(async {
        let storage = Storage::open(&config).await?;
        let result = operation(&operations::of(&storage, &config.operate)).await;
        storage.close().await;
        result
    })
}

fn status(look: &Look) -> Result<ExitCode> {
    let list = match look.remote.client()? {
        Some(client) => runtime::single()?.block_on(client.get_json(PATH))?,
        None => on_cluster(&look.config, async |operations| {
            let report = operations.repairs().await.context("read the repairs")?;
            replies::value(&RepairListView::new(report))
        })?,
    };
    replies::print(&list, look.json, status_text)?;
    let is_missed = items(&list).iter().any(|item| item.get("verdict").is_some_and(|it| it == "missed"));
    Ok(if is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn items(list: &Value) -> &[Value] {
    list.get("items").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn status_text(list: &Value) -> String {
    let heads = ["table", "interval", "last whole repair", "deadline", "now", "failed", "skipped", "verdict"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(items(list).iter().map(|row| {
        let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
        let number = |name: &str| row.get(name).and_then(Value::as_u64).unwrap_or_default();
        let is_running = row.get("running").and_then(Value::as_bool).unwrap_or_default();
        vec![
            text("table"),
            format!("{} h", number("interval_s") / 3_600),
            text("last_whole_repair"),
            text("deadline"),
            if is_running { "running" } else { "-" }.to_owned(),
            number("failed_ranges").to_string(),
            number("skipped_ranges").to_string(),
            text("verdict"),
        ]
    }));
    let mut text = columns(&rows);
    if list.get("paused").and_then(Value::as_bool).unwrap_or_default() {
        text.push_str("Auto-repair is paused by an operator; `mw repair resume` ends that.\n");
    }
    let notes = list.get("notes").and_then(Value::as_array);
    for note in notes.into_iter().flatten().filter_map(Value::as_str) {
        text.push_str(note);
        text.push('\n');
    }
    text
}

fn operator() -> Operator {
    Operator { token: OPERATOR.to_owned(), address: "local".to_owned() }
}

const DRY: &str = "Nothing was changed: add --yes to execute it.";

fn run_now(tables: &[String], change: &Change) -> Result<()> {
    let names = tables.join(", ");
    let dry = format!("would repair {names}\n{DRY}");
    let text = match change.remote.client()? {
        Some(client) => runtime::single()?.block_on(async {
            let body = json!({"tables": tables, "confirm": change.yes});
            client.post_json(&format!("{PATH}/run"), &body).await?;
            if change.yes { ended(&client, tables).await } else { Ok(dry) }
        })?,
        None => on_cluster(&change.config, async |operations| {
            if !change.yes {
                operations.check_repair(tables)?;
                return Ok(dry);
            }
            let outcomes = operations.repair_tables(tables, operator()).await?;
            let text: Vec<&str> = outcomes.iter().map(|outcome| outcome.text.as_str()).collect();
            ensure!(outcomes.iter().all(|outcome| outcome.complete), text.join("\n"));
            Ok(text.join("\n"))
        })?,
    };
    terminal::print(&format!("{text}\n"))
}

/// Waits for the end of repairs that a running shop was asked for.
async fn ended(client: &ShopClient, tables: &[String]) -> Result<String> {
    let (mut texts, mut incomplete) = (Vec::new(), false);
    for table in tables {
        let path = format!("{PATH}/{table}");
        loop {
            let repair = client.get_json(&path).await?;
            let requested = |name: &str| {
                repair.pointer(&format!("/requested/{name}")).and_then(Value::as_str).unwrap_or_default()
            };
            match requested("state") {
                "running" => tokio::time::sleep(POLL_INTERVAL).await,
                "complete" => break texts.push(requested("text").to_owned()),
                "incomplete" => {
                    incomplete = true;
                    break texts.push(requested("text").to_owned());
                }
                _ => bail!(
                    "repair {table}: the process that was asked for it has ended; `mw repair status` knows more"
                ),
            }
        }
    }
    ensure!(!incomplete, texts.join("\n"));
    Ok(texts.join("\n"))
}

fn set_paused(change: &Change, is_paused: bool) -> Result<()> {
    let what = if is_paused { "pause" } else { "resume" };
    let text = match change.remote.client()? {
        Some(client) => runtime::single()?.block_on(async {
            let body = json!({"confirm": change.yes});
            let reply = client.post_json(&format!("{PATH}/{what}"), &body).await?;
            let text = reply.get("text").and_then(Value::as_str).unwrap_or_default();
            anyhow::Ok(text.to_owned())
        })?,
        None => on_cluster(&change.config, async |operations| {
            let run = if change.yes { Run::Confirmed } else { Run::Dry };
            Ok(operations.set_repair_paused(is_paused, run, operator()).await?)
        })?,
    };
    let note = if change.yes { String::new() } else { format!("{DRY}\n") };
    terminal::print(&format!("{text}\n{note}"))
}

fn windows(look: &Look) -> Result<()> {
    let list = if let Some(client) = look.remote.client()? {
        runtime::single()?.block_on(client.get_json(&format!("{PATH}/windows")))?
    } else {
        let config = Config::load(&look.config.sources())?;
        let now = SystemClock.now();
        let window = |blackout: &mw_operate::repair::Blackout| BlackoutWindow {
            window: blackout.to_string(),
            open: blackout.contains(now),
        };
        replies::value(&WindowListView::new(config.operate.blackout.iter().map(window).collect()))?
    };
    replies::print(&list, look.json, |list| {
        let row = |item: &Value| {
            let is_open = item.get("open").and_then(Value::as_bool).unwrap_or_default();
            let window = item.get("window").and_then(Value::as_str).unwrap_or_default();
            vec![window.to_owned(), if is_open { "open: repair pauses" } else { "closed" }.to_owned()]
        };
        if items(list).is_empty() {
            return "No blackout window is configured (operate.repair.blackout).\n".to_owned();
        }
        let mut rows = vec![["window (UTC)", "now"].map(str::to_owned).to_vec()];
        rows.extend(items(list).iter().map(row));
        columns(&rows)
    })
}
