//! The archive: every committed group of commands, kept for restores to a moment (`store.embedded.archive`).
//!
//! ```text
//! <folder>/STORE_ID                     the store that writes this archive
//! <folder>/LOCK                         locked by the process that writes it
//! <folder>/00000000000000000042.groups  groups from commit 42 on
//! ```
//!
//! Invariants: a group is synced here before its batch is committed, so no acknowledged group is missing. The last group may lack
//! its commit after a crash: the next open compares with the store and removes it. An archive belongs to one history: a restored
//! store has another id and is refused, because its commits have the same numbers and other rows.

mod group;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use fjall::{OwnedWriteBatch, Slice};
use mw_domain::Timestamp;
use rustix::fs::{FlockOperation, flock};

use crate::backup::{BackupError, now};
use crate::open::{LOCK_FILE, STORE_ID_FILE, Scratch, replace_file};
use crate::tables::Table;
use group::{Group, GroupReader, Header};

const SUFFIX: &str = ".groups";
/// A segment that is longer than this is followed by the next one.
const SEGMENT_BYTES: u64 = 64 << 20;

/// The open archive of a store, written by its writer thread.
pub(crate) struct Archive {
    path: PathBuf,
    /// The segment that is written to, and its length; `None` before the first group.
    segment: Option<(File, u64)>,
    /// The group that is being built.
    group: Vec<u8>,
    _lock: File,
}

impl Archive {
    /// Opens the archive of a store that has this many commits.
    pub(crate) fn open(path: &Path, store_id: &str, commit_sequence: u64) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("open archive {}: {error}", path.display());
        fs::create_dir_all(path).map_err(failed)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(LOCK_FILE))
            .map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("open archive {}: another process writes it", path.display()))?;
        check_owner(path, store_id)?;
        let mut archive = Self { path: path.to_owned(), segment: None, group: Vec::new(), _lock: lock };
        archive.continue_last(commit_sequence)?;
        Ok(archive)
    }

    /// Goes on after the last group that the store has committed.
    fn continue_last(&mut self, commit_sequence: u64) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("open archive {}: {error}", self.path.display());
        let Some((first, path)) = segments(&self.path).map_err(failed)?.pop() else { return Ok(()) };
        let (mut last, mut end) = (first.saturating_sub(1), 0);
        if let Ok(mut groups) = GroupReader::open(&path) {
            end = groups.position();
            while let Some(group) = groups.next_group().map_err(failed)? {
                if group.sequence > commit_sequence + 1 {
                    return Err(self.is_ahead(group.sequence, commit_sequence));
                }
                // A crash between archive and journal leaves one group that was never committed.
                if group.sequence <= commit_sequence {
                    (last, end) = (group.sequence, groups.position());
                }
            }
        }
        if first > commit_sequence + 1 {
            return Err(self.is_ahead(first, commit_sequence));
        }
        if end == 0 {
            // The segment has not even a whole header, so it has no group.
            return fs::remove_file(&path).map_err(failed);
        }
        if last < commit_sequence {
            tracing::warn!(
                archived = last,
                committed = commit_sequence,
                archive = %self.path.display(),
                "open archive: commits are missing, because the store was written without it; restores to a moment need a \
                 backup from after this start"
            );
            return Ok(());
        }
        let mut file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
        file.set_len(end).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        self.segment = Some((file, end));
        Ok(())
    }

    fn is_ahead(&self, archived: u64, committed: u64) -> String {
        format!(
            "open archive {}: it has commit {archived}, the store only {committed}: the store was replaced by an older copy; set \
             store.embedded.archive to a new directory",
            self.path.display()
        )
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a row to the group that is being built; `None` removes it.
    pub(crate) fn add(&mut self, table: Table, key: &Slice, value: Option<&Slice>) {
        group::encode_row(&mut self.group, table as usize, key, value.map(AsRef::as_ref));
    }

    /// Appends the group and syncs it.
    pub(crate) fn append(&mut self, sequence: u64) -> std::io::Result<()> {
        let rows = std::mem::take(&mut self.group);
        let bytes = group::encode(sequence, now(), &rows);
        if self.segment.as_ref().is_none_or(|(_, length)| *length >= SEGMENT_BYTES) {
            self.segment = Some(self.begin_segment(sequence)?);
        }
        if let Some((file, length)) = &mut self.segment {
            // A crash during the write leaves a part of a group, which the next open cuts off.
            file.write_all(&bytes)?;
            file.sync_data()?;
            *length += bytes.len() as u64;
        }
        self.group = rows;
        self.group.clear();
        Ok(())
    }

    fn begin_segment(&self, first: u64) -> std::io::Result<(File, u64)> {
        let path = self.path.join(format!("{first:020}{SUFFIX}"));
        let header = Header::of_this_release(first).encode();
        let mut file = File::create(path)?;
        file.write_all(&header)?;
        file.sync_all()?;
        File::open(&self.path)?.sync_all()?;
        Ok((file, header.len() as u64))
    }
}

