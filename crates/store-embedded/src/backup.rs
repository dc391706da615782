//! Backups: physical copies of a shop, taken while it runs or while it is stopped.
//!
//! ```text
//! <folder>/BACKUP              the version of this layout
//! <folder>/LOCK                locked while a backup is written
//! <folder>/tables/<checksum>   table files of all backups: hard links on the same file system, copies elsewhere
//! <folder>/00000007/MANIFEST   the seventh backup: its files, tables, commits and time; written last
//! <folder>/00000007/…          journals and small files as they are in the data directory
//! ```
//!
//! Invariants: a backup with a manifest is complete and on disk; it holds every write that was acknowledged before it began, and
//! a prefix of the commits; table files are immutable and shared, so a further backup adds only new ones; a folder that holds
//! anything else is never written to.

mod capture;
mod files;
mod journal;
mod manifest;
mod restore;
mod running;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mw_domain::Timestamp;
use mw_store::backup::{BackupProgress, BackupSummary};
use rustix::fs::{FlockOperation, flock};

use crate::open::{COMMIT_SEQUENCE_FILE, DB_FOLDER, FORMAT_FILE, LAST_BACKUP_FILE, LOCK_FILE, replace_file};
use capture::{Capture, TableFile, journal_name, names};
use files::Digest;
use manifest::{BACKUP_FORMAT, MANIFEST, Manifest};

pub use restore::{Restored, Verified, restore, verify};

const MARKER: &str = "BACKUP";
const TABLES: &str = "tables";
/// The copy that a verification opens.
const VERIFY_FOLDER: &str = ".verify";
const PARTIAL_SUFFIX: &str = ".partial";
/// Backups hold personal data: only their owner reads them.
const FOLDER_MODE: u32 = 0o700;

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("use {} for backups: it contains other files; name an empty or a new directory", .0.display())]
    Foreign(PathBuf),
    #[error("use {} for backups: it must be an absolute path outside of the data directory", .0.display())]
    Misplaced(PathBuf),
    #[error("write a backup to {}: another one is being written there", .0.display())]
    Locked(PathBuf),
    #[error("back up {}: it is in use by another process; use --url to back up the running shop", .0.display())]
    InUse(PathBuf),
    #[error("capture {}: its files change too fast; try again", .0.display())]
    Changing(PathBuf),
    #[error("read backup: {} is damaged: {detail}", path.display())]
    Damaged { path: PathBuf, detail: String },
    #[error("read backup: there is no complete backup in {}", .0.display())]
    NoBackup(PathBuf),
    #[error("restore into {}: it is not empty; name a new directory with --data", .0.display())]
    NotEmpty(PathBuf),
    #[error("restore to {to}: {detail}")]
    OutOfReach { to: Timestamp, detail: String },
}

impl BackupError {
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, detail: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), detail: detail.into() }
    }
}

/// What to back up, and where to.
#[derive(Debug, Clone)]
pub(crate) struct BackupPlan {
    pub(crate) data: PathBuf,
    /// The backup has this many commits or more.
    pub(crate) commit_sequence: u64,
    pub(crate) archive: Option<PathBuf>,
    pub(crate) to: PathBuf,
    /// Backups to keep in the folder, this one included.
    pub(crate) keep: usize,
}

/// Backs up a data directory that no process serves.
pub fn back_up_stopped(
    data: &Path,
    archive: Option<PathBuf>,
    to: &Path,
    keep: usize,
    progress: &dyn Fn(BackupProgress),
) -> Result<BackupSummary, BackupError> {
    let lock_path = data.join(LOCK_FILE);
    let lock = File::options()
        .write(true)
        .open(&lock_path)
        .map_err(|source| BackupError::io("open the store", &lock_path, source))?;
    // Held to the end; a crash releases it.
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| BackupError::InUse(data.to_owned()))?;
    let sequence_path = data.join(COMMIT_SEQUENCE_FILE);
    let text = fs::read_to_string(&sequence_path)
        .map_err(|source| BackupError::io("read", &sequence_path, source))?;
    let commit_sequence =
        text.trim().parse().map_err(|_| BackupError::damaged(&sequence_path, "it is no number"))?;
    let plan = BackupPlan { data: data.to_owned(), commit_sequence, archive, to: to.to_owned(), keep };
    plan.run(progress)
}

