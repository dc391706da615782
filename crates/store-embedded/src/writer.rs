//! The writer: one thread that takes the waiting commands off the queue and commits them as one batch with one sync (group
//! commit).
//!
//! Invariants: a command is atomic; readers see no row and no caller gets a reply before its batch is synced; after a failed
//! commit no further command runs, because what is on disk is unknown until the next open.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use tokio::sync::oneshot;

use crate::cache::ReadCache;
use crate::flush::FlushScheduler;
use crate::metrics::WriterMetrics;
use crate::space::FreeSpace;
use crate::timers::NextTimers;
use crate::tx::Tx;

/// Most commands of one batch.
const BATCH_COMMANDS_MAX: usize = 1_024;

/// Sends a command's result to its caller, once the result of the commit is known.
type Reply = Box<dyn FnOnce(&Result<()>) + Send>;

/// A command in the queue, with its result type erased.
trait QueuedCommand: Send {
    /// Runs as part of the batch; the reply waits for the commit.
    fn run(self: Box<Self>, tx: &mut Tx) -> Reply;

    /// Replies without running.
    fn refuse(self: Box<Self>, error: StoreError);
}

struct Command<F, T> {
    run: F,
    caller: oneshot::Sender<Result<T>>,
}

impl<F, T> QueuedCommand for Command<F, T>
where
    F: FnOnce(&mut Tx) -> Result<T> + Send,
    T: Send + 'static,
{
    fn run(self: Box<Self>, tx: &mut Tx) -> Reply {
        let Self { run, caller } = *self;
        let result = tx.run(run);
        Box::new(move |committed| {
            let result = result.and_then(|value| committed.clone().map(|()| value));
            // The caller may have gone; the effect is committed all the same.
            let _ = caller.send(result);
        })
    }

    fn refuse(self: Box<Self>, error: StoreError) {
        let _ = self.caller.send(Err(error));
    }
}

/// What readers need to know of the writer.
#[derive(Debug)]
pub(crate) struct WriterStatus {
    /// No open hold in the visible state ends before this moment.
    next_hold_timer_ms: AtomicI64,
    /// No unpaid order in the visible state is cancelled before this moment.
    next_payment_timer_ms: AtomicI64,
    /// The time of the latest maintenance, by which compaction drops expired rows.
    pub(crate) now_ms: Arc<AtomicI64>,
    /// Why no write is possible until the next open.
    failure: Mutex<Option<String>>,
    /// When the running batch began, in milliseconds after `opened_at`, at least 1; 0 between batches.
    batch_began_ms: AtomicU64,
    opened_at: Instant,
}

impl WriterStatus {
    pub(crate) fn new(next_timers: NextTimers, now_ms: Arc<AtomicI64>) -> Self {
        Self {
            next_hold_timer_ms: AtomicI64::new(next_timers.hold.as_millis()),
            next_payment_timer_ms: AtomicI64::new(next_timers.payment.as_millis()),
            now_ms,
            failure: Mutex::new(None),
            batch_began_ms: AtomicU64::new(0),
            opened_at: Instant::now(),
        }
    }

