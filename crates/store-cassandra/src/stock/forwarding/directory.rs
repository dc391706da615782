//! The processes that commands can be forwarded to, and which of them owns a partition.
//!
//! Only processes with the same local data centre forward to each other: under `LOCAL_SERIAL` a conditional write of another
//! data centre is not ordered with those of this one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::recovery::heartbeat::LivingPeer;
use crate::recovery::ownership::weight;

/// A process that did not answer owns nothing for this time; the next in line does.
const FAILED_FOR: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Directory {
    own: Uuid,
    local_dc: String,
    peers: Vec<(Uuid, SocketAddr)>,
    failed: HashMap<Uuid, Instant>,
}

impl Directory {
    pub(super) fn new(own: Uuid, local_dc: String) -> Self {
        Self { own, local_dc, peers: Vec::new(), failed: HashMap::new() }
    }

    /// The other processes that live. One without a listener owns no partition.
    pub(super) fn update(&mut self, living: &[LivingPeer], now: Instant) {
        let address =
            |peer: &LivingPeer| Some((peer.process, read_address(peer.address.as_deref()?, &self.local_dc)?));
        self.peers = living.iter().filter_map(address).collect();
        self.failed.retain(|_, until| now < *until);
    }

    /// A process did not answer.
    pub(super) fn failed(&mut self, process: Uuid, now: Instant) {
        self.failed.insert(process, now + FAILED_FOR);
    }

    /// The owner of a partition and its address; `None` where this process is the owner.
    pub(super) fn owner(&self, ownership_key: u64, now: Instant) -> Option<(Uuid, SocketAddr)> {
        let is_usable = |process: &Uuid| self.failed.get(process).is_none_or(|until| now >= *until);
        let usable = self.peers.iter().copied().filter(|(process, _)| is_usable(process));
        let first = usable.max_by_key(|(process, _)| weight(*process, ownership_key))?;
        (weight(first.0, ownership_key) > weight(self.own, ownership_key)).then_some(first)
    }
}

/// The address of a listener as the heartbeat tells it: with the local data centre of its process.
pub(super) fn write_address(address: SocketAddr, local_dc: &str) -> String {
    format!("{address} {local_dc}")
}

/// `None` where the process is of another data centre.
fn read_address(text: &str, local_dc: &str) -> Option<SocketAddr> {
    let (address, dc) = text.split_once(' ')?;
    address.parse().ok().filter(|_| dc == local_dc)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn peer(number: u128, address: Option<&str>) -> LivingPeer {
        LivingPeer { process: uuid(number), address: address.map(str::to_owned) }
    }

    const ADDRESS: Option<&str> = Some("127.0.0.1:9400 dc1");

    /// Directories of processes 1 to 4, as each sees the others.
    fn directories(now: Instant) -> Vec<Directory> {
        let directory = |own: u128| {
            let others: Vec<LivingPeer> =
                (1..=4).filter(|number| *number != own).map(|number| peer(number, ADDRESS)).collect();
            let mut directory = Directory::new(uuid(own), "dc1".to_owned());
            directory.update(&others, now);
            directory
        };
        (1..=4).map(directory).collect()
    }

    fn owner(directory: &Directory, key: u64, now: Instant) -> Uuid {
        directory.owner(key, now).map_or(directory.own, |(process, _)| process)
    }

    #[test]
    fn all_processes_agree_on_the_owner() {
        let now = Instant::now();
        let directories = directories(now);
        let mut owners = std::collections::HashSet::new();
        for key in 0..64 {
            let [first, others @ ..] = &directories[..] else { panic!("no directory") };
            let found = owner(first, key, now);
            assert!(others.iter().all(|other| owner(other, key, now) == found));
            owners.insert(found);
        }
        assert_eq!(owners.len(), 4, "each owns some");
    }

    #[test]
    fn an_owner_that_failed_is_passed_over_for_a_while_by_the_same_process_everywhere() {
        let now = Instant::now();
        let mut directories = directories(now);
        let owned = |directory: &Directory| owner(directory, 7, now);
        let first = owned(&directories[0]);
        let survivors = directories.iter_mut().filter(|directory| directory.own != first);
        let next: Vec<Uuid> = survivors
            .map(|directory| {
                directory.failed(first, now);
                assert_eq!(owner(directory, 7, now + FAILED_FOR), first, "it is tried again");
                owner(directory, 7, now)
            })
            .collect();
        assert!(next.iter().all(|other| *other != first && Some(other) == next.first()), "{next:?}");
    }

    #[test]
    fn a_process_without_an_address_or_of_another_data_centre_owns_nothing() {
        let now = Instant::now();
        let mut directory = Directory::new(uuid(1), "dc1".to_owned());
        directory.update(
            &[peer(2, None), peer(3, Some("nonsense dc1")), peer(4, Some("127.0.0.1:9400 dc2"))],
            now,
        );
        assert!((0..64).all(|key| directory.owner(key, now).is_none()));
        let address = "10.0.0.1:9400".parse().unwrap();
        assert_eq!(read_address(&write_address(address, "dc1"), "dc1"), Some(address));
    }
}
