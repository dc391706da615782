//! Nodes and repair of a cluster, for operators. A repair that is asked for runs in this process until its end; what it was asked
//! for and how it ended is kept by table.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mw_domain::Timestamp;
use mw_store::audit::Operator;
use mw_store::cluster::{BlackoutWindow, ClusterControl, NodeInfo, RepairOutcome, RepairReport, TableRepair};
use mw_store::{Refusal, Result, StoreError};

use super::{Operations, Run};

/// How the last repair of a table that this process was asked for stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedRepair {
    pub started_at: Timestamp,
    /// `None` while it runs.
    pub finished_at: Option<Timestamp>,
    pub complete: bool,
    pub text: String,
}

/// The last requested repair of each table.
pub(super) type Requested = Arc<Mutex<BTreeMap<String, RequestedRepair>>>;

impl Operations {
    /// The same, with the cluster of the engine.
    #[must_use]
    pub fn with_cluster(mut self, cluster: Arc<dyn ClusterControl>) -> Self {
        self.cluster = Some(cluster);
        self
    }

    fn cluster(&self) -> Result<&Arc<dyn ClusterControl>> {
        let reason = "this engine has neither nodes to show nor replicas to repair; a shop on Cassandra has";
        self.cluster.as_ref().ok_or_else(|| StoreError::NotServing(reason.to_owned()))
    }

    fn requested(&self) -> MutexGuard<'_, BTreeMap<String, RequestedRepair>> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        self.cluster()?.nodes().await
    }

    /// How the repair of every table stands.
    pub async fn repairs(&self) -> Result<RepairReport> {
        let mut report = self.cluster()?.repairs(self.now()).await?;
        let requested = self.requested();
        for table in &mut report.tables {
            table.running |= requested.get(&table.table).is_some_and(|run| run.finished_at.is_none());
        }
        drop(requested);
        Ok(report)
    }

    /// How the repair of one table stands, and the last one of it that this process was asked for.
    pub async fn repair_of(&self, table: &str) -> Result<(TableRepair, Option<RequestedRepair>)> {
        self.cluster()?.check_repaired(table)?;
        let repair = self.repairs().await?.tables.into_iter().find(|repair| repair.table == table);
        let repair = repair.ok_or_else(|| Refusal::RepairNotFound(format!("{table:?} is not repaired")))?;
        Ok((repair, self.requested().get(table).cloned()))
    }

    pub fn blackout_windows(&self) -> Result<Vec<BlackoutWindow>> {
        Ok(self.cluster()?.blackout_windows(self.now()))
    }

    /// Refuses tables that are not repaired, or are being repaired.
    pub fn check_repair(&self, tables: &[String]) -> Result<()> {
        let invalid = |detail: String| Refusal::InvalidField { field: "tables".to_owned(), detail };
        if tables.is_empty() {
            return Err(invalid("name at least one table".to_owned()).into());
        }
        for table in tables {
            self.cluster()?.check_repaired(table)?;
            if self.requested().get(table).is_some_and(|run| run.finished_at.is_none()) {
                return Err(invalid(format!("{table} is being repaired already")).into());
            }
        }
        Ok(())
    }

    /// Repairs tables one after another, and waits for the end.
    pub async fn repair_tables(&self, tables: &[String], operator: Operator) -> Result<Vec<RepairOutcome>> {
        self.begin(tables)?;
        Ok(self.repair_begun(tables, operator).await)
    }

    /// Begins to repair tables one after another; [`Operations::repair_of`] tells how it goes on.
    pub fn start_repair(&self, tables: Vec<String>, operator: Operator) -> Result<()> {
        self.begin(&tables)?;
        let operations = self.clone();
        // A crash leaves the nodes at work and nothing recorded: the table counts as not repaired, and is repaired once more.
        tokio::spawn(async move { operations.repair_begun(&tables, operator).await });
        Ok(())
    }

    fn begin(&self, tables: &[String]) -> Result<()> {
        self.check_repair(tables)?;
        let started_at = self.now();
        let running = RequestedRepair { started_at, finished_at: None, complete: false, text: String::new() };
        let begun = tables.iter().map(|table| (table.clone(), running.clone()));
        self.requested().extend(begun);
        Ok(())
    }

    async fn repair_begun(&self, tables: &[String], operator: Operator) -> Vec<RepairOutcome> {
        let mut outcomes = Vec::new();
        for table in tables {
            let done = match self.cluster() {
                Ok(cluster) => cluster.repair(table).await,
                Err(error) => Err(error),
            };
            let outcome = done.unwrap_or_else(|error| RepairOutcome {
                complete: false,
                text: format!("repair {table}: {error}"),
            });
            let result = if outcome.complete { "done" } else { outcome.text.as_str() };
            // A crash here leaves a repair without an audit entry; its run is recorded with the table.
            self.record_result(operator.clone(), format!("repair {table}"), result.to_owned()).await;
            if let Some(run) = self.requested().get_mut(table) {
                run.finished_at = Some(self.now());
                run.complete = outcome.complete;
                run.text.clone_from(&outcome.text);
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Pauses or resumes auto-repair on every node. Returns what was done, or would be.
    pub async fn set_repair_paused(&self, is_paused: bool, run: Run, operator: Operator) -> Result<String> {
        let cluster = self.cluster()?;
        let what = if is_paused { "pause" } else { "resume" };
        if run == Run::Dry {
            return Ok(format!("would {what} auto-repair on every node"));
        }
        let done = cluster.set_repair_paused(is_paused).await;
        // A crash here leaves a pause without an audit entry; `mw repair status` shows it.
        self.record(operator, format!("{what} repair"), &done).await;
        done
    }
}
