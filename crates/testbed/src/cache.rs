//! The cache between runs: fetched jars, and the directories of clusters. `$MW_CACHE`, else
//! `mobile-world` in the user's cache directory; never in the build's target folder, which is often wiped.

use crate::error::{ClusterError, Doing, Result};
use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{self, Path, PathBuf};

pub fn root() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = set("MW_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("mobile-world")))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join("mobile-world")))
        .ok_or_else(|| {
            ClusterError::Missing(
                "there is no home directory: name a directory in the variable MW_CACHE".to_owned(),
            )
        })?;
    // Nodes run in their own directories, where a relative path would be another one.
    path::absolute(&root).at("find", &root)
}

pub fn create_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).at("create", path)
}

/// Removes a directory with its content; it need not exist.
pub fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).at("remove", path),
        _ => Ok(()),
    }
}

pub fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).at("write", path)
}

/// A file lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// `None` if another process holds it.
    pub fn try_take(path: &Path) -> Result<Option<Self>> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).at("lock", path),
        }
    }

    /// Waits for it; calls `waiting` if another process holds it.
    pub fn take(path: &Path, waiting: impl FnOnce()) -> Result<Self> {
        if let Some(lock) = Self::try_take(path)? {
            return Ok(lock);
        }
        waiting();
        let file = open(path)?;
        file.lock().at("lock", path)?;
        Ok(Self { _file: file })
    }
}

fn open(path: &Path) -> Result<File> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    File::options().create(true).append(true).open(path).at("open", path)
}
