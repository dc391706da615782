//! What the parts of a running migration share: the source, the target, how far the stream was taken, which documents changed
//! since the last verification, and the queue in front of the taker.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mongodb::bson::Timestamp as ClusterTime;
use mw_store::migration::MigrationTarget;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::apply::{Reading, Readings};
use crate::clock;
use crate::error::{MigrateError, Result};
use crate::key::{Key, Kind};
use crate::mapping::Settings;
use crate::retry::retry;
use crate::source::Source;
use crate::state::{AllCounts, Meta, Phase};
use crate::verify::Verification;

/// Readings that wait for the taker.
pub(crate) const QUEUE: usize = 8;
/// Changed documents that the last verification of a cutover compares; above, everything is verified once more first.
const CHANGED_MAX: usize = 500_000;
/// How long a stream may say nothing before the target counts as behind.
const QUIET_MS: i64 = 2_000;

/// Work for the taker, in order.
pub(crate) enum Work {
    Ready(Box<Reading>),
    /// Changes whose documents are being read.
    Later(JoinHandle<Result<Reading>>),
    /// Documents that are read and taken without a change.
    Again(Vec<Key>),
    /// Everything before it was taken.
    Barrier(oneshot::Sender<()>),
    /// The copy is done, or begins.
    Copying(bool),
    /// How many documents of each collection differ.
    Mismatched([u64; Kind::ALL.len()]),
}

pub(crate) struct Shared {
    pub(crate) source: Arc<Source>,
    pub(crate) target: Arc<dyn MigrationTarget>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) readings: Readings,
    pub(crate) work: mpsc::Sender<Work>,
    meta: AsyncMutex<Meta>,
    phase: watch::Sender<Phase>,
    counts: Mutex<AllCounts>,
    taken_up_to: watch::Sender<Option<ClusterTime>>,
    /// Batches of changes between the stream and the target.
    pub(crate) pending: AtomicU64,
    /// When the stream last answered.
    pub(crate) contact_ms: AtomicI64,
    /// Since the last verification began; `None`: too many to remember.
    changed: Mutex<Option<BTreeSet<Key>>>,
    pub(crate) verification: Mutex<Verification>,
    /// One verification or cutover at a time.
    pub(crate) exclusive: AsyncMutex<()>,
    pub(crate) oplog_hours: Mutex<Option<f64>>,
    /// Commands whose answers are not sent yet.
    answering: watch::Sender<usize>,
    next_page: AsyncMutex<Instant>,
    rate: Option<u32>,
}

/// A command whose answer is not sent yet.
pub(crate) struct Answering<'a>(&'a watch::Sender<usize>);

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|answering| *answering -= 1);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a migration begins with.
pub(crate) struct Start {
    pub(crate) meta: Meta,
    pub(crate) counts: AllCounts,
    pub(crate) taken_up_to: Option<ClusterTime>,
    pub(crate) rate: Option<u32>,
}

