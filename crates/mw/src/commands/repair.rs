//! `mw repair`: deadlines of the tables, running and pausing repair, blackout windows.

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use mw_operate::repair::{RepairState, TableRepair};
use mw_shop::{Clock, SystemClock};
use mw_store::audit::Operator;
use mw_store_cassandra::{CassandraStore, Table};
use serde::Serialize;

use crate::config::{Config, ConfigArgs, Engine};
use crate::operations;
use crate::operations::repair::RepairControl;
use crate::runtime;
use crate::storage::Storage;
use crate::terminal::{self, columns};

const OPERATOR: &str = "mw repair";

/// Show the repair deadlines of a cluster's tables; run, pause and resume repair
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A table must be repaired as a whole within gc_grace of its last whole repair, or deleted rows may come back. Cassandra's own \
auto-repair does the work; it is watched and steered through the JMX agents of the nodes (operate.jolokia). A run counts only if \
no range of it failed or was skipped.

Examples:
  mw repair status --store cassandra
  mw repair run stock --yes --store cassandra
  mw repair pause --yes")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print how the repair of every table stands; exits with 1 where a deadline is missed
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Repair tables now; without --yes print what would be done
    #[command(after_help = "\
With JMX agents every node repairs its primary ranges. Without them the table is read as a whole at ALL, range by range, which \
heals what read repair can heal.")]
    Run {
        /// The tables; `mw repair status` lists them
        #[arg(value_name = "TABLE", required = true, value_parser = table)]
        tables: Vec<Table>,
        #[command(flatten)]
        change: Change,
    },
    /// Switch auto-repair off on every node; without --yes print what would be done
    Pause {
        #[command(flatten)]
        change: Change,
    },
    /// Switch auto-repair on again on every node; without --yes print what would be done
    Resume {
        #[command(flatten)]
        change: Change,
    },
    /// Print the blackout windows, and whether one is open
    Windows {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        config: ConfigArgs,
    },
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Execute it
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

