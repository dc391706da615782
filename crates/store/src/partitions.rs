//! Partition statistics and bucket plans: what an engine reports of its partitions, and where processes exchange it.
//!
//! Reporting decides nothing. A key is the id as the API shows it; `bucket` tells the partitions of one key apart.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use mw_domain::Timestamp;

use crate::error::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    Read,
    Write,
}

/// One read or write of a partition.
#[derive(Debug, Clone, Copy)]
pub struct PartitionAccess<'a> {
    pub table: &'a str,
    /// The id as the API shows it.
    pub key: &'a str,
    /// Which partition of the key; empty where a key has one.
    pub bucket: &'a str,
    pub kind: AccessKind,
    /// Rows written, or read.
    pub rows: u64,
    /// Bytes written, or read; 0 where the engine does not know.
    pub bytes: u64,
}

/// Counts the accesses of an engine.
pub trait PartitionObserver: fmt::Debug + Send + Sync {
    /// How many accesses the present one stands for; `None`: it is not counted, and need not be described.
    fn sample(&self) -> Option<NonZeroU32>;

    fn observe(&self, access: &PartitionAccess<'_>, stands_for: NonZeroU32);
}

/// Where an engine reports its accesses; by default to no observer.
#[derive(Debug, Clone, Default)]
pub struct PartitionReports(Option<Arc<dyn PartitionObserver>>);

impl PartitionReports {
    pub fn to(observer: Arc<dyn PartitionObserver>) -> Self {
        Self(Some(observer))
    }

    /// Reports an access, which is described only if it is counted.
    pub fn report<'a>(&self, describe: impl FnOnce() -> Option<PartitionAccess<'a>>) {
        let Some(observer) = &self.0 else { return };
        let Some(stands_for) = observer.sample() else { return };
        if let Some(access) = describe() {
            observer.observe(&access, stands_for);
        }
    }

    /// Whether the present access is counted, and by which observer.
    pub fn sampled(&self) -> Option<(&dyn PartitionObserver, NonZeroU32)> {
        let observer = self.0.as_deref()?;
        observer.sample().map(|stands_for| (observer, stands_for))
    }

    /// A read of a key that has one partition.
    pub fn read(&self, table: &'static str, key: &str) {
        self.report(|| {
            Some(PartitionAccess { table, key, bucket: "", kind: AccessKind::Read, rows: 1, bytes: 0 })
        });
    }

    /// A write of a key that has one partition.
    pub fn write(&self, table: &'static str, key: &str) {
        self.report(|| {
            Some(PartitionAccess { table, key, bucket: "", kind: AccessKind::Write, rows: 1, bytes: 0 })
        });
    }
}

/// What is wrong with a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionState {
    Ok,
    Hot,
    Wide,
}

impl PartitionState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Hot => "hot",
            Self::Wide => "wide",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        [Self::Ok, Self::Hot, Self::Wide].into_iter().find(|state| state.name() == name)
    }
}

/// What is known of a partition, over all processes. Rates and shares are lower bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionStats {
    pub table: String,
    pub key: String,
    pub bucket: String,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    pub rows: u64,
    pub bytes: u64,
    /// Of the table's reads and writes in the window, 0 to 1.
    pub share: f64,
    /// The true rate of reads and writes is at most so much higher.
    pub error_per_s: f64,
    pub state: PartitionState,
    /// The bytes of the partition are counted since then.
    pub counted_from: Timestamp,
    pub updated_at: Timestamp,
}

/// A table whose partitions are divided into buckets by plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketedTable {
    pub table: &'static str,
    /// Buckets of a key without a plan.
    pub default_buckets: u32,
    /// Buckets at most.
    pub buckets_max: u32,
    pub unit: BucketUnit,
    /// What is divided, and what its key is.
    pub what: &'static str,
}

/// What the buckets of a key divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketUnit {
    /// A month, into periods of days.
    Month,
    /// A day, into up to 32 shards and then into slices of time.
    Day,
    /// A price band, into ranges of prices.
    PriceBand,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MadeBy {
    Auto,
    Operator,
}

impl MadeBy {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Operator => "operator",
        }
    }
}

/// Into how many buckets the partitions of a key are divided, from an instant on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    pub table: String,
    pub key: String,
    pub buckets: u32,
    pub from: Timestamp,
    pub made_by: MadeBy,
}

/// Where the processes of a shop exchange partition statistics and plans.
#[async_trait::async_trait]
pub trait PartitionStore: fmt::Debug + Send + Sync {
    /// Whether this process merges what all processes counted; one of them does, at most moments.
    fn merges(&self) -> bool;

    /// Publishes what this process counted in a window.
    async fn publish_window(&self, window: i64, summary: Vec<u8>) -> Result<()>;

    /// What the processes have published for a window.
    async fn published(&self, window: i64) -> Result<Vec<Vec<u8>>>;

    async fn partition_stats(&self, table: Option<&str>) -> Result<Vec<PartitionStats>>;

    async fn put_partition_stats(&self, stats: Vec<PartitionStats>) -> Result<()>;

    /// The tables whose partitions can be divided.
    fn bucketed_tables(&self) -> &'static [BucketedTable];

    /// Every plan that was made for a key, by table, key and start.
    async fn bucket_plans(&self) -> Result<Vec<BucketPlan>>;

    /// Makes a plan; it must start after every process knows it.
    async fn put_bucket_plan(&self, plan: BucketPlan, now: Timestamp) -> Result<()>;

    /// The earliest start of a plan that is made now.
    fn earliest_start(&self, now: Timestamp) -> Timestamp;
}
