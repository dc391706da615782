//! The data directory: who may use it, which release wrote it, and a clear word where it cannot be opened.
//!
//! ```text
//! <path>/LOCK     held by the process that serves the store
//! <path>/FORMAT   the version of what is stored
//! <path>/GROUPS   how many groups of writes were committed when it was last closed or opened: fewer later are a loss
//! <path>/db/      the tables
//! ```

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use fjall::Database;
use mw_domain::{Currency, Timestamp};
use rustix::fs::{FlockOperation, flock};

use crate::compaction::{Pace, filters};
use crate::stock::first_due;
use crate::tables::{Table, Tables};
use crate::tx::{Due, GROUPS_KEY};
use crate::view::{Look, View};

/// The version of the directory's layout and of all values in it.
const FORMAT: u32 = 1;
const FORMAT_NAME: &str = "mobile-world";
/// The engine begins a new journal after so many bytes.
pub(crate) const JOURNAL_BYTES: usize = 64_000_000;
/// So many full journals make the engine flush all tables at once. Before a second one is full, each table has flushed in its
/// turn what is in the first. What is left of journals is read again at start, at some 60 MB a second.
const FULL_JOURNALS_MAX: u64 = 2;
/// Threads that flush and compact. The engine's first one only flushes, and passes a compaction on again and again while all
/// others are busy. Compactions rest most of their time, so there are as many as all tables together may need.
const WORKERS: usize = Table::ALL.len() + 2;

#[derive(Debug, Clone)]
pub struct Options {
    pub path: PathBuf,
    /// Memory for blocks read from disk: of rows, and of where to find them.
    pub block_cache_bytes: u64,
    /// Memory for what is ready: cards and figures of stock to show, and rows that were written last to change again.
    pub shelf_bytes: u64,
    /// Memory of one table for writes that are not in a table file yet.
    pub memtable_bytes: u64,
    /// Writes are refused while less than this is free on the disk.
    pub min_free_bytes: u64,
    /// Writes that may wait; more are answered "overloaded" at once.
    pub write_queue: usize,
    /// The currency of all amounts; a store keeps the one it was made with.
    pub currency: Currency,
}

impl Options {
    pub fn new(path: impl Into<PathBuf>, currency: Currency) -> Self {
        Self {
            path: path.into(),
            block_cache_bytes: 96 * 1_024 * 1_024,
            shelf_bytes: 96 * 1_024 * 1_024,
            memtable_bytes: 8 * 1_024 * 1_024,
            min_free_bytes: 256 * 1_024 * 1_024,
            write_queue: 16_384,
            currency,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("open data directory {}: it is in use by another process", .0.display())]
    Locked(PathBuf),
    #[error("open data directory {}: it is not writable: {source}", path.display())]
    NotWritable { path: PathBuf, source: std::io::Error },
    #[error("open data directory {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "open data directory {}: it has format {found}, and this release reads up to {FORMAT}: use a newer release",
        path.display()
    )]
    Newer { path: PathBuf, found: u32 },
    #[error("open data directory {}: it holds other files and no store; name an empty or a new directory", .0.display())]
    Foreign(PathBuf),
    #[error(
        "open data directory {}: its amounts are in {stored}, and shop.currency is {configured}",
        path.display()
    )]
    Currency { path: PathBuf, stored: String, configured: Currency },
    #[error("open data directory {}: it is damaged ({detail}): copy it before you try anything, or restore a backup", path.display())]
    Damaged { path: PathBuf, detail: String },
}

/// What an opened directory is.
pub(crate) struct Opened {
    pub(crate) db: Database,
    pub(crate) tables: Tables,
    pub(crate) groups: u64,
    pub(crate) due: Due,
    pub(crate) now_ms: Arc<AtomicI64>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) lock: File,
}

pub(crate) fn open(options: &Options) -> Result<Opened, OpenError> {
    let path = options.path.as_path();
    std::fs::create_dir_all(path).map_err(|source| io_error(path, source))?;
    let is_new = is_new(path)?;
    let lock = lock(path)?;
    if is_new {
        write_format(path).map_err(|source| io_error(path, source))?;
    } else {
        check_format(path)?;
    }
    let now_ms = Arc::new(AtomicI64::new(i64::MIN));
    let pace = Arc::new(Pace::default());
    let (db, tables) = open_tables(options, &now_ms, &pace).map_err(|error| fjall_error(path, error))?;
    // Whoever is refused does not wait for compactions that rest.
    let (groups, due) = look_through(options, &db, &tables).inspect_err(|_| pace.close())?;
    Ok(Opened { db, tables, groups, due, now_ms, pace, lock })
}

