//! The background task that watches auto-repair and switches it by deadlines and blackout windows.
//!
//! One serving process steers at a time. Its death leaves auto-repair as it is, and the next process goes on from what is recorded.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use mw_domain::Timestamp;
use mw_http::prometheus::{IntGauge, IntGaugeVec, Opts, Registry};
use mw_operate::repair::AutoRepairRun;
use mw_shop::{Clock, SystemClock};
use mw_store::cluster::{NodeInfo, RepairState, TableRepair};
use mw_store_cassandra::{ALL_TABLES, CassandraStore, RecordedRun, RepairRun};

use super::repair::{RepairControl, Wish};
use crate::config::OperateConfig;

/// Between two looks at the nodes.
const INTERVAL: Duration = Duration::from_secs(30);

/// The background task of a serving process.
#[derive(Debug)]
pub(crate) struct RepairSteward {
    store: Arc<CassandraStore>,
    config: OperateConfig,
    metrics: Metrics,
}

#[derive(Debug)]
struct Metrics {
    states: IntGaugeVec,
    deadlines: IntGaugeVec,
    overridden: IntGauge,
    nodes: IntGaugeVec,
    hints: IntGauge,
}

impl Metrics {
    fn register(registry: &Registry) -> Result<Self> {
        let by = |name: &str, help: &str, label: &str| IntGaugeVec::new(Opts::new(name, help), &[label]);
        let metrics = Self {
            states: by(
                "mw_repair_tables",
                "Tables by how their repair stands, as the steering process sees it",
                "state",
            )?,
            deadlines: by(
                "mw_repair_deadline_timestamp_seconds",
                "When a table must have been repaired as a whole, as the steering process sees it",
                "table",
            )?,
            overridden: IntGauge::new(
                "mw_repair_blackout_overridden",
                "1 while repair runs in spite of a blackout or a pause, because a deadline would be missed",
            )?,
            nodes: by(
                "mw_cluster_nodes",
                "Nodes of the cluster that are up or down, as the steering process sees them",
                "state",
            )?,
            hints: IntGauge::new(
                "mw_cluster_hint_files",
                "Files of hints that nodes keep for others, as the steering process sees them",
            )?,
        };
        registry.register(Box::new(metrics.states.clone()))?;
        registry.register(Box::new(metrics.deadlines.clone()))?;
        registry.register(Box::new(metrics.overridden.clone()))?;
        registry.register(Box::new(metrics.nodes.clone()))?;
        registry.register(Box::new(metrics.hints.clone()))?;
        Ok(metrics)
    }

    fn show(&self, nodes: &[NodeInfo], tables: &[TableRepair], wish: &Wish) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for state in RepairState::ALL {
            let count = tables.iter().filter(|table| table.state == state).count();
            self.states.with_label_values(&[state.name()]).set(gauge(count));
        }
        for table in tables {
            if let Some(deadline) = table.deadline {
                let seconds = deadline.as_millis().div_euclid(1_000);
                self.deadlines.with_label_values(&[table.table.as_str()]).set(seconds);
            }
        }
        self.overridden.set(i64::from(!wish.urgent.is_empty()));
        let up = nodes.iter().filter(|node| node.up).count();
        self.nodes.with_label_values(&["up"]).set(gauge(up));
        self.nodes.with_label_values(&["down"]).set(gauge(nodes.len() - up));
        let hints: u64 = nodes.iter().filter_map(|node| node.hints).sum();
        self.hints.set(i64::try_from(hints).unwrap_or(i64::MAX));
    }

    /// Another process steers: what this one saw is no longer true.
    fn forget(&self) {
        self.states.reset();
        self.deadlines.reset();
        self.nodes.reset();
        self.overridden.set(0);
        self.hints.set(0);
    }
}

impl RepairSteward {
    pub(crate) fn new(
        store: Arc<CassandraStore>,
        config: OperateConfig,
        registry: &Registry,
    ) -> Result<Self> {
        Ok(Self { store, config, metrics: Metrics::register(registry)? })
    }

