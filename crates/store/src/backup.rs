//! Physical backups of a running store. Only an engine that owns its files takes them; every engine can be exported.

use std::path::PathBuf;

use mw_domain::Timestamp;

/// How far a backup is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackupProgress {
    /// Table files of the backup.
    pub tables: usize,
    pub tables_done: usize,
    /// Bytes of the tables that are done.
    pub bytes: u64,
    /// Tables that no earlier backup in the same folder has.
    pub new_tables: usize,
    pub new_bytes: u64,
}

/// A backup that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupSummary {
    /// Counts up in its folder.
    pub number: u64,
    /// The backup has this many commits or more.
    pub commit_sequence: u64,
    /// No later commit is in the backup.
    pub taken_at: Timestamp,
    pub progress: BackupProgress,
}

/// The last backup that was started since the process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupStatus {
    pub to: PathBuf,
    pub started_at: Timestamp,
    pub state: BackupState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupState {
    Running(BackupProgress),
    Done(BackupSummary),
    /// Nothing that an earlier backup needs was changed; the text is for the operator.
    Failed(String),
}
