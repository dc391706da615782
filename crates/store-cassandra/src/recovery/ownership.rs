//! Ownership: which shards of the timers this process works on. It divides work and decides nothing: what a timer leads to is
//! decided by a conditional write, so two processes that both own a shard for a moment cost time only.

use std::sync::atomic::{AtomicU32, Ordering};

use uuid::Uuid;

/// The rank of this process among the living ones, and how many there are.
#[derive(Debug)]
pub(crate) struct Ownership {
    rank: AtomicU32,
    processes: AtomicU32,
}

impl Default for Ownership {
    /// Alone, until the list of processes is first read.
    fn default() -> Self {
        Self { rank: AtomicU32::new(0), processes: AtomicU32::new(1) }
    }
}

impl Ownership {
    /// Divides the shards anew: `peers` are the other processes that live.
    pub(crate) fn divide(&self, own: Uuid, peers: &[Uuid]) {
        let rank = peers.iter().filter(|peer| **peer < own).count();
        self.rank.store(u32::try_from(rank).unwrap_or_default(), Ordering::Relaxed);
        self.processes.store(u32::try_from(peers.len() + 1).unwrap_or(1), Ordering::Relaxed);
    }

    /// Whether this process works on a shard of `shards`.
    pub(crate) fn owns(&self, shard: u32, shards: u32) -> bool {
        let processes = self.processes.load(Ordering::Relaxed);
        shard % processes == self.rank.load(Ordering::Relaxed) % processes.min(shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_has_an_owner_whatever_the_number_of_processes() {
        for count in 1..=9_u128 {
            let processes: Vec<Uuid> = (1..=count).map(Uuid::from_u128).collect();
            let owners = |shard| {
                let is_owner = |own: &&Uuid| {
                    let peers: Vec<Uuid> = processes.iter().copied().filter(|peer| peer != *own).collect();
                    let ownership = Ownership::default();
                    ownership.divide(**own, &peers);
                    ownership.owns(shard, 4)
                };
                processes.iter().filter(is_owner).count()
            };
            for shard in 0..4 {
                assert!(owners(shard) >= 1, "shard {shard} of {count} processes");
                assert!(count > 4 || owners(shard) == 1, "shard {shard} of {count} processes");
            }
        }
    }

    #[test]
    fn a_process_alone_owns_every_shard() {
        assert!((0..4).all(|shard| Ownership::default().owns(shard, 4)));
    }
}
