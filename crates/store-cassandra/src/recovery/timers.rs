//! Timers: orders whose payment window ends and reservations that expire are handled when their time comes.
//!
//! A timer row names one order or reservation and stands for all of its partition that are due in the same second: one of the
//! requests of a second writes it, and the process that fires it checks the whole partition.
//!
//! Rows are in partitions by minute and shard; a small table says which minutes have rows, so that no process scans. Every
//! process may fire every timer: what follows is decided by a conditional write elsewhere. To save work the shards are divided
//! among the living processes ([`Ownership`]); an overdue timer is fired by any process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use scylla::deserialize::row::DeserializeRow;
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::ownership::{Ownership, key_of};
use crate::driver::coalesce::writes::CoalescedWrites;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql};
use crate::schema::tables::Table;
use crate::stock::ledger::END_OF_TIME;

/// Shards of a minute: at most so many processes share the timers.
const SHARDS: i32 = 4;
const BUCKET_MS: i64 = 60_000;
/// A minute is closed this long after its end: clocks differ by less.
const CLOSED_AFTER_MS: i64 = 60_000;
/// A timer that is so late is fired by any process, not only by the owner of its shard.
const OVERDUE_MS: i64 = 3_000;
/// Minutes read in one round.
const BUCKETS_MAX: i32 = 64;
/// Minutes that this process knows to be announced, and partitions that it knows to have a row.
const REMEMBERED_MAX: usize = 10_000;
/// A row is shared only if it fires at least this much later: no request takes longer, so none can come too late for it.
const SHARED_BEFORE_MS: i64 = 60_000;
/// A request that took longer than this writes a row of its own.
const SHARED_FOR: Duration = Duration::from_secs(30);
const SECOND_MS: i64 = 1_000;
/// Partitions that are checked at the same time, and orders or reservations of one that are ended at the same time: the stock
/// keeper decides those of one product together.
const CONCURRENT_PARTITIONS: usize = 8;
const CONCURRENT_ENDS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum TimerQueue {
    /// Payment windows of orders.
    Payment,
    /// Holds of reservations.
    Hold,
}

impl TimerQueue {
    const fn name(self) -> &'static str {
        match self {
            Self::Payment => "payment",
            Self::Hold => "hold",
        }
    }
}

/// A row that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TimerRow {
    fires_at: Timestamp,
    id: Uuid,
    time_bucket: i64,
    shard: i32,
}

type BucketKey = (TimerQueue, i64, i32);
/// A partition, and when it is to be checked.
type SharedKey = (TimerQueue, i64, Timestamp);

