//! Timers: orders whose payment window ends and reservations that expire are handled when their time comes.
//!
//! A timer row names one order or reservation and stands for all of its partition that are due in the same second: one of the
//! requests of a second writes it, and the process that fires it checks the whole partition.
//!
//! Rows are in partitions by ten minutes and shard. Which of the ten minutes have rows is announced, so that a process that
//! comes back after days does not scan them all; how far a shard is done is stored, so that no process walks through the
//! tombstones of fired timers. A timer that is added late is checked against the stored progress afterwards, and the process
//! that closes a stretch reads it again after it has said so: one of the two always sees the other.
//!
//! Every process may fire every timer: what follows is decided by a conditional write elsewhere. To save work each shard has
//! one owner among the living processes ([`Ownership`]); the others take over what is overdue, one after another.

mod position;
mod rows;
mod walk;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use futures_util::{StreamExt, stream};
use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::ownership::{Ownership, key_of};
use super::unreadable::UnreadableRows;
use crate::driver::statements::Cql;
use position::{Position, bucket_of, buckets_between, upper_bound};
use rows::{Statements, TimerRow};
pub(crate) use walk::{Budget, fire_partition};

/// Shards of a queue: at most so many processes share the timers.
const SHARDS: i32 = 64;
/// Shards that are read at the same time.
const CONCURRENT_SHARDS: usize = 16;
/// Announcements that this process knows to be written, and partitions that it knows to have a row.
const REMEMBERED_MAX: usize = 10_000;
/// A row is shared only if it fires at least this much later: no request takes longer, so none can come too late for it.
const SHARED_BEFORE_MS: i64 = 60_000;
/// A request that took longer than this writes a row of its own.
const SHARED_FOR: Duration = Duration::from_secs(30);
const SECOND_MS: i64 = 1_000;
/// Partitions that are checked at the same time.
const CONCURRENT_PARTITIONS: usize = 8;
/// Attempts to add a late timer; each is lost to a process that closes the stretch at this moment.
const ADD_ATTEMPTS: usize = 4;
/// A timer whose partition cannot be checked for so long is moved so much ahead, and does not keep others waiting.
const POSTPONED_MS: i64 = 60_000;

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

/// A partition, and when it is to be checked.
type SharedKey = (TimerQueue, i64, Timestamp);

#[derive(Debug)]
pub(crate) struct Timers {
    statements: Statements,
    announced: Mutex<HashSet<(TimerQueue, i64)>>,
    /// When the shared row of a partition was written; a request that comes while it is being written waits for it.
    shared_rows: Mutex<HashMap<SharedKey, Arc<OnceCell<Instant>>>>,
    positions: Mutex<HashMap<(TimerQueue, i32), Position>>,
    ownership: Arc<Ownership>,
    unreadable: Arc<UnreadableRows>,
}

/// What one round reads of a shard.
#[derive(Debug, Clone, Copy)]
struct Turn {
    queue: TimerQueue,
    shard: i32,
    rank: usize,
    position: Option<Position>,
    upper: Timestamp,
    now: Timestamp,
}

impl Turn {
    /// Whether it takes the announcements to know what to read.
    fn needs_announcements(&self) -> bool {
        self.position
            .is_none_or(|position| buckets_between(position.lower_bound(self.now), self.upper).is_none())
    }
}

impl Timers {
    pub(crate) async fn prepare(
        cql: &Cql,
        ownership: Arc<Ownership>,
        unreadable: Arc<UnreadableRows>,
    ) -> Result<Self> {
        Ok(Self {
            statements: Statements::prepare(cql).await?,
            announced: Mutex::default(),
            shared_rows: Mutex::default(),
            positions: Mutex::default(),
            ownership,
            unreadable,
        })
    }

    /// The unreadable rows that walks of this process skip.
    pub(crate) fn unreadable(&self) -> &UnreadableRows {
        &self.unreadable
    }

    /// Whether a timer is far enough ahead to be written before what it stands for.
    pub(crate) fn is_far(fires_at: Timestamp, now: Timestamp) -> bool {
        fires_at >= now.plus_millis(SHARED_BEFORE_MS)
    }

