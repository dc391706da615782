//! Locks within the process, by key. What one process does to one key in transactions goes one after the other, instead of in
//! conflicts that begin again; between processes the servers detect them.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Locks that no task holds are swept when the map has grown to this size.
const SWEPT_AT: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Locks<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for Locks<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Locks<K> {
    /// Taken in one order, so that two tasks never wait for each other.
    pub(crate) async fn lock(&self, keys: BTreeSet<K>) -> Vec<OwnedMutexGuard<()>> {
        let mut held = Vec::new();
        for key in keys {
            held.push(self.lock_one(key).await);
        }
        held
    }

    pub(crate) async fn lock_one(&self, key: K) -> OwnedMutexGuard<()> {
        let lock = self.of(key);
        lock.lock_owned().await
    }

    fn of(&self, key: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() >= SWEPT_AT {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        locks.insert(key, Arc::downgrade(&lock));
        lock
    }
}
