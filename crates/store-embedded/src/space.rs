//! Free disk space: writes are refused below a minimum, before they start.
//!
//! A refused write is harmless and can be repeated once there is space. A commit that runs into a full disk leaves the
//! journal in an unknown state and stops all writes until the next open.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::tables::{Table, Tables};

/// How long a measurement is reused.
const MEASURE_INTERVAL: Duration = Duration::from_millis(200);

/// A compaction writes its new tables before it removes the old ones, and it rewrites at most so much of a table at once: a
/// level of upper tables and what it overlaps below.
const COMPACTION_BYTES_MAX: u64 = 1 << 30;

pub(crate) struct FreeSpace {
    /// The data directory, and the archive where there is one.
    paths: Vec<PathBuf>,
    min_bytes: u64,
    /// Where compactions need space; `None` where nothing is compacted.
    tables: Option<Tables>,
    measured_at: Option<Instant>,
    last_result: Result<(), String>,
}

impl FreeSpace {
    pub(crate) fn new(paths: Vec<PathBuf>, min_bytes: u64, tables: Option<Tables>) -> Self {
        Self { paths, min_bytes, tables, measured_at: None, last_result: Ok(()) }
    }

    /// Whether the minimum is free; the error is written for the operator.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        if self.measured_at.is_none_or(|measured_at| measured_at.elapsed() >= MEASURE_INTERVAL) {
            self.measured_at = Some(Instant::now());
            self.last_result = self.measure();
        }
        self.last_result.clone()
    }

    /// What must be free: the configured minimum, and room for the largest compaction.
    fn required_bytes(&self) -> u64 {
        if self.min_bytes == 0 {
            return 0;
        }
        let sizes =
            self.tables.iter().flat_map(|tables| Table::ALL.map(|table| tables.get(table).disk_space()));
        let largest = sizes.max().unwrap_or_default();
        self.min_bytes.max(largest.min(COMPACTION_BYTES_MAX))
    }

    fn measure(&self) -> Result<(), String> {
        let required = self.required_bytes();
        for path in &self.paths {
            let free = free_bytes(path)?;
            if free < required {
                let mib = |bytes: u64| bytes / (1_024 * 1_024);
                return Err(format!(
                    "accept writes: {} MiB are free in {}, {} MiB are required: store.embedded.min_free_space, or what a \
                     compaction needs if that is more; free disk space",
                    mib(free),
                    path.display(),
                    mib(required)
                ));
            }
        }
        Ok(())
    }
}

/// The bytes that are free for this process.
pub(crate) fn free_bytes(path: &Path) -> Result<u64, String> {
    let stat = rustix::fs::statvfs(path)
        .map_err(|error| format!("read free disk space of {}: {error}", path.display()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_is_reported_with_the_setting_to_change() {
        let check = |path: &str, min_bytes| FreeSpace::new(vec![path.into()], min_bytes, None).check();
        assert_eq!(check("/", 0), Ok(()));
        let error = check("/", u64::MAX).unwrap_err();
        assert!(error.contains("store.embedded.min_free_space"), "{error}");
        assert!(check("/no/such/directory", 0).is_err());
        let both = vec!["/".into(), "/no/such/directory".into()];
        assert!(FreeSpace::new(both, 0, None).check().is_err(), "the archive is checked too");
    }

    #[test]
    fn the_largest_table_can_be_compacted() {
        let folder = tempfile::tempdir().unwrap();
        let db = fjall::Database::builder(folder.path()).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        let orders = tables.get(Table::Orders);
        for number in 0..2_000_u64 {
            // Rows that do not compress.
            let value: Vec<u8> = (0..64)
                .flat_map(|word: u64| {
                    xxhash_rust::xxh3::xxh3_64(&[number, word].map(u64::to_be_bytes).concat()).to_be_bytes()
                })
                .collect();
            orders.insert(number.to_be_bytes(), value).unwrap();
        }
        orders.rotate_memtable_and_wait().unwrap();
        let table_bytes = orders.disk_space();
        let required = |min_bytes| {
            FreeSpace::new(vec![folder.path().to_owned()], min_bytes, Some(tables.clone())).required_bytes()
        };
        assert_eq!(required(1), table_bytes);
        assert_eq!(required(u64::MAX), u64::MAX);
        assert_eq!(required(0), 0, "the check is off");
    }
}
