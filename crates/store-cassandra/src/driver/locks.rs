//! Locks within this process on partitions and idempotency keys.
//!
//! They decide nothing: the condition of a write decides, between processes and within one. A lock only saves CAS rounds that
//! would be lost, or work that would be undone. Order of locking, so that no two tasks wait for each other: an idempotency key
//! first, then a checkout, then one partition or one pair; a task that holds a partition takes no other lock.

use std::hash::{BuildHasher, Hash, RandomState};

use tokio::sync::{Mutex, MutexGuard};

/// Partitions share a lock by hash; there are more locks than requests in flight.
const LOCKS: usize = 4_096;

#[derive(Debug)]
pub(crate) struct Locks {
    partitions: Vec<Mutex<()>>,
    keys: Vec<Mutex<()>>,
    checkouts: Vec<Mutex<()>>,
    hasher: RandomState,
}

impl Locks {
    pub(crate) fn new() -> Self {
        let locks = || (0..LOCKS).map(|_| Mutex::new(())).collect();
        Self { partitions: locks(), keys: locks(), checkouts: locks(), hasher: RandomState::new() }
    }

    fn index(&self, key: &impl Hash) -> usize {
        usize::try_from(self.hasher.hash_one(key) % LOCKS as u64).unwrap_or_default()
    }

    /// The lock of an idempotency key. Apart from those of the partitions, which the work under the key takes.
    pub(crate) async fn idempotency_key(&self, key: &str) -> Option<MutexGuard<'_, ()>> {
        match self.keys.get(self.index(&key)) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }

    /// The lock of a user's checkout: of several at once in this process, the later ones find the cart closed.
    pub(crate) async fn checkout(&self, user_id: &str) -> Option<MutexGuard<'_, ()>> {
        match self.checkouts.get(self.index(&user_id)) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }

    /// The lock of a partition.
    pub(crate) async fn partition(&self, key: &impl Hash) -> Option<MutexGuard<'_, ()>> {
        match self.partitions.get(self.index(key)) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }

    /// The locks of two partitions, always in the same order.
    pub(crate) async fn pair(&self, one: &impl Hash, other: &impl Hash) -> Vec<MutexGuard<'_, ()>> {
        let mut indexes = [self.index(one), self.index(other)].to_vec();
        indexes.sort_unstable();
        indexes.dedup();
        let mut guards = Vec::with_capacity(indexes.len());
        for index in indexes {
            if let Some(lock) = self.partitions.get(index) {
                guards.push(lock.lock().await);
            }
        }
        guards
    }
}
