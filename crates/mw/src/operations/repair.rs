//! Repair of a cluster: what the nodes' JMX agents say is recorded, and auto-repair is switched by deadlines and blackout windows.
//!
//! One serving process steers at a time. Its death leaves auto-repair as it is, and the next process goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mw_domain::Timestamp;
use mw_http::prometheus::{IntGauge, IntGaugeVec, Opts, Registry};
use mw_operate::repair::{
    AutoRepairRun, Blackout, Jolokia, NodeRun, RepairState, RunResult, TableRepair, TableRepairPolicy,
    must_run_now, table_repair,
};
use mw_shop::{Clock, SystemClock};
use mw_store_cassandra::{ALL_TABLES, CassandraStore, RepairPolicy, RepairRun, Table};

use crate::config::OperateConfig;

/// Between two looks at the nodes.
const INTERVAL: Duration = Duration::from_secs(30);
const NO_JMX: &str = "the nodes have no JMX agents configured (operate.jolokia.username): auto-repair can be neither watched nor \
     steered, and `mw repair run` reads the table at ALL instead";

/// Repair of one cluster.
#[derive(Debug)]
pub(crate) struct RepairControl {
    store: Arc<CassandraStore>,
    /// The agents of the nodes; empty where none are configured.
    agents: Vec<Jolokia>,
    /// The addresses of all nodes.
    nodes: Vec<String>,
    blackout: Vec<Blackout>,
}

impl RepairControl {
    pub(crate) async fn new(store: Arc<CassandraStore>, config: &OperateConfig) -> Result<Self> {
        let nodes = store.nodes().await.context("read the nodes")?;
        let nodes: Vec<String> = nodes.into_iter().map(|node| node.address).collect();
        let agent = |(username, password): &(String, String)| -> Vec<Jolokia> {
            nodes.iter().map(|node| Jolokia::new(node, config.jolokia.port, username, password)).collect()
        };
        let agents = config.jolokia.credentials.as_ref().map(agent).unwrap_or_default();
        Ok(Self { store, agents, nodes, blackout: config.blackout.clone() })
    }

    /// How the repair of every table stands.
    pub(crate) async fn tables(&self, now: Timestamp) -> Result<Vec<TableRepair>> {
        let runs = self.store.repair_runs().await.context("read the recorded runs")?;
        let runs: Vec<NodeRun> = runs.into_iter().map(node_run).collect();
        let repair = |policy: &RepairPolicy| table_repair(&of_policy(policy), &self.nodes, &runs, now);
        Ok(self.store.repair_policies().iter().map(repair).collect())
    }

    /// Whether a node repairs now, and what cannot be known.
    pub(crate) async fn observe(&self) -> (bool, Vec<String>) {
        if self.agents.is_empty() {
            return (false, vec![NO_JMX.to_owned()]);
        }
        let (mut running, mut notes) = (false, Vec::new());
        for agent in &self.agents {
            match agent.auto_repair().await {
                Ok(run) => running |= run.is_running,
                Err(error) => notes.push(error.to_string()),
            }
        }
        (running, notes)
    }

    /// Repairs tables on every node, or sweeps them where no agent is configured. Every run is recorded as it ended.
    pub(crate) async fn run(&self, tables: &[Table]) -> Result<String> {
        let policies = self.store.repair_policies();
        let mut report = String::new();
        for table in tables {
            let Some(policy) = policies.iter().find(|policy| policy.table == *table) else {
                bail!("repair {table}: its policy has repair = \"off\"");
            };
            let line = if self.agents.is_empty() {
                self.sweep(*table).await?
            } else {
                self.repair_by_nodes(policy).await?
            };
            report.push_str(&line);
        }
        Ok(report)
    }

