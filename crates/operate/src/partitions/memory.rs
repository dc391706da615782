//! Partition statistics of an engine with one process: nothing is exchanged, and no table has bucket plans.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mw_domain::Timestamp;
use mw_store::partitions::{BucketPlan, BucketedTable, PartitionStats, PartitionStore};
use mw_store::{Refusal, Result};

/// Windows that are kept: the present one and the one before.
const WINDOWS: usize = 2;
/// Statistics of a partition that was not noteworthy for this time are dropped.
const KEPT_SECONDS: i64 = 3_600;

/// The statistics of this process alone.
#[derive(Debug, Default)]
pub struct LocalPartitions(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    windows: VecDeque<(i64, Vec<u8>)>,
    stats: BTreeMap<(String, String, String), PartitionStats>,
}

impl LocalPartitions {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait::async_trait]
impl PartitionStore for LocalPartitions {
    fn merges(&self) -> bool {
        true
    }

    async fn publish_window(&self, window: i64, summary: Vec<u8>) -> Result<()> {
        let windows = &mut self.kept().windows;
        windows.push_back((window, summary));
        while windows.len() > WINDOWS {
            windows.pop_front();
        }
        Ok(())
    }

    async fn published(&self, window: i64) -> Result<Vec<Vec<u8>>> {
        let kept = self.kept();
        let of_window = kept.windows.iter().filter(|(number, _)| *number == window);
        Ok(of_window.map(|(_, summary)| summary.clone()).collect())
    }

    async fn partition_stats(&self, table: Option<&str>) -> Result<Vec<PartitionStats>> {
        let kept = self.kept();
        let stats = kept.stats.values().filter(|stats| table.is_none_or(|table| stats.table == table));
        Ok(stats.cloned().collect())
    }

    async fn put_partition_stats(&self, stats: Vec<PartitionStats>) -> Result<()> {
        let kept = &mut self.kept().stats;
        let newest = stats.iter().map(|stats| stats.updated_at).max();
        for stats in stats {
            kept.insert((stats.table.clone(), stats.key.clone(), stats.bucket.clone()), stats);
        }
        if let Some(newest) = newest {
            kept.retain(|_, stats| stats.updated_at > newest.plus_seconds(-KEPT_SECONDS));
        }
        Ok(())
    }

    fn bucketed_tables(&self) -> &'static [BucketedTable] {
        &[]
    }

    async fn bucket_plans(&self) -> Result<Vec<BucketPlan>> {
        Ok(Vec::new())
    }

    async fn put_bucket_plan(&self, _: BucketPlan, _: Timestamp) -> Result<()> {
        let detail = "this engine has no partitions to plan; a shop on Cassandra has".to_owned();
        Err(Refusal::InvalidField { field: "table".to_owned(), detail }.into())
    }

    fn earliest_start(&self, now: Timestamp) -> Timestamp {
        now
    }
}
