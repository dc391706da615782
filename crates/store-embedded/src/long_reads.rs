//! Long reads (reports, lists by period, export, audit, planning of maintenance) on a bounded number of threads of their own, so
//! that they never occupy the threads that serve requests.
//!
//! Invariant: a read ends soon after its caller has gone. The caller's future sets a flag when it is dropped, and every scan of a
//! [`StoppableReader`] looks at the flag between two slices of rows.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fjall::Slice;
use mw_store::{Result, StoreError};
use tokio::sync::Semaphore;

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
        let running = tokio::task::spawn_blocking(move || {
            let result = read(&reader);
            drop((place, thread));
            result
        });
        running.await.unwrap_or_else(|error| {
            Err(StoreError::Unavailable(format!("finish a long read: its thread ended: {error}; see the log")))
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

/// Visits every row of a range until `visit` breaks.
pub(crate) fn break_if(is_last: bool) -> ControlFlow<()> {
    if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
