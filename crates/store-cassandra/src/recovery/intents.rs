//! Intents: what this process is in the middle of, kept durably. An intent is written before the first step of an operation
//! and removed after the last one.
//!
//! Intents are in partitions by process and ten seconds, so that concurrent intents are one mutation and only the intents of
//! a failed process are ever read. The heartbeat of a process says which of its partitions may have intents, ten minutes ahead,
//! so that no request waits for a heartbeat. A process that could not write one for a while may have been taken for failed and
//! been removed from the list: it writes a heartbeat before it begins anything else.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mw_store::{Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use super::heartbeat::{FAILURE_TIMEOUT, Peer, Peers, ProcessList};
use super::ownership::Ownership;
use super::unreadable::UnreadableRows;
use crate::driver::coalesce::writes::CoalescedWrites;
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;

/// Intents of one partition are begun within this time.
const BUCKET: Duration = Duration::from_secs(10);
/// Buckets of a day.
const DAY_BUCKETS: i64 = 86_400 / BUCKET.as_secs().cast_signed();
/// Buckets are announced so far ahead.
const ANNOUNCED_AHEAD: i64 = 60;
/// Where the partition of the present bucket has no quorum, one of so many next ones is used.
const BUCKETS_TO_CHOOSE: i64 = 30;
/// A row that no process has to finish any more expires.
pub(crate) const TTL_SECONDS: i32 = 10 * 86_400;
/// Buckets of the lifetime of an intent, and those announced ahead.
pub(super) const TIME_BUCKETS_MAX: i64 = 10 * DAY_BUCKETS + ANNOUNCED_AHEAD;
/// A process whose last heartbeat is older writes one before it begins an operation.
const HEARTBEAT_LEASE: Duration = Duration::from_mins(1);
/// A process that is silent for longer than this may be removed from the list: well beyond the lease.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_mins(3);
/// Abandoned intents that wait to be retried; beyond that no operation is begun.
const ABANDONED_MAX: usize = 4_096;
/// A conditional write may apply this long after it was sent, by a node that was paused meanwhile.
const IN_FLIGHT_MAX: Duration = Duration::from_mins(1);
/// Operations that may be in flight are checked every second; one that was not checked for so long is done.
const IN_FLIGHT_FORGOTTEN: Duration = Duration::from_mins(10);
const PAGE: i32 = 200;
/// A process takes over from each process before it after this time.
const TAKE_OVER_AFTER: Duration = Duration::from_secs(3);
/// A bucket of a failed process without intents is read again after this time: the process may live and go on.
const RECHECKED_AFTER: Duration = Duration::from_secs(20);

