//! The one writer: takes all commands that wait, runs them as a group, syncs once, and answers them all.
//!
//! Nothing is visible to readers and nobody is answered before the group is on disk. After a failed commit nothing is
//! written any more: what is on disk is unknown until the store is opened again.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use fjall::Database;
use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use tokio::sync::oneshot;

use crate::housekeeping::Housekeeping;
use crate::recent::Recent;
use crate::shelf::Shelf;
use crate::space::FreeSpace;
use crate::tables::Tables;
use crate::tx::{Due, Tx};

/// Commands committed together at the most.
const GROUP_MAX: usize = 1_024;

/// Answers a command once its group's fate is known.
type Answer = Box<dyn FnOnce(&Result<()>) + Send>;

/// A command that waits, with the way to answer whoever sent it.
trait Job: Send {
    /// Runs in the group, and leaves the answer to give.
    fn run(self: Box<Self>, group: &mut Tx) -> Answer;

    /// Answers without running.
    fn refuse(self: Box<Self>, why: StoreError);
}

struct Command<F, T> {
    run: F,
    reply: oneshot::Sender<Result<T>>,
}

impl<F, T> Job for Command<F, T>
where
    F: FnOnce(&mut Tx) -> Result<T> + Send,
    T: Send + 'static,
{
    fn run(self: Box<Self>, group: &mut Tx) -> Answer {
        let Self { run, reply } = *self;
        let result = group.run(run);
        Box::new(move |committed| {
            let result = result.and_then(|value| committed.clone().map(|()| value));
            // The caller may have gone; the effect stands all the same.
            let _ = reply.send(result);
        })
    }

    fn refuse(self: Box<Self>, why: StoreError) {
        let _ = self.reply.send(Err(why));
    }
}

/// What readers need to know of the writer.
#[derive(Debug)]
pub(crate) struct Progress {
    /// No open hold in the visible state ends before this moment.
    hold_due_ms: AtomicI64,
    /// No order that is visible has to be paid before this moment.
    payment_due_ms: AtomicI64,
    /// The time that the last command told.
    pub(crate) now_ms: Arc<AtomicI64>,
    /// Why nothing can be written any more.
    failure: Mutex<Option<String>>,
}

impl Progress {
    pub(crate) fn new(due: Due, now_ms: Arc<AtomicI64>) -> Self {
        Self {
            hold_due_ms: AtomicI64::new(due.hold.as_millis()),
            payment_due_ms: AtomicI64::new(due.payment.as_millis()),
            now_ms,
            failure: Mutex::new(None),
        }
    }

    pub(crate) fn hold_due(&self) -> Timestamp {
        Timestamp::from_millis(self.hold_due_ms.load(Ordering::Acquire))
    }

    pub(crate) fn payment_due(&self) -> Timestamp {
        Timestamp::from_millis(self.payment_due_ms.load(Ordering::Acquire))
    }

    /// Before a group becomes visible: what it makes due sooner counts already.
    fn lower(&self, due: Due) {
        self.hold_due_ms.fetch_min(due.hold.as_millis(), Ordering::AcqRel);
        self.payment_due_ms.fetch_min(due.payment.as_millis(), Ordering::AcqRel);
    }

    /// After a group became visible: what it settled is no longer due.
    fn raise(&self, due: Due) {
        self.hold_due_ms.store(due.hold.as_millis(), Ordering::Release);
        self.payment_due_ms.store(due.payment.as_millis(), Ordering::Release);
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fail(&self, why: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// The queue to the writer's thread.
pub(crate) struct Writer {
    queue: Mutex<Option<SyncSender<Box<dyn Job>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub(crate) fn start(
        db: Database,
        tables: Tables,
        (groups, due): (u64, Due),
        (progress, shelf, recent): (Arc<Progress>, Arc<Shelf>, Recent),
        (space, housekeeping): (FreeSpace, Housekeeping),
        queue_max: usize,
    ) -> std::io::Result<Self> {
        let (queue, jobs) = sync_channel(queue_max);
        let group = Tx::new(db, tables, recent, groups, due);
        let thread = std::thread::Builder::new().name("mw-writer".into()).spawn(move || {
            Loop { jobs, group, progress, shelf, space, housekeeping, answers: Vec::new() }.run();
        })?;
        Ok(Self { queue: Mutex::new(Some(queue)), thread: Mutex::new(Some(thread)) })
    }

    /// Runs a command and waits until it is on disk.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Tx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(Box::new(Command { run: command, reply }))?;
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Ambiguous("the writer stopped before it answered".into())))
    }

