//! What this process is in the middle of, kept durably: written before the first step, removed after the last.
//!
//! Intents lie in partitions by process and minute, so that writing many of them is one mutation, and so that only the
//! intents of a dead process are ever read. A process shows that it lives by counting up its beat; whoever sees a beat
//! stand still takes over. No clock is compared with another.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mw_store::{Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use crate::cql::{Access, Cql};
use crate::gather::Gather;
use crate::tables::Table;

/// Intents of one partition are begun within this time.
const SLOT: Duration = Duration::from_mins(1);
/// A row that everybody has forgotten goes away by itself.
pub(crate) const TTL_SECONDS: i32 = 10 * 86_400;
/// A conditional write that was sent may be done this long after, by a node that stood still meanwhile.
const ON_ITS_WAY: Duration = Duration::from_mins(1);
/// What may still come is looked at every second until it has; whatever is older has been seen to.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);
/// All processes are in one partition: there are few.
const PART: i32 = 0;
const PAGE: i32 = 200;

/// What an intent is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Order,
    Status,
    Merge,
    Login,
    Product,
    Import,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Order, Self::Status, Self::Merge, Self::Login, Self::Product, Self::Import];

    const fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Status => "status",
            Self::Merge => "merge",
            Self::Login => "login",
            Self::Product => "product",
            Self::Import => "import",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Something begun. Whatever happens to it in this process, somebody finishes it: also where its work is dropped on the way,
/// as when a client goes away.
#[derive(Debug)]
pub(crate) struct Intent {
    pub(crate) kind: Kind,
    pub(crate) op_id: Uuid,
    pub(crate) payload: Vec<u8>,
    slot: i64,
    /// Its row may not be there, and nothing of it was done.
    is_void: bool,
    /// Where it is left when it is dropped; `None` where there is nothing to leave.
    home: Option<Arc<Mutex<State>>>,
}

impl Intent {
    /// Nothing is to be done of it but to remove it.
    pub(crate) const fn is_void(&self) -> bool {
        self.is_void
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        let payload = std::mem::take(&mut self.payload);
        let Self { kind, op_id, slot, is_void, .. } = *self;
        let left = Self { kind, op_id, payload, slot, is_void, home: None };
        lock(&home).left.push((Instant::now(), left));
    }
}

/// Another process, as the table shows it.
#[derive(Debug, Clone)]
pub(crate) struct Other {
    pub(crate) process: Uuid,
    oldest_slot: i64,
    newest_slot: i64,
}

#[derive(Debug, Default)]
struct State {
    beat: i64,
    /// Open intents by slot.
    open: BTreeMap<i64, usize>,
    /// The newest slot that the table knows of.
    announced: i64,
    /// Intents whose work failed in this process, to be tried again.
    left: Vec<(Instant, Intent)>,
    /// Beats of others, and since when they stand.
    seen: HashMap<Uuid, (i64, Instant)>,
    /// Since when this process knows of things that may still come.
    open_since: HashMap<Uuid, Instant>,
}

