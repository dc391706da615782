//! Turns taken by those of this process who change the same partition.
//!
//! What decides is the condition of the write, between processes and within one; taking turns only saves rounds that
//! would be lost. Whoever holds a key of a request may take a partition, never the other way round, and nobody who holds a
//! partition takes another: so nobody waits in a circle.

use std::hash::{BuildHasher, Hash, RandomState};

use tokio::sync::{Mutex, MutexGuard};

/// Partitions share a lock by hash; more locks than requests that are likely under way.
const LOCKS: usize = 4_096;

#[derive(Debug)]
pub(crate) struct Locks {
    partitions: Vec<Mutex<()>>,
    keys: Vec<Mutex<()>>,
    hasher: RandomState,
}

impl Locks {
    pub(crate) fn new() -> Self {
        let locks = || (0..LOCKS).map(|_| Mutex::new(())).collect();
        Self { partitions: locks(), keys: locks(), hasher: RandomState::new() }
    }

    fn place(&self, key: &impl Hash) -> usize {
        usize::try_from(self.hasher.hash_one(key) % LOCKS as u64).unwrap_or_default()
    }

    /// The turn of a request's key. Apart from the partitions, since the work under a key takes those.
    pub(crate) async fn key(&self, key: &str) -> Option<MutexGuard<'_, ()>> {
        match self.keys.get(self.place(&key)) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }

    pub(crate) async fn one(&self, key: &impl Hash) -> Option<MutexGuard<'_, ()>> {
        match self.partitions.get(self.place(key)) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }

    /// Both, in an order that is the same for everybody.
    pub(crate) async fn two(&self, one: &impl Hash, other: &impl Hash) -> Vec<MutexGuard<'_, ()>> {
        let mut places = [self.place(one), self.place(other)].to_vec();
        places.sort_unstable();
        places.dedup();
        let mut guards = Vec::with_capacity(places.len());
        for place in places {
            if let Some(lock) = self.partitions.get(place) {
                guards.push(lock.lock().await);
            }
        }
        guards
    }
}
