//! Restoring a backup into a new data directory, to its own moment or with an archive to a later one, and verifying one.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mw_domain::Timestamp;
use mw_store::stock::Audit;

use super::files::{self, Digest};
use super::manifest::{MANIFEST, Manifest};
use super::{
    BackupError, VERIFY_FOLDER, backups, check_marker, folder, lock, names, remove_folder, table_path,
};
use crate::archive::{self, Replayed};
use crate::open::{
    COMMIT_SEQUENCE_FILE, DB_FOLDER, FORMAT_FILE, LOCK_FILE, Scratch, stored_commit_sequence, write_format,
};
use crate::reader::{KeyRange, Reader, SnapshotReader};
use crate::tables::Table;

/// A restored data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// The number of the backup; 0 where the archive alone was replayed.
    pub backup: u64,
    pub commit_sequence: u64,
    /// The moment of the shop: of the last commit, or of the backup.
    pub as_of: Timestamp,
    /// Commits that were replayed from the archive.
    pub replayed: u64,
}

/// What a verification has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub backup: u64,
    pub commit_sequence: u64,
    pub taken_at: Timestamp,
    pub tables: usize,
    pub bytes: u64,
    pub rows: u64,
    pub audit: Audit,
}

/// Restores the latest backup of a folder; with a moment, the shop of that moment, for which an archive is needed. `archive` takes
/// precedence over the one that the backup names. The folder may also be an archive that goes back to the shop's first commit.
pub fn restore(
    from: &Path,
    data: &Path,
    to: Option<Timestamp>,
    archive: Option<&Path>,
    progress: &dyn Fn(u64),
) -> Result<Restored, BackupError> {
    check_empty(data)?;
    if archive::is_archive(from) {
        return restore_archive(from, data, to, progress);
    }
    let _lock = lock_if_writable(from)?;
    let (number, manifest) = choose(from, to)?;
    copy_all(&folder(from, number), from, &manifest, data, progress)?;
    let mut restored = Restored {
        backup: number,
        commit_sequence: manifest.commit_sequence,
        as_of: manifest.taken_at,
        replayed: 0,
    };
    if let Some(to) = to {
        let archive = archive.or(manifest.archive.as_deref()).ok_or_else(|| BackupError::OutOfReach {
            to,
            detail: "the backup names no archive; name it with --archive".to_owned(),
        })?;
        restored = replay(archive, data, to, restored)?;
    }
    finish(&folder(from, number).join(FORMAT_FILE), data, restored.commit_sequence)?;
    Ok(restored)
}

/// Keeps a backup from being removed while it is read. Where the folder is read-only no process writes backups to it.
fn lock_if_writable(from: &Path) -> Result<Option<File>, BackupError> {
    match lock(from) {
        Err(BackupError::Io { .. }) => Ok(None),
        locked => locked.map(Some),
    }
}

/// A folder that does not exist or has nothing in it.
fn check_empty(data: &Path) -> Result<(), BackupError> {
    if data.exists() && names(data)?.iter().any(|name| name != "lost+found") {
        return Err(BackupError::NotEmpty(data.to_owned()));
    }
    fs::create_dir_all(data.join(DB_FOLDER)).map_err(|source| BackupError::io("create", data, source))
}

/// The latest backup, or the latest one that has nothing from after the moment.
fn choose(from: &Path, to: Option<Timestamp>) -> Result<(u64, Manifest), BackupError> {
    check_marker(from).map_err(|_| BackupError::NoBackup(from.to_owned()))?;
    let mut oldest = None;
    for (number, is_complete) in backups(from)?.into_iter().rev() {
        if !is_complete {
            continue;
        }
        let manifest = Manifest::read(&folder(from, number).join(MANIFEST))?;
        if to.is_none_or(|to| manifest.taken_at <= to) {
            return Ok((number, manifest));
        }
        oldest = Some(manifest.taken_at);
    }
    match (to, oldest) {
        (Some(to), Some(oldest)) => {
            Err(BackupError::OutOfReach { to, detail: format!("the oldest backup is of {oldest}") })
        }
        _ => Err(BackupError::NoBackup(from.to_owned())),
    }
}

/// Copies the files of a backup, each checked. A crash leaves a directory without the file FORMAT, which no process serves.
fn copy_all(
    backup: &Path,
    from: &Path,
    manifest: &Manifest,
    data: &Path,
    progress: &dyn Fn(u64),
) -> Result<(), BackupError> {
    let mut bytes = 0;
    for (path, digest) in manifest.files.iter().filter(|(path, _)| path != FORMAT_FILE) {
        files::copy(&backup.join(path), &data.join(path), *digest)?;
    }
    for (path, digest) in &manifest.tables {
        files::copy(&table_path(from, *digest), &data.join(path), *digest)?;
        bytes += digest.bytes;
        progress(bytes);
    }
    make_table_folders(data)
}

/// fjall expects the folder of every tree, also of one without tables; and the folders of the files are synced.
fn make_table_folders(data: &Path) -> Result<(), BackupError> {
    let keyspaces = data.join(DB_FOLDER).join("keyspaces");
    for name in names(&keyspaces)? {
        let tables = keyspaces.join(&name).join("tables");
        fs::create_dir_all(&tables).map_err(|source| BackupError::io("create", &tables, source))?;
        files::sync_folder(&tables)?;
        files::sync_folder(&keyspaces.join(&name))?;
    }
    files::sync_folder(&keyspaces)?;
    make_lock(data)
}

/// fjall refuses a database without its lock file.
fn make_lock(data: &Path) -> Result<(), BackupError> {
    files::create_with(&data.join(DB_FOLDER).join("lock"), b"")?;
    files::sync_folder(&data.join(DB_FOLDER))
}