    fn enqueue(&self, job: Box<dyn Job>) -> Result<()> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = queue.as_ref() else {
            return Err(stopped());
        };
        queue.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Overloaded,
            TrySendError::Disconnected(_) => stopped(),
        })
    }

    /// Whether commands are still taken and run.
    pub(crate) fn is_running(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Takes no more commands, finishes those that wait, and ends the thread.
    pub(crate) fn stop(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writer ended abnormally");
        }
    }
}

fn stopped() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

/// What the writer's thread owns.
struct Loop {
    jobs: Receiver<Box<dyn Job>>,
    group: Tx,
    progress: Arc<Progress>,
    shelf: Arc<Shelf>,
    space: FreeSpace,
    housekeeping: Housekeeping,
    answers: Vec<Answer>,
}

impl Loop {
    fn run(mut self) {
        while let Ok(first) = self.jobs.recv() {
            match self.ready() {
                Ok(()) => self.run_group(first),
                Err(why) => first.refuse(why),
            }
        }
    }

    /// Whether anything can be written now; otherwise surely nothing is done.
    fn ready(&mut self) -> Result<()> {
        if let Some(why) = self.progress.failure() {
            return Err(StoreError::Unavailable(why));
        }
        self.space.check().map_err(StoreError::Unavailable)
    }

    fn run_group(&mut self, first: Box<dyn Job>) {
        self.answers.push(first.run(&mut self.group));
        while self.answers.len() < GROUP_MAX {
            match self.jobs.try_recv() {
                Ok(job) => self.answers.push(job.run(&mut self.group)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        let committed = self.commit();
        let bytes = committed.as_ref().copied().unwrap_or_default();
        let committed = committed.map(drop);
        for answer in self.answers.drain(..) {
            answer(&committed);
        }
        self.housekeeping.committed(bytes);
    }

    /// Answers how many bytes of rows are on disk by it.
    fn commit(&mut self) -> Result<usize> {
        if self.group.is_empty() {
            return Ok(0);
        }
        self.progress.lower(self.group.due);
        let committed = self.group.commit().map_err(|error| {
            let why = format!("a write to disk failed, restart once the disk is well: {error:?}");
            tracing::error!(error = ?error, "commit a group of writes; nothing is written any more");
            self.progress.fail(why.clone());
            StoreError::Ambiguous(why)
        })?;
        // Before the bounds rise: whoever finds nothing due has to find settled figures.
        self.shelf.take_off(&committed.changed);
        self.progress.raise(self.group.due);
        Ok(committed.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Table;
    use crate::view::Look;

    fn start(folder: &std::path::Path, queue_max: usize) -> Writer {
        let due = Due { hold: Timestamp::MAX, payment: Timestamp::MAX };
        let db = Database::builder(folder).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        let progress = Arc::new(Progress::new(due, Arc::default()));
        let shelf = Arc::new(Shelf::new(db.clone(), tables.clone(), 1 << 20));
        let space = FreeSpace::new(folder.to_owned(), 0);
        let housekeeping = Housekeeping::start(db.clone(), tables.clone(), Arc::default()).unwrap();
        let remembered = (progress, shelf, Recent::new(1 << 20));
        Writer::start(db, tables, (0, due), remembered, (space, housekeeping), queue_max).unwrap()
    }

    #[tokio::test]
    async fn commands_see_those_before_them_in_every_group() {
        let folder = tempfile::tempdir().unwrap();
        let writer = Arc::new(start(folder.path(), 64));
        let mut counting = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let writer = Arc::clone(&writer);
            counting.spawn(async move {
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
        counting.join_all().await;
        let last = writer.write(|tx| tx.get(Table::Meta, b"count")).await.unwrap().unwrap();
        assert_eq!(u64::from_be_bytes(last.as_ref().try_into().unwrap()), 2_000);
    }

    #[tokio::test]
    async fn a_full_queue_is_told_at_once() {
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
    async fn a_command_that_panics_leaves_nobody_waiting() {
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
