//! The storage contract on an embedded LSM engine (fjall): a whole shop on one machine, with nothing else to run.
//!
//! One writer thread commits the waiting commands as one batch with one sync (`writer.rs`, `tx.rs`). Readers use a snapshot and
//! never wait for the writer (`reader.rs`), or the read cache (`cache.rs`). A command is a function over a [`tx::Tx`], so it is
//! atomic by construction: a crash leaves all of its rows or none, and no recovery beyond fjall's journal replay exists. One file
//! a noun.

mod audit;
mod cache;
mod carts;
mod compaction;
mod export;
mod flush;
mod idempotency;
mod keys;
mod open;
mod orders;
mod products;
mod reader;
mod row_cache;
mod sessions;
mod space;
mod stock;
mod tables;
mod timers;
mod tx;
mod writer;

use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use fjall::{Database, PersistMode};
use mw_domain::Timestamp;
use mw_store::{Maintenance, Result, StoreError};

pub use open::{OpenError, Options};

use cache::ReadCache;
use flush::FlushScheduler;
use reader::SnapshotReader;
use row_cache::RowCache;
use space::FreeSpace;
use stock::{HeldUnits, LevelSource};
use tables::Tables;
use tx::Tx;
use writer::{Writer, WriterStatus};

/// A store in a directory of this machine. Dropping or closing it commits the waiting commands.
pub struct EmbeddedStore {
    writer: Writer,
    db: Database,
    tables: Tables,
    status: Arc<WriterStatus>,
    cache: Arc<ReadCache>,
    options: Options,
    /// The key of the cart activity index at which the next purge continues.
    purge_cursor: Mutex<Vec<u8>>,
    _lock: File,
}

impl std::fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedStore").field("path", &self.options.path).finish_non_exhaustive()
    }
}

impl EmbeddedStore {
    /// Opens the store, or creates it.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let open::Opened { db, tables, commit_sequence, next_timers, now_ms, throttle, lock } =
            open::open(&options)?;
        let status = Arc::new(WriterStatus::new(next_timers, now_ms));
        let row_cache_bytes = options.cache_bytes / 3;
        let read_cache_bytes = options.cache_bytes - row_cache_bytes;
        let cache = Arc::new(ReadCache::new(db.clone(), tables.clone(), read_cache_bytes));
        let space = FreeSpace::new(options.path.clone(), options.min_free_bytes);
        let io_error = |source| OpenError::Io { path: options.path.clone(), source };
        let flush_scheduler =
            FlushScheduler::start(db.clone(), tables.clone(), throttle).map_err(io_error)?;
        let row_cache = RowCache::new(row_cache_bytes);
        let tx = Tx::new(db.clone(), tables.clone(), row_cache, commit_sequence, next_timers);
        let writer = Writer::start(
            tx,
            Arc::clone(&status),
            Arc::clone(&cache),
            space,
            flush_scheduler,
            options.write_queue,
        )
        .map_err(io_error)?;
        Ok(Self { writer, db, tables, status, cache, options, purge_cursor: Mutex::default(), _lock: lock })
    }

    /// Commits the waiting commands and accepts no more; reads stay possible.
    pub fn close(&self) {
        self.writer.stop();
        let closed = self.db.persist(PersistMode::SyncAll).and_then(|()| {
            // A crash here leaves the number of the last open or close, which is lower and accepted by the next open.
            let commit_sequence = open::stored_commit_sequence(&self.tables)?;
            open::save_commit_sequence(&self.options.path, commit_sequence).map_err(fjall::Error::Io)
        });
        if let Err(error) = closed {
            tracing::error!(
                ?error,
                "sync store on close: acknowledged writes were synced before; check the disk"
            );
        }
    }

    fn snapshot(&self) -> SnapshotReader {
        SnapshotReader::new(&self.db, &self.tables)
    }

    /// A snapshot, and the units in it of holds that ended by `now` and are still counted as reserved.
    fn snapshot_with_expired_holds(&self, now: Timestamp) -> Result<(HeldUnits, SnapshotReader)> {
        // Read before the snapshot is taken: the bound rises after the holds below it were released for every later snapshot.
        let next_timer = self.status.next_hold_timer();
        let snapshot = self.snapshot();
        let expired =
            if next_timer <= now { stock::held_units(&snapshot, next_timer, now)? } else { HeldUnits::new() };
        Ok((expired, snapshot))
    }

    /// Where to read single stock levels as of `now`.
    fn levels(&self, now: Timestamp) -> Result<LevelSource<'_>> {
        if now < self.status.next_hold_timer() {
            return Ok(LevelSource::Cache(&self.cache));
        }
        let (expired, snapshot) = self.snapshot_with_expired_holds(now)?;
        Ok(LevelSource::Snapshot { snapshot, expired })
    }

    async fn write<T: Send + 'static>(
        &self,
        now: Timestamp,
        command: impl FnOnce(&mut Tx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // Stored, not maximised: with a clock that was set forward for a moment, compaction would drop live rows from then on.
        self.status.now_ms.store(now.as_millis(), Ordering::Relaxed);
        self.writer.write(command).await
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.writer.stop();
    }
}

#[async_trait]
impl Maintenance for EmbeddedStore {
    async fn ready(&self) -> Result<mw_store::Readiness> {
        if let Some(cause) = self.status.failure() {
            return Err(StoreError::Unavailable(cause));
        }
        if !self.writer.is_running() {
            let cause = "accept writes: the store is closed or its writer thread stopped; see the log";
            return Err(StoreError::Unavailable(cause.into()));
        }
        FreeSpace::new(self.options.path.clone(), self.options.min_free_bytes)
            .check()
            .map(|()| mw_store::Readiness::default())
            .map_err(StoreError::Unavailable)
    }

    async fn purge_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        // Only in memory: after a restart the purge starts from the beginning of the index.
        let from = self.purge_cursor.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (removed, next) =
            self.write(now, move |tx| carts::purge_activity_index(tx, from, now, limit)).await?;
        *self.purge_cursor.lock().unwrap_or_else(PoisonError::into_inner) = next.unwrap_or_default();
        Ok(removed)
    }
}
