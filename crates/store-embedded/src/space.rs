//! Free disk space: writes are refused below a minimum, before they start.
//!
//! A refused write is harmless and can be repeated once there is space. A commit that runs into a full disk leaves the
//! journal in an unknown state and stops all writes until the next open.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a measurement is reused.
const MEASURE_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) struct FreeSpace {
    path: PathBuf,
    min_bytes: u64,
    measured_at: Option<Instant>,
    last_result: Result<(), String>,
}

impl FreeSpace {
    pub(crate) fn new(path: PathBuf, min_bytes: u64) -> Self {
        Self { path, min_bytes, measured_at: None, last_result: Ok(()) }
    }

    /// Whether the minimum is free; the error is written for the operator.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        if self.measured_at.is_none_or(|measured_at| measured_at.elapsed() >= MEASURE_INTERVAL) {
            self.measured_at = Some(Instant::now());
            self.last_result = self.measure();
        }
        self.last_result.clone()
    }

    fn measure(&self) -> Result<(), String> {
        let stat = rustix::fs::statvfs(&self.path)
            .map_err(|error| format!("read free disk space of {}: {error}", self.path.display()))?;
        let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free_bytes >= self.min_bytes {
            return Ok(());
        }
        let mib = |bytes: u64| bytes / (1_024 * 1_024);
        Err(format!(
            "accept writes: {} MiB are free in {}, store.embedded.min_free_space requires {} MiB; free disk space",
            mib(free_bytes),
            self.path.display(),
            mib(self.min_bytes)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_is_reported_with_the_setting_to_change() {
        assert_eq!(FreeSpace::new("/".into(), 0).check(), Ok(()));
        let error = FreeSpace::new("/".into(), u64::MAX).check().unwrap_err();
        assert!(error.contains("store.embedded.min_free_space"), "{error}");
        assert!(FreeSpace::new("/no/such/directory".into(), 0).check().is_err());
    }
}
