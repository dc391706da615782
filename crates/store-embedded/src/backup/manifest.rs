//! The manifest of a backup: what it consists of, in lines of text. The last line is a checksum of the others; a backup without
//! a manifest is incomplete.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use mw_domain::Timestamp;
use xxhash_rust::xxh3::xxh3_128;

use super::BackupError;
use super::files::Digest;

pub(super) const MANIFEST: &str = "MANIFEST";
/// The first line of a manifest, and the content of the file BACKUP.
pub(super) const BACKUP_FORMAT: &str = "mobile-world-backup 1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The backup has this many commits or more.
    pub(super) commit_sequence: u64,
    /// No later commit is in the backup.
    pub(super) taken_at: Timestamp,
    /// The archive of the shop, where it has one.
    pub(super) archive: Option<PathBuf>,
    /// Files in the folder of this backup, by their path in the data directory.
    pub(super) files: Vec<(String, Digest)>,
    /// Tables in the folder that all backups share, by their path in the data directory; the checksum is the name there.
    pub(super) tables: Vec<(String, Digest)>,
}

impl Manifest {
    pub(super) fn encode(&self) -> String {
        let mut text = format!(
            "{BACKUP_FORMAT}\ncommit_sequence {}\ntaken_at {}\n",
            self.commit_sequence,
            self.taken_at.as_millis()
        );
        if let Some(archive) = &self.archive {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "archive {}", archive.display());
        }
        for (kind, list) in [("file", &self.files), ("table", &self.tables)] {
            for (path, digest) in list {
                let _ = writeln!(text, "{kind} {} {:032x} {path}", digest.bytes, digest.checksum);
            }
        }
        let checksum = xxh3_128(text.as_bytes());
        let _ = writeln!(text, "end {checksum:032x}");
        text
    }

    pub(super) fn read(path: &Path) -> Result<Self, BackupError> {
        let text = std::fs::read_to_string(path).map_err(|source| BackupError::io("read", path, source))?;
        Self::decode(&text).ok_or_else(|| BackupError::damaged(path, "it is no manifest of this version"))
    }

    fn decode(text: &str) -> Option<Self> {
        let (body, end) = text.strip_suffix('\n')?.rsplit_once('\n')?;
        let body = text.get(..=body.len())?;
        let checksum = u128::from_str_radix(end.strip_prefix("end ")?, 16).ok()?;
        if checksum != xxh3_128(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines();
        if lines.next() != Some(BACKUP_FORMAT) {
            return None;
        }
        let mut manifest = Self {
            commit_sequence: 0,
            taken_at: Timestamp::EPOCH,
            archive: None,
            files: Vec::new(),
            tables: Vec::new(),
        };
        for line in lines {
            let (kind, rest) = line.split_once(' ')?;
            match kind {
                "commit_sequence" => manifest.commit_sequence = rest.parse().ok()?,
                "taken_at" => manifest.taken_at = Timestamp::from_millis(rest.parse().ok()?),
                "archive" => manifest.archive = Some(rest.into()),
                "file" => manifest.files.push(entry(rest)?),
                "table" => manifest.tables.push(entry(rest)?),
                _ => return None,
            }
        }
        Some(manifest)
    }
}

fn entry(line: &str) -> Option<(String, Digest)> {
    let mut parts = line.splitn(3, ' ');
    let bytes = parts.next()?.parse().ok()?;
    let checksum = u128::from_str_radix(parts.next()?, 16).ok()?;
    let path = parts.next()?;
    // A path leads below the data directory, whatever the manifest says.
    let is_below = Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    (is_below && !path.is_empty()).then(|| (path.to_owned(), Digest { bytes, checksum }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            commit_sequence: 77,
            taken_at: Timestamp::from_millis(1_790_000_000_123),
            archive: Some("/var/lib/mw archive".into()),
            files: vec![("db/7.jnl".to_owned(), Digest::of(b"journal"))],
            tables: vec![("db/keyspaces/1/tables/4".to_owned(), Digest::of(b"table"))],
        }
    }

    #[test]
    fn a_manifest_reads_as_it_was_written() {
        let bare = Manifest { archive: None, files: Vec::new(), tables: Vec::new(), ..manifest() };
        for manifest in [manifest(), bare] {
            assert_eq!(Manifest::decode(&manifest.encode()), Some(manifest));
        }
    }

    #[test]
    fn a_manifest_with_any_change_is_refused() {
        let text = manifest().encode();
        for cut in 0..text.len() {
            assert_eq!(Manifest::decode(&text[..cut]), None, "cut at {cut}");
        }
        assert_eq!(Manifest::decode(&text.replace("77", "78")), None);
        assert_eq!(Manifest::decode(""), None);
    }

    #[test]
    fn a_path_never_leads_out_of_the_data_directory() {
        for path in ["../etc/passwd", "/etc/passwd", "db/../../x", ""] {
            assert_eq!(entry(&format!("1 0 {path}")), None, "{path}");
        }
    }
}