    /// Makes sure that the partition of `id` is checked from `fires_at` on. A timer that is not far ahead is to be added after
    /// the row that it stands for, or it may fire before.
    pub(crate) async fn add(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        fires_at: Timestamp,
        (partition, id): (i64, Uuid),
        now: Timestamp,
    ) -> Result<()> {
        let fires_at = whole_second(fires_at);
        if !Self::is_far(fires_at, now) {
            return self.add_checked(cql, queue, fires_at.max(whole_second(now)), (partition, id)).await;
        }
        let cell = self.shared_row((queue, partition, fires_at));
        let write = || async {
            let shard = self.available_shard(cql, queue, fires_at, partition);
            self.add_row(cql, queue, TimerRow { fires_at, id, attempt: 0, shard }).await?;
            Ok::<_, StoreError>(Instant::now())
        };
        let written = cell.get_or_try_init(write).await?;
        if written.elapsed() < SHARED_FOR { Ok(()) } else { write().await.map(drop) }
    }

    fn shared_row(&self, key: SharedKey) -> Arc<OnceCell<Instant>> {
        let mut rows = self.shared_rows.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.len() >= REMEMBERED_MAX {
            rows.clear();
        }
        Arc::clone(rows.entry(key).or_default())
    }

    /// A shard that this process owns, so that processes do not write to the same partitions, and one whose partition has its quorum.
    fn available_shard(&self, cql: &Cql, queue: TimerQueue, at: Timestamp, partition: i64) -> i32 {
        let has_quorum = |shard: &i32| self.statements.is_available(cql, queue, at, *shard);
        let shards = preferred_shards(&self.ownership, partition);
        shards.iter().copied().find(has_quorum).or(shards.first().copied()).unwrap_or_default()
    }

    async fn add_row(&self, cql: &Arc<Cql>, queue: TimerQueue, row: TimerRow) -> Result<()> {
        let key = (queue, bucket_of(row.fires_at));
        let is_announced = {
            let announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
            announced.contains(&key)
        };
        if !is_announced {
            // A crash after this leaves announced minutes without rows: the next process that reads them finds none.
            self.statements.announce(cql, queue, key.1, self.ownership.own()).await?;
            let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
            if announced.len() >= REMEMBERED_MAX {
                announced.clear();
            }
            announced.insert(key);
        }
        self.statements.insert(cql, queue, row).await
    }

    /// Adds a timer that may be long overdue: it goes where it is still found. To be called after the row that it stands for
    /// is written.
    pub(crate) async fn add_overdue(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        fires_at: Timestamp,
        (partition, id): (i64, Uuid),
    ) -> Result<()> {
        let fires_at = whole_second(fires_at);
        let shard = self.available_shard(cql, queue, fires_at, partition);
        let closing = self.statements.closing(cql, queue, shard).await?;
        let fires_at = fires_at.max(after(closing));
        self.add_checked(cql, queue, fires_at, (partition, id)).await
    }

    /// Adds a timer, again further ahead where the stretch was closed meanwhile. Each attempt is a new row, which no earlier
    /// deletion can hide.
    async fn add_checked(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        mut fires_at: Timestamp,
        (partition, id): (i64, Uuid),
    ) -> Result<()> {
        for _ in 0..ADD_ATTEMPTS {
            let shard = self.available_shard(cql, queue, fires_at, partition);
            let attempt = random_attempt();
            self.add_row(cql, queue, TimerRow { fires_at, id, attempt, shard }).await?;
            // A crash here leaves a timer that may never fire: the intent of the order is still there, and recovery adds the
            // timer again; a reservation without a timer expires for every reader in time.
            let closing = self.statements.closing(cql, queue, shard).await?;
            if closing < Some(fires_at) {
                return Ok(());
            }
            fires_at = after(closing);
        }
        Err(StoreError::Unavailable(format!(
            "add a timer of {id}: the shard was closed {ADD_ATTEMPTS} times meanwhile"
        )))
    }

