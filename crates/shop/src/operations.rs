//! Operations on the storage of the shop: partitions, bucket plans, nodes, repair, and the audit log of what operators change.
//!
//! A change is a dry run unless it is confirmed, and a confirmed one leaves an entry in the audit log.

mod cluster;

use std::sync::Arc;

use mw_domain::Timestamp;
use mw_domain::time::Date;
use mw_store::audit::{AuditEntry, AuditLog, Operator};
use mw_store::cluster::ClusterControl;
use mw_store::partitions::{BucketPlan, BucketedTable, MadeBy, PartitionStats, PartitionStore};
use mw_store::{Refusal, Result};

use crate::Clock;
pub use cluster::RequestedRepair;

/// Partitions of a response.
const TOP_MAX: usize = 100;
/// Audit entries of a response.
const AUDIT_MAX: usize = 1_000;

/// By what partitions are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankBy {
    Rate,
    Bytes,
}

/// A partition, and the plan of its key.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedPartition {
    pub stats: PartitionStats,
    /// The plan in effect, or the next one.
    pub plan: Option<BucketPlan>,
}

/// A change of a bucket plan. Without `from` it starts as soon as every process knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanChange {
    pub table: String,
    pub key: String,
    /// `None`: the plan ends, and the default of the table applies again.
    pub buckets: Option<u32>,
    pub from: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Shows what would be done.
    Dry,
    Confirmed,
}

/// What an operator sees and steers. Cheap to clone.
#[derive(Clone)]
pub struct Operations {
    partitions: Arc<dyn PartitionStore>,
    audit: Arc<dyn AuditLog>,
    clock: Arc<dyn Clock>,
    /// `None` where the engine has no nodes.
    cluster: Option<Arc<dyn ClusterControl>>,
    requested: cluster::Requested,
}

impl std::fmt::Debug for Operations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operations").finish_non_exhaustive()
    }
}

impl Operations {
    pub fn new(partitions: Arc<dyn PartitionStore>, audit: Arc<dyn AuditLog>, clock: Arc<dyn Clock>) -> Self {
        Self { partitions, audit, clock, cluster: None, requested: cluster::Requested::default() }
    }

    /// Where partition statistics are exchanged.
    pub fn partition_store(&self) -> Arc<dyn PartitionStore> {
        Arc::clone(&self.partitions)
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The noteworthy partitions, the heaviest first.
    pub async fn top_partitions(&self, table: Option<&str>, by: RankBy) -> Result<Vec<RankedPartition>> {
        let mut stats = self.partitions.partition_stats(table).await?;
        let plans = self.partitions.bucket_plans().await?;
        let rate = |stats: &PartitionStats| stats.reads_per_s + stats.writes_per_s;
        stats.sort_by(|a, b| match by {
            RankBy::Rate => rate(b).total_cmp(&rate(a)),
            RankBy::Bytes => b.bytes.cmp(&a.bytes),
        });
        stats.truncate(TOP_MAX);
        let ranked = stats.into_iter().map(|stats| {
            let of_key = plans.iter().filter(|plan| plan.table == stats.table && plan.key == stats.key);
            RankedPartition { plan: of_key.max_by_key(|plan| plan.from).cloned(), stats }
        });
        Ok(ranked.collect())
    }

    pub async fn bucket_plans(&self) -> Result<Vec<BucketPlan>> {
        self.partitions.bucket_plans().await
    }

    pub fn bucketed_tables(&self) -> &'static [BucketedTable] {
        self.partitions.bucketed_tables()
    }

    /// Makes the plan of a key, or ends it. Returns the plan that was made, or would be.
    pub async fn change_plan(&self, change: PlanChange, run: Run, operator: Operator) -> Result<BucketPlan> {
        let now = self.clock.now();
        let plan = self.planned(&change, now).await?;
        if run == Run::Dry {
            return Ok(plan);
        }
        let made = self.partitions.put_bucket_plan(plan.clone(), now).await;
        let action = match change.buckets {
            Some(_) => "set plan",
            None => "end plan",
        };
        let action =
            format!("{action} {} {}: {} buckets from {}", plan.table, plan.key, plan.buckets, plan.from);
        // A crash here leaves a plan without an audit entry; `mw partitions plans` shows it as made by an operator.
        self.record(operator, action, &made).await;
        made.map(|()| plan)
    }

    async fn planned(&self, change: &PlanChange, now: Timestamp) -> Result<BucketPlan> {
        let invalid = |field: &str, detail: String| Refusal::InvalidField { field: field.to_owned(), detail };
        let tables = self.bucketed_tables();
        let Some(table) = tables.iter().find(|table| table.table == change.table) else {
            let names: Vec<&str> = tables.iter().map(|table| table.table).collect();
            let detail = if names.is_empty() {
                "this engine has no partitions to plan; a shop on Cassandra has".to_owned()
            } else {
                format!("one of {}", names.join(", "))
            };
            return Err(invalid("table", detail).into());
        };
        let earliest = self.partitions.earliest_start(now);
        let from = change.from.unwrap_or(earliest);
        let buckets = if let Some(buckets) = change.buckets {
            buckets
        } else {
            let plans = self.bucket_plans().await?;
            let of_key = plans.iter().filter(|plan| plan.table == change.table && plan.key == change.key);
            match of_key.max_by_key(|plan| plan.from) {
                Some(last) if last.buckets != table.default_buckets || last.from > now => {}
                _ => {
                    let detail = format!("key {:?} of {} has no plan to end", change.key, change.table);
                    return Err(Refusal::PartitionNotFound(detail).into());
                }
            }
            table.default_buckets
        };
        if !(1..=table.buckets_max).contains(&buckets) {
            return Err(invalid("buckets", format!("1 to {}", table.buckets_max)).into());
        }
        let (table, key) = (change.table.clone(), change.key.clone());
        Ok(BucketPlan { table, key, buckets, from, made_by: MadeBy::Operator })
    }

    /// Records a change and how it ended. A log that cannot be written does not undo the change.
    pub async fn record<T>(&self, operator: Operator, action: String, done: &Result<T>) {
        let result = done.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        self.record_result(operator, action, result).await;
    }

    async fn record_result(&self, operator: Operator, action: String, result: String) {
        tracing::info!(
            token = operator.token,
            address = operator.address,
            action,
            result,
            "operator changed something"
        );
        let entry = AuditEntry { at: self.clock.now(), operator, action, result };
        if let Err(error) = self.audit.append(entry).await {
            tracing::error!(%error, "write the audit log: the entry is in this log only");
        }
    }

    /// The audit entries of a day, newest first.
    pub async fn audit_entries(&self, day: Date) -> Result<Vec<AuditEntry>> {
        self.audit.entries(day, AUDIT_MAX).await
    }
}
