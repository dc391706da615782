//! Partition statistics of all processes: the windows that they publish, and the noteworthy partitions that one of them merges.
//!
//! Rows are plain writes with a TTL; a lost one is replaced by the next window.

use mw_domain::Timestamp;
use mw_domain::buckets::Plan;
use mw_store::partitions::{BucketPlan, BucketedTable, PartitionState, PartitionStats, PartitionStore};
use mw_store::{Refusal, Result};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;

use crate::CassandraStore;
use crate::bucketing::{AHEAD_SECONDS, BUCKETED};
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql};
use crate::recovery::ownership::key_of;
use crate::schema::tables::Table;

/// The key of ownership by which one process merges the windows.
const MERGING: u64 = 0x7061_7274_6974_696f;
/// Published windows are read within two of the longest windows.
const WINDOW_TTL_SECONDS: i32 = 3 * 3_600;
/// Statistics of a partition of note are kept for longer than a month, so that the size of a month's bucket is known.
const KEPT_SECONDS: i32 = 40 * 86_400;
/// Statistics of a small partition that was only among the busiest.
const BRIEF_SECONDS: i32 = 3_600;
/// Partitions with fewer bytes are kept briefly.
const KEPT_BYTES: u64 = 64 * 1024;
/// Processes of a window, and partitions of a table, that are read.
const PROCESSES_MAX: i32 = 1_000;
const PARTITIONS_MAX: i32 = 5_000;
/// A plan starts this much later than it must: writing it takes time.
const START_MARGIN_SECONDS: i64 = 5;

#[derive(Debug)]
pub(crate) struct PartitionStatements {
    publish: PreparedStatement,
    published: PreparedStatement,
    put: PreparedStatement,
    read: PreparedStatement,
}

impl PartitionStatements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let publish = "INSERT INTO {} (time_window, process, summary) VALUES (?, ?, ?) USING TTL ?";
        let published = "SELECT summary FROM {} WHERE time_window = ? LIMIT ?";
        let put = "INSERT INTO {} (table_name, partition_key, bucket, size_bytes, row_count, reads_per_s, writes_per_s, share, \
             error_per_s, state, counted_from, last_updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?";
        let read = "SELECT partition_key, bucket, size_bytes, row_count, reads_per_s, writes_per_s, share, error_per_s, state, \
             counted_from, last_updated FROM {} WHERE table_name = ? LIMIT ?";
        Ok(Self {
            publish: cql.prepare(Table::PartitionWindows, Access::Write, publish).await?,
            published: cql.prepare(Table::PartitionWindows, Access::Read, published).await?,
            put: cql.prepare(Table::PartitionStats, Access::Write, put).await?,
            read: cql.prepare(Table::PartitionStats, Access::Read, read).await?,
        })
    }
}

/// A row of `partition_stats` without its table.
type StatsRow = (
    String,
    String,
    Option<i64>,
    Option<i64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<String>,
    Option<CqlTimestamp>,
    Option<CqlTimestamp>,
);

fn stats_of(table: &str, row: StatsRow) -> PartitionStats {
    let (
        key,
        bucket,
        bytes,
        rows,
        reads_per_s,
        writes_per_s,
        share,
        error_per_s,
        state,
        counted_from,
        updated_at,
    ) = row;
    let count = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).unwrap_or_default();
    let instant = |at: Option<CqlTimestamp>| at.map_or(Timestamp::EPOCH, from_cql);
    PartitionStats {
        table: table.to_owned(),
        key,
        bucket,
        reads_per_s: reads_per_s.unwrap_or_default(),
        writes_per_s: writes_per_s.unwrap_or_default(),
        rows: count(rows),
        bytes: count(bytes),
        share: share.unwrap_or_default(),
        error_per_s: error_per_s.unwrap_or_default(),
        state: state.and_then(|name| PartitionState::named(&name)).unwrap_or(PartitionState::Ok),
        counted_from: instant(counted_from),
        updated_at: instant(updated_at),
    }
}

#[async_trait::async_trait]
impl PartitionStore for CassandraStore {
    fn merges(&self) -> bool {
        self.intents.ownership().rank(key_of(&[MERGING])) == 0
    }

    async fn publish_window(&self, window: i64, summary: Vec<u8>) -> Result<()> {
        let values = (window, self.intents.ownership().own(), summary, WINDOW_TTL_SECONDS);
        self.cql.write(&self.partitions.publish, values).await
    }

    async fn published(&self, window: i64) -> Result<Vec<Vec<u8>>> {
        let rows: Vec<(Option<Vec<u8>>,)> =
            self.cql.rows(&self.partitions.published, (window, PROCESSES_MAX)).await?;
        Ok(rows.into_iter().filter_map(|(summary,)| summary).collect())
    }

    async fn partition_stats(&self, table: Option<&str>) -> Result<Vec<PartitionStats>> {
        let mut stats = Vec::new();
        for name in Table::ALL.iter().map(|table| table.name()) {
            if table.is_some_and(|table| table != name) {
                continue;
            }
            let rows: Vec<StatsRow> = self.cql.rows(&self.partitions.read, (name, PARTITIONS_MAX)).await?;
            stats.extend(rows.into_iter().map(|row| stats_of(name, row)));
        }
        Ok(stats)
    }

    async fn put_partition_stats(&self, stats: Vec<PartitionStats>) -> Result<()> {
        for table in Table::ALL {
            let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            let of_table = stats.iter().filter(|stats| stats.table == table.name());
            let rows: Vec<_> = of_table
                .map(|stats| {
                    let is_kept = stats.bytes >= KEPT_BYTES || stats.state != PartitionState::Ok;
                    let ttl = if is_kept { KEPT_SECONDS } else { BRIEF_SECONDS };
                    (
                        stats.table.as_str(),
                        stats.key.as_str(),
                        stats.bucket.as_str(),
                        signed(stats.bytes),
                        signed(stats.rows),
                        stats.reads_per_s,
                        stats.writes_per_s,
                        stats.share,
                        stats.error_per_s,
                        stats.state.name(),
                        to_cql(stats.counted_from),
                        to_cql(stats.updated_at),
                        ttl,
                    )
                })
                .collect();
            // A crash between two tables leaves some of them as of the last window; the next window writes all again.
            self.cql.write_rows(&self.partitions.put, &rows).await?;
        }
        Ok(())
    }

    fn bucketed_tables(&self) -> &'static [BucketedTable] {
        &BUCKETED
    }

    async fn bucket_plans(&self) -> Result<Vec<BucketPlan>> {
        let plans = self.key_plans().await?;
        let plan = |plan: crate::KeyPlan| BucketPlan {
            table: plan.table.name().to_owned(),
            key: plan.key,
            buckets: plan.plan.buckets,
            from: plan.plan.starts_at,
            made_by: plan.made_by,
        };
        Ok(plans.into_iter().map(plan).collect())
    }

    async fn put_bucket_plan(&self, plan: BucketPlan, now: Timestamp) -> Result<()> {
        let BucketPlan { table, key, buckets, from, made_by } = plan;
        let detail = || format!("there is no table {table:?}");
        let table = Table::named(&table)
            .ok_or_else(|| Refusal::InvalidField { field: "table".to_owned(), detail: detail() })?;
        self.set_plan(table, &key, Plan { starts_at: from, buckets }, made_by, now).await
    }

    fn earliest_start(&self, now: Timestamp) -> Timestamp {
        now.plus_seconds(AHEAD_SECONDS + START_MARGIN_SECONDS)
    }
}