    async fn repair_by_nodes(&self, policy: &RepairPolicy) -> Result<String> {
        let table = policy.table.name();
        let mut incomplete = Vec::new();
        for agent in &self.agents {
            let started_at = SystemClock.now();
            let result = agent.repair(&policy.keyspace, table).await;
            // A crash here leaves a run that is not recorded: the table is repaired once more.
            let (failed_ranges, skipped_ranges) = match &result {
                Ok(RunResult::Complete) => (0, 0),
                Ok(RunResult::Empty) => (0, 1),
                Ok(RunResult::Failed) | Err(_) => (1, 0),
            };
            let is_complete = failed_ranges + skipped_ranges == 0;
            let run = RepairRun {
                table: table.to_owned(),
                node: agent.node().to_owned(),
                started_at,
                finished_at: SystemClock.now(),
                failed_ranges,
                skipped_ranges,
                last_complete: is_complete.then_some(started_at),
            };
            self.store.record_repair_run(&run).await.context("record the run")?;
            match result {
                Ok(RunResult::Complete) => {}
                Ok(other) => incomplete.push(format!("{}: {other:?}", agent.node())),
                Err(error) => incomplete.push(error.to_string()),
            }
        }
        if !incomplete.is_empty() {
            bail!("repair {table}: not complete, so it does not count: {}", incomplete.join("; "));
        }
        Ok(format!("{table} is repaired on {} nodes\n", self.agents.len()))
    }

    async fn sweep(&self, table: Table) -> Result<String> {
        let started_at = SystemClock.now();
        let failed_ranges = self.store.sweep(table, &|_, _| {}).await.context("sweep the table")?;
        for node in &self.nodes {
            let run = RepairRun {
                table: table.name().to_owned(),
                node: node.clone(),
                started_at,
                finished_at: SystemClock.now(),
                failed_ranges,
                skipped_ranges: 0,
                last_complete: (failed_ranges == 0).then_some(started_at),
            };
            self.store.record_repair_run(&run).await.context("record the run")?;
        }
        if failed_ranges > 0 {
            bail!("sweep {table}: {failed_ranges} ranges could not be read at ALL, so it does not count");
        }
        Ok(format!(
            "{table} was read as a whole at ALL: replicas that differed were brought together by read repair\n"
        ))
    }

    /// Pauses or resumes auto-repair on every node, until the opposite is said.
    pub(crate) async fn set_paused(&self, is_paused: bool) -> Result<String> {
        if self.agents.is_empty() {
            bail!(NO_JMX);
        }
        // A crash here leaves the setting: the steering process brings the nodes to it.
        self.store.set_repair_paused(is_paused).await.context("store the switch")?;
        for agent in &self.agents {
            agent.set_auto_repair(!is_paused).await?;
        }
        let state = if is_paused { "paused" } else { "resumed" };
        Ok(format!("auto-repair is {state} on {} nodes\n", self.agents.len()))
    }

    /// Whether auto-repair is to run now: not while an operator or a blackout pauses it, unless a deadline would be missed.
    async fn wants_auto_repair(&self, tables: &[TableRepair], now: Timestamp) -> Result<bool> {
        let is_blackout = self.blackout.iter().any(|blackout| blackout.contains(now));
        if !is_blackout && !self.store.is_repair_paused().await? {
            return Ok(true);
        }
        let policies = self.store.repair_policies();
        let urgent: Vec<&str> = tables
            .iter()
            .filter(|repair| {
                let policy = policies.iter().find(|policy| policy.table.name() == repair.table);
                policy.is_some_and(|policy| must_run_now(&of_policy(policy), repair.deadline, now))
            })
            .map(|repair| repair.table.as_str())
            .collect();
        if !urgent.is_empty() {
            tracing::error!(
                tables = urgent.join(", "),
                "repair in spite of a blackout or a pause: the deadline of these tables would be missed"
            );
        }
        Ok(!urgent.is_empty())
    }
}

fn node_run(run: RepairRun) -> NodeRun {
    let RepairRun { table, node, started_at, finished_at, failed_ranges, skipped_ranges, last_complete } =
        run;
    let table = (table != ALL_TABLES).then_some(table);
    NodeRun { table, node, started_at, finished_at, failed_ranges, skipped_ranges, last_complete }
}

