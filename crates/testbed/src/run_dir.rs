//! The directory of a cluster: kept, or removed with the process that owns it.

use crate::cache::{self, Lock};
use crate::error::Result;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub struct RunDir {
    pub dir: PathBuf,
    /// `None` if the directory is kept.
    owner_lock: Option<Lock>,
}

impl RunDir {
    /// A directory that is kept.
    pub fn kept(dir: PathBuf) -> Self {
        Self { dir, owner_lock: None }
    }

    /// A directory that is removed with this process. First removes those whose owners were killed.
    pub fn temporary(root: &Path, name: &str) -> Result<Self> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let runs = root.join("runs");
        let _creation = Lock::take(&root.join("runs.lock"), || {})?;
        sweep(&runs);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let dir = runs.join(format!("{name}-{}-{number}", std::process::id()));
        cache::create_dir(&dir)?;
        let owner_lock = Lock::try_take(&dir.join("owner.lock"))?;
        Ok(Self { dir, owner_lock })
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if self.owner_lock.is_some() {
            let _ = cache::remove_dir(&self.dir);
        }
    }
}

/// Removes directories without an owner. One that cannot be removed now is left for the next run.
fn sweep(runs: &Path) {
    for dir in fs::read_dir(runs).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if let Ok(Some(_unowned)) = Lock::try_take(&dir.join("owner.lock")) {
            let _ = cache::remove_dir(&dir);
        }
    }
}