/// Refuses the archive of another store; an empty folder becomes the archive of this one.
fn check_owner(path: &Path, store_id: &str) -> Result<(), String> {
    match fs::read_to_string(path.join(STORE_ID_FILE)) {
        Ok(owner) if owner.trim() == store_id => Ok(()),
        Ok(_) => Err(format!(
            "open archive {}: another store writes it, or this store was restored from a backup; set store.embedded.archive to a \
             new directory",
            path.display()
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let is_foreign = fs::read_dir(path)
                .map_err(|error| format!("open archive {}: {error}", path.display()))?
                .filter_map(Result::ok)
                .any(|entry| {
                    !["LOCK", "STORE_ID.new", "lost+found"].iter().any(|known| entry.file_name() == *known)
                });
            if is_foreign {
                return Err(format!("open archive {}: it contains other files", path.display()));
            }
            replace_file(path, STORE_ID_FILE, &format!("{store_id}\n"))
                .map_err(|error| format!("open archive {}: {error}", path.display()))
        }
        Err(error) => Err(format!("open archive {}: {error}", path.display())),
    }
}

/// The segments by their first commit, in order.
fn segments(path: &Path) -> std::io::Result<Vec<(u64, PathBuf)>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(first) = name.strip_suffix(SUFFIX).and_then(|first| first.parse().ok()) {
            segments.push((first, entry.path()));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// Whether the folder is an archive and no folder of backups.
pub(crate) fn is_archive(path: &Path) -> bool {
    path.join(STORE_ID_FILE).exists() && segments(path).is_ok_and(|segments| !segments.is_empty())
}

/// What a replay has applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// The last commit that the store has now.
    pub(crate) last: u64,
    /// Its moment; `None` where nothing was replayed.
    pub(crate) at: Option<Timestamp>,
    pub(crate) groups: u64,
}

/// Applies the groups after commit `base` up to the first one that is later than `to`.
pub(crate) fn replay(
    path: &Path,
    scratch: &Scratch,
    base: u64,
    to: Timestamp,
) -> Result<Replayed, BackupError> {
    let out_of_reach = |detail: String| BackupError::OutOfReach { to, detail };
    let segments = segments(path).map_err(|source| BackupError::io("list", path, source))?;
    let mut replayed = Replayed { last: base, at: None, groups: 0 };
    let begin = segments.iter().rposition(|(first, _)| *first <= base + 1).unwrap_or_default();
    for (_, segment) in segments.get(begin..).unwrap_or_default() {
        let io = |source| BackupError::io("read", segment, source);
        let mut groups = match GroupReader::open(segment) {
            Ok(groups) => groups,
            // A segment whose header was being written has no group.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => continue,
            Err(error) => return Err(io(error)),
        };
        while let Some(group) = groups.next_group().map_err(io)? {
            if group.sequence <= replayed.last {
                continue;
            }
            if group.sequence != replayed.last + 1 {
                return Err(out_of_reach(format!(
                    "the archive {} lacks the commits {} to {}",
                    path.display(),
                    replayed.last + 1,
                    group.sequence - 1
                )));
            }
            if group.at > to {
                return Ok(replayed);
            }
            apply(scratch, &groups.header, &group).map_err(|detail| BackupError::damaged(segment, detail))?;
            replayed = Replayed { last: group.sequence, at: Some(group.at), groups: replayed.groups + 1 };
        }
    }
    Ok(replayed)
}

fn apply(scratch: &Scratch, header: &Header, group: &Group) -> Result<(), String> {
    let rows = group.rows()?;
    let mut batch = OwnedWriteBatch::with_capacity(scratch.db.clone(), rows.len());
    for (number, key, value) in rows {
        let name = header.tables.get(usize::from(number)).ok_or("a row of no table")?;
        let table = Table::named(name).ok_or_else(|| format!("table {name} of another release"))?;
        match value {
            Some(value) => batch.insert(scratch.tables.get(table), key, value),
            None => batch.remove(scratch.tables.get(table), key),
        }
    }
    batch.commit().map_err(|error| format!("{error:?}"))
}

#[cfg(test)]
mod tests;
