//! Room on the disk. Writes are refused while there is little left, rather than let one fail halfway: a refused write
//! can be repeated once there is room, a failed one stops the store.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the file system is asked.
const INTERVAL: Duration = Duration::from_millis(200);

pub(crate) struct FreeSpace {
    path: PathBuf,
    min_bytes: u64,
    asked_at: Option<Instant>,
    answer: Result<(), String>,
}

impl FreeSpace {
    pub(crate) fn new(path: PathBuf, min_bytes: u64) -> Self {
        Self { path, min_bytes, asked_at: None, answer: Ok(()) }
    }

    /// Whether there is room enough; the error says how much is missing.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        if self.asked_at.is_none_or(|asked_at| asked_at.elapsed() >= INTERVAL) {
            self.asked_at = Some(Instant::now());
            self.answer = self.ask();
        }
        self.answer.clone()
    }

    fn ask(&self) -> Result<(), String> {
        let stat = rustix::fs::statvfs(&self.path)
            .map_err(|error| format!("ask for free space in {}: {error}", self.path.display()))?;
        let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free_bytes >= self.min_bytes {
            return Ok(());
        }
        let mib = |bytes: u64| bytes / (1_024 * 1_024);
        Err(format!(
            "only {} MiB are free in {}, and store.embedded.min_free_space asks for {}: free some space",
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
    fn too_little_room_is_told_with_the_setting_to_change() {
        assert_eq!(FreeSpace::new("/".into(), 0).check(), Ok(()));
        let error = FreeSpace::new("/".into(), u64::MAX).check().unwrap_err();
        assert!(error.contains("store.embedded.min_free_space"), "{error}");
        assert!(FreeSpace::new("/no/such/place".into(), 0).check().is_err());
    }
}
