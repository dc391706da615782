//! The statements of the timers: rows, announcements and progress.

use std::sync::Arc;

use mw_domain::Timestamp;
use mw_store::Result;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use super::TimerQueue;
use super::position::{BUCKET_MS, bucket_of};
use crate::driver::coalesce::writes::CoalescedWrites;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql};
use crate::recovery::ownership::key_of;
use crate::schema::tables::Table;

/// Partitions of the announcements of a queue.
const ANNOUNCEMENT_PARTS: i32 = 4;
/// An announcement stays so long. A shop that stands still for longer does not cancel its unpaid orders by itself.
const ANNOUNCED_TTL_SECONDS: i32 = 90 * 86_400;
/// Announcements read from one part: more than there can be in their lifetime.
const ANNOUNCED_MAX: i32 = 20_000;

/// A timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimerRow {
    pub(super) fires_at: Timestamp,
    pub(super) id: Uuid,
    /// 0 for the row that requests share, random for a row that is added late.
    pub(super) attempt: i32,
    pub(super) shard: i32,
}

type BucketKey = (TimerQueue, i64, i32);
type RowKey = (&'static str, i64, i32, CqlTimestamp, Uuid, i32);

#[derive(Debug)]
pub(super) struct Statements {
    insert: CoalescedWrites<BucketKey, RowKey>,
    delete: CoalescedWrites<BucketKey, RowKey>,
    read: PreparedStatement,
    announce: PreparedStatement,
    announced: PreparedStatement,
    progress: PreparedStatement,
    set_closing: PreparedStatement,
    set_done: PreparedStatement,
}

impl Statements {
    pub(super) async fn prepare(cql: &Cql) -> Result<Self> {
        let insert =
            "INSERT INTO {} (queue, time_bucket, shard, fires_at, id, attempt) VALUES (?, ?, ?, ?, ?, ?)";
        let delete = "DELETE FROM {} WHERE queue = ? AND time_bucket = ? AND shard = ? AND fires_at = ? AND id = ? \
             AND attempt = ?";
        let read = "SELECT fires_at, id, attempt FROM {} WHERE queue = ? AND time_bucket = ? AND shard = ? \
             AND fires_at >= ? AND fires_at <= ? LIMIT ?";
        let announce = "INSERT INTO {} (queue, part, time_bucket) VALUES (?, ?, ?) USING TTL ?";
        let announced =
            "SELECT time_bucket FROM {} WHERE queue = ? AND part = ? AND time_bucket <= ? LIMIT ?";
        let progress = "SELECT closing, done FROM {} WHERE queue = ? AND shard = ?";
        // The write timestamp is the moment itself: progress never goes back, whichever write arrives last.
        let set_closing = "UPDATE {} USING TIMESTAMP ? SET closing = ? WHERE queue = ? AND shard = ?";
        let set_done = "UPDATE {} USING TIMESTAMP ? SET done = ? WHERE queue = ? AND shard = ?";
        let prepare = |table, access, text| cql.prepare(table, access, text);
        let (timers, buckets) = (Table::Timers, Table::TimerBuckets);
        Ok(Self {
            insert: CoalescedWrites::new(prepare(timers, Access::Write, insert).await?),
            delete: CoalescedWrites::new(prepare(timers, Access::Write, delete).await?),
            read: prepare(timers, Access::Read, read).await?,
            announce: prepare(buckets, Access::Write, announce).await?,
            announced: prepare(buckets, Access::Read, announced).await?,
            progress: prepare(Table::TimerProgress, Access::Read, progress).await?,
            set_closing: prepare(Table::TimerProgress, Access::Write, set_closing).await?,
            set_done: prepare(Table::TimerProgress, Access::Write, set_done).await?,
        })
    }

    pub(super) async fn insert(&self, cql: &Arc<Cql>, queue: TimerQueue, row: TimerRow) -> Result<()> {
        let (partition, key) = keys(queue, row);
        self.insert.write(cql, partition, key).await
    }

    pub(super) async fn delete(&self, cql: &Arc<Cql>, queue: TimerQueue, row: TimerRow) -> Result<()> {
        let (partition, key) = keys(queue, row);
        self.delete.write(cql, partition, key).await
    }

    /// Timers of a shard between two moments, the oldest first.
    pub(super) async fn rows(
        &self,
        cql: &Cql,
        (queue, shard): (TimerQueue, i32),
        buckets: &[i64],
        (from, to): (Timestamp, Timestamp),
        limit: usize,
    ) -> Result<Vec<TimerRow>> {
        let mut rows = Vec::new();
        for time_bucket in buckets {
            let remaining = i32::try_from(limit.saturating_sub(rows.len())).unwrap_or(i32::MAX);
            if remaining == 0 {
                break;
            }
            let values = (queue.name(), *time_bucket, shard, to_cql(from), to_cql(to), remaining);
            let found: Vec<(CqlTimestamp, Uuid, i32)> = cql.rows(&self.read, values).await?;
            rows.extend(found.into_iter().map(|(fires_at, id, attempt)| TimerRow {
                fires_at: from_cql(fires_at),
                id,
                attempt,
                shard,
            }));
        }
        Ok(rows)
    }

    /// Announces that a stretch of ten minutes has rows, in one of the parts.
    pub(super) async fn announce(
        &self,
        cql: &Cql,
        queue: TimerQueue,
        time_bucket: i64,
        own: Uuid,
    ) -> Result<()> {
        let (high, low) = own.as_u64_pair();
        let part = |salt: u64| {
            let part =
                key_of(&[high, low]).wrapping_add(salt) % u64::from(ANNOUNCEMENT_PARTS.cast_unsigned());
            i32::try_from(part).unwrap_or_default()
        };
        let has_quorum =
            |part: &i32| cql.has_quorum(&self.announced, &(queue.name(), *part, time_bucket, ANNOUNCED_MAX));
        let part = (0..4).map(part).find(has_quorum).unwrap_or_else(|| part(0));
        cql.write(&self.announce, (queue.name(), part, time_bucket, ANNOUNCED_TTL_SECONDS)).await
    }

    /// The announced stretches up to one, in order.
    pub(super) async fn announced(&self, cql: &Cql, queue: TimerQueue, to: i64) -> Result<Vec<i64>> {
        let mut announced = Vec::new();
        for part in 0..ANNOUNCEMENT_PARTS {
            let found: Vec<(i64,)> =
                cql.rows(&self.announced, (queue.name(), part, to, ANNOUNCED_MAX)).await?;
            announced.extend(found.into_iter().map(|(time_bucket,)| time_bucket));
        }
        announced.sort_unstable();
        announced.dedup();
        Ok(announced)
    }

    /// Whether a timer can be added to a shard, and its progress be read.
    pub(super) fn is_available(&self, cql: &Cql, queue: TimerQueue, at: Timestamp, shard: i32) -> bool {
        let row = (queue.name(), bucket_of(at), shard, to_cql(at), to_cql(at), 1);
        cql.has_quorum(&self.read, &row) && cql.has_quorum(&self.progress, &(queue.name(), shard))
    }

    async fn progress(
        &self,
        cql: &Cql,
        queue: TimerQueue,
        shard: i32,
    ) -> Result<(Option<Timestamp>, Option<Timestamp>)> {
        type Progress = (Option<CqlTimestamp>, Option<CqlTimestamp>);
        let (closing, done) =
            cql.first::<Progress>(&self.progress, (queue.name(), shard)).await?.unwrap_or_default();
        Ok((closing.map(from_cql), done.map(from_cql)))
    }

    /// Up to when a shard is closed or being closed: no timer may be added there.
    pub(super) async fn closing(
        &self,
        cql: &Cql,
        queue: TimerQueue,
        shard: i32,
    ) -> Result<Option<Timestamp>> {
        Ok(self.progress(cql, queue, shard).await?.0)
    }

    /// Up to when all timers of a shard were fired.
    pub(super) async fn done(&self, cql: &Cql, queue: TimerQueue, shard: i32) -> Result<Option<Timestamp>> {
        Ok(self.progress(cql, queue, shard).await?.1)
    }

    pub(super) async fn set_closing(
        &self,
        cql: &Cql,
        queue: TimerQueue,
        shard: i32,
        to: Timestamp,
    ) -> Result<()> {
        cql.write(&self.set_closing, (to.as_millis(), to_cql(to), queue.name(), shard)).await
    }

    pub(super) async fn set_done(
        &self,
        cql: &Cql,
        queue: TimerQueue,
        shard: i32,
        to: Timestamp,
    ) -> Result<()> {
        cql.write(&self.set_done, (to.as_millis(), to_cql(to), queue.name(), shard)).await
    }
}

fn keys(queue: TimerQueue, row: TimerRow) -> (BucketKey, RowKey) {
    let TimerRow { fires_at, id, attempt, shard } = row;
    let time_bucket = bucket_of(fires_at);
    debug_assert!(time_bucket.checked_mul(BUCKET_MS).is_some(), "a bucket begins within the timestamps");
    ((queue, time_bucket, shard), (queue.name(), time_bucket, shard, to_cql(fires_at), id, attempt))
}