    /// For how long the running batch has been running; zero between batches.
    pub(crate) fn busy_for(&self) -> Duration {
        match self.batch_began_ms.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            began_ms => self.opened_at.elapsed().saturating_sub(Duration::from_millis(began_ms)),
        }
    }

    fn begin_batch(&self) {
        let now_ms = u64::try_from(self.opened_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.batch_began_ms.store(now_ms.max(1), Ordering::Relaxed);
    }

    fn end_batch(&self) {
        self.batch_began_ms.store(0, Ordering::Relaxed);
    }

    pub(crate) fn next_hold_timer(&self) -> Timestamp {
        Timestamp::from_millis(self.next_hold_timer_ms.load(Ordering::Acquire))
    }

    pub(crate) fn next_payment_timer(&self) -> Timestamp {
        Timestamp::from_millis(self.next_payment_timer_ms.load(Ordering::Acquire))
    }

    /// Before a batch becomes visible: its new timers count already.
    fn lower(&self, next_timers: NextTimers) {
        self.next_hold_timer_ms.fetch_min(next_timers.hold.as_millis(), Ordering::AcqRel);
        self.next_payment_timer_ms.fetch_min(next_timers.payment.as_millis(), Ordering::AcqRel);
    }

    /// After a batch became visible: the timers that it removed no longer count.
    fn raise(&self, next_timers: NextTimers) {
        self.next_hold_timer_ms.store(next_timers.hold.as_millis(), Ordering::Release);
        self.next_payment_timer_ms.store(next_timers.payment.as_millis(), Ordering::Release);
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fail(&self, cause: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
    }
}

/// The command queue and the thread behind it.
pub(crate) struct Writer {
    queue: Mutex<Option<SyncSender<Box<dyn QueuedCommand>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    metrics: WriterMetrics,
}

/// What the writer works with besides its batch.
pub(crate) struct WriterParts {
    pub(crate) status: Arc<WriterStatus>,
    pub(crate) cache: Arc<ReadCache>,
    pub(crate) space: FreeSpace,
    pub(crate) flush_scheduler: FlushScheduler,
    pub(crate) metrics: WriterMetrics,
}

impl Writer {
    pub(crate) fn start(tx: Tx, parts: WriterParts, queue_max: usize) -> std::io::Result<Self> {
        let (queue, commands) = sync_channel(queue_max);
        let metrics = parts.metrics.clone();
        let thread = std::thread::Builder::new().name("mw-writer".into()).spawn(move || {
            WriterThread { commands, tx, parts, replies: Vec::new() }.run();
        })?;
        Ok(Self { queue: Mutex::new(Some(queue)), thread: Mutex::new(Some(thread)), metrics })
    }

    /// Runs a command and waits until its batch is on disk.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Tx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (caller, result) = oneshot::channel();
        self.enqueue(Box::new(Command { run: command, caller }))?;
        result.await.unwrap_or_else(|_| {
            let cause = "commit write: the writer thread stopped before it replied; restart mw";
            Err(StoreError::Ambiguous(cause.into()))
        })
    }

    fn enqueue(&self, command: Box<dyn QueuedCommand>) -> Result<()> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = queue.as_ref() else {
            return Err(closed());
        };
        self.metrics.queued.inc();
        queue.try_send(command).map_err(|error| {
            self.metrics.queued.dec();
            match error {
                TrySendError::Full(_) => StoreError::Overloaded,
                TrySendError::Disconnected(_) => closed(),
            }
        })
    }

    /// Whether commands are accepted and run.
    pub(crate) fn is_running(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Accepts no more commands, commits the waiting ones, and ends the thread.
    pub(crate) fn stop(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("stop writer thread: it panicked; committed writes are on disk");
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("accept write: the store is closed".into())
}

/// What the writer's thread owns.
struct WriterThread {
    commands: Receiver<Box<dyn QueuedCommand>>,
    tx: Tx,
    parts: WriterParts,
    /// The replies of the running batch.
    replies: Vec<Reply>,
}

impl WriterThread {
    fn run(mut self) {
        while let Ok(first) = self.commands.recv() {
            self.parts.metrics.queued.dec();
            match self.ready() {
                Ok(()) => {
                    self.parts.status.begin_batch();
                    self.run_batch(first);
                    self.parts.status.end_batch();
                }
                Err(error) => first.refuse(error),
            }
        }
    }

    /// Whether a batch can be committed now. An error is certain: no command has run.
    fn ready(&mut self) -> Result<()> {
        if let Some(cause) = self.parts.status.failure() {
            return Err(StoreError::Unavailable(cause));
        }
        self.parts.space.check().map_err(StoreError::Unavailable)
    }

    fn run_batch(&mut self, first: Box<dyn QueuedCommand>) {
        let began = Instant::now();
        // A crash before the commit leaves nothing of the batch: its rows are in memory only, and no caller has a reply.
        self.replies.push(first.run(&mut self.tx));
        while self.replies.len() < BATCH_COMMANDS_MAX {
            match self.commands.try_recv() {
                Ok(command) => {
                    self.parts.metrics.queued.dec();
                    self.replies.push(command.run(&mut self.tx));
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        let committed = self.commit();
        let bytes = committed.as_ref().copied().unwrap_or_default();
        let committed = committed.map(drop);
        self.parts.metrics.observe_batch(self.replies.len(), began.elapsed());
        // A crash here leaves the whole batch on disk without replies; the next open replays the journal, and callers that
        // repeat their request under its idempotency key get the stored outcome.
        for reply in self.replies.drain(..) {
            reply(&committed);
        }
        // A crash here leaves the rows in the journal only; the next open reads them into memory again.
        self.parts.flush_scheduler.committed(bytes);
    }

    /// Commits the batch; returns the bytes of its rows.
    fn commit(&mut self) -> Result<usize> {
        if self.tx.is_empty() {
            return Ok(0);
        }
        self.parts.status.lower(self.tx.next_timers);
        // A crash during the sync leaves the whole batch or none of it: fjall discards an incomplete batch at the end of the
        // journal at the next open.
        let committed = self.tx.commit().map_err(|error| {
            let cause = format!("commit batch to disk: {error:?}; check the disk, then restart mw");
            tracing::error!(?error, "commit batch to disk: writes stop; check the disk, then restart mw");
            self.parts.status.fail(cause.clone());
            StoreError::Ambiguous(cause)
        })?;
        // Before the bounds rise: a reader that finds no timer due must find levels without the expired holds.
        self.parts.cache.invalidate(&committed.changed);
        self.parts.status.raise(self.tx.next_timers);
        self.parts.metrics.observe_sync(committed.synced_in);
        self.tx.publish_changes();
        Ok(committed.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Reader;
    use crate::row_cache::RowCache;
    use crate::tables::{Table, Tables};
    use crate::tx::TxStart;
    use fjall::{Database, OwnedWriteBatch, PersistMode};

    fn start(folder: &std::path::Path, queue_max: usize) -> Writer {
        start_with(folder, queue_max, |tx| tx).0
    }

    fn start_with(
        folder: &std::path::Path,
        queue_max: usize,
        change: impl FnOnce(Tx) -> Tx,
    ) -> (Writer, Database, Tables) {
        let db = Database::builder(folder).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        let status = Arc::new(WriterStatus::new(NextTimers::NONE, Arc::default()));
        let cache = Arc::new(ReadCache::new(db.clone(), tables.clone(), 1 << 20));
        let space = FreeSpace::new(vec![folder.to_owned()], 0, None);
        let flush_scheduler = FlushScheduler::start(db.clone(), tables.clone(), Arc::default()).unwrap();
        let tx = change(Tx::new(db.clone(), tables.clone(), RowCache::new(1 << 20), TxStart::new()));
        let metrics = WriterMetrics::new().unwrap();
        let parts = WriterParts { status, cache, space, flush_scheduler, metrics };
        let writer = Writer::start(tx, parts, queue_max).unwrap();
        (writer, db, tables)
    }

    #[tokio::test]
    async fn a_write_is_answered_and_visible_only_after_its_sync() {
        let folder = tempfile::tempdir().unwrap();
        let (entered, mut syncs) = tokio::sync::mpsc::unbounded_channel();
        let (disk, wait) = std::sync::mpsc::channel::<()>();
        let commit_batch = move |batch: OwnedWriteBatch, mode: PersistMode| {
            entered.send(mode).unwrap();
            // The sync takes until the test says so.
            wait.recv().unwrap();
            batch.durability(Some(mode)).commit()
        };
        let (writer, _db, tables) =
            start_with(folder.path(), 8, |tx| tx.with_commit_batch(Box::new(commit_batch)));
        let put = |tx: &mut Tx| {
            tx.put(Table::Products, b"key".to_vec(), b"value".to_vec());
            Ok(())
        };
        let mut write = Box::pin(writer.write(put));
        assert!(
            std::future::poll_fn(|cx| std::task::Poll::Ready(write.as_mut().poll(cx).is_pending())).await
        );
        let mode = syncs.recv().await.unwrap();
        assert!(matches!(mode, PersistMode::SyncData | PersistMode::SyncAll), "a buffered write is no sync");
        let is_pending =
            std::future::poll_fn(|cx| std::task::Poll::Ready(write.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending, "no reply before the sync");
        assert_eq!(
            tables.get(Table::Products).get("key").unwrap(),
            None,
            "no reader sees it before the sync"
        );
        disk.send(()).unwrap();
        assert_eq!(write.await, Ok(()));
        assert!(tables.get(Table::Products).get("key").unwrap().is_some());
    }

    #[tokio::test]
    async fn a_failed_sync_is_ambiguous_and_ends_all_writes() {
        let folder = tempfile::tempdir().unwrap();
        let fail =
            |_: OwnedWriteBatch, _: PersistMode| Err(fjall::Error::Io(std::io::Error::other("no disk")));
        let (writer, ..) = start_with(folder.path(), 8, |tx| tx.with_commit_batch(Box::new(fail)));
        let put = |tx: &mut Tx| {
            tx.put(Table::Products, b"key".to_vec(), b"value".to_vec());
            Ok(())
        };
        let first = writer.write(put).await;
        assert!(matches!(first, Err(StoreError::Ambiguous(_))), "{first:?}");
        let second = writer.write(put).await;
        assert!(matches!(second, Err(StoreError::Unavailable(_))), "{second:?}");
    }

    #[tokio::test]
    async fn a_command_sees_all_commands_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let writer = Arc::new(start(folder.path(), 64));
        let mut counters = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let writer = Arc::clone(&writer);
            counters.spawn(async move {
                for _ in 0..40 {
                    let count = |tx: &mut Tx| {
                        let row = tx.get(Table::Meta, b"count")?;
                        let count = row.map_or(0, |row| u64::from_be_bytes(row.as_ref().try_into().unwrap()));
                        tx.put(Table::Meta, b"count".to_vec(), (count + 1).to_be_bytes().to_vec());
                        Ok(())
                    };
                    writer.write(count).await.unwrap();
                }
            });
        }
        counters.join_all().await;
        let last = writer.write(|tx| tx.get(Table::Meta, b"count")).await.unwrap().unwrap();
        assert_eq!(u64::from_be_bytes(last.as_ref().try_into().unwrap()), 2_000);
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let writer = Arc::new(start(folder.path(), 1));
        let (entered, is_busy) = oneshot::channel();
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let busy = Arc::clone(&writer);
        let first = tokio::spawn(async move {
            busy.write(move |_| {
                entered.send(()).unwrap();
                wait.recv().unwrap();
                Ok(())
            })
            .await
        });
        is_busy.await.unwrap();
        let mut second = Box::pin(writer.write(|_| Ok(())));
        assert!(
            std::future::poll_fn(|cx| std::task::Poll::Ready(second.as_mut().poll(cx).is_pending())).await
        );
        assert_eq!(writer.write(|_| Ok(())).await, Err(StoreError::Overloaded));
        release.send(()).unwrap();
        assert_eq!((first.await.unwrap(), second.await), (Ok(()), Ok(())));
    }

    #[tokio::test]
    async fn a_command_that_panics_leaves_no_caller_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let writer = start(folder.path(), 64);
        let broken = writer.write::<()>(|_| panic!("a bug")).await;
        assert!(matches!(broken, Err(StoreError::Ambiguous(_))), "{broken:?}");
        while writer.is_running() {
            tokio::task::yield_now().await;
        }
        let later = writer.write(|_| Ok(())).await;
        assert!(matches!(later, Err(StoreError::Unavailable(_))), "{later:?}");
    }
}
