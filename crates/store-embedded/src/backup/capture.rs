//! What a backup consists of, as of one moment, while fjall flushes, compacts and rotates its journals.
//!
//! A state on disk is the current version of each tree (a list of immutable table files) and the journals with the rows that no
//! table has yet. The order makes it consistent without stopping anything: first the journals are opened, then the versions are
//! read, then the journals that were begun meanwhile are opened too.
//!
//! * Rows that were flushed after a version was read are in a journal that was open before: an open file stays readable after
//!   fjall has deleted it.
//! * Every row of a table was in a journal before it was flushed, and the journals are copied after the versions were read, so
//!   no table has rows of a batch that the journals lack. fjall skips rows of a journal that a table has.
//! * The table files of a version stay while a snapshot of the database is open: fjall keeps the versions of open snapshots and
//!   all later ones, and a version keeps its files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Cursor, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::BackupError;

/// How often a capture begins again because files were replaced meanwhile.
const ATTEMPTS: u32 = 32;
const KEYSPACES: &str = "keyspaces";
const CURRENT: &str = "current";
const MARKER: &str = "version";
const JOURNAL_SUFFIX: &str = ".jnl";

/// The files of a database as of one moment.
pub(super) struct Capture {
    /// By number; fjall rotates in rising order.
    pub(super) journals: BTreeMap<u64, File>,
    /// Small files with their content, by their path below the database.
    pub(super) files: Vec<(String, Vec<u8>)>,
    pub(super) tables: Vec<TableFile>,
}

/// An immutable table file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableFile {
    /// Below the database.
    pub(super) path: String,
    /// Of the whole file, from when fjall wrote it.
    pub(super) checksum: u128,
}

impl Capture {
    /// Of the database in this folder. While a process serves it, a snapshot must be open for as long as table files are read.
    pub(super) fn of(db: &Path) -> Result<Self, BackupError> {
        for _ in 0..ATTEMPTS {
            match Self::attempt(db) {
                Ok(Some(capture)) => return Ok(capture),
                // A file of the list was replaced before it was opened.
                Ok(None) => {}
                Err(BackupError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(BackupError::Changing(db.to_owned()))
    }

    fn attempt(db: &Path) -> Result<Option<Self>, BackupError> {
        let mut journals = BTreeMap::new();
        open_journals(db, &mut journals)?;
        let marker = db.join(MARKER);
        let mut files = vec![(MARKER.to_owned(), read(&marker)?)];
        let mut tables = Vec::new();
        for folder in folders(&db.join(KEYSPACES))? {
            capture_tree(db, &folder, &mut files, &mut tables)?;
        }
        open_journals(db, &mut journals)?;
        let is_gapless = journals.keys().zip(journals.keys().skip(1)).all(|(one, next)| one + 1 == *next);
        Ok((is_gapless && !journals.is_empty()).then_some(Self { journals, files, tables }))
    }
}

/// The current version of a tree, and its tables.
fn capture_tree(
    db: &Path,
    folder: &str,
    files: &mut Vec<(String, Vec<u8>)>,
    tables: &mut Vec<TableFile>,
) -> Result<(), BackupError> {
    let tree = format!("{KEYSPACES}/{folder}");
    let path = db.join(&tree).join(CURRENT);
    let current = read(&path)?;
    let Some(id) = current.first_chunk().map(|id| u64::from_le_bytes(*id)) else {
        return Err(BackupError::damaged(&path, "it names no version"));
    };
    let version_path = db.join(&tree).join(format!("v{id}"));
    let version = read(&version_path)?;
    for (table, checksum) in
        tables_of(&version).map_err(|detail| BackupError::damaged(&version_path, detail))?
    {
        tables.push(TableFile { path: format!("{tree}/tables/{table}"), checksum });
    }
    files.push((format!("{tree}/v{id}"), version));
    files.push((format!("{tree}/{CURRENT}"), current));
    Ok(())
}

/// Number and checksum of the tables of a version.
fn tables_of(version: &[u8]) -> Result<Vec<(u64, u128)>, String> {
    let archive =
        sfa::Reader::from_reader(&mut Cursor::new(version)).map_err(|error| format!("{error:?}"))?;
    let section = archive.toc().section(b"tables").ok_or("it lists no tables")?;
    let begin = usize::try_from(section.pos()).map_err(|error| error.to_string())?;
    let mut rest = version.get(begin..).ok_or("its list of tables is cut off")?;
    parse_tables(&mut rest).map_err(|error| format!("its list of tables cannot be read: {error}"))
}

/// Levels of runs of tables.
fn parse_tables(bytes: &mut impl Read) -> std::io::Result<Vec<(u64, u128)>> {
    let mut tables = Vec::new();
    let [levels] = array(bytes)?;
    for _ in 0..levels {
        let [runs] = array(bytes)?;
        for _ in 0..runs {
            for _ in 0..u32::from_le_bytes(array(bytes)?) {
                let id = u64::from_le_bytes(array(bytes)?);
                let [_checksum_type] = array(bytes)?;
                let checksum = u128::from_le_bytes(array(bytes)?);
                let _sequence: [u8; 8] = array(bytes)?;
                tables.push((id, checksum));
            }
        }
    }
    Ok(tables)
}

fn array<const N: usize>(bytes: &mut impl Read) -> std::io::Result<[u8; N]> {
    let mut array = [0; N];
    bytes.read_exact(&mut array)?;
    Ok(array)
}

/// Opens the journals that are not open yet.
fn open_journals(db: &Path, journals: &mut BTreeMap<u64, File>) -> Result<(), BackupError> {
    for name in names(db)? {
        let Some(number) = name.strip_suffix(JOURNAL_SUFFIX).and_then(|number| number.parse().ok()) else {
            continue;
        };
        if let std::collections::btree_map::Entry::Vacant(place) = journals.entry(number) {
            let path = db.join(&name);
            place.insert(File::open(&path).map_err(|source| BackupError::io("open", &path, source))?);
        }
    }
    Ok(())
}

pub(super) fn journal_name(number: u64) -> String {
    format!("{number}{JOURNAL_SUFFIX}")
}

fn folders(path: &Path) -> Result<Vec<String>, BackupError> {
    let mut folders = names(path)?;
    folders.retain(|name| path.join(name).is_dir());
    Ok(folders)
}

/// The names in a folder, in order.
pub(super) fn names(path: &Path) -> Result<Vec<String>, BackupError> {
    let error = |source| BackupError::io("list", path, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(error)? {
        names.push(entry.map_err(error)?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

pub(super) fn read(path: &PathBuf) -> Result<Vec<u8>, BackupError> {
    fs::read(path).map_err(|source| BackupError::io("read", path, source))
}