impl BackupPlan {
    /// Writes the backup. While a process serves the data directory it must hold a snapshot of the database until this returns.
    pub(crate) fn run(&self, progress: &dyn Fn(BackupProgress)) -> Result<BackupSummary, BackupError> {
        let target = Target::open(&self.data, &self.to)?;
        let number = target.begin()?;
        let folder = target.folder(number);
        // A crash from here on leaves a folder without a manifest, which the next backup removes.
        let capture = Capture::of(&self.data.join(DB_FOLDER))?;
        let mut manifest = Manifest {
            commit_sequence: self.commit_sequence,
            taken_at: Timestamp::EPOCH,
            archive: self.archive.clone(),
            files: self.write_files(&folder, &capture)?,
            tables: Vec::new(),
        };
        // The journals were read before: no later commit is in the backup.
        manifest.taken_at = now();
        let mut done = BackupProgress { tables: capture.tables.len(), ..BackupProgress::default() };
        progress(done);
        for table in &capture.tables {
            let (digest, is_new) = target.add_table(&self.data.join(DB_FOLDER), table)?;
            done.tables_done += 1;
            done.bytes += digest.bytes;
            if is_new {
                done.new_tables += 1;
                done.new_bytes += digest.bytes;
            }
            manifest.tables.push((format!("{DB_FOLDER}/{}", table.path), digest));
            progress(done);
        }
        files::sync_folder(&target.tables)?;
        files::sync_folder(&folder)?;
        // A crash before the rename leaves the backup incomplete, after it complete.
        replace_file(&folder, MANIFEST, &manifest.encode())
            .map_err(|source| BackupError::io("write", &folder.join(MANIFEST), source))?;
        files::sync_folder(&target.path)?;
        // A crash before this is written shows the age of the previous backup.
        replace_file(&self.data, LAST_BACKUP_FILE, &format!("{}\n", manifest.taken_at.as_millis()))
            .map_err(|source| BackupError::io("write", &self.data.join(LAST_BACKUP_FILE), source))?;
        target.remove_old(self.keep)?;
        Ok(BackupSummary {
            number,
            commit_sequence: manifest.commit_sequence,
            taken_at: manifest.taken_at,
            progress: done,
        })
    }

    /// Journals and small files, each synced.
    fn write_files(&self, folder: &Path, capture: &Capture) -> Result<Vec<(String, Digest)>, BackupError> {
        let mut written = Vec::new();
        for (number, journal) in &capture.journals {
            let path = format!("{DB_FOLDER}/{}", journal_name(*number));
            let digest = files::create(&folder.join(&path), |copy| {
                journal::copy_whole_batches(journal, copy).map(drop)
            })?;
            written.push((path, digest));
        }
        for (name, content) in &capture.files {
            let path = format!("{DB_FOLDER}/{name}");
            let digest = files::create_with(&folder.join(&path), content)?;
            written.push((path, digest));
        }
        // Read after the rows: the format is renewed before newer values are written.
        let format = capture::read(&self.data.join(FORMAT_FILE))?;
        written.push((FORMAT_FILE.to_owned(), files::create_with(&folder.join(FORMAT_FILE), &format)?));
        Ok(written)
    }
}

/// A locked folder of backups.
struct Target {
    path: PathBuf,
    tables: PathBuf,
    _lock: File,
}