fn of_policy(policy: &RepairPolicy) -> TableRepairPolicy {
    TableRepairPolicy {
        table: policy.table.name().to_owned(),
        interval: policy.interval,
        gc_grace: policy.gc_grace,
    }
}

/// The background task of a serving process.
#[derive(Debug)]
pub(crate) struct RepairSteward {
    store: Arc<CassandraStore>,
    config: OperateConfig,
    states: IntGaugeVec,
    overridden: IntGauge,
    /// The last state of each node, by which the end of a run is noticed.
    seen: BTreeMap<String, (AutoRepairRun, Timestamp)>,
}

impl RepairSteward {
    pub(crate) fn new(
        store: Arc<CassandraStore>,
        config: OperateConfig,
        registry: &Registry,
    ) -> Result<Self> {
        let states = IntGaugeVec::new(
            Opts::new(
                "mw_repair_tables",
                "Tables by how their repair stands, as the steering process sees it",
            ),
            &["state"],
        )?;
        let overridden = IntGauge::new(
            "mw_repair_blackout_overridden",
            "1 while repair runs in spite of a blackout or a pause, because a deadline would be missed",
        )?;
        registry.register(Box::new(states.clone()))?;
        registry.register(Box::new(overridden.clone()))?;
        Ok(Self { store, config, states, overridden, seen: BTreeMap::new() })
    }

    /// Runs until its task is aborted.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.store.steers_repair() {
                self.seen.clear();
                continue;
            }
            if let Err(error) = self.steer().await {
                tracing::warn!(error = format!("{error:#}"), "steer repair: trying again in half a minute");
            }
        }
    }

    async fn steer(&mut self) -> Result<()> {
        let control = RepairControl::new(Arc::clone(&self.store), &self.config).await?;
        let now = SystemClock.now();
        let mut states = Vec::new();
        for agent in &control.agents {
            let run = agent.auto_repair().await?;
            self.watch(agent.node(), run, now).await?;
            states.push((agent, run));
        }
        let tables = control.tables(now).await?;
        for state in [RepairState::Ok, RepairState::Late, RepairState::Missed, RepairState::Unknown] {
            let count = tables.iter().filter(|table| table.state == state).count();
            self.states.with_label_values(&[state.name()]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let wants = control.wants_auto_repair(&tables, now).await?;
        let is_blackout = control.blackout.iter().any(|blackout| blackout.contains(now));
        self.overridden.set(i64::from(wants && is_blackout));
        for (agent, run) in states.iter().filter(|(_, run)| run.is_enabled != wants) {
            tracing::info!(node = agent.node(), wants, running = run.is_running, "switch auto-repair");
            // A crash here leaves some nodes switched; the next process that steers switches the rest.
            agent.set_auto_repair(wants).await?;
        }
        Ok(())
    }

    /// Records the run of a node that has ended since the last look. One that compared no range was empty.
    async fn watch(&mut self, node: &str, run: AutoRepairRun, now: Timestamp) -> Result<()> {
        let before = self.seen.get(node).copied();
        let started_at = match before {
            Some((before, started_at)) if before.is_running => started_at,
            _ => now,
        };
        self.seen.insert(node.to_owned(), (run, started_at));
        let has_ended = before.is_some_and(|(before, _)| before.is_running) && !run.is_running;
        if !has_ended {
            return Ok(());
        }
        let skipped_ranges = run.skipped_ranges + u64::from(run.succeeded_ranges == 0);
        let is_complete = run.failed_ranges + skipped_ranges == 0;
        let recorded = RepairRun {
            table: ALL_TABLES.to_owned(),
            node: node.to_owned(),
            started_at,
            finished_at: now,
            failed_ranges: run.failed_ranges,
            skipped_ranges,
            last_complete: is_complete.then_some(started_at),
        };
        self.store.record_repair_run(&recorded).await.context("record a run of auto-repair")
    }
}
