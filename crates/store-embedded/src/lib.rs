//! The storage contract on an embedded LSM engine (fjall): a whole shop on one machine, with nothing else to run.
//!
//! One writer thread commits the waiting commands as one batch with one sync (`writer.rs`, `tx.rs`). Readers use a snapshot and
//! never wait for the writer (`reader.rs`), or the read cache (`cache.rs`). A command is a function over a [`tx::Tx`], so it is
//! atomic by construction: a crash leaves all of its rows or none, and no recovery beyond fjall's journal replay exists. One file
//! a noun.

mod archive;
mod audit;
mod background_thread;
mod backup;
mod cache;
mod carts;
mod changes;
mod compaction;
mod export;
mod flush;
mod holds;
mod idempotency;
mod keys;
mod ledger;
mod long_reads;
mod maintenance;
mod metrics;
mod migration;
mod open;
mod orders;
mod products;
mod reader;
mod row_cache;
mod sales;
mod sessions;
mod space;
mod stock;
mod tables;
mod timers;
mod tx;
mod writer;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use fjall::{Database, PersistMode};
use mw_domain::Timestamp;
use mw_store::{BackupStatus, Result};

pub use backup::{BackupError, Restored, Verified, back_up_stopped, restore, verify};
pub use open::{OpenError, Options};

use cache::ReadCache;
use changes::Feed;
use flush::FlushScheduler;
use holds::HoldIndex;
use long_reads::LongReads;
use maintenance::Passes;
use metrics::WriterMetrics;
use reader::SnapshotReader;
use row_cache::RowCache;
use sales::HourlyFrom;
use space::FreeSpace;
use stock::{EndedHolds, LevelSource, SnapshotLevels};
use tables::Tables;
use tx::{Tx, TxStart};
use writer::{Writer, WriterParts, WriterStatus};

/// Threads for reports, lists by period, exports and audits.
const LONG_READ_THREADS: usize = 2;
/// Threads for pages of the change feed.
const FEED_READ_THREADS: usize = 1;

/// A store in a directory of this machine. Dropping or closing it commits the waiting commands.
pub struct EmbeddedStore {
    writer: Writer,
    db: Database,
    tables: Tables,
    status: Arc<WriterStatus>,
    cache: Arc<ReadCache>,
    holds: Arc<HoldIndex>,
    options: Options,
    /// Where maintenance continues.
    passes: Mutex<Passes>,
    maintenance_reads: LongReads,
    long_reads: Arc<LongReads>,
    hourly_from: HourlyFrom,
    metrics: WriterMetrics,
    /// The last backup that was started.
    backup: Arc<Mutex<Option<BackupStatus>>>,
    feed: Arc<Feed>,
    feed_reads: LongReads,
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
        let open::Opened { db, tables, contents, now_ms, throttle, lock, outdated, archive } =
            open::open(&options)?;
        let open::Contents { commit_sequence, next_timers, holds, hourly_from, feed } = contents;
        let status = Arc::new(WriterStatus::new(next_timers, now_ms));
        let row_cache_bytes = options.cache_bytes / 3;
        let read_cache_bytes = options.cache_bytes - row_cache_bytes;
        let cache = Arc::new(ReadCache::new(db.clone(), tables.clone(), read_cache_bytes));
        let space = free_space(&options, &tables);
        let io_error = |source| OpenError::Io { path: options.path.clone(), source };
        let flush_scheduler =
            FlushScheduler::start(db.clone(), tables.clone(), throttle).map_err(io_error)?;
        let row_cache = RowCache::new(row_cache_bytes);
        let holds = Arc::new(holds);
        let feed = Arc::new(feed);
        let start = TxStart {
            commit_sequence,
            next_timers,
            hourly_from,
            outdated,
            holds: Arc::clone(&holds),
            archive,
            feed: Arc::clone(&feed),
        };
        let tx = Tx::new(db.clone(), tables.clone(), row_cache, start);
        let metrics = WriterMetrics::new().map_err(|error| io_error(std::io::Error::other(error)))?;
        let parts = WriterParts {
            status: Arc::clone(&status),
            cache: Arc::clone(&cache),
            space,
            flush_scheduler,
            metrics: metrics.clone(),
        };
        let writer = Writer::start(tx, parts, options.write_queue).map_err(io_error)?;
        Ok(Self {
            writer,
            db,
            tables,
            status,
            cache,
            holds,
            options,
            passes: Mutex::default(),
            maintenance_reads: LongReads::new(1),
            long_reads: Arc::new(LongReads::new(LONG_READ_THREADS)),
            hourly_from,
            metrics,
            backup: Arc::default(),
            feed,
            feed_reads: LongReads::new(FEED_READ_THREADS),
            _lock: lock,
        })
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

    /// Where to read stock levels as of `now`, from a snapshot.
    fn snapshot_levels(&self, now: Timestamp) -> Result<SnapshotLevels<'_>> {
        // Read before the snapshot is taken: the bound rises after the holds below it were released for every later snapshot.
        let next_timer = self.status.next_hold_timer();
        let snapshot = self.snapshot();
        let ended =
            if next_timer <= now { Some(EndedHolds::new(&self.holds, &snapshot, now)?) } else { None };
        Ok(SnapshotLevels { snapshot, ended })
    }

    /// Where to read single stock levels as of `now`.
    fn levels(&self, now: Timestamp) -> Result<LevelSource<'_>> {
        if now < self.status.next_hold_timer() {
            return Ok(LevelSource::Cache(&self.cache));
        }
        self.snapshot_levels(now).map(LevelSource::Snapshot)
    }

    async fn write<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Tx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.write(command).await
    }
}

/// The check of the space that writes need.
fn free_space(options: &Options, tables: &Tables) -> FreeSpace {
    let paths: Vec<PathBuf> = std::iter::once(&options.path).chain(&options.archive).cloned().collect();
    FreeSpace::new(paths, options.min_free_bytes, Some(tables.clone()))
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.writer.stop();
    }
}