impl Target {
    fn open(data: &Path, path: &Path) -> Result<Self, BackupError> {
        if !path.is_absolute() {
            return Err(BackupError::Misplaced(path.to_owned()));
        }
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(|source| BackupError::io("create", path, source))?;
        if is_new {
            fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))
                .map_err(|source| BackupError::io("create", path, source))?;
        }
        let canonical =
            |path: &Path| fs::canonicalize(path).map_err(|source| BackupError::io("open", path, source));
        let (path, data) = (canonical(path)?, canonical(data)?);
        if path.starts_with(&data) || data.starts_with(&path) {
            return Err(BackupError::Misplaced(path));
        }
        check_marker(&path)?;
        let lock = lock(&path)?;
        let marker = path.join(MARKER);
        if !marker.exists() {
            replace_file(&path, MARKER, &format!("{BACKUP_FORMAT}\n"))
                .map_err(|source| BackupError::io("write", &marker, source))?;
        }
        let tables = path.join(TABLES);
        fs::create_dir_all(&tables).map_err(|source| BackupError::io("create", &tables, source))?;
        Ok(Self { path, tables, _lock: lock })
    }

    fn folder(&self, number: u64) -> PathBuf {
        folder(&self.path, number)
    }

    /// Removes what an interrupted backup has left, and makes the folder of the next one.
    fn begin(&self) -> Result<u64, BackupError> {
        let mut last = 0;
        for (number, is_complete) in backups(&self.path)? {
            last = number;
            if !is_complete {
                remove_folder(&self.folder(number))?;
            }
        }
        let number = last + 1;
        let folder = self.folder(number);
        fs::create_dir_all(folder.join(DB_FOLDER))
            .map_err(|source| BackupError::io("create", &folder, source))?;
        Ok(number)
    }

    /// Adds a table that no earlier backup has, and returns whether it was new.
    fn add_table(&self, db: &Path, table: &TableFile) -> Result<(Digest, bool), BackupError> {
        let from = db.join(&table.path);
        let bytes = fs::metadata(&from).map_err(|source| BackupError::io("read", &from, source))?.len();
        let digest = Digest { bytes, checksum: table.checksum };
        let to = table_path(&self.path, digest);
        // Files appear under this name complete, so what is there is the table.
        match fs::metadata(&to) {
            Ok(known) if known.len() == bytes => return Ok((digest, false)),
            Ok(_) => fs::remove_file(&to).map_err(|source| BackupError::io("remove", &to, source))?,
            Err(_) => {}
        }
        // A table is immutable, and it was synced when it was written. A crash here leaves a file that no manifest names, which a
        // later backup uses or removes.
        if fs::hard_link(&from, &to).is_err() {
            let partial = PathBuf::from(format!("{}{PARTIAL_SUFFIX}", to.display()));
            files::copy(&from, &partial, digest)?;
            fs::rename(&partial, &to).map_err(|source| BackupError::io("write", &to, source))?;
        }
        Ok((digest, true))
    }

    /// Removes the oldest backups, and tables that no remaining one has.
    fn remove_old(&self, keep: usize) -> Result<(), BackupError> {
        let complete: Vec<u64> = backups(&self.path)?
            .into_iter()
            .filter_map(|(number, is_complete)| is_complete.then_some(number))
            .collect();
        let (old, kept) = complete.split_at(complete.len().saturating_sub(keep.max(1)));
        let mut used = BTreeSet::new();
        for number in kept {
            let manifest = Manifest::read(&self.folder(*number).join(MANIFEST))?;
            used.extend(manifest.tables.iter().map(|(_, digest)| table_name(*digest)));
        }
        // A crash between two removals leaves files that the next backup removes.
        for number in old {
            remove_folder(&self.folder(*number))?;
        }
        for name in names(&self.tables)? {
            if !used.contains(&name) {
                let path = self.tables.join(&name);
                fs::remove_file(&path).map_err(|source| BackupError::io("remove", &path, source))?;
            }
        }
        Ok(())
    }
}

/// A folder of backups, or an empty one.
fn check_marker(path: &Path) -> Result<(), BackupError> {
    let is_ours = if let Ok(text) = fs::read_to_string(path.join(MARKER)) {
        text.trim() == BACKUP_FORMAT
    } else {
        let unfinished = format!("{MARKER}.new");
        names(path)?.iter().all(|name| *name == LOCK_FILE || *name == unfinished || name == "lost+found")
    };
    if is_ours { Ok(()) } else { Err(BackupError::Foreign(path.to_owned())) }
}

fn lock(path: &Path) -> Result<File, BackupError> {
    let lock_path = path.join(LOCK_FILE);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path)
        .map_err(|source| BackupError::io("open", &lock_path, source))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| BackupError::Locked(path.to_owned()))?;
    Ok(file)
}

/// The numbers of the backups in a folder, oldest first, and whether each is complete.
fn backups(path: &Path) -> Result<Vec<(u64, bool)>, BackupError> {
    let numbers =
        names(path)?.into_iter().filter(|name| name.len() == 8).filter_map(|name| name.parse().ok());
    let mut backups: Vec<(u64, bool)> =
        numbers.map(|number| (number, folder(path, number).join(MANIFEST).exists())).collect();
    backups.sort_unstable();
    Ok(backups)
}

fn folder(path: &Path, number: u64) -> PathBuf {
    path.join(format!("{number:08}"))
}

fn table_name(digest: Digest) -> String {
    format!("{:032x}", digest.checksum)
}

fn table_path(path: &Path, digest: Digest) -> PathBuf {
    path.join(TABLES).join(table_name(digest))
}

fn remove_folder(path: &Path) -> Result<(), BackupError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(BackupError::io("remove", path, error)),
        _ => Ok(()),
    }
}

/// By the clock of this machine: backups and archives are about moments of the operator, not of the shop.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
