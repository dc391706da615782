//! Ownership: which living process works on a key (a shard of the timers, a bucket of orphaned intents, a hit product), by
//! rendezvous hashing: the owner is the process with the highest weight for the key, so a process that comes or goes moves only
//! its own keys.
//!
//! It divides work and decides nothing: what the work leads to is decided by a conditional write, so two processes that both
//! own a key for a moment cost time only.

use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

/// The living processes, as this one sees them.
#[derive(Debug)]
pub(crate) struct Ownership {
    living: Mutex<Living>,
}

#[derive(Debug)]
struct Living {
    own: Uuid,
    peers: Vec<Uuid>,
}

impl Ownership {
    /// Alone, until the list of processes is first read.
    pub(crate) const fn new(own: Uuid) -> Self {
        Self { living: Mutex::new(Living { own, peers: Vec::new() }) }
    }

    fn living(&self) -> MutexGuard<'_, Living> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Divides the keys anew: `alive_peers` are the other processes that live.
    pub(crate) fn update(&self, own: Uuid, alive_peers: &[Uuid]) {
        *self.living() = Living { own, peers: alive_peers.to_vec() };
    }

    /// The process that works on a key. Every process that sees the same living ones comes to the same owner.
    #[cfg_attr(not(test), expect(dead_code, reason = "the stock keepers ask for the owner of a hit product"))]
    pub(crate) fn owner(&self, key: u64) -> Uuid {
        let living = self.living();
        let rival = living.peers.iter().copied().max_by_key(|peer| weight(*peer, key));
        rival.map_or(living.own, |rival| {
            [rival, living.own].into_iter().max_by_key(|process| weight(*process, key)).unwrap_or(living.own)
        })
    }

    /// The id of this process.
    pub(crate) fn own(&self) -> Uuid {
        self.living().own
    }

    /// How many living processes come before this one for a key: the owner has rank 0, the others take over in this order.
    pub(crate) fn rank(&self, key: u64) -> usize {
        let living = self.living();
        let own = weight(living.own, key);
        living.peers.iter().filter(|peer| weight(**peer, key) > own).count()
    }

    /// Whether this process works on a key.
    pub(crate) fn owns(&self, key: u64) -> bool {
        self.rank(key) == 0
    }
}

/// The weight of a process for a key; the id makes it unique. Every process and every version must compute the same.
pub(crate) fn weight(process: Uuid, key: u64) -> (u64, Uuid) {
    let (high, low) = process.as_u64_pair();
    (mix(mix(mix(key) ^ high) ^ low), process)
}

/// Combines parts of a key into one number, spread evenly.
pub(crate) fn key_of(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |key, part| mix(key ^ *part))
}

/// The finalizer of `SplitMix64`: every bit of the input changes half of the bits of the output.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(count: u128) -> Vec<Uuid> {
        (1..=count).map(Uuid::from_u128).collect()
    }

    fn seen_by(own: Uuid, processes: &[Uuid]) -> Ownership {
        let ownership = Ownership::new(own);
        let peers: Vec<Uuid> = processes.iter().copied().filter(|peer| *peer != own).collect();
        ownership.update(own, &peers);
        ownership
    }

    #[test]
    fn every_key_has_one_owner_that_all_processes_agree_on() {
        for count in 1..=9 {
            let processes = processes(count);
            let views: Vec<Ownership> = processes.iter().map(|own| seen_by(*own, &processes)).collect();
            for key in 0..64 {
                let owners: Vec<Uuid> = views.iter().map(|view| view.owner(key)).collect();
                assert!(owners.iter().all(|owner| *owner == owners[0]), "key {key}: {owners:?}");
                assert_eq!(views.iter().filter(|view| view.owns(key)).count(), 1, "key {key}");
                let mut ranks: Vec<usize> = views.iter().map(|view| view.rank(key)).collect();
                ranks.sort_unstable();
                assert!(ranks.into_iter().eq(0..processes.len()), "key {key}: every rank once");
            }
        }
    }

    #[test]
    fn keys_are_divided_evenly() {
        let processes = processes(8);
        let view = seen_by(processes[0], &processes);
        for process in &processes {
            let owned = (0..8_000).filter(|key| view.owner(*key) == *process).count();
            assert!((850..=1_150).contains(&owned), "{process} owns {owned} of 8000");
        }
    }

    #[test]
    fn process_that_leaves_moves_only_its_own_keys() {
        let before = processes(6);
        let after: Vec<Uuid> = before.iter().copied().filter(|process| *process != before[5]).collect();
        let (old, new) = (seen_by(before[0], &before), seen_by(before[0], &after));
        for key in 0..1_000 {
            assert!(old.owner(key) == before[5] || old.owner(key) == new.owner(key), "key {key}");
        }
    }

    #[test]
    fn process_alone_owns_every_key() {
        let own = Uuid::from_u128(7);
        let alone = Ownership::new(own);
        assert!((0..64).all(|key| alone.owns(key) && alone.owner(key) == own));
    }

    #[test]
    fn weights_never_change_between_versions() {
        let processes = processes(5);
        let view = seen_by(processes[0], &processes);
        let owners: Vec<u128> = (0..8).map(|key| view.owner(key_of(&[key, 1])).as_u128()).collect();
        assert_eq!(owners, [3, 4, 4, 2, 3, 3, 2, 2]);
    }
}