#[derive(Debug)]
pub(crate) struct Timers {
    insert: CoalescedWrites<BucketKey, (&'static str, i64, i32, CqlTimestamp, Uuid)>,
    delete: CoalescedWrites<BucketKey, (&'static str, i64, i32, CqlTimestamp, Uuid)>,
    read: PreparedStatement,
    announce: PreparedStatement,
    time_buckets: PreparedStatement,
    close_bucket: PreparedStatement,
    announced: Mutex<HashSet<BucketKey>>,
    /// When the shared row of a partition was written; a request that comes while it is being written waits for it.
    shared_rows: Mutex<HashMap<SharedKey, Arc<OnceCell<Instant>>>>,
    ownership: Arc<Ownership>,
}

impl Timers {
    pub(crate) async fn prepare(cql: &Cql, ownership: Arc<Ownership>) -> Result<Self> {
        let (timers, time_buckets) = (Table::Timers, Table::TimerBuckets);
        let insert = "INSERT INTO {} (queue, time_bucket, shard, fires_at, id) VALUES (?, ?, ?, ?, ?)";
        let delete =
            "DELETE FROM {} WHERE queue = ? AND time_bucket = ? AND shard = ? AND fires_at = ? AND id = ?";
        let read = "SELECT fires_at, id FROM {} WHERE queue = ? AND time_bucket = ? AND shard = ? AND fires_at <= ? LIMIT ?";
        let known = "SELECT time_bucket FROM {} WHERE queue = ? AND shard = ? AND time_bucket <= ? LIMIT ?";
        Ok(Self {
            insert: CoalescedWrites::new(cql.prepare(timers, Access::Write, insert).await?),
            delete: CoalescedWrites::new(cql.prepare(timers, Access::Write, delete).await?),
            read: cql.prepare(timers, Access::Read, read).await?,
            announce: cql
                .prepare(
                    time_buckets,
                    Access::Write,
                    "INSERT INTO {} (queue, shard, time_bucket) VALUES (?, ?, ?)",
                )
                .await?,
            time_buckets: cql.prepare(time_buckets, Access::Read, known).await?,
            close_bucket: cql
                .prepare(
                    time_buckets,
                    Access::Write,
                    "DELETE FROM {} WHERE queue = ? AND shard = ? AND time_bucket = ?",
                )
                .await?,
            announced: Mutex::default(),
            shared_rows: Mutex::default(),
            ownership,
        })
    }

    fn owns(&self, shard: i32) -> bool {
        self.ownership.owns(key_of(&[u64::from(shard.cast_unsigned())]))
    }

    /// Makes sure that the partition of `id` is checked from `fires_at` on.
    pub(crate) async fn add(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        fires_at: Timestamp,
        (partition, id): (i64, Uuid),
        now: Timestamp,
    ) -> Result<()> {
        let fires_at = whole_second(fires_at);
        if fires_at >= now.plus_millis(SHARED_BEFORE_MS) {
            let row = self.shared_row((queue, partition, fires_at));
            let write = async || {
                self.add_row(cql, queue, fires_at, (partition, id), now).await?;
                Ok::<_, StoreError>(Instant::now())
            };
            let written = row.get_or_try_init(write).await?;
            if written.elapsed() < SHARED_FOR {
                return Ok(());
            }
        }
        self.add_row(cql, queue, fires_at, (partition, id), now).await
    }

    fn shared_row(&self, key: SharedKey) -> Arc<OnceCell<Instant>> {
        let mut rows = self.shared_rows.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.len() >= REMEMBERED_MAX {
            rows.clear();
        }
        Arc::clone(rows.entry(key).or_default())
    }

    async fn add_row(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        fires_at: Timestamp,
        (partition, id): (i64, Uuid),
        now: Timestamp,
    ) -> Result<()> {
        // A minute of the past may be closed already, so a late timer goes into the present one.
        let time_bucket = time_bucket_of(fires_at).max(time_bucket_of(now));
        let shard = shard_of(partition);
        let key = (queue, time_bucket, shard);
        let is_announced = {
            let announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
            announced.contains(&key)
        };
        if !is_announced {
            // A crash after this leaves an announced minute without rows: the next process that reads it closes it.
            cql.write(&self.announce, (queue.name(), shard, time_bucket)).await?;
            let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
            if announced.len() >= REMEMBERED_MAX {
                announced.clear();
            }
            announced.insert(key);
        }
        self.insert.write(cql, key, (queue.name(), time_bucket, shard, to_cql(fires_at), id)).await
    }

    /// Adds a timer that may be long overdue, in a minute that was closed already.
    pub(crate) async fn add_overdue(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        fires_at: Timestamp,
        (partition, id): (i64, Uuid),
    ) -> Result<()> {
        let fires_at = whole_second(fires_at);
        let (time_bucket, shard) = (time_bucket_of(fires_at), shard_of(partition));
        let row = (queue.name(), time_bucket, shard, to_cql(fires_at), id);
        self.insert.write(cql, (queue, time_bucket, shard), row).await?;
        // After the row, so that no process finds the minute empty and closes it again. A crash before this leaves a row that is
        // not found: the import that adds it is repeated.
        cql.write(&self.announce, (queue.name(), shard, time_bucket)).await
    }

    /// Fires the timers that are due, some partitions at the same time. `fire` ends what is due in one partition and returns
    /// how much that was and whether it was all of it; the result is the sum.
    pub(crate) async fn fire_due<F>(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        (now, limit): (Timestamp, usize),
        partition: impl Fn(Uuid) -> i64,
        fire: impl Fn(i64) -> F,
    ) -> Result<usize>
    where
        F: Future<Output = Result<(usize, bool)>>,
    {
        let mut partitions: BTreeMap<i64, Vec<TimerRow>> = BTreeMap::new();
        for row in self.rows(cql, queue, now, limit).await? {
            partitions.entry(partition(row.id)).or_default().push(row);
        }
        let fired = partitions.into_iter().map(|(partition, rows)| {
            let fired = fire(partition);
            async move {
                let (count, is_done) = fired.await?;
                // A crash here leaves timers of a partition that is done: the next process finds nothing due and removes them.
                if is_done {
                    self.remove(cql, queue, &rows).await?;
                }
                Ok::<_, StoreError>(count)
            }
        });
        let counts: Vec<usize> = stream::iter(fired.collect::<Vec<_>>())
            .buffer_unordered(CONCURRENT_PARTITIONS)
            .try_collect()
            .await?;
        Ok(counts.into_iter().sum())
    }

    /// Timers that are due, the oldest first.
    async fn rows(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<TimerRow>> {
        let mut rows = Vec::new();
        let limit_row = i32::try_from(limit).unwrap_or(i32::MAX);
        for shard in 0..SHARDS {
            let mut remaining = limit;
            let values = (queue.name(), shard, time_bucket_of(now), BUCKETS_MAX);
            let time_buckets: Vec<(i64,)> = cql.rows(&self.time_buckets, values).await?;
            for (time_bucket,) in time_buckets {
                if remaining == 0 {
                    break;
                }
                let values = (queue.name(), time_bucket, shard, to_cql(now), limit_row);
                let found: Vec<(CqlTimestamp, Uuid)> = cql.rows(&self.read, values).await?;
                let is_closed = now.as_millis() >= (time_bucket + 1) * BUCKET_MS + CLOSED_AFTER_MS;
                if found.is_empty() && is_closed {
                    self.close(cql, queue, time_bucket, shard).await?;
                }
                remaining = remaining.saturating_sub(found.len());
                rows.extend(
                    found
                        .into_iter()
                        .map(|(fires_at, id)| TimerRow {
                            fires_at: from_cql(fires_at),
                            id,
                            time_bucket,
                            shard,
                        })
                        .filter(|row| self.owns(shard) || is_overdue(row, now)),
                );
            }
        }
        rows.sort_unstable();
        rows.truncate(limit);
        Ok(rows)
    }

    /// Closes a minute that was found empty, unless another process added a row since and announced it in vain.
    async fn close(&self, cql: &Cql, queue: TimerQueue, time_bucket: i64, shard: i32) -> Result<()> {
        cql.write(&self.close_bucket, (queue.name(), shard, time_bucket)).await?;
        // A crash here leaves a row that no process finds only if a process more than a minute late added it just now: such a
        // reservation still ends when it is read, such an order keeps its units until it is cancelled.
        let any = (queue.name(), time_bucket, shard, to_cql(END_OF_TIME), 1);
        match cql.first::<(CqlTimestamp, Uuid)>(&self.read, any).await? {
            Some(_) => cql.write(&self.announce, (queue.name(), shard, time_bucket)).await,
            None => Ok(()),
        }
    }

    /// Removes timers that were fired.
    async fn remove(&self, cql: &Arc<Cql>, queue: TimerQueue, rows: &[TimerRow]) -> Result<()> {
        let deletes = rows.iter().map(|row| {
            let values = (queue.name(), row.time_bucket, row.shard, to_cql(row.fires_at), row.id);
            self.delete.write(cql, (queue, row.time_bucket, row.shard), values)
        });
        try_join_all(deletes).await.map(drop)
    }
}

/// Ends what is due in one partition, page by page; returns how much, and whether that is all of it. `select` picks what is due
/// from the rows; `end` returns whether this call ended it.
pub(crate) async fn fire_partition<R, T, F>(
    cql: &Cql,
    (of_partition, partition): (&PreparedStatement, i64),
    budget: &Budget,
    select: impl Fn(R) -> Result<Option<T>>,
    end: impl Fn(T) -> F,
) -> Result<(usize, bool)>
where
    R: for<'f, 'm> DeserializeRow<'f, 'm>,
    F: Future<Output = Result<bool>>,
{
    let mut count = 0;
    let mut from = PagingState::start();
    loop {
        let (rows, next) = cql.page::<R>(of_partition, (partition,), from).await?;
        let mut due = Vec::new();
        for row in rows {
            due.extend(select(row)?);
        }
        let (wanted, granted) = (due.len(), budget.take(due.len()));
        let ends: Vec<F> = due.into_iter().take(granted).map(&end).collect();
        let ended: Vec<bool> = stream::iter(ends).buffer_unordered(CONCURRENT_ENDS).try_collect().await?;
        count += ended.into_iter().filter(|is_ended| *is_ended).count();
        match next {
            _ if granted < wanted => return Ok((count, false)),
            Some(next) => from = next,
            None => return Ok((count, true)),
        }
    }
}

/// How much a call may still end.
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) const fn new(limit: usize) -> Self {
        Self(AtomicUsize::new(limit))
    }

    /// Takes what is wanted, or as much as remains.
    pub(crate) fn take(&self, wanted: usize) -> usize {
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| {
            Some(remaining.saturating_sub(wanted))
        });
        before.unwrap_or_default().min(wanted)
    }
}