impl Shared {
    pub(crate) fn new(
        source: Arc<Source>,
        target: Arc<dyn MigrationTarget>,
        settings: Arc<Settings>,
        work: mpsc::Sender<Work>,
        start: Start,
    ) -> Self {
        Self {
            source,
            target,
            settings,
            readings: Readings::default(),
            work,
            phase: watch::Sender::new(start.meta.phase),
            meta: AsyncMutex::new(start.meta),
            counts: Mutex::new(start.counts),
            taken_up_to: watch::Sender::new(start.taken_up_to),
            pending: AtomicU64::new(0),
            contact_ms: AtomicI64::new(clock::now().as_millis()),
            changed: Mutex::new(None),
            verification: Mutex::default(),
            exclusive: AsyncMutex::default(),
            oplog_hours: Mutex::default(),
            answering: watch::Sender::new(0),
            next_page: AsyncMutex::new(Instant::now()),
            rate: start.rate,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn begin_answer(&self) -> Answering<'_> {
        self.answering.send_modify(|answering| *answering += 1);
        Answering(&self.answering)
    }

    /// Waits until the commands that were taken have their answers.
    pub(crate) async fn answered(&self, limit: Duration) {
        let mut answering = self.answering.subscribe();
        let _ = timeout(limit, answering.wait_for(|answering| *answering == 0)).await;
    }

    pub(crate) async fn meta(&self) -> Meta {
        self.meta.lock().await.clone()
    }

    /// Changes what is known of the whole migration, in the target first.
    pub(crate) async fn update_meta(&self, change: impl FnOnce(&mut Meta)) -> Result<()> {
        let mut meta = self.meta.lock().await;
        let mut next = meta.clone();
        change(&mut next);
        // A crash before this write leaves the phase as it was, and the next run begins from it.
        let change = next.change()?;
        retry("store the phase of the migration", || async {
            Ok(self.target.apply(vec![change.clone()]).await?)
        })
        .await?;
        self.phase.send_replace(next.phase);
        *meta = next;
        Ok(())
    }

    pub(crate) fn counts(&self) -> AllCounts {
        *lock(&self.counts)
    }

    pub(crate) fn set_counts(&self, counts: AllCounts) {
        *lock(&self.counts) = counts;
    }

    pub(crate) async fn send(&self, work: Work) -> Result<()> {
        self.work.send(work).await.map_err(|_| MigrateError::Ended("the taker".to_owned()))
    }

    /// Waits until everything that was sent before is taken.
    pub(crate) async fn barrier(&self) -> Result<()> {
        let (reached, wait) = oneshot::channel();
        self.send(Work::Barrier(reached)).await?;
        wait.await.map_err(|_| MigrateError::Ended("the taker".to_owned()))
    }

    pub(crate) fn taken_up_to(&self) -> Option<ClusterTime> {
        *self.taken_up_to.borrow()
    }

    pub(crate) fn set_taken_up_to(&self, time: ClusterTime) {
        self.taken_up_to.send_if_modified(|known| {
            let is_later = known.is_none_or(|known| known < time);
            if is_later {
                *known = Some(time);
            }
            is_later
        });
    }

    /// Waits until the changes up to a time are taken; `false` where that takes longer than `limit`.
    pub(crate) async fn wait_taken(&self, time: ClusterTime, limit: Duration) -> bool {
        let mut taken = self.taken_up_to.subscribe();
        let waiting = taken.wait_for(|taken| taken.is_some_and(|taken| taken >= time));
        timeout(limit, waiting).await.is_ok_and(|waited| waited.is_ok())
    }

    /// How far the target is behind the source.
    pub(crate) fn lag_ms(&self) -> i64 {
        let now = clock::now().as_millis();
        let quiet = (now - self.contact_ms.load(Ordering::Relaxed) - QUIET_MS).max(0);
        if self.pending.load(Ordering::SeqCst) == 0 {
            return quiet;
        }
        let behind = self.taken_up_to().map_or(0, |taken| now - i64::from(taken.time) * 1_000);
        behind.max(quiet)
    }

    pub(crate) fn note_changed(&self, keys: &BTreeSet<Key>) {
        let mut changed = lock(&self.changed);
        if let Some(known) = changed.as_mut() {
            known.extend(keys.iter().cloned());
            if known.len() > CHANGED_MAX {
                *changed = None;
            }
        }
    }

    /// Begins to remember which documents change.
    pub(crate) fn remember_changed(&self) {
        *lock(&self.changed) = Some(BTreeSet::new());
    }

    /// The documents that changed since the last verification began, if they are known.
    pub(crate) fn changed(&self) -> Option<BTreeSet<Key>> {
        lock(&self.changed).clone()
    }

    pub(crate) fn knows_changed(&self) -> bool {
        lock(&self.changed).is_some()
    }

    /// Waits until a page of so many documents may be read.
    pub(crate) async fn pace(&self, documents: usize) {
        let Some(rate) = self.rate else { return };
        let mut next = self.next_page.lock().await;
        sleep_until(*next).await;
        let cost = Duration::from_secs_f64(
            f64::from(u32::try_from(documents).unwrap_or(u32::MAX)) / f64::from(rate),
        );
        *next = Instant::now() + cost;
    }
}
