//! Backups of the running shop: one at a time, on a thread of its own, with a status that can be read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mw_store::backup::{BackupProgress, BackupState, BackupStatus};
use mw_store::{Refusal, Result, StoreError};

use super::{BackupError, BackupPlan, check_marker, now};
use crate::EmbeddedStore;
use crate::background_thread;
use crate::maintenance::lock;
use crate::open::stored_commit_sequence;

impl EmbeddedStore {
    /// Starts a backup; the error is certain: nothing was written.
    pub(crate) fn begin_backup(&self, to: PathBuf, keep: usize) -> Result<()> {
        self.check_target(&to).map_err(|detail| Refusal::InvalidField { field: "to".to_owned(), detail })?;
        let mut status = lock(&self.backup);
        if matches!(status.as_ref().map(|status| &status.state), Some(BackupState::Running(_))) {
            return Err(StoreError::NotServing("another backup is running; wait for its end".to_owned()));
        }
        let commit_sequence = stored_commit_sequence(&self.tables)
            .map_err(|error| StoreError::Corrupt(format!("read commit sequence number: {error:?}")))?;
        let plan = BackupPlan {
            data: self.options.path.clone(),
            commit_sequence,
            archive: self.options.archive.as_ref().map(|path| absolute(path)),
            to: to.clone(),
            keep,
        };
        // Keeps the table files of the versions that the backup reads.
        let snapshot = self.db.snapshot();
        let shared = Arc::clone(&self.backup);
        let run = move || {
            let report = |progress: BackupProgress| set_state(&shared, BackupState::Running(progress));
            let taken = plan.run(&report);
            drop(snapshot);
            set_state(&shared, ended(&plan.to, taken));
        };
        *status = Some(BackupStatus {
            to,
            started_at: now(),
            state: BackupState::Running(BackupProgress::default()),
        });
        drop(status);
        if let Err(error) = background_thread::spawn("mw-backup", run) {
            set_state(&self.backup, BackupState::Failed(error.to_string()));
            return Err(StoreError::Unavailable(format!("start a backup: {error}")));
        }
        Ok(())
    }

    fn check_target(&self, to: &Path) -> std::result::Result<(), String> {
        let is_plain =
            to.is_absolute() && !to.components().any(|part| matches!(part, std::path::Component::ParentDir));
        if !is_plain {
            return Err("an absolute path without `..` is needed".to_owned());
        }
        if self.options.backups_below.as_ref().is_some_and(|below| !is_below(to, below)) {
            return Err(
                "store.embedded.backups allows only directories below the one that it names".to_owned()
            );
        }
        if to.exists() {
            check_marker(to).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Whether a path leads below a folder, also where a part of it is a link.
fn is_below(path: &Path, folder: &Path) -> bool {
    let existing = path.ancestors().find_map(|part| part.canonicalize().ok());
    let folder = folder.canonicalize().unwrap_or_else(|_| absolute(folder));
    existing.is_some_and(|existing| existing.starts_with(&folder))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn ended(to: &Path, taken: std::result::Result<mw_store::backup::BackupSummary, BackupError>) -> BackupState {
    match taken {
        Ok(summary) => {
            tracing::info!(
                to = %to.display(),
                number = summary.number,
                tables = summary.progress.tables,
                new_bytes = summary.progress.new_bytes,
                "backup taken"
            );
            BackupState::Done(summary)
        }
        Err(error) => {
            tracing::error!(%error, to = %to.display(), "take a backup");
            BackupState::Failed(error.to_string())
        }
    }
}

fn set_state(shared: &std::sync::Mutex<Option<BackupStatus>>, state: BackupState) {
    if let Some(status) = lock(shared).as_mut() {
        status.state = state;
    }
}
