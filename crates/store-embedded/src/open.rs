//! The data directory: its lock, its format version, and the checks before a store is served from it.
//!
//! ```text
//! <path>/LOCK              locked by the process that serves the store
//! <path>/FORMAT            version of the layout and of all stored values
//! <path>/COMMIT_SEQUENCE   commit sequence number at the last open or close
//! <path>/STORE_ID          names this history of commits; a restored store gets its own
//! <path>/LAST_BACKUP       when the last backup was taken, in milliseconds since the epoch
//! <path>/db/               fjall's journals and tables
//! ```
//!
//! Invariants: one process at a time opens a directory; a directory of a newer format, with another currency, with foreign
//! files, or with fewer commits than at its last open or close is refused.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use fjall::{Database, PersistMode};
use mw_domain::{Currency, Timestamp};
use mw_store::changes::FeedSettings;
use mw_store::partitions::PartitionReports;
use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use crate::archive::Archive;
use crate::changes::Feed;
use crate::compaction::{CompactionThrottle, filters};
use crate::holds::HoldIndex;
use crate::reader::SnapshotReader;
use crate::sales::HourlyFrom;
use crate::tables::{Table, Tables};
use crate::timers::NextTimers;
use crate::tx::COMMIT_SEQUENCE_KEY;

/// The version of the directory's layout and of all values in it. Format 1 has no hourly sums of sales, no values in the activity
/// index, no compacted ledgers and no change feed.
const FORMAT: u32 = 2;
const FORMAT_NAME: &str = "mobile-world";
pub(crate) const FORMAT_FILE: &str = "FORMAT";
pub(crate) const LOCK_FILE: &str = "LOCK";
pub(crate) const COMMIT_SEQUENCE_FILE: &str = "COMMIT_SEQUENCE";
pub(crate) const STORE_ID_FILE: &str = "STORE_ID";
pub(crate) const LAST_BACKUP_FILE: &str = "LAST_BACKUP";
pub(crate) const DB_FOLDER: &str = "db";
/// fjall starts a new journal after so many bytes.
pub(crate) const JOURNAL_BYTES: usize = 64_000_000;
/// fjall flushes all tables at once when so many journals are full. The flush scheduler has flushed the rows of the first one
/// before the second is full. An open replays the remaining journals at about 60 MB a second.
const FULL_JOURNALS_MAX: u64 = 2;
/// Threads that flush and compact. fjall's first one only flushes, and re-queues a compaction in a busy loop while all others are
/// occupied. Throttled compactions pause most of their time, so there is a thread for every table that may need one.
const WORKERS: usize = Table::ALL.len() + 2;

#[derive(Debug, Clone)]
pub struct Options {
    pub path: PathBuf,
    /// Block cache: blocks of rows and index blocks read from disk.
    pub block_cache_bytes: u64,
    /// Read cache (products and stock levels) and the writer's row cache together.
    pub cache_bytes: u64,
    /// Memtable of one table.
    pub memtable_bytes: u64,
    /// Writes are refused while less than this is free on the disk.
    pub min_free_bytes: u64,
    /// Length of the command queue; further writes are refused as overloaded.
    pub write_queue: usize,
    /// Where accesses of partitions are counted.
    pub partitions: PartitionReports,
    /// The currency of all amounts, fixed when the store is created.
    pub currency: Currency,
    /// Where every committed group is kept, for restores to a moment.
    pub archive: Option<PathBuf>,
    /// The only directory below which a running shop writes backups; `None`: any absolute path.
    pub backups_below: Option<PathBuf>,
    /// The topics of the change feed, and how long it keeps a change.
    pub feed: FeedSettings,
}

const BLOCK_CACHE_BYTES: u64 = 96 * 1_024 * 1_024;
const MEMTABLE_BYTES: u64 = 8 * 1_024 * 1_024;