    /// Runs until its task is aborted.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.store.steers_repair() {
                self.metrics.forget();
                continue;
            }
            if let Err(error) = self.steer().await {
                tracing::warn!(error = format!("{error:#}"), "steer repair: trying again in half a minute");
            }
        }
    }

    async fn steer(&self) -> Result<()> {
        let nodes = self.store.nodes().await.context("read the nodes")?;
        let control = RepairControl::new(Arc::clone(&self.store), &self.config).await?;
        let states = control.states().await;
        let now = SystemClock.now();
        if !states.is_empty() {
            let history = self.store.auto_repair_history().await?;
            let known = self.store.repair_runs().await?;
            let switched_at = self.store.repair_switched_at().await?;
            for (agent, state) in &states {
                match state {
                    Ok(run) => {
                        if let Some(ended) = ended_run(agent.node(), *run, &history, &known, switched_at) {
                            // A crash here leaves the run to the next process that steers, as long as no later one began.
                            self.store.record_repair_run(&ended).await.context("record a run")?;
                        }
                    }
                    Err(error) => tracing::warn!(%error, "watch auto-repair"),
                }
            }
        }
        let tables = control.tables(now).await?;
        let wish = control.wants_auto_repair(&tables, now).await?;
        if !wish.urgent.is_empty() {
            tracing::error!(
                tables = wish.urgent.join(", "),
                "repair in spite of a blackout or a pause: the deadline of these tables would be missed"
            );
        }
        self.metrics.show(&nodes, &tables, &wish);
        for (agent, run) in states.iter().filter_map(|(agent, run)| Some((agent, run.as_ref().ok()?))) {
            if run.is_enabled == wish.wants {
                continue;
            }
            tracing::info!(
                node = agent.node(),
                wants = wish.wants,
                running = run.is_running,
                "switch auto-repair"
            );
            // A crash here leaves some nodes switched; the next process that steers switches the rest.
            agent.set_auto_repair(wish.wants).await?;
        }
        Ok(())
    }
}

/// The run of a node that has ended and is not recorded yet. The node says when it ran and how many ranges it repaired; the ranges that
/// it left out because auto-repair was switched off meanwhile it counts nowhere, so such a run does not count, nor one that repaired
/// nothing.
fn ended_run(
    node: &str,
    state: AutoRepairRun,
    history: &[RecordedRun],
    known: &[RepairRun],
    switched_at: Option<Timestamp>,
) -> Option<RepairRun> {
    if state.is_running {
        return None;
    }
    let last = history.iter().find(|run| run.node == node)?;
    let is_recorded = |run: &&RepairRun| run.table == ALL_TABLES && run.node == node;
    if known.iter().filter(is_recorded).any(|run| run.started_at >= last.started_at) {
        return None;
    }
    let was_switched = !state.is_enabled || switched_at.is_some_and(|at| last.started_at <= at);
    let was_empty = state.succeeded_ranges == 0;
    let skipped_ranges = state.skipped_ranges + u64::from(was_switched || was_empty);
    let is_complete = state.failed_ranges + skipped_ranges == 0;
    Some(RepairRun {
        table: ALL_TABLES.to_owned(),
        node: node.to_owned(),
        started_at: last.started_at,
        finished_at: last.finished_at,
        failed_ranges: state.failed_ranges,
        skipped_ranges,
        last_complete: is_complete.then_some(last.started_at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    fn history() -> Vec<RecordedRun> {
        let finished_at = START.plus_seconds(20);
        vec![RecordedRun { node: "n1".to_owned(), started_at: START, finished_at }]
    }

    fn state(succeeded_ranges: u64) -> AutoRepairRun {
        AutoRepairRun { is_enabled: true, succeeded_ranges, ..AutoRepairRun::default() }
    }

    fn complete(state: AutoRepairRun, switched_at: Option<Timestamp>) -> bool {
        ended_run("n1", state, &history(), &[], switched_at).unwrap().last_complete == Some(START)
    }

    #[test]
    fn a_run_shorter_than_a_look_is_recorded_once() {
        let run = ended_run("n1", state(48), &history(), &[], None).unwrap();
        assert_eq!((run.table.as_str(), run.last_complete), (ALL_TABLES, Some(START)));
        assert_eq!(ended_run("n1", state(48), &history(), &[run], None), None);
        assert_eq!(ended_run("n2", state(48), &history(), &[], None), None, "it has no run");
    }

    #[test]
    fn a_run_that_is_under_way_is_not_recorded() {
        let running = AutoRepairRun { is_running: true, ..state(48) };
        assert_eq!(ended_run("n1", running, &history(), &[], None), None);
    }

    #[test]
    fn failed_skipped_empty_and_interrupted_runs_do_not_count() {
        assert!(complete(state(48), None) && complete(state(48), Some(START.plus_seconds(-1))));
        assert!(!complete(AutoRepairRun { failed_ranges: 1, ..state(47) }, None));
        assert!(!complete(AutoRepairRun { skipped_ranges: 1, ..state(47) }, None));
        assert!(!complete(state(0), None), "it repaired nothing");
        assert!(!complete(AutoRepairRun { is_enabled: false, ..state(48) }, None), "it was paused");
        assert!(!complete(state(48), Some(START.plus_seconds(9))), "it was paused and resumed");
    }
}