type IntentRow = (Uuid, i64, Uuid, &'static str, Vec<u8>, i32);

#[derive(Debug)]
pub(crate) struct Intents {
    process: Uuid,
    started: Instant,
    insert: Gather<i64, IntentRow>,
    delete: Gather<(Uuid, i64), (Uuid, i64, Uuid)>,
    read: PreparedStatement,
    announce: PreparedStatement,
    processes: PreparedStatement,
    forget: PreparedStatement,
    state: Arc<Mutex<State>>,
}

impl Intents {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::Intents;
        let insert =
            "INSERT INTO {} (process, slot, op_id, kind, payload) VALUES (?, ?, ?, ?, ?) USING TTL ?";
        let delete = "DELETE FROM {} WHERE process = ? AND slot = ? AND op_id = ?";
        let mut read = cql
            .prepare(
                table,
                Access::Read,
                "SELECT op_id, kind, payload FROM {} WHERE process = ? AND slot = ?",
            )
            .await?;
        read.set_page_size(PAGE);
        let announce = "INSERT INTO {} (part, process, beat, oldest_slot, newest_slot) VALUES (?, ?, ?, ?, ?) USING TTL ?";
        let of_processes = Table::Processes;
        Ok(Self {
            process: Uuid::new_v4(),
            started: Instant::now(),
            insert: Gather::new(cql.prepare(table, Access::Write, insert).await?),
            delete: Gather::new(cql.prepare(table, Access::Write, delete).await?),
            read,
            announce: cql.prepare(of_processes, Access::Write, announce).await?,
            processes: cql
                .prepare(
                    of_processes,
                    Access::Read,
                    "SELECT process, beat, oldest_slot, newest_slot FROM {} WHERE part = ? LIMIT 10000",
                )
                .await?,
            forget: cql
                .prepare(of_processes, Access::Write, "DELETE FROM {} WHERE part = ? AND process = ?")
                .await?,
            state: Arc::new(Mutex::new(State { announced: -1, ..State::default() })),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn slot(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_secs() / SLOT.as_secs()).unwrap_or(i64::MAX)
    }

    /// Makes it durable that something is begun. To be called before its first step.
    pub(crate) async fn begin(
        &self,
        cql: &Arc<Cql>,
        kind: Kind,
        op_id: Uuid,
        payload: Vec<u8>,
    ) -> Result<Intent> {
        let slot = self.slot();
        let is_announced = {
            let mut state = self.state();
            *state.open.entry(slot).or_default() += 1;
            slot <= state.announced
        };
        let home = Some(Arc::clone(&self.state));
        let mut intent = Intent { kind, op_id, payload, slot, is_void: false, home };
        if !is_announced && let Err(error) = self.beat(cql).await {
            self.close(intent);
            return Err(surely_not(error));
        }
        let row = (self.process, slot, op_id, kind.name(), intent.payload.clone(), TTL_SECONDS);
        match self.insert.write(cql, slot, row).await {
            Ok(()) => Ok(intent),
            Err(error) => {
                // It may lie there all the same: whoever reads it finds that nothing was begun.
                intent.is_void = true;
                self.leave(intent);
                Err(surely_not(error))
            }
        }
    }

    /// Everything of it is done. What cannot be removed now is looked at again later, which does no harm.
    pub(crate) async fn end(&self, cql: &Arc<Cql>, intent: Intent) {
        match self.delete(cql, self.process, &intent).await {
            Ok(()) => self.close(intent),
            Err(error) => {
                tracing::debug!(%error, "remove an intent that is done");
                self.leave(intent);
            }
        }
    }

    async fn delete(&self, cql: &Arc<Cql>, process: Uuid, intent: &Intent) -> Result<()> {
        self.delete.write(cql, (process, intent.slot), (process, intent.slot, intent.op_id)).await
    }

    /// Something that a dead process left is finished, whatever becomes of the rest.
    pub(crate) async fn end_of_other(&self, cql: &Arc<Cql>, other: &Other, intent: &Intent) -> Result<()> {
        self.delete(cql, other.process, intent).await
    }

    /// Something is not there and may still be on its way: an error until it has had the time to come, so that its intent
    /// is kept and looked at again.
    pub(crate) fn wait_for(&self, op_id: Uuid) -> Result<()> {
        let mut state = self.state();
        state.open_since.retain(|_, since| since.elapsed() < FORGOTTEN_AFTER);
        let known_for = state.open_since.entry(op_id).or_insert_with(Instant::now).elapsed();
        if known_for < ON_ITS_WAY {
            return Err(StoreError::Ambiguous(format!("{op_id} may still be on its way")));
        }
        Ok(())
    }

    /// Its work failed on the way: it is tried again soon, here or by another process.
    #[expect(
        clippy::unused_self,
        reason = "it reads as what it is: the end of an intent that is not its last step"
    )]
    pub(crate) fn leave(&self, intent: Intent) {
        drop(intent);
    }

    fn close(&self, mut intent: Intent) {
        intent.home = None;
        let mut state = self.state();
        if let Some(count) = state.open.get_mut(&intent.slot) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&intent.slot);
            }
        }
    }

    /// Intents that were left at least `age` ago.
    pub(crate) fn take_left(&self, age: Duration) -> Vec<Intent> {
        let mut state = self.state();
        let left = std::mem::take(&mut state.left);
        let (due, young): (Vec<_>, Vec<_>) = left.into_iter().partition(|(since, _)| since.elapsed() >= age);
        state.left = young;
        let home = |mut intent: Intent| {
            intent.home = Some(Arc::clone(&self.state));
            intent
        };
        due.into_iter().map(|(_, intent)| home(intent)).collect()
    }

    /// Shows that this process lives and where its intents lie.
    pub(crate) async fn beat(&self, cql: &Cql) -> Result<()> {
        // One ahead, so that a new slot is known before anything lies in it.
        let newest = self.slot() + 1;
        let (beat, oldest) = {
            let mut state = self.state();
            state.beat += 1;
            (state.beat, state.open.keys().next().copied().unwrap_or(newest - 1))
        };
        let values = (PART, self.process, beat, oldest, newest, TTL_SECONDS);
        cql.write(&self.announce, values).await?;
        let mut state = self.state();
        state.announced = state.announced.max(newest);
        Ok(())
    }

    /// Takes this process out of the list, unless something of it is still open.
    pub(crate) async fn leave_list(&self, cql: &Cql) -> Result<()> {
        let is_done = self.state().open.is_empty();
        if is_done { cql.write(&self.forget, (PART, self.process)).await } else { Ok(()) }
    }

    /// The others: those that live, and those whose beat has stood still for `silence`.
    pub(crate) async fn others(&self, cql: &Cql, silence: Duration) -> Result<(Vec<Uuid>, Vec<Other>)> {
        let rows: Vec<(Uuid, i64, i64, i64)> = cql.rows(&self.processes, (PART,)).await?;
        let mut state = self.state();
        let now = Instant::now();
        let mut seen = HashMap::with_capacity(rows.len());
        let (mut alive, mut silent) = (Vec::new(), Vec::new());
        for (process, beat, oldest_slot, newest_slot) in rows {
            if process == self.process {
                continue;
            }
            let since = match state.seen.get(&process) {
                Some((known, since)) if *known == beat => *since,
                _ => now,
            };
            seen.insert(process, (beat, since));
            if now.duration_since(since) >= silence {
                silent.push(Other { process, oldest_slot, newest_slot });
            } else {
                alive.push(process);
            }
        }
        state.seen = seen;
        Ok((alive, silent))
    }

    pub(crate) const fn process(&self) -> Uuid {
        self.process
    }

    /// What a dead process left, a page at a time; `None` as the next page is the end of the slot.
    pub(crate) async fn of_other(
        &self,
        cql: &Cql,
        other: &Other,
        slot: i64,
        from: PagingState,
    ) -> Result<(Vec<Intent>, Option<PagingState>)> {
        let (rows, next) = cql
            .page::<(Uuid, Option<String>, Option<Vec<u8>>)>(&self.read, (other.process, slot), from)
            .await?;
        let mut intents = Vec::with_capacity(rows.len());
        for (op_id, kind, payload) in rows {
            let kind = kind.as_deref().and_then(Kind::named);
            let (Some(kind), Some(payload)) = (kind, payload) else {
                return Err(StoreError::Corrupt(format!("an intent of {op_id}")));
            };
            intents.push(Intent { kind, op_id, payload, slot, is_void: false, home: None });
        }
        Ok((intents, next))
    }

    /// Everything of a dead process is finished.
    pub(crate) async fn forget(&self, cql: &Cql, other: &Other) -> Result<()> {
        cql.write(&self.forget, (PART, other.process)).await
    }
}

impl Other {
    pub(crate) fn slots(&self) -> std::ops::RangeInclusive<i64> {
        self.oldest_slot..=self.newest_slot
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing of the work itself has happened, whatever became of the intent.
pub(crate) fn surely_not(error: StoreError) -> StoreError {
    match error {
        StoreError::Ambiguous(detail) => StoreError::Unavailable(detail),
        other => other,
    }
}