impl Options {
    pub fn new(path: impl Into<PathBuf>, currency: Currency) -> Self {
        Self {
            path: path.into(),
            block_cache_bytes: BLOCK_CACHE_BYTES,
            cache_bytes: 96 * 1_024 * 1_024,
            memtable_bytes: MEMTABLE_BYTES,
            min_free_bytes: 256 * 1_024 * 1_024,
            write_queue: 16_384,
            partitions: PartitionReports::default(),
            currency,
            archive: None,
            backups_below: None,
            feed: FeedSettings::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "open data directory {}: in use by another process; stop it or set another store.embedded.path",
        .0.display()
    )]
    Locked(PathBuf),
    #[error("open data directory {}: not writable: {source}; grant write access to the user of mw", path.display())]
    NotWritable { path: PathBuf, source: std::io::Error },
    #[error("open data directory {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "open data directory {}: format {found} is newer than format {FORMAT} of this release; use a newer release",
        path.display()
    )]
    Newer { path: PathBuf, found: u32 },
    #[error(
        "open data directory {}: contains other files and no store; set store.embedded.path to an empty or new directory",
        .0.display()
    )]
    Foreign(PathBuf),
    #[error(
        "open data directory {}: amounts are stored in {stored}, shop.currency is {configured}; set shop.currency to {stored}",
        path.display()
    )]
    Currency { path: PathBuf, stored: String, configured: Currency },
    #[error(
        "open data directory {}: damaged: {detail}; copy the directory before any repair, or import an export into a new one",
        path.display()
    )]
    Damaged { path: PathBuf, detail: String },
    #[error("{0}")]
    Archive(String),
}

impl OpenError {
    fn damaged(path: &Path, detail: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), detail: detail.into() }
    }
}

/// An open data directory.
pub(crate) struct Opened {
    pub(crate) db: Database,
    pub(crate) tables: Tables,
    pub(crate) contents: Contents,
    pub(crate) now_ms: Arc<AtomicI64>,
    pub(crate) throttle: Arc<CompactionThrottle>,
    pub(crate) lock: File,
    /// The directory, if its format is older than [`FORMAT`].
    pub(crate) outdated: Option<PathBuf>,
    pub(crate) archive: Option<Archive>,
}

/// What the writer starts with.
pub(crate) struct Contents {
    pub(crate) commit_sequence: u64,
    pub(crate) next_timers: NextTimers,
    pub(crate) holds: HoldIndex,
    pub(crate) hourly_from: HourlyFrom,
    pub(crate) feed: Feed,
}

pub(crate) fn open(options: &Options) -> Result<Opened, OpenError> {
    let path = options.path.as_path();
    std::fs::create_dir_all(path).map_err(|source| io_error(path, source))?;
    // A crash here leaves an empty directory, which the next open takes for a new one.
    let is_new = is_new(path)?;
    // A crash releases the lock; the file LOCK itself stays and means nothing.
    let lock = lock(path)?;
    let outdated = if is_new {
        // A crash before the rename leaves LOCK and FORMAT.new, still a new directory for the next open.
        write_format(path).map_err(|source| io_error(path, source))?;
        None
    } else {
        (check_format(path)? < FORMAT).then(|| path.to_owned())
    };
    let now_ms = Arc::new(AtomicI64::new(i64::MIN));
    let throttle = Arc::new(CompactionThrottle::default());
    // A crash here leaves some of the tables created; the next open creates the missing ones and replays the journals.
    let (db, tables) =
        open_tables(path, options.block_cache_bytes, options.memtable_bytes, &now_ms, &throttle)
            .map_err(|error| fjall_error(path, error))?;
    // Dropping a refused database waits for its compactions, which must not pause then.
    let contents = check_contents(options, &db, &tables, &now_ms).inspect_err(|_| throttle.close())?;
    let archive = open_archive(options, contents.commit_sequence).inspect_err(|_| throttle.close())?;
    Ok(Opened { db, tables, contents, now_ms, throttle, lock, outdated, archive })
}

fn open_archive(options: &Options, commit_sequence: u64) -> Result<Option<Archive>, OpenError> {
    let Some(archive) = &options.archive else { return Ok(None) };
    let store_id = store_id(&options.path).map_err(|source| io_error(&options.path, source))?;
    // A crash here leaves the archive as it is or without a group that was never committed.
    Archive::open(archive, &store_id, commit_sequence).map(Some).map_err(OpenError::Archive)
}

