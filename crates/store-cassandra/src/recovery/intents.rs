//! Intents: what this process is in the middle of, kept durably. An intent is written before the first step of an operation
//! and removed after the last one.
//!
//! Intents are in partitions by process and minute, so that concurrent intents are one mutation and only the intents of a
//! failed process are ever read. The heartbeat of a process says which of its partitions may have intents; a partition is
//! announced before the first intent in it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mw_store::{Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use super::heartbeat::{Peer, Peers, ProcessList};
use super::ownership::Ownership;
use crate::driver::coalesce::writes::CoalescedWrites;
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;

/// Intents of one partition are begun within this time.
const BUCKET: Duration = Duration::from_mins(1);
/// A row that no process has to finish any more expires.
pub(crate) const TTL_SECONDS: i32 = 10 * 86_400;
/// A conditional write may apply this long after it was sent, by a node that was paused meanwhile.
const IN_FLIGHT_MAX: Duration = Duration::from_mins(1);
/// Operations that may be in flight are checked every second; one that was not checked for so long is done.
const IN_FLIGHT_FORGOTTEN: Duration = Duration::from_mins(10);
const PAGE: i32 = 200;

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

#[derive(Debug, Default)]
struct State {
    /// Open intents by time bucket.
    open: BTreeMap<i64, usize>,
    /// The newest time bucket in the list of processes.
    announced: i64,
    /// Intents whose work failed in this process, and since when.
    abandoned: Vec<(Instant, Intent)>,
    /// Operations whose conditional write may be in flight, and since when this process knows.
    in_flight: HashMap<Uuid, Instant>,
}

type IntentRow = (Uuid, i64, Uuid, &'static str, Vec<u8>, i32);

#[derive(Debug)]
pub(crate) struct Intents {
    processes: ProcessList,
    ownership: Arc<Ownership>,
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

    /// Makes it durable that an operation begins. To be called before its first step.
    pub(crate) async fn begin(
        &self,
        cql: &Arc<Cql>,
        kind: Kind,
        op_id: Uuid,
        payload: Vec<u8>,
    ) -> Result<Intent> {
        let time_bucket = self.time_bucket();
        let is_announced = {
            let mut state = self.state();
            *state.open.entry(time_bucket).or_default() += 1;
            time_bucket <= state.announced
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
        // One bucket ahead, so that a bucket is announced before the first intent in it.
        let newest = self.time_bucket() + 1;
        let oldest = self.state().open.keys().next().copied().unwrap_or(newest - 1);
        self.processes.heartbeat(cql, oldest, newest).await?;
        let mut state = self.state();
        state.announced = state.announced.max(newest);
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
    ) -> Result<(Vec<Intent>, Option<PagingState>)> {
        let (rows, next) = cql
            .page::<(Uuid, Option<String>, Option<Vec<u8>>)>(&self.read, (failed.process, time_bucket), from)
            .await?;
        let mut intents = Vec::with_capacity(rows.len());
        for (op_id, kind, payload) in rows {
            let kind = kind.as_deref().and_then(Kind::named);
            let (Some(kind), Some(payload)) = (kind, payload) else {
                return Err(StoreError::Corrupt(format!("intent of operation {op_id}")));
            };
            intents.push(Intent {
                kind,
                op_id,
                payload,
                time_bucket,
                is_void: false,
                is_unwritten: false,
                home: None,
            });
        }
        Ok((intents, next))
    }

    /// Removes a failed process whose intents are all finished.
    pub(crate) async fn deregister_failed(&self, cql: &Cql, failed: &Peer) -> Result<()> {
        self.processes.deregister(cql, failed.process).await
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