/// The operation of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Order,
    Status,
    Merge,
    Login,
    Product,
    Import,
    Reserve,
    CloseReservation,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Order,
        Self::Status,
        Self::Merge,
        Self::Login,
        Self::Product,
        Self::Import,
        Self::Reserve,
        Self::CloseReservation,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Status => "status",
            Self::Merge => "merge",
            Self::Login => "login",
            Self::Product => "product",
            Self::Import => "import",
            Self::Reserve => "reserve",
            Self::CloseReservation => "close_reservation",
        }
    }

    /// Whether finishing it changes stock or the status of an order.
    pub(super) const fn moves_stock(self) -> bool {
        !matches!(self, Self::Merge | Self::Login | Self::Product)
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// An operation that has begun. However its work ends in this process, the operation is finished: an intent that is dropped
/// (its request failed, or its client went away) is abandoned, and recovery of this process retries it.
#[derive(Debug)]
pub(crate) struct Intent {
    pub(crate) kind: Kind,
    pub(crate) op_id: Uuid,
    pub(crate) payload: Vec<u8>,
    time_bucket: i64,
    /// Its row may not exist, and nothing of the operation was done.
    is_void: bool,
    /// Whether it has no row: only this process can finish it.
    is_unwritten: bool,
    /// Where it is abandoned when it is dropped; `None` where it is complete or belongs to another process.
    home: Option<Arc<Mutex<State>>>,
}

impl Intent {
    /// Whether there is nothing to finish: only its row has to be removed.
    pub(crate) const fn is_void(&self) -> bool {
        self.is_void
    }

    /// Whether it belongs to this process, whose request got no response, or only an error.
    pub(crate) const fn is_abandoned_here(&self) -> bool {
        self.home.is_some()
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        let payload = std::mem::take(&mut self.payload);
        let Self { kind, op_id, time_bucket, is_void, is_unwritten, .. } = *self;
        let abandoned = Self { kind, op_id, payload, time_bucket, is_void, is_unwritten, home: None };
        lock(&home).abandoned.push((Instant::now(), abandoned));
    }
}

/// A page of orphaned intents.
#[derive(Debug)]
pub(crate) struct OrphanedPage {
    pub(crate) intents: Vec<Intent>,
    /// Rows that could not be read.
    pub(crate) skipped: usize,
    pub(crate) next: Option<PagingState>,
}

#[derive(Debug, Default)]
struct State {
    /// Open intents by time bucket.
    open: BTreeMap<i64, usize>,
    /// The newest time bucket in the list of processes.
    announced: i64,
    /// When the last heartbeat that was written began.
    last_heartbeat: Option<Instant>,
    /// Intents whose work failed in this process, and since when.
    abandoned: Vec<(Instant, Intent)>,
    /// When buckets of failed processes were last found without intents to finish.
    recovered: HashMap<Uuid, HashMap<i64, Instant>>,
    /// Operations whose conditional write may be in flight, and since when this process knows.
    in_flight: HashMap<Uuid, Instant>,
}

impl State {
    /// Whether every process that takes this one for failed reads the bucket.
    fn has_announced(&self, time_bucket: i64) -> bool {
        let is_listed = self.last_heartbeat.is_some_and(|last| last.elapsed() < HEARTBEAT_LEASE);
        is_listed && time_bucket <= self.announced
    }
}

type IntentRow = (Uuid, i64, Uuid, &'static str, Vec<u8>, i32);

#[derive(Debug)]
pub(crate) struct Intents {
    processes: ProcessList,
    ownership: Arc<Ownership>,
    unreadable: Arc<UnreadableRows>,
    started: Instant,
    insert: CoalescedWrites<i64, IntentRow>,
    delete: CoalescedWrites<(Uuid, i64), (Uuid, i64, Uuid)>,
    read: PreparedStatement,
    state: Arc<Mutex<State>>,
}

impl Intents {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::Intents;
        let insert =
            "INSERT INTO {} (process, time_bucket, op_id, kind, payload) VALUES (?, ?, ?, ?, ?) USING TTL ?";
        let delete = "DELETE FROM {} WHERE process = ? AND time_bucket = ? AND op_id = ?";
        let read = "SELECT op_id, kind, payload FROM {} WHERE process = ? AND time_bucket = ?";
        let mut read = cql.prepare(table, Access::Read, read).await?;
        read.set_page_size(PAGE);
        let processes = ProcessList::prepare(cql).await?;
        Ok(Self {
            ownership: Arc::new(Ownership::new(processes.process())),
            processes,
            unreadable: Arc::default(),
            started: Instant::now(),
            insert: CoalescedWrites::new(cql.prepare(table, Access::Write, insert).await?),
            delete: CoalescedWrites::new(cql.prepare(table, Access::Write, delete).await?),
            read,
            state: Arc::new(Mutex::new(State { announced: -1, ..State::default() })),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn time_bucket(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_secs() / BUCKET.as_secs()).unwrap_or(i64::MAX)
    }

    /// The present time bucket, or the next announced one whose partition has its quorum.
    fn available_bucket(&self, cql: &Cql) -> i64 {
        let present = self.time_bucket();
        let has_quorum = |time_bucket: &i64| cql.has_quorum(&self.read, &(self.process(), *time_bucket));
        (present..=present + BUCKETS_TO_CHOOSE).find(has_quorum).unwrap_or(present)
    }

    /// The id of this process.
    pub(crate) const fn process(&self) -> Uuid {
        self.processes.process()
    }

    /// The list of processes.
    pub(crate) const fn processes(&self) -> &ProcessList {
        &self.processes
    }

    /// The division of work among the living processes.
    pub(crate) const fn ownership(&self) -> &Arc<Ownership> {
        &self.ownership
    }

    /// The rows that background work of this process could not read.
    pub(crate) const fn unreadable(&self) -> &Arc<UnreadableRows> {
        &self.unreadable
    }

    /// Makes it durable that an operation begins. To be called before its first step.
    pub(crate) async fn begin(
        &self,
        cql: &Arc<Cql>,
        kind: Kind,
        op_id: Uuid,
        payload: Vec<u8>,
    ) -> Result<Intent> {
        let time_bucket = self.available_bucket(cql);
        let is_announced = {
            let mut state = self.state();
            if state.abandoned.len() >= ABANDONED_MAX {
                return Err(StoreError::Overloaded);
            }
            *state.open.entry(time_bucket).or_default() += 1;
            state.has_announced(time_bucket)
        };
        let home = Some(Arc::clone(&self.state));
        let mut intent =
            Intent { kind, op_id, payload, time_bucket, is_void: false, is_unwritten: false, home };
        // A crash after this leaves an announced bucket without the intent: recovery finds it empty.
        if !is_announced && let Err(error) = self.heartbeat(cql).await {
            self.close(intent);
            return Err(error.before_first_effect());
        }
        let row = (self.process(), time_bucket, op_id, kind.name(), intent.payload.clone(), TTL_SECONDS);
        // A crash after this leaves an intent without any effect: recovery of another process finds nothing begun.
        match self.insert.write(cql, time_bucket, row).await {
            Ok(()) => Ok(intent),
            Err(error) => {
                intent.is_void = true;
                self.abandon(intent);
                Err(error.before_first_effect())
            }
        }
    }

    /// For an operation that one conditional write decides: an intent in memory only, which costs no statement. If the
    /// request fails or is dropped, this process finishes it; a crash leaves an operation that was never acknowledged.
    pub(crate) fn begin_unwritten(&self, kind: Kind, op_id: Uuid, payload: Vec<u8>) -> Intent {
        let home = Some(Arc::clone(&self.state));
        let time_bucket = self.time_bucket();
        Intent { kind, op_id, payload, time_bucket, is_void: false, is_unwritten: true, home }
    }

    /// The operation of an intent without a row is finished; the intent comes back where it has a row to remove.
    #[expect(clippy::unused_self, reason = "reads as the counterpart of `complete`")]
    pub(crate) fn complete_unwritten(&self, mut intent: Intent) -> Option<Intent> {
        if intent.is_unwritten {
            intent.home = None;
            return None;
        }
        Some(intent)
    }

    /// The operation is finished. A row that cannot be removed now is removed later; finishing it again changes nothing.
    pub(crate) async fn complete(&self, cql: &Arc<Cql>, intent: Intent) {
        let Some(intent) = self.complete_unwritten(intent) else { return };
        // A crash here leaves the intent of a finished operation: another process finishes it again, without effect.
        match self.delete(cql, self.process(), &intent).await {
            Ok(()) => self.close(intent),
            Err(error) => {
                tracing::debug!(%error, kind = ?intent.kind, op_id = %intent.op_id, "remove a completed intent");
                self.abandon(intent);
            }
        }
    }

    async fn delete(&self, cql: &Arc<Cql>, process: Uuid, intent: &Intent) -> Result<()> {
        self.delete
            .write(cql, (process, intent.time_bucket), (process, intent.time_bucket, intent.op_id))
            .await
    }

    /// The operation of a failed process is finished.
    pub(crate) async fn complete_orphaned(
        &self,
        cql: &Arc<Cql>,
        failed: &Peer,
        intent: &Intent,
    ) -> Result<()> {
        self.delete(cql, failed.process, intent).await
    }

    /// For an operation whose conditional write is not visible and may still be in flight: an error until it cannot apply any
    /// more, so that its intent is kept and checked again.
    pub(crate) fn keep_while_in_flight(&self, op_id: Uuid) -> Result<()> {
        let mut state = self.state();
        state.in_flight.retain(|_, since| since.elapsed() < IN_FLIGHT_FORGOTTEN);
        let known_for = state.in_flight.entry(op_id).or_insert_with(Instant::now).elapsed();
        if known_for < IN_FLIGHT_MAX {
            return Err(StoreError::Ambiguous(format!("the write of operation {op_id} may be in flight")));
        }
        Ok(())
    }

    /// The work of the operation failed: it is retried soon, by this process or, after a crash, by another one.
    #[expect(
        clippy::unused_self,
        reason = "reads as the counterpart of `complete`; dropping an intent abandons it"
    )]
    pub(crate) fn abandon(&self, intent: Intent) {
        drop(intent);
    }

    fn close(&self, mut intent: Intent) {
        intent.home = None;
        let mut state = self.state();
        if let Some(count) = state.open.get_mut(&intent.time_bucket) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&intent.time_bucket);
            }
        }
    }

    /// Intents that were abandoned at least `age` ago.
    pub(crate) fn take_abandoned(&self, age: Duration) -> Vec<Intent> {
        let mut state = self.state();
        let abandoned = std::mem::take(&mut state.abandoned);
        let (taken, young): (Vec<_>, Vec<_>) =
            abandoned.into_iter().partition(|(since, _)| since.elapsed() >= age);
        state.abandoned = young;
        let with_home = |(_, mut intent): (Instant, Intent)| {
            intent.home = Some(Arc::clone(&self.state));
            intent
        };
        taken.into_iter().map(with_home).collect()
    }

    /// Writes the heartbeat of this process, with the time buckets of its intents.
    pub(crate) async fn heartbeat(&self, cql: &Cql) -> Result<()> {
        let began = Instant::now();
        let present = self.time_bucket();
        let newest = present + ANNOUNCED_AHEAD;
        let oldest = self.state().open.keys().next().copied().unwrap_or(present);
        self.processes.heartbeat(cql, oldest, newest).await?;
        let mut state = self.state();
        state.announced = state.announced.max(newest);
        state.last_heartbeat = state.last_heartbeat.max(Some(began));
        Ok(())
    }

    /// Removes this process from the list of processes, unless it has open intents: those are left to recovery by another one.
    pub(crate) async fn deregister(&self, cql: &Cql) -> Result<()> {
        let is_done = self.state().open.is_empty();
        if is_done { self.processes.deregister(cql, self.process()).await } else { Ok(()) }
    }

    /// The other processes of the shop; the work is divided anew among those that live.
    pub(crate) async fn peers(&self, cql: &Cql) -> Result<Peers> {
        let peers = self.processes.peers(cql).await?;
        let alive: Vec<Uuid> = peers.alive.iter().map(|peer| peer.process).collect();
        self.ownership.update(self.process(), &alive);
        Ok(peers)
    }

    /// A page of the orphaned intents in a time bucket of a failed process, and where the next page begins.
    pub(crate) async fn orphaned(
        &self,
        cql: &Cql,
        failed: &Peer,
        time_bucket: i64,
        from: PagingState,
    ) -> Result<OrphanedPage> {
        type Stored = (Uuid, Option<String>, Option<Vec<u8>>);
        let (rows, next) = cql.page::<Stored>(&self.read, (failed.process, time_bucket), from).await?;
        let mut page = OrphanedPage { intents: Vec::with_capacity(rows.len()), skipped: 0, next };
        for (op_id, kind, payload) in rows {
            let known = kind.as_deref().and_then(Kind::named);
            let (Some(kind), Some(payload)) = (known, payload) else {
                self.unreadable.report(&format!("intent {op_id}"), &format!("kind {kind:?}"));
                page.skipped += 1;
                continue;
            };
            page.intents.push(Intent {
                kind,
                op_id,
                payload,
                time_bucket,
                is_void: false,
                is_unwritten: false,
                home: None,
            });
        }
        Ok(page)
    }

    /// Whether it is this process' turn to recover a bucket of a failed process: the owner at once, the others one after
    /// another while it is not done; a bucket that was found done is looked at again after a while.
    pub(crate) fn is_turn(&self, failed: &Peer, time_bucket: i64) -> bool {
        let rank = u32::try_from(self.ownership.rank(failed.bucket_key(time_bucket))).unwrap_or(u32::MAX);
        let delay = TAKE_OVER_AFTER.saturating_mul(rank);
        let state = self.state();
        let done_at = state.recovered.get(&failed.process).and_then(|buckets| buckets.get(&time_bucket));
        let is_done = done_at.is_some_and(|at| at.elapsed() < RECHECKED_AFTER.saturating_add(delay));
        !is_done && failed.silent_for >= FAILURE_TIMEOUT.saturating_add(delay)
    }

    /// A bucket of a failed process has no intents that this process could finish.
    pub(crate) fn recovered(&self, failed: &Peer, time_bucket: i64) {
        let mut state = self.state();
        state.recovered.entry(failed.process).or_default().insert(time_bucket, Instant::now());
    }

    /// Forgets what was recovered of processes that live again or were removed.
    pub(crate) fn retain_recovered(&self, failed: &[Peer]) {
        let is_failed = |process: &Uuid| failed.iter().any(|peer| peer.process == *process);
        self.state().recovered.retain(|process, _| is_failed(process));
    }

    /// Whether this process is to remove a failed one from the list, if it has no intents any more. Not before it must have
    /// noticed that it was silent, or an intent that it begins afterwards would never be read.
    pub(crate) fn may_forget(&self, failed: &Peer) -> bool {
        let rank = u32::try_from(self.ownership.rank(failed.key())).unwrap_or(u32::MAX);
        failed.silent_for >= FORGOTTEN_AFTER.saturating_add(TAKE_OVER_AFTER.saturating_mul(rank))
    }

    /// Removes a failed process whose intents are all finished.
    pub(crate) async fn deregister_failed(&self, cql: &Cql, failed: &Peer) -> Result<()> {
        self.processes.deregister(cql, failed.process).await
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_was_silent_for_long_announces_itself_before_it_begins() {
        let now = Instant::now();
        let state = |last_heartbeat, announced| State { announced, last_heartbeat, ..State::default() };
        assert!(state(Some(now), 5).has_announced(5));
        assert!(!state(Some(now), 5).has_announced(6), "beyond the announced buckets");
        assert!(!state(None, 5).has_announced(5), "never announced");
        assert!(!state(now.checked_sub(HEARTBEAT_LEASE), 5).has_announced(5), "silent for the lease");
        assert!(HEARTBEAT_LEASE * 2 < FORGOTTEN_AFTER, "another process forgets it long after that");
    }
}