/// The name of this history of commits; a store without one gets it.
fn store_id(path: &Path) -> std::io::Result<String> {
    match std::fs::read_to_string(path.join(STORE_ID_FILE)) {
        Ok(id) => Ok(id.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let id = Uuid::new_v4().to_string();
            replace_file(path, STORE_ID_FILE, &format!("{id}\n"))?;
            Ok(id)
        }
        Err(error) => Err(error),
    }
}

/// When the last backup of a data directory was taken.
pub(crate) fn last_backup(path: &Path) -> Option<Timestamp> {
    let text = std::fs::read_to_string(path.join(LAST_BACKUP_FILE)).ok()?;
    text.trim().parse().ok().map(Timestamp::from_millis)
}

/// The database of a copy that no process serves: for a restore and for a verification.
pub(crate) struct Scratch {
    pub(crate) db: Database,
    pub(crate) tables: Tables,
}

impl Scratch {
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let throttle = Arc::new(CompactionThrottle::default());
        // No request waits here, so compactions need not pause.
        throttle.close();
        // Rows expire by the time of maintenance, of which there is none.
        let now_ms = Arc::new(AtomicI64::new(i64::MIN));
        let opened = open_tables(path, BLOCK_CACHE_BYTES, MEMTABLE_BYTES, &now_ms, &throttle);
        opened.map(|(db, tables)| Self { db, tables }).map_err(|error| format!("{error:?}"))
    }

    pub(crate) fn close(self) -> fjall::Result<()> {
        self.db.persist(PersistMode::SyncAll)
    }
}

/// Checks the currency and the commit sequence number, and reads what the writer starts with.
fn check_contents(
    options: &Options,
    db: &Database,
    tables: &Tables,
    now_ms: &Arc<AtomicI64>,
) -> Result<Contents, OpenError> {
    let path = options.path.as_path();
    // A crash before the currency is synced leaves a store without one; the next open writes its own.
    check_currency(options, db, tables)?;
    let commit_sequence = stored_commit_sequence(tables).map_err(|error| fjall_error(path, error))?;
    // A crash before the number is saved leaves the lower one of the previous open or close, which this check accepts.
    check_commit_sequence(path, commit_sequence)?;
    let snapshot = SnapshotReader::new(db, tables);
    let damaged = |error: mw_store::StoreError| OpenError::damaged(path, error.to_string());
    let next_timers = NextTimers::read(&snapshot).map_err(damaged)?;
    let holds = HoldIndex::read(&snapshot).map_err(damaged)?;
    let hourly_from = HourlyFrom::read(&snapshot).map_err(damaged)?;
    let feed = Feed::read(&snapshot, options.feed, Arc::clone(now_ms)).map_err(damaged)?;
    Ok(Contents { commit_sequence, next_timers, holds, hourly_from, feed })
}

fn io_error(path: &Path, source: std::io::Error) -> OpenError {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            OpenError::NotWritable { path, source }
        }
        _ => OpenError::Io { path, source },
    }
}

fn fjall_error(path: &Path, error: fjall::Error) -> OpenError {
    match error {
        fjall::Error::Locked => OpenError::Locked(path.to_owned()),
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source))
            if source.kind() != ErrorKind::UnexpectedEof =>
        {
            io_error(path, source)
        }
        other => OpenError::damaged(path, format!("{other:?}")),
    }
}

/// Whether the directory holds no store yet. One with other files in it is refused.
fn is_new(path: &Path) -> Result<bool, OpenError> {
    if path.join(FORMAT_FILE).exists() {
        return Ok(false);
    }
    if path.join(DB_FOLDER).exists() {
        return Err(OpenError::damaged(path, "file FORMAT is missing"));
    }
    for entry in std::fs::read_dir(path).map_err(|source| io_error(path, source))? {
        let name = entry.map_err(|source| io_error(path, source))?.file_name();
        if ![LOCK_FILE, "FORMAT.new", "lost+found"].iter().any(|known| name == *known) {
            return Err(OpenError::Foreign(path.to_owned()));
        }
    }
    Ok(true)
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.join(LOCK_FILE))
        .map_err(|source| io_error(path, source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Locked(path.to_owned())),
        Err(error) => Err(io_error(path, error.into())),
    }
}

