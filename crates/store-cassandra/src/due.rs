//! What has to be looked at when its time comes: payment windows and holds.
//!
//! A row names one order or reservation and speaks for all of its partition that have the same second: of a crowd that
//! comes in one moment one writes a row, and whoever looks at it looks at the whole partition.
//!
//! Rows lie in partitions by minute and shard, and a small table says which minutes have any, so that nobody ever scans.
//! Every process may work on every row: what a row leads to is decided by a conditional write elsewhere. To save work
//! the shards are divided among the processes that live; a row that is overdue is anybody's.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
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

use crate::cql::{Access, Cql};
use crate::gather::Gather;
use crate::ledger::END_OF_TIME;
use crate::tables::Table;
use crate::time::{from_cql, to_cql};

const SHARDS: i32 = 4;
const SLOT_MS: i64 = 60_000;
/// A minute is closed this long after its end: clocks differ by less.
const CLOSED_AFTER_MS: i64 = 60_000;
/// From then on a row of another process's shard is anybody's.
const OVERDUE_MS: i64 = 3_000;
/// Minutes looked at in one round.
const SLOTS_MAX: i32 = 64;
/// Minutes that this process remembers to have announced, and partitions that it remembers to have a row.
const REMEMBERED_MAX: usize = 10_000;
/// One row is enough for many if its time is so far away that none of them can be late. Nobody is on the way for longer.
const SHARED_BEFORE_MS: i64 = 60_000;
/// And whoever was on the way for longer than this writes one of its own.
const SHARED_FOR: Duration = Duration::from_secs(30);
const SECOND_MS: i64 = 1_000;
/// Partitions that are walked at once, and what is ended of one of them: a keeper takes those of a product together.
const WALKS_AT_ONCE: usize = 8;
const ENDED_AT_ONCE: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Queue {
    /// Orders that wait for payment.
    Payment,
    /// Reservations.
    Hold,
}

impl Queue {
    const fn name(self) -> &'static str {
        match self {
            Self::Payment => "payment",
            Self::Hold => "hold",
        }
    }
}

/// A row whose time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DueRow {
    due_at: Timestamp,
    id: Uuid,
    slot: i64,
    shard: i32,
}

type SlotKey = (Queue, i64, i32);
/// A partition, and when it is to be looked at.
type SharedKey = (Queue, i64, Timestamp);