    /// Fires the timers that are due, some partitions at the same time. `fire` ends what is due in one partition and returns
    /// how much that was and whether it was all of it; the result is the sum. A failure keeps no other timer from firing: it
    /// is returned when the rest is done.
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
        let (due, mut first_error) = self.due(cql, queue, now, limit).await;
        let mut partitions: BTreeMap<i64, Vec<TimerRow>> = BTreeMap::new();
        for row in due {
            partitions.entry(partition(row.id)).or_default().push(row);
        }
        let fired = partitions.into_iter().map(|(partition, rows)| {
            let fired = fire(partition);
            async move {
                match fired.await {
                    // A crash here leaves timers of a partition that is done: the next process finds nothing due and removes
                    // them.
                    Ok((count, true)) => self.remove(cql, queue, &rows).await.map(|()| count),
                    Ok((count, false)) => Ok(count),
                    Err(error) => {
                        self.postpone(cql, queue, partition, &rows, now).await;
                        Err(error)
                    }
                }
            }
        });
        let mut fired = stream::iter(fired.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_PARTITIONS);
        let mut sum = 0;
        while let Some(count) = fired.next().await {
            match count {
                Ok(count) => sum += count,
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        first_error.map(|()| sum)
    }

    /// Moves timers ahead whose partition cannot be checked for long, so that the timers behind them are read.
    async fn postpone(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        partition: i64,
        rows: &[TimerRow],
        now: Timestamp,
    ) {
        let is_late = |row: &&TimerRow| row.fires_at <= now.plus_millis(-POSTPONED_MS);
        for row in rows.iter().filter(is_late) {
            let later = whole_second(now.plus_millis(POSTPONED_MS));
            let added = self.add_checked(cql, queue, later, (partition, row.id)).await;
            // A crash here leaves the timer twice: the second one finds nothing due.
            if added.is_ok() && self.remove(cql, queue, std::slice::from_ref(row)).await.is_ok() {
                tracing::warn!(id = %row.id, "postponed a timer: its partition cannot be read or written");
            }
        }
    }

    /// Timers that are due, the oldest first, and the first error of the shards that could not be read.
    async fn due(
        &self,
        cql: &Arc<Cql>,
        queue: TimerQueue,
        now: Timestamp,
        limit: usize,
    ) -> (Vec<TimerRow>, Result<()>) {
        let turns: Vec<Turn> = (0..SHARDS).filter_map(|shard| self.turn(queue, shard, now)).collect();
        let announced = if turns.iter().any(Turn::needs_announcements) {
            match self.statements.announced(cql, queue, bucket_of(now)).await {
                Ok(announced) => announced,
                Err(error) => return (Vec::new(), Err(error)),
            }
        } else {
            Vec::new()
        };
        let reads = turns.into_iter().map(|turn| self.read_shard(cql, turn, &announced, limit));
        let mut reads = stream::iter(reads.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_SHARDS);
        let (mut rows, mut first_error) = (Vec::new(), Ok(()));
        while let Some(read) = reads.next().await {
            match read {
                Ok(found) => rows.extend(found),
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        rows.sort_unstable();
        rows.truncate(limit);
        (rows, first_error)
    }

    /// What this process reads of a shard at `now`; `None` where it is not its turn.
    fn turn(&self, queue: TimerQueue, shard: i32, now: Timestamp) -> Option<Turn> {
        let rank = self.ownership.rank(shard_key(shard));
        let positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        let position = positions.get(&(queue, shard)).copied().filter(|position| position.rank == rank);
        let upper = upper_bound(rank, position.map(|position| position.read_at), now)?;
        Some(Turn { queue, shard, rank, position, upper, now })
    }

    fn set_position(&self, turn: &Turn, position: Position) {
        let mut positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        positions.insert((turn.queue, turn.shard), position);
    }

    /// The timers of a shard that are due, the oldest first.
    async fn read_shard(
        &self,
        cql: &Arc<Cql>,
        turn: Turn,
        announced: &[i64],
        limit: usize,
    ) -> Result<Vec<TimerRow>> {
        let position = match turn.position {
            Some(position) => position,
            None => match self.first_position(cql, &turn, announced).await? {
                Some(position) => position,
                None => return Ok(Vec::new()),
            },
        };
        let range = (position.lower_bound(turn.now), turn.upper);
        let buckets = match buckets_between(range.0, range.1) {
            Some(buckets) => buckets.collect(),
            None => announced_between(announced, range),
        };
        let rows = self.statements.rows(cql, (turn.queue, turn.shard), &buckets, range, limit).await?;
        let position = position.after_read(rows.first().map(|row| row.fires_at), turn.upper, turn.now);
        self.set_position(&turn, position);
        if rows.is_empty()
            && let Some(to) = position.closes_at(turn.now)
        {
            self.close(cql, &turn, position, to).await?;
        }
        Ok(rows)
    }

    /// Where this process begins with a shard: where the last owner stopped, or at the first announcement.
    async fn first_position(&self, cql: &Cql, turn: &Turn, announced: &[i64]) -> Result<Option<Position>> {
        if announced.is_empty() {
            return Ok(None);
        }
        let done = self.statements.done(cql, turn.queue, turn.shard).await?;
        let first = announced.iter().min().map(|bucket| Timestamp::from_millis(bucket * position::BUCKET_MS));
        Ok(done.or(first).map(|from| Position::start(turn.rank, from)))
    }

    /// Closes the shard up to a moment, so that the next owner begins there.
    async fn close(&self, cql: &Cql, turn: &Turn, position: Position, to: Timestamp) -> Result<()> {
        let Turn { queue, shard, .. } = *turn;
        self.statements.set_closing(cql, queue, shard, to).await?;
        // A crash here leaves a stretch into which no timer is added any more, and which the next owner reads again.
        let range = (position.from, to);
        let buckets = match buckets_between(range.0, range.1) {
            Some(buckets) => buckets.collect(),
            None => announced_between(&self.statements.announced(cql, queue, bucket_of(to)).await?, range),
        };
        let rows = self.statements.rows(cql, (queue, shard), &buckets, range, 1).await?;
        if let Some(late) = rows.first() {
            // A timer that came late: the next round fires it.
            self.set_position(turn, position.after_read(Some(late.fires_at), to, turn.now));
        } else {
            self.statements.set_done(cql, queue, shard, to).await?;
            self.set_position(turn, Position { from: to, ..position });
        }
        Ok(())
    }

    /// Removes timers that were fired.
    async fn remove(&self, cql: &Arc<Cql>, queue: TimerQueue, rows: &[TimerRow]) -> Result<()> {
        let deletes = rows.iter().map(|row| self.statements.delete(cql, queue, *row));
        try_join_all(deletes).await.map(drop)
    }
}

fn announced_between(announced: &[i64], (from, to): (Timestamp, Timestamp)) -> Vec<i64> {
    let range = bucket_of(from)..=bucket_of(to);
    announced.iter().copied().filter(|bucket| range.contains(bucket)).collect()
}

/// The first second after everything that is closed.
fn after(closing: Option<Timestamp>) -> Timestamp {
    closing.map_or(Timestamp::from_millis(i64::MIN), |closing| whole_second(closing.plus_millis(1)))
}

/// The first whole second that is not before.
fn whole_second(at: Timestamp) -> Timestamp {
    let seconds = at.as_millis().saturating_add(SECOND_MS - 1).div_euclid(SECOND_MS);
    Timestamp::from_millis(seconds.saturating_mul(SECOND_MS))
}

/// Never 0, which is the row that requests share.
fn random_attempt() -> i32 {
    let random = Uuid::new_v4().as_u128() % u128::from(u32::MAX >> 1);
    i32::try_from(random).unwrap_or_default().saturating_add(1)
}

/// By which the owner of a shard is found.
fn shard_key(shard: i32) -> u64 {
    key_of(&[u64::from(shard.cast_unsigned())])
}

/// The shards in the order in which this process adds the timers of a partition to them: the ones that it owns, and then those of
/// which few others come before it. Among these the partition decides, so that a process writes to all of its shards.
fn preferred_shards(ownership: &Ownership, partition: i64) -> Vec<i32> {
    let mut shards: Vec<i32> = (0..SHARDS).collect();
    shards.sort_by_cached_key(|shard| {
        let mixed = key_of(&[partition.cast_unsigned(), u64::from(shard.cast_unsigned())]);
        (ownership.rank(shard_key(*shard)), mixed)
    });
    shards
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

    /// The shards that a process among others adds the timers of neighbouring partitions to.
    fn shards_of(own: Uuid, processes: &[Uuid]) -> HashSet<i32> {
        let ownership = Ownership::new(own);
        let peers: Vec<Uuid> = processes.iter().copied().filter(|peer| *peer != own).collect();
        ownership.update(own, &peers);
        let first = |partition| *preferred_shards(&ownership, partition).first().unwrap();
        (1_000_000..1_000_256).map(first).collect()
    }

    #[test]
    fn processes_add_timers_to_shards_of_their_own() {
        let processes: Vec<Uuid> = (1..=12).map(Uuid::from_u128).collect();
        let alone = shards_of(processes[0], &[]);
        assert!(alone.len() > 48 && alone.iter().all(|shard| (0..SHARDS).contains(shard)), "{alone:?}");
        let mut all: Vec<i32> = Vec::new();
        for own in &processes {
            all.extend(shards_of(*own, &processes));
        }
        let distinct: HashSet<i32> = all.iter().copied().collect();
        assert_eq!(distinct.len(), all.len(), "no shard has two writers");
        assert!(distinct.len() > 48, "{}", distinct.len());
    }
}