/// Renews the version of a directory. The writer does so before its first commit to an older one: from then on there may be values
/// that an older release cannot read, and it must refuse the directory.
pub(crate) fn write_format(path: &Path) -> std::io::Result<()> {
    replace_file(path, FORMAT_FILE, &format!("{FORMAT_NAME} {FORMAT}\n"))
}

/// Replaces a small file. A crash leaves the old or the new content, and perhaps a `.new` file that the next call overwrites.
pub(crate) fn replace_file(path: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let new = path.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, path.join(name))?;
    File::open(path)?.sync_all()
}

/// The commit sequence number of the last batch that the journals and tables hold.
pub(crate) fn stored_commit_sequence(tables: &Tables) -> fjall::Result<u64> {
    let row = tables.get(Table::Meta).get(COMMIT_SEQUENCE_KEY)?;
    Ok(row.and_then(|row| row.as_ref().try_into().ok()).map_or(0, u64::from_be_bytes))
}

/// Saves the commit sequence number outside of the database, so that the next open notices lost batches.
pub(crate) fn save_commit_sequence(path: &Path, commit_sequence: u64) -> std::io::Result<()> {
    replace_file(path, COMMIT_SEQUENCE_FILE, &format!("{commit_sequence}\n"))
}

/// Refuses a store that lost batches. fjall truncates a journal at its first unreadable entry, which is right for the batch
/// that a crash interrupted. A number below the saved one means that synced batches were truncated too.
fn check_commit_sequence(path: &Path, stored: u64) -> Result<(), OpenError> {
    let saved = match std::fs::read_to_string(path.join(COMMIT_SEQUENCE_FILE)) {
        Ok(text) => text.trim().parse().unwrap_or(u64::MAX),
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(io_error(path, error)),
    };
    if stored < saved {
        let detail = format!("commit sequence number is {stored}, was {saved}: acknowledged writes are lost");
        return Err(OpenError::damaged(path, detail));
    }
    save_commit_sequence(path, stored).map_err(|source| io_error(path, source))
}

fn check_format(path: &Path) -> Result<u32, OpenError> {
    let mut text = String::new();
    let read = File::open(path.join(FORMAT_FILE)).and_then(|file| file.take(64).read_to_string(&mut text));
    read.map_err(|source| io_error(path, source))?;
    let version =
        text.trim().strip_prefix(FORMAT_NAME).and_then(|version| version.trim().parse::<u32>().ok());
    match version {
        Some(found) if found > FORMAT => Err(OpenError::Newer { path: path.to_owned(), found }),
        Some(found) => Ok(found),
        None => Err(OpenError::damaged(path, "file FORMAT names no version")),
    }
}

fn open_tables(
    path: &Path,
    block_cache_bytes: u64,
    memtable_bytes: u64,
    now_ms: &Arc<AtomicI64>,
    throttle: &Arc<CompactionThrottle>,
) -> fjall::Result<(Database, Tables)> {
    let (now_ms, throttle) = (Arc::clone(now_ms), Arc::clone(throttle));
    let db = Database::builder(path.join(DB_FOLDER))
        .cache_size(block_cache_bytes)
        .max_journaling_size(FULL_JOURNALS_MAX * JOURNAL_BYTES as u64)
        .worker_threads(WORKERS)
        .with_compaction_filter_factories(Arc::new(move |name| Some(filters(name, &now_ms, &throttle))))
        .open()?;
    let tables = Tables::open(&db, memtable_bytes)?;
    Ok((db, tables))
}

fn check_currency(options: &Options, db: &Database, tables: &Tables) -> Result<(), OpenError> {
    const KEY: &str = "currency";
    let meta = tables.get(Table::Meta);
    let error = |error| fjall_error(&options.path, error);
    match meta.get(KEY).map_err(error)? {
        Some(stored) if stored.as_ref() == options.currency.as_str().as_bytes() => Ok(()),
        Some(stored) => Err(OpenError::Currency {
            path: options.path.clone(),
            stored: String::from_utf8_lossy(&stored).into_owned(),
            configured: options.currency,
        }),
        None => {
            meta.insert(KEY, options.currency.as_str()).map_err(error)?;
            db.persist(PersistMode::SyncAll).map_err(error)
        }
    }
}