/// Applies the commits of an archive after those of the backup.
fn replay(archive: &Path, data: &Path, to: Timestamp, restored: Restored) -> Result<Restored, BackupError> {
    let scratch = Scratch::open(data).map_err(|detail| BackupError::damaged(data, detail))?;
    let damaged = |error: fjall::Error| BackupError::damaged(data, format!("{error:?}"));
    let base = stored_commit_sequence(&scratch.tables).map_err(damaged)?;
    if base < restored.commit_sequence {
        let detail = format!("it has {base} of {} commits", restored.commit_sequence);
        return Err(BackupError::damaged(data, detail));
    }
    let Replayed { last, at, groups } = archive::replay(archive, &scratch, base, to)?;
    scratch.close().map_err(damaged)?;
    Ok(Restored { commit_sequence: last, as_of: at.unwrap_or(restored.as_of), replayed: groups, ..restored })
}

/// Replays a whole archive into an empty store.
fn restore_archive(
    from: &Path,
    data: &Path,
    to: Option<Timestamp>,
    progress: &dyn Fn(u64),
) -> Result<Restored, BackupError> {
    let to = to.unwrap_or(Timestamp::MAX);
    let empty = Restored { backup: 0, commit_sequence: 0, as_of: Timestamp::EPOCH, replayed: 0 };
    let restored = replay(from, data, to, empty)?;
    progress(restored.replayed);
    finish_with(data, restored.commit_sequence, |data| {
        write_format(data).map_err(|source| BackupError::io("write", data, source))
    })?;
    Ok(restored)
}

fn finish(format: &Path, data: &Path, commit_sequence: u64) -> Result<(), BackupError> {
    let content = super::capture::read(&format.to_owned())?;
    finish_with(data, commit_sequence, |data| {
        files::create_with(&data.join(FORMAT_FILE), &content).map(|_: Digest| ())
    })
}

/// The number of commits first, the format last: with it the directory is one that a process serves.
fn finish_with(
    data: &Path,
    commit_sequence: u64,
    write_format: impl FnOnce(&Path) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    files::create_with(&data.join(COMMIT_SEQUENCE_FILE), format!("{commit_sequence}\n").as_bytes())?;
    files::create_with(&data.join(LOCK_FILE), b"")?;
    // A crash here leaves a directory that no process serves; it is removed and restored again.
    write_format(data)?;
    files::sync_folder(data)
}

/// Reads every byte of the latest backup, opens a copy that shares its tables, reads every row and audits the stock.
pub fn verify(from: &Path, progress: &dyn Fn(u64)) -> Result<Verified, BackupError> {
    let _lock = lock(from)?;
    let (number, manifest) = choose(from, None)?;
    let backup = folder(from, number);
    let mut bytes = 0;
    for (path, digest) in &manifest.files {
        files::verify(&backup.join(path), *digest)?;
    }
    for (_, digest) in &manifest.tables {
        files::verify(&table_path(from, *digest), *digest)?;
        bytes += digest.bytes;
        progress(bytes);
    }
    let copy = LinkedCopy::new(from, number, &manifest)?;
    let (rows, commit_sequence, audit) = read_copy(&copy.0)?;
    if commit_sequence < manifest.commit_sequence {
        let detail = format!("it has {commit_sequence} of {} commits", manifest.commit_sequence);
        return Err(BackupError::damaged(&backup, detail));
    }
    let tables = manifest.tables.len();
    Ok(Verified { backup: number, commit_sequence, taken_at: manifest.taken_at, tables, bytes, rows, audit })
}

fn read_copy(data: &Path) -> Result<(u64, u64, Audit), BackupError> {
    let scratch = Scratch::open(data).map_err(|detail| BackupError::damaged(data, detail))?;
    let snapshot = SnapshotReader::new(&scratch.db, &scratch.tables);
    let damaged = |error: mw_store::StoreError| BackupError::damaged(data, error.to_string());
    let mut rows = 0;
    for table in Table::ALL {
        snapshot
            .scan(table, &KeyRange::prefix(Vec::new()), false, &mut |_, _| {
                rows += 1;
                Ok(ControlFlow::Continue(()))
            })
            .map_err(damaged)?;
    }
    let audit = crate::audit::run(&snapshot, &|_| ()).map_err(damaged)?;
    let commit_sequence = stored_commit_sequence(&scratch.tables)
        .map_err(|error| BackupError::damaged(data, format!("{error:?}")))?;
    drop(snapshot);
    Ok((rows, commit_sequence, audit))
}

/// A copy of a backup beside it, in [`VERIFY_FOLDER`], with hard links to its tables; removed when dropped. Journals are copied: opening a database
/// writes to them.
struct LinkedCopy(PathBuf);

impl LinkedCopy {
    fn new(from: &Path, number: u64, manifest: &Manifest) -> Result<Self, BackupError> {
        let copy = Self(from.join(VERIFY_FOLDER));
        let data = &copy.0;
        // An interrupted verification has left its copy.
        remove_folder(data)?;
        for (path, digest) in &manifest.files {
            files::copy(&folder(from, number).join(path), &data.join(path), *digest)?;
        }
        make_table_folders(data)?;
        for (path, digest) in &manifest.tables {
            let (table, link) = (table_path(from, *digest), data.join(path));
            if fs::hard_link(&table, &link).is_err() {
                files::copy(&table, &link, *digest)?;
            }
        }
        Ok(copy)
    }
}

impl Drop for LinkedCopy {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "remove copy of a backup; remove it by hand");
        }
    }
}