/// Whether it is the store that it should be, how many groups it has, and what is due next in it.
fn look_through(options: &Options, db: &Database, tables: &Tables) -> Result<(u64, Due), OpenError> {
    let path = options.path.as_path();
    check_currency(options, db, tables)?;
    let groups = committed_groups(tables).map_err(|error| fjall_error(path, error))?;
    check_groups(path, groups)?;
    let due = first_dues(&View::new(db, tables))
        .map_err(|error| OpenError::Damaged { path: path.to_owned(), detail: error.to_string() })?;
    Ok((groups, due))
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
        other => OpenError::Damaged { path: path.to_owned(), detail: format!("{other:?}") },
    }
}

/// Whether nothing is stored here yet. A directory with other files in it is refused.
fn is_new(path: &Path) -> Result<bool, OpenError> {
    if path.join("FORMAT").exists() {
        return Ok(false);
    }
    if path.join("db").exists() {
        let detail = "the file FORMAT is missing".to_owned();
        return Err(OpenError::Damaged { path: path.to_owned(), detail });
    }
    for entry in std::fs::read_dir(path).map_err(|source| io_error(path, source))? {
        let name = entry.map_err(|source| io_error(path, source))?.file_name();
        if !["LOCK", "FORMAT.new", "lost+found"].iter().any(|known| name == *known) {
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
        .open(path.join("LOCK"))
        .map_err(|source| io_error(path, source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Locked(path.to_owned())),
        Err(error) => Err(io_error(path, error.into())),
    }
}

fn write_format(path: &Path) -> std::io::Result<()> {
    replace_file(path, "FORMAT", &format!("{FORMAT_NAME} {FORMAT}\n"))
}

/// Writes a small file so that it is there whole or as it was.
fn replace_file(path: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let new = path.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, path.join(name))?;
    File::open(path)?.sync_all()
}

pub(crate) fn committed_groups(tables: &Tables) -> fjall::Result<u64> {
    let row = tables.get(Table::Meta).get(GROUPS_KEY)?;
    Ok(row.and_then(|row| row.as_ref().try_into().ok()).map_or(0, u64::from_be_bytes))
}

/// Notes how many groups the store has, so that losing one of them does not go unseen.
pub(crate) fn note_groups(path: &Path, groups: u64) -> std::io::Result<()> {
    replace_file(path, "GROUPS", &format!("{groups}\n"))
}

/// The engine cuts a journal off where it makes no sense, as a crash leaves it. Where that cost groups that were known to
/// be on disk, it was no crash.
fn check_groups(path: &Path, groups: u64) -> Result<(), OpenError> {
    let noted = match std::fs::read_to_string(path.join("GROUPS")) {
        Ok(text) => text.trim().parse().unwrap_or(u64::MAX),
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(io_error(path, error)),
    };
    if groups < noted {
        let detail = format!("{noted} groups of writes were on disk and {groups} are left");
        return Err(OpenError::Damaged { path: path.to_owned(), detail });
    }
    note_groups(path, groups).map_err(|source| io_error(path, source))
}

fn check_format(path: &Path) -> Result<(), OpenError> {
    let mut text = String::new();
    let read = File::open(path.join("FORMAT")).and_then(|file| file.take(64).read_to_string(&mut text));
    read.map_err(|source| io_error(path, source))?;
    let version =
        text.trim().strip_prefix(FORMAT_NAME).and_then(|version| version.trim().parse::<u32>().ok());
    match version {
        Some(found) if found > FORMAT => Err(OpenError::Newer { path: path.to_owned(), found }),
        Some(_) => Ok(()),
        None => {
            let detail = "the file FORMAT makes no sense".to_owned();
            Err(OpenError::Damaged { path: path.to_owned(), detail })
        }
    }
}

fn open_tables(
    options: &Options,
    now_ms: &Arc<AtomicI64>,
    pace: &Arc<Pace>,
) -> fjall::Result<(Database, Tables)> {
    let (now_ms, pace) = (Arc::clone(now_ms), Arc::clone(pace));
    let db = Database::builder(options.path.join("db"))
        .cache_size(options.block_cache_bytes)
        .max_journaling_size(FULL_JOURNALS_MAX * JOURNAL_BYTES as u64)
        .worker_threads(WORKERS)
        .with_compaction_filter_factories(Arc::new(move |name| Some(filters(name, &now_ms, &pace))))
        .open()?;
    let tables = Tables::open(&db, options.memtable_bytes)?;
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
            db.persist(fjall::PersistMode::SyncAll).map_err(error)
        }
    }
}

fn first_dues(look: &dyn Look) -> mw_store::Result<Due> {
    let beginning = Timestamp::from_millis(i64::MIN);
    Ok(Due {
        hold: first_due(look, Table::HoldsDue, beginning)?,
        payment: first_due(look, Table::PaymentsDue, beginning)?,
    })
}
