//! Long reads (reports, lists by period, export, audit, planning of maintenance) on a bounded number of threads of their own, so
//! that they never occupy the threads that serve requests. Where the processors are busy, their threads get less of them.
//!
//! Invariant: a read ends soon after its caller has gone. The caller's future sets a flag when it is dropped, and every scan of a
//! [`StoppableReader`] looks at the flag between two slices of rows.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fjall::Slice;
use mw_store::{Result, StoreError};
use tokio::sync::{Semaphore, oneshot};

use crate::background_thread;
use crate::reader::{KeyRange, Reader, RowVisitor, SnapshotReader};
use crate::tables::Table;

/// Rows between two looks at the flag; other threads run in between.
const SLICE_ROWS: u32 = 256;
/// Reads that may wait for a thread; further ones are refused as overloaded.
const WAITING_MAX: usize = 64;

/// A number of threads for long reads.
#[derive(Debug)]
pub(crate) struct LongReads {
    threads: Arc<Semaphore>,
    /// Places in the queue, those of the running reads included.
    places: Arc<Semaphore>,
}

impl LongReads {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(threads)),
            places: Arc::new(Semaphore::new(threads + WAITING_MAX)),
        }
    }

    /// Runs a read of a snapshot on a thread of its own.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        snapshot: Arc<SnapshotReader>,
        read: impl FnOnce(&StoppableReader) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| StoreError::Overloaded)?;
        let thread = Arc::clone(&self.threads).acquire_owned().await.map_err(|_| stopped())?;
        let flag = StopOnDrop(Arc::default());
        let reader = StoppableReader { snapshot, is_stopped: Arc::clone(&flag.0) };
        let (answer, answered) = oneshot::channel();
        let run = move || {
            let result = read(&reader);
            drop((place, thread));
            // Without a receiver the caller has gone.
            let _ = answer.send(result);
        };
        background_thread::spawn("mw-long-read", run)
            .map_err(|error| StoreError::Unavailable(format!("start a thread for a long read: {error}")))?;
        answered.await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable("finish a long read: its thread ended; see the log".to_owned()))
        })
    }
}

fn stopped() -> StoreError {
    StoreError::Unavailable("finish a long read: its request has ended".into())
}

/// Stops a read when its caller goes.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A snapshot whose scans end when the caller has gone.
pub(crate) struct StoppableReader {
    snapshot: Arc<SnapshotReader>,
    is_stopped: Arc<AtomicBool>,
}

impl Reader for StoppableReader {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        self.snapshot.get(table, key)
    }

    fn scan(&self, table: Table, range: &KeyRange, reverse: bool, visit: RowVisitor<'_>) -> Result<()> {
        let mut rows = 0_u32;
        self.snapshot.scan(table, range, reverse, &mut |key, value| {
            if rows.is_multiple_of(SLICE_ROWS) {
                if self.is_stopped.load(Ordering::Relaxed) {
                    return Err(stopped());
                }
                std::thread::yield_now();
            }
            rows = rows.wrapping_add(1);
            visit(key, value)
        })
    }
}

/// Whether a scan goes on.
pub(crate) const fn break_if(is_last: bool) -> ControlFlow<()> {
    if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fjall::Database;

    use super::*;
    use crate::tables::Tables;

    fn snapshot(folder: &std::path::Path, rows: u32) -> Arc<SnapshotReader> {
        let db = Database::builder(folder).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        for row in 0..rows {
            tables.get(Table::Orders).insert(row.to_be_bytes(), "value").unwrap();
        }
        Arc::new(SnapshotReader::new(&db, &tables))
    }

    #[tokio::test]
    async fn a_long_read_does_not_occupy_the_threads_of_requests() {
        let folder = tempfile::tempdir().unwrap();
        let (snapshot, reads) = (snapshot(folder.path(), 1), LongReads::new(1));
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let read = reads.run(snapshot, move |_| {
            wait.recv().unwrap();
            Ok(7)
        });
        // This runtime has one thread: a read that occupied it would wait for ever.
        let request = async { release.send(()).unwrap() };
        assert_eq!(tokio::join!(read, request).0, Ok(7));
    }

    #[tokio::test]
    async fn a_long_read_ends_when_its_caller_has_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (snapshot, reads) = (snapshot(folder.path(), 1_000), LongReads::new(1));
        let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
        let endless = reads.run(Arc::clone(&snapshot), move |reader| -> Result<()> {
            loop {
                let whole = KeyRange::prefix(Vec::new());
                reader.scan(Table::Orders, &whole, false, &mut |_, _| Ok(ControlFlow::Continue(())))?;
                let _ = begun.send(());
            }
        });
        tokio::select! {
            ended = endless => panic!("it has no end: {ended:?}"),
            _ = has_begun.recv() => {}
        }
        // Its thread is free again, or this would wait for ever.
        assert_eq!(reads.run(snapshot, |_| Ok(7)).await, Ok(7));
    }

    #[tokio::test]
    async fn more_long_reads_than_may_wait_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (snapshot, reads) = (snapshot(folder.path(), 1), LongReads::new(1));
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let first = reads.run(Arc::clone(&snapshot), move |_| {
            let _ = wait.recv_timeout(Duration::from_mins(1));
            Ok(0_usize)
        });
        let mut running: Vec<_> =
            vec![Box::pin(first) as std::pin::Pin<Box<dyn Future<Output = Result<usize>>>>];
        for number in 0..WAITING_MAX {
            running.push(Box::pin(reads.run(Arc::clone(&snapshot), move |_| Ok(number))));
        }
        for read in &mut running {
            let is_pending =
                std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx).is_pending())).await;
            assert!(is_pending);
        }
        assert_eq!(reads.run(snapshot, |_| Ok(1)).await, Err(StoreError::Overloaded));
        release.send(()).unwrap();
        for read in running {
            read.await.unwrap();
        }
    }
}