/// The first whole second that is not before.
fn whole_second(at: Timestamp) -> Timestamp {
    let seconds = at.as_millis().saturating_add(SECOND_MS - 1).div_euclid(SECOND_MS);
    Timestamp::from_millis(seconds.saturating_mul(SECOND_MS))
}

fn is_overdue(row: &TimerRow, now: Timestamp) -> bool {
    now.as_millis() - row.fires_at.as_millis() >= OVERDUE_MS
}

const fn time_bucket_of(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(BUCKET_MS)
}

/// All timers of a partition are in one shard, so that one process fires them.
fn shard_of(partition: i64) -> i32 {
    i32::try_from(partition.rem_euclid(i64::from(SHARDS))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_are_never_before() {
        let whole = |ms| whole_second(Timestamp::from_millis(ms)).as_millis();
        assert_eq!(
            [0, 1, 999, 1_000, 1_001, -1, -1_000].map(whole),
            [0, 1_000, 1_000, 1_000, 2_000, 0, -1_000]
        );
        assert_eq!(whole(i64::MAX), i64::MAX / 1_000 * 1_000);
    }

    #[test]
    fn budget_never_grants_more_than_its_limit() {
        let budget = Budget::new(5);
        assert_eq!([3, 4, 1, 0].map(|wanted| budget.take(wanted)), [3, 2, 0, 0]);
    }
}
