//! Operations of a process alone: an audit log in memory, and an engine without partitions.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mw_domain::Timestamp;
use mw_domain::time::Date;
use mw_shop::operations::Operations;
use mw_store::Result;
use mw_store::audit::{AuditEntry, AuditLog};
use mw_store::partitions::{BucketPlan, BucketedTable, PartitionStats, PartitionStore};
use mw_testkit::FakeClock;

#[derive(Debug, Default)]
struct MemoryAudit(Mutex<Vec<AuditEntry>>);

#[async_trait]
impl AuditLog for MemoryAudit {
    async fn append(&self, entry: AuditEntry) -> Result<()> {
        self.0.lock().unwrap().push(entry);
        Ok(())
    }

    async fn entries(&self, _day: Date, limit: usize) -> Result<Vec<AuditEntry>> {
        Ok(self.0.lock().unwrap().iter().rev().take(limit).cloned().collect())
    }
}

#[derive(Debug)]
struct NoPartitions;

#[async_trait]
impl PartitionStore for NoPartitions {
    fn merges(&self) -> bool {
        false
    }

    async fn publish_window(&self, _window: i64, _summary: Vec<u8>) -> Result<()> {
        Ok(())
    }

    async fn published(&self, _window: i64) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    async fn partition_stats(&self, _table: Option<&str>) -> Result<Vec<PartitionStats>> {
        Ok(Vec::new())
    }

    async fn put_partition_stats(&self, _stats: Vec<PartitionStats>) -> Result<()> {
        Ok(())
    }

    fn bucketed_tables(&self) -> &'static [BucketedTable] {
        &[]
    }

    async fn bucket_plans(&self) -> Result<Vec<BucketPlan>> {
        Ok(Vec::new())
    }

    async fn put_bucket_plan(&self, plan: BucketPlan, _now: Timestamp) -> Result<()> {
        panic!("an engine without bucketed tables got {plan:?}")
    }

    fn earliest_start(&self, now: Timestamp) -> Timestamp {
        now
    }
}

pub(crate) fn operations(clock: &Arc<FakeClock>) -> Operations {
    Operations::new(Arc::new(NoPartitions), Arc::new(MemoryAudit::default()), Arc::clone(clock) as _)
}
