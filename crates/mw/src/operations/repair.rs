//! Repair of a cluster as one look at it: what is recorded of runs, what the nodes' JMX agents say, and what is asked of them.

use std::sync::Arc;

use mw_domain::Timestamp;
use mw_operate::repair::{
    AutoRepairRun, Blackout, Jolokia, JolokiaError, NodeRun, RunResult, TableRepairPolicy, must_run_now,
    table_repair,
};
use mw_shop::{Clock, SystemClock};
use mw_store::cluster::{RepairOutcome, TableRepair};
use mw_store::{Result, StoreError};
use mw_store_cassandra::{ALL_TABLES, CassandraStore, RepairPolicy, RepairRun, Table};

use crate::config::OperateConfig;

const NO_AGENTS: &str = "no JMX agents are configured (operate.jolokia.username and password)";

/// The agents and the nodes of one cluster, as of now.
#[derive(Debug)]
pub(super) struct RepairControl {
    store: Arc<CassandraStore>,
    /// The agents of the nodes; empty where none are configured.
    agents: Vec<Jolokia>,
    /// The addresses of all nodes.
    nodes: Vec<String>,
    blackout: Vec<Blackout>,
}

impl RepairControl {
    pub(super) async fn new(store: Arc<CassandraStore>, config: &OperateConfig) -> Result<Self> {
        let nodes: Vec<String> = store.nodes().await?.into_iter().map(|node| node.address).collect();
        let agent = |(username, password): &(String, String)| -> Vec<Jolokia> {
            nodes.iter().map(|node| Jolokia::new(node, config.jolokia.port, username, password)).collect()
        };
        let agents = config.jolokia.credentials.as_ref().map(agent).unwrap_or_default();
        Ok(Self { store, agents, nodes, blackout: config.blackout.clone() })
    }

    /// How the repair of every table stands.
    pub(super) async fn tables(&self, now: Timestamp) -> Result<Vec<TableRepair>> {
        let runs = self.store.repair_runs().await?;
        let runs: Vec<NodeRun> = runs.into_iter().map(node_run).collect();
        let repair = |policy: &RepairPolicy| table_repair(&of_policy(policy), &self.nodes, &runs, now);
        Ok(self.store.repair_policies().iter().map(repair).collect())
    }

    /// What the agent of every node says of auto-repair; empty without agents.
    pub(super) async fn states(&self) -> Vec<(&Jolokia, Result<AutoRepairRun, JolokiaError>)> {
        let mut states = Vec::new();
        for agent in &self.agents {
            states.push((agent, agent.auto_repair().await));
        }
        states
    }

    /// Whether a node repairs now, and what cannot be known.
    pub(super) async fn observe(&self) -> (bool, Vec<String>) {
        if self.agents.is_empty() {
            let cannot = "whether auto-repair runs is not known, it cannot be paused or resumed, its runs are not recorded, and \
                 `mw repair run` reads a table as a whole at ALL instead of repairing it";
            return (false, vec![format!("{NO_AGENTS}: {cannot}")]);
        }
        let (mut running, mut notes) = (false, Vec::new());
        for (agent, state) in self.states().await {
            match state {
                Ok(run) => {
                    running |= run.is_running;
                    if !run.is_enabled {
                        notes.push(format!("auto-repair is switched off on {}", agent.node()));
                    }
                }
                Err(error) => notes.push(error.to_string()),
            }
        }
        (running, notes)
    }

    /// Repairs a table on every node, or sweeps it where no agent is configured. Every run is recorded as it ended.
    pub(super) async fn repair(&self, policy: &RepairPolicy) -> Result<RepairOutcome> {
        if self.agents.is_empty() { self.sweep(policy.table).await } else { self.by_nodes(policy).await }
    }

