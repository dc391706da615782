//! The audit log of the embedded engine: a file beside the store, a line a change, only ever appended to.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use mw_domain::Timestamp;
use mw_domain::time::Date;
use mw_store::audit::{AuditEntry, AuditLog, Operator};
use mw_store::{Result, StoreError};
use serde::{Deserialize, Serialize};

const FILE: &str = "audit.ndjson";

#[derive(Debug)]
pub(crate) struct AuditFile {
    path: PathBuf,
    /// One writer at a time, so that lines are whole.
    writing: Mutex<()>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    at: String,
    token: String,
    address: String,
    action: String,
    result: String,
}

impl AuditFile {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join(FILE), writing: Mutex::default() }
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> StoreError {
        StoreError::Unavailable(format!("audit log {}: {error}", self.path.display()))
    }
}

#[async_trait::async_trait]
impl AuditLog for AuditFile {
    async fn append(&self, entry: AuditEntry) -> Result<()> {
        let AuditEntry { at, operator: Operator { token, address }, action, result } = entry;
        let line = Line { at: at.to_string(), token, address, action, result };
        let mut line = serde_json::to_string(&line).map_err(|error| self.failed(&error))?;
        line.push('\n');
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let append = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
            file.write_all(line.as_bytes())?;
            file.sync_data()
        };
        append().map_err(|error| self.failed(&error))
    }

    async fn entries(&self, day: Date, limit: usize) -> Result<Vec<AuditEntry>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.failed(&error)),
        };
        let mut entries = Vec::new();
        for line in BufReader::new(file).lines() {
            let line = line.map_err(|error| self.failed(&error))?;
            // A line that a crash cut short is no entry.
            let Ok(Line { at, token, address, action, result }) = serde_json::from_str(&line) else {
                continue;
            };
            let Ok(at) = Timestamp::parse(&at) else { continue };
            if at.date() == day {
                entries.push(AuditEntry { at, operator: Operator { token, address }, action, result });
            }
        }
        entries.reverse();
        entries.truncate(limit);
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(second: i64, action: &str) -> AuditEntry {
        let operator = Operator { token: "operator-1".to_owned(), address: "127.0.0.1".to_owned() };
        let at = Timestamp::from_millis(1_790_000_000_000).plus_seconds(second);
        AuditEntry { at, operator, action: action.to_owned(), result: "done".to_owned() }
    }

    #[tokio::test]
    async fn entries_of_a_day_are_read_newest_first_past_a_damaged_line() {
        let folder = tempfile::tempdir().unwrap();
        let log = AuditFile::in_folder(folder.path());
        let day = entry(0, "").at.date();
        assert!(log.entries(day, 10).await.unwrap().is_empty());
        log.append(entry(0, "first")).await.unwrap();
        let path = folder.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(b"{\"at\":\"2026\n");
        std::fs::write(&path, bytes).unwrap();
        log.append(entry(1, "second")).await.unwrap();
        log.append(entry(86_400, "another day")).await.unwrap();
        assert_eq!(log.entries(day, 10).await.unwrap(), [entry(1, "second"), entry(0, "first")]);
        assert_eq!(log.entries(day, 1).await.unwrap(), [entry(1, "second")]);
    }
}