#[derive(Debug)]
pub(crate) struct Due {
    insert: Gather<SlotKey, (&'static str, i64, i32, CqlTimestamp, Uuid)>,
    delete: Gather<SlotKey, (&'static str, i64, i32, CqlTimestamp, Uuid)>,
    read: PreparedStatement,
    announce: PreparedStatement,
    slots: PreparedStatement,
    forget_slot: PreparedStatement,
    announced: Mutex<HashSet<SlotKey>>,
    /// Partitions that have a row, and its time: whoever comes while it is being written waits for it.
    spoken_for: Mutex<HashMap<SharedKey, Arc<OnceCell<Instant>>>>,
    /// Which of the living processes this is, and how many there are.
    rank: AtomicU32,
    processes: AtomicU32,
}

impl Due {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let (due, slots) = (Table::Due, Table::DueSlots);
        let insert = "INSERT INTO {} (queue, slot, shard, due_at, id) VALUES (?, ?, ?, ?, ?)";
        let delete = "DELETE FROM {} WHERE queue = ? AND slot = ? AND shard = ? AND due_at = ? AND id = ?";
        let read =
            "SELECT due_at, id FROM {} WHERE queue = ? AND slot = ? AND shard = ? AND due_at <= ? LIMIT ?";
        let known = "SELECT slot FROM {} WHERE queue = ? AND shard = ? AND slot <= ? LIMIT ?";
        Ok(Self {
            insert: Gather::new(cql.prepare(due, Access::Write, insert).await?),
            delete: Gather::new(cql.prepare(due, Access::Write, delete).await?),
            read: cql.prepare(due, Access::Read, read).await?,
            announce: cql
                .prepare(slots, Access::Write, "INSERT INTO {} (queue, shard, slot) VALUES (?, ?, ?)")
                .await?,
            slots: cql.prepare(slots, Access::Read, known).await?,
            forget_slot: cql
                .prepare(slots, Access::Write, "DELETE FROM {} WHERE queue = ? AND shard = ? AND slot = ?")
                .await?,
            announced: Mutex::default(),
            spoken_for: Mutex::default(),
            rank: AtomicU32::new(0),
            processes: AtomicU32::new(1),
        })
    }

    /// Tells which of the living processes this is.
    pub(crate) fn divide(&self, rank: u32, processes: u32) {
        self.rank.store(rank, Ordering::Relaxed);
        self.processes.store(processes.max(1), Ordering::Relaxed);
    }

    fn is_mine(&self, shard: i32) -> bool {
        let processes = self.processes.load(Ordering::Relaxed);
        u32::try_from(shard).unwrap_or_default() % processes
            == self.rank.load(Ordering::Relaxed) % processes.min(SHARDS.cast_unsigned())
    }

    /// Makes sure that the partition of `id` is looked at from `due_at` on.
    pub(crate) async fn add(
        &self,
        cql: &Arc<Cql>,
        queue: Queue,
        due_at: Timestamp,
        (partition, id): (i64, Uuid),
        now: Timestamp,
    ) -> Result<()> {
        let due_at = whole_second(due_at);
        if due_at >= now.plus_millis(SHARED_BEFORE_MS) {
            let row = self.shared_row((queue, partition, due_at));
            let write = async || {
                self.add_row(cql, queue, due_at, (partition, id), now).await?;
                Ok::<_, StoreError>(Instant::now())
            };
            let written = row.get_or_try_init(write).await?;
            if written.elapsed() < SHARED_FOR {
                return Ok(());
            }
        }
        self.add_row(cql, queue, due_at, (partition, id), now).await
    }

    fn shared_row(&self, key: SharedKey) -> Arc<OnceCell<Instant>> {
        let mut rows = self.spoken_for.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.len() >= REMEMBERED_MAX {
            rows.clear();
        }
        Arc::clone(rows.entry(key).or_default())
    }

    async fn add_row(
        &self,
        cql: &Arc<Cql>,
        queue: Queue,
        due_at: Timestamp,
        (partition, id): (i64, Uuid),
        now: Timestamp,
    ) -> Result<()> {
        // A minute of the past may be closed already, so what is late goes into the present one.
        let slot = slot_of(due_at).max(slot_of(now));
        let shard = shard_of(partition);
        let key = (queue, slot, shard);
        let is_announced = {
            let announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
            announced.contains(&key)
        };
        if !is_announced {
            cql.write(&self.announce, (queue.name(), shard, slot)).await?;
            let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
            if announced.len() >= REMEMBERED_MAX {
                announced.clear();
            }
            announced.insert(key);
        }
        self.insert.write(cql, key, (queue.name(), slot, shard, to_cql(due_at), id)).await
    }

    /// Adds a row whose time may have come long ago, in a minute that was closed already.
    pub(crate) async fn add_late(
        &self,
        cql: &Arc<Cql>,
        queue: Queue,
        due_at: Timestamp,
        (partition, id): (i64, Uuid),
    ) -> Result<()> {
        let due_at = whole_second(due_at);
        let (slot, shard) = (slot_of(due_at), shard_of(partition));
        let row = (queue.name(), slot, shard, to_cql(due_at), id);
        self.insert.write(cql, (queue, slot, shard), row).await?;
        // After the row, so that nobody finds the minute empty and closes it again.
        cql.write(&self.announce, (queue.name(), shard, slot)).await
    }

    /// Walks the partitions whose time has come, some of them at once. `walk` ends what is due in one and tells how much that was
    /// and whether it was all; answers how much it was together.
    pub(crate) async fn work_off<F>(
        &self,
        cql: &Arc<Cql>,
        queue: Queue,
        (now, limit): (Timestamp, usize),
        partition: impl Fn(Uuid) -> i64,
        walk: impl Fn(i64) -> F,
    ) -> Result<usize>
    where
        F: Future<Output = Result<(usize, bool)>>,
    {
        let mut partitions: BTreeMap<i64, Vec<DueRow>> = BTreeMap::new();
        for row in self.rows(cql, queue, now, limit).await? {
            partitions.entry(partition(row.id)).or_default().push(row);
        }
        let walks = partitions.into_iter().map(|(partition, rows)| {
            let walked = walk(partition);
            async move {
                let (count, is_done) = walked.await?;
                if is_done {
                    self.done(cql, queue, &rows).await?;
                }
                Ok::<_, StoreError>(count)
            }
        });
        let counts: Vec<usize> =
            stream::iter(walks.collect::<Vec<_>>()).buffer_unordered(WALKS_AT_ONCE).try_collect().await?;
        Ok(counts.into_iter().sum())
    }

    /// Rows whose time has come, the oldest first.
    async fn rows(&self, cql: &Arc<Cql>, queue: Queue, now: Timestamp, limit: usize) -> Result<Vec<DueRow>> {
        let mut rows = Vec::new();
        let limit_row = i32::try_from(limit).unwrap_or(i32::MAX);
        for shard in 0..SHARDS {
            let mut left = limit;
            let asked = (queue.name(), shard, slot_of(now), SLOTS_MAX);
            let slots: Vec<(i64,)> = cql.rows(&self.slots, asked).await?;
            for (slot,) in slots {
                if left == 0 {
                    break;
                }
                let asked = (queue.name(), slot, shard, to_cql(now), limit_row);
                let found: Vec<(CqlTimestamp, Uuid)> = cql.rows(&self.read, asked).await?;
                let is_closed = now.as_millis() >= (slot + 1) * SLOT_MS + CLOSED_AFTER_MS;
                if found.is_empty() && is_closed {
                    self.close(cql, queue, slot, shard).await?;
                }
                left = left.saturating_sub(found.len());
                rows.extend(
                    found
                        .into_iter()
                        .map(|(due_at, id)| DueRow { due_at: from_cql(due_at), id, slot, shard })
                        .filter(|row| self.is_mine(shard) || is_overdue(row, now)),
                );
            }
        }
        rows.sort_unstable();
        rows.truncate(limit);
        Ok(rows)
    }

    /// Forgets a minute that was found empty. Somebody may have added a row since and announced it in vain.
    async fn close(&self, cql: &Cql, queue: Queue, slot: i64, shard: i32) -> Result<()> {
        cql.write(&self.forget_slot, (queue.name(), shard, slot)).await?;
        let any = (queue.name(), slot, shard, to_cql(END_OF_TIME), 1);
        match cql.first::<(CqlTimestamp, Uuid)>(&self.read, any).await? {
            Some(_) => cql.write(&self.announce, (queue.name(), shard, slot)).await,
            None => Ok(()),
        }
    }

    /// Rows have been seen to.
    async fn done(&self, cql: &Arc<Cql>, queue: Queue, rows: &[DueRow]) -> Result<()> {
        let deletes = rows.iter().map(|row| {
            let values = (queue.name(), row.slot, row.shard, to_cql(row.due_at), row.id);
            self.delete.write(cql, (queue, row.slot, row.shard), values)
        });
        try_join_all(deletes).await.map(drop)
    }
}

/// Ends what is due in one partition, page by page; answers how much, and whether that is all of it. `due` picks it from the
/// rows, `end` tells whether it was this that ended it.
pub(crate) async fn end_due<R, T, F>(
    cql: &Cql,
    (of_partition, partition): (&PreparedStatement, i64),
    left: &Left,
    due: impl Fn(R) -> Result<Option<T>>,
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
        let mut over = Vec::new();
        for row in rows {
            over.extend(due(row)?);
        }
        let (wanted, taken) = (over.len(), left.take(over.len()));
        let ends: Vec<F> = over.into_iter().take(taken).map(&end).collect();
        let ended: Vec<bool> = stream::iter(ends).buffer_unordered(ENDED_AT_ONCE).try_collect().await?;
        count += ended.into_iter().filter(|is_ended| *is_ended).count();
        match next {
            _ if taken < wanted => return Ok((count, false)),
            Some(next) => from = next,
            None => return Ok((count, true)),
        }
    }
}

/// How much may still be done of what was asked for.
pub(crate) struct Left(AtomicUsize);

impl Left {
    pub(crate) const fn new(limit: usize) -> Self {
        Self(AtomicUsize::new(limit))
    }

    /// Takes so many of it, or as many as there are.
    pub(crate) fn take(&self, wanted: usize) -> usize {
        let before = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(wanted)));
        before.unwrap_or_default().min(wanted)
    }
}

/// The first whole second that is not before.
fn whole_second(at: Timestamp) -> Timestamp {
    let seconds = at.as_millis().saturating_add(SECOND_MS - 1).div_euclid(SECOND_MS);
    Timestamp::from_millis(seconds.saturating_mul(SECOND_MS))
}

fn is_overdue(row: &DueRow, now: Timestamp) -> bool {
    now.as_millis() - row.due_at.as_millis() >= OVERDUE_MS
}

const fn slot_of(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(SLOT_MS)
}

/// All rows of a partition are in one shard, so that one process walks it.
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
    fn no_more_is_taken_than_there_is() {
        let left = Left::new(5);
        assert_eq!([3, 4, 1, 0].map(|wanted| left.take(wanted)), [3, 2, 0, 0]);
    }
}