fn table(text: &str) -> Result<Table, String> {
    Table::named(text).ok_or_else(|| "there is no such table; `mw repair status` lists the tables".to_owned())
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Status { json, config } => return status(config, *json),
        Command::Run { tables, change } => run_now(tables, change)?,
        Command::Pause { change } => set_paused(change, true)?,
        Command::Resume { change } => set_paused(change, false)?,
        Command::Windows { json, config } => windows(config, *json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn load(args: &ConfigArgs) -> Result<Config> {
    let config = Config::load(&args.sources())?.without_listener();
    ensure!(
        config.engine == Engine::Cassandra,
        "the configured engine has no replicas to repair: name a cluster with --store cassandra"
    );
    Ok(config)
}

/// Opens the store for one operation.
fn on_cluster<T>(
    config: &Config,
    operation: impl AsyncFnOnce(&std::sync::Arc<CassandraStore>, &Storage) -> Result<T>,
) -> Result<T> {
    terminal::log(&config.log);
    runtime::single()?.block_on(async {
        let storage = Storage::open(config).await?;
        let result = match &storage {
            Storage::Cassandra { store, .. } => operation(store, &storage).await,
            Storage::Embedded { .. } | Storage::Mongodb { .. } => {
                bail!("the configured engine has no replicas to repair")
            }
        };
        storage.close().await;
        result
    })
}

#[derive(Debug, Serialize)]
struct StatusList {
    items: Vec<StatusRow>,
    /// What cannot be known, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct StatusRow {
    table: String,
    interval_s: u64,
    last_whole_repair: Option<String>,
    deadline: Option<String>,
    running: bool,
    failed_ranges: u64,
    skipped_ranges: u64,
    verdict: &'static str,
}

impl StatusRow {
    fn new(repair: TableRepair, running: bool) -> Self {
        Self {
            table: repair.table,
            interval_s: repair.interval.as_secs(),
            last_whole_repair: repair.last_whole_repair.map(|at| at.to_string()),
            deadline: repair.deadline.map(|at| at.to_string()),
            running,
            failed_ranges: repair.failed_ranges,
            skipped_ranges: repair.skipped_ranges,
            verdict: repair.state.name(),
        }
    }
}

fn status(args: &ConfigArgs, json: bool) -> Result<ExitCode> {
    let config = load(args)?;
    let (repairs, running, notes) = on_cluster(&config, async |store, _| {
        let control = RepairControl::new(std::sync::Arc::clone(store), &config.operate).await?;
        let (running, notes) = control.observe().await;
        Ok((control.tables(SystemClock.now()).await?, running, notes))
    })?;
    let is_missed = repairs.iter().any(|repair| repair.state == RepairState::Missed);
    let items = repairs.into_iter().map(|repair| StatusRow::new(repair, running)).collect();
    let list = StatusList { items, notes };
    if json {
        let json = serde_json::to_string_pretty(&list).context("write JSON")?;
        terminal::print(&format!("{json}\n"))?;
    } else {
        terminal::print(&list.text())?;
    }
    Ok(if is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl StatusList {
    fn text(&self) -> String {
        let heads = ["table", "interval", "last whole repair", "deadline", "failed", "skipped", "verdict"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(self.items.iter().map(|row| {
            let or_never = |at: &Option<String>| at.clone().unwrap_or_else(|| "-".to_owned());
            vec![
                row.table.clone(),
                format!("{} h", row.interval_s / 3_600),
                or_never(&row.last_whole_repair),
                or_never(&row.deadline),
                row.failed_ranges.to_string(),
                row.skipped_ranges.to_string(),
                row.verdict.to_owned(),
            ]
        }));
        let mut text = columns(&rows);
        for note in &self.notes {
            text.push_str(note);
            text.push('\n');
        }
        text
    }
}

fn operator() -> Operator {
    Operator { token: OPERATOR.to_owned(), address: "local".to_owned() }
}

fn run_now(tables: &[Table], change: &Change) -> Result<()> {
    let config = load(&change.config)?;
    let names: Vec<&str> = tables.iter().map(|table| table.name()).collect();
    let names = names.join(", ");
    if !change.yes {
        return terminal::print(&format!(
            "would repair {names}\nNothing was changed: add --yes to execute it.\n"
        ));
    }
    let report = on_cluster(&config, async |store, storage| {
        let control = RepairControl::new(std::sync::Arc::clone(store), &config.operate).await?;
        let done = control.run(tables).await;
        let recorded =
            done.as_ref().map(drop).map_err(|error| mw_store::StoreError::Unavailable(format!("{error:#}")));
        operations::of(storage).record(operator(), format!("repair {names}"), &recorded).await;
        done
    })?;
    terminal::print(&report)
}

fn set_paused(change: &Change, is_paused: bool) -> Result<()> {
    let config = load(&change.config)?;
    let what = if is_paused { "pause" } else { "resume" };
    if !change.yes {
        return terminal::print(&format!(
            "would {what} auto-repair on every node\nNothing was changed: add --yes to execute it.\n"
        ));
    }
    let report = on_cluster(&config, async |store, storage| {
        let control = RepairControl::new(std::sync::Arc::clone(store), &config.operate).await?;
        let done = control.set_paused(is_paused).await;
        let recorded =
            done.as_ref().map(drop).map_err(|error| mw_store::StoreError::Unavailable(format!("{error:#}")));
        operations::of(storage).record(operator(), format!("{what} repair"), &recorded).await;
        done
    })?;
    terminal::print(&report)
}

#[derive(Debug, Serialize)]
struct WindowList {
    items: Vec<WindowRow>,
}

#[derive(Debug, Serialize)]
struct WindowRow {
    window: String,
    open: bool,
}

fn windows(args: &ConfigArgs, json: bool) -> Result<()> {
    let config = Config::load(&args.sources())?;
    let now = SystemClock.now();
    let row = |blackout: &mw_operate::repair::Blackout| WindowRow {
        window: blackout.to_string(),
        open: blackout.contains(now),
    };
    let list = WindowList { items: config.operate.blackout.iter().map(row).collect() };
    if json {
        let json = serde_json::to_string_pretty(&list).context("write JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    if list.items.is_empty() {
        return terminal::print("No blackout window is configured (operate.repair.blackout).\n");
    }
    let mut rows = vec![["window (UTC)", "now"].map(str::to_owned).to_vec()];
    rows.extend(list.items.iter().map(|row| {
        vec![row.window.clone(), if row.open { "open: repair pauses" } else { "closed" }.to_owned()]
    }));
    terminal::print(&columns(&rows))
}