    async fn by_nodes(&self, policy: &RepairPolicy) -> Result<RepairOutcome> {
        let table = policy.table.name();
        let mut incomplete = Vec::new();
        for agent in &self.agents {
            let started_at = SystemClock.now();
            let result = agent.repair(&policy.keyspace, table).await;
            // A crash here leaves a run that is not recorded: the table is repaired once more.
            let (failed_ranges, skipped_ranges) = match &result {
                Ok(RunResult::Complete) => (0, 0),
                Ok(RunResult::Empty) => (0, 1),
                Ok(RunResult::Failed(_)) | Err(_) => (1, 0),
            };
            self.record(table, agent.node(), started_at, failed_ranges, skipped_ranges).await?;
            match result {
                Ok(RunResult::Complete) => {}
                Ok(RunResult::Empty) => {
                    incomplete.push(format!("{} had no range to repair", agent.node()));
                }
                Ok(RunResult::Failed(cause)) => incomplete.push(format!("{} failed: {cause}", agent.node())),
                Err(error) => incomplete.push(error.to_string()),
            }
        }
        let complete = incomplete.is_empty();
        let text = if complete {
            format!("{table} is repaired on {} nodes", self.agents.len())
        } else {
            format!("repair {table}: not complete, so it does not count: {}", incomplete.join("; "))
        };
        Ok(RepairOutcome { complete, text })
    }

    async fn sweep(&self, table: Table) -> Result<RepairOutcome> {
        let started_at = SystemClock.now();
        let failed_ranges = self.store.sweep(table, &|_, _| {}).await?;
        for node in &self.nodes {
            self.record(table.name(), node, started_at, failed_ranges, 0).await?;
        }
        let complete = failed_ranges == 0;
        let text = if complete {
            format!("{table} was read as a whole at ALL: read repair brought replicas that differed together")
        } else {
            format!("sweep {table}: {failed_ranges} ranges could not be read at ALL, so it does not count")
        };
        Ok(RepairOutcome { complete, text })
    }

    async fn record(
        &self,
        table: &str,
        node: &str,
        started_at: Timestamp,
        failed_ranges: u64,
        skipped_ranges: u64,
    ) -> Result<()> {
        let is_complete = failed_ranges + skipped_ranges == 0;
        let run = RepairRun {
            table: table.to_owned(),
            node: node.to_owned(),
            started_at,
            finished_at: SystemClock.now(),
            failed_ranges,
            skipped_ranges,
            last_complete: is_complete.then_some(started_at),
        };
        self.store.record_repair_run(&run).await
    }

    /// Pauses or resumes auto-repair on every node, until the opposite is said.
    pub(super) async fn set_paused(&self, is_paused: bool) -> Result<String> {
        if self.agents.is_empty() {
            let what = if is_paused { "pause" } else { "resume" };
            return Err(StoreError::NotServing(format!("{what} auto-repair: {NO_AGENTS}")));
        }
        // A crash here leaves the setting: the steering process brings the nodes to it.
        self.store.set_repair_paused(is_paused).await?;
        let mut failures = Vec::new();
        for agent in &self.agents {
            if let Err(error) = agent.set_auto_repair(!is_paused).await {
                failures.push(error.to_string());
            }
        }
        let state = if is_paused { "paused" } else { "resumed" };
        let switched = self.agents.len() - failures.len();
        if failures.is_empty() {
            return Ok(format!("auto-repair is {state} on {switched} nodes"));
        }
        let (all, failures) = (self.agents.len(), failures.join("; "));
        Ok(format!(
            "auto-repair is {state} on {switched} of {all} nodes, and a serving process will switch the others: {failures}"
        ))
    }

    /// Whether auto-repair is to run now: not while an operator or a blackout pauses it, unless a deadline would be missed.
    pub(super) async fn wants_auto_repair(&self, tables: &[TableRepair], now: Timestamp) -> Result<Wish> {
        let is_blackout = self.blackout.iter().any(|blackout| blackout.contains(now));
        if !is_blackout && !self.store.is_repair_paused().await? {
            return Ok(Wish { wants: true, urgent: Vec::new() });
        }
        let policies = self.store.repair_policies();
        let is_urgent = |repair: &&TableRepair| {
            let policy = policies.iter().find(|policy| policy.table.name() == repair.table);
            policy.is_some_and(|policy| must_run_now(&of_policy(policy), repair.deadline, now))
        };
        let urgent: Vec<String> =
            tables.iter().filter(is_urgent).map(|repair| repair.table.clone()).collect();
        Ok(Wish { wants: !urgent.is_empty(), urgent })
    }
}

/// Whether auto-repair is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) wants: bool,
    /// The tables for which it runs in spite of a blackout or a pause.
    pub(super) urgent: Vec<String>,
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
