//! Contention: the partitions on which keepers of several processes lose CAS rounds to each other.
//!
//! A partition is forwarded from its [`LOST_ROUNDS`]th lost round within [`CONTENTION_WINDOW`], and as long as there are
//! commands on it. A process alone never loses a round, so it pays one relaxed load a command for this.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::recovery::ownership::key_of;
use crate::stock::decision::{Decision, StockKey};

/// Lost rounds within the window that make a partition contended.
const LOST_ROUNDS: u32 = 2;
const CONTENTION_WINDOW: Duration = Duration::from_secs(1);
/// Without a command for so long, the next one goes to the keeper of this process again.
const FORWARDING_IDLE: Duration = Duration::from_secs(30);
/// Partitions that are watched; further ones are kept by every process for itself.
const PARTITIONS_MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct Contention {
    /// Partitions that are forwarded: 0 saves the lock.
    forwarded: AtomicUsize,
    partitions: Mutex<HashMap<StockKey, Partition>>,
}

#[derive(Debug)]
struct Partition {
    /// By which the owner is found.
    ownership_key: u64,
    lost: u32,
    /// When the first of the lost rounds was lost.
    since: Instant,
    forwarded_until: Option<Instant>,
    /// Units that were available in the last decision of the owner.
    available: Option<u64>,
}

impl Partition {
    fn is_forwarded(&self, now: Instant) -> bool {
        self.forwarded_until.is_some_and(|until| now < until)
    }

    fn is_idle(&self, now: Instant) -> bool {
        !self.is_forwarded(now) && now.duration_since(self.since) > CONTENTION_WINDOW
    }
}

impl Contention {
    fn partitions(&self) -> MutexGuard<'_, HashMap<StockKey, Partition>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A keeper of this process lost a CAS round to another process.
    pub(crate) fn lost_round(&self, stock_key: &StockKey, now: Instant) {
        let mut partitions = self.partitions();
        if partitions.len() >= PARTITIONS_MAX && !partitions.contains_key(stock_key) {
            partitions.retain(|_, partition| !partition.is_idle(now));
            if partitions.len() >= PARTITIONS_MAX {
                return;
            }
        }
        let partition = partitions.entry(stock_key.clone()).or_insert_with(|| Partition {
            ownership_key: ownership_key(stock_key),
            lost: 0,
            since: now,
            forwarded_until: None,
            available: None,
        });
        if now.duration_since(partition.since) > CONTENTION_WINDOW {
            (partition.lost, partition.since) = (0, now);
        }
        partition.lost += 1;
        if partition.lost >= LOST_ROUNDS && !partition.is_forwarded(now) {
            partition.forwarded_until = Some(now + FORWARDING_IDLE);
            partition.available = None;
        }
        self.count(&partitions);
    }

    /// The ownership key of a partition whose commands are forwarded. Each command prolongs it.
    pub(super) fn key_to_forward(&self, stock_key: &StockKey, now: Instant) -> Option<u64> {
        if self.forwarded.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut partitions = self.partitions();
        let partition = partitions.get_mut(stock_key)?;
        if partition.is_forwarded(now) {
            partition.forwarded_until = Some(now + FORWARDING_IDLE);
            return Some(partition.ownership_key);
        }
        if partition.forwarded_until.take().is_some() {
            self.count(&partitions);
        }
        None
    }

    fn count(&self, partitions: &HashMap<StockKey, Partition>) {
        let forwarded = partitions.values().filter(|partition| partition.forwarded_until.is_some()).count();
        self.forwarded.store(forwarded, Ordering::Relaxed);
    }

    /// Remembers the available units that the owner told with a decision.
    pub(super) fn record_available(&self, stock_key: &StockKey, decision: &Decision) {
        let available = match decision {
            Decision::Done { stock, .. } => stock.level.available(),
            Decision::Short { available } => *available,
            Decision::ExpireHoldsFirst | Decision::Refused(_) => return,
        };
        if let Some(partition) = self.partitions().get_mut(stock_key) {
            partition.available = Some(available);
        }
    }

    /// The units that the owner of a forwarded partition last saw available.
    pub(crate) fn last_available(&self, stock_key: &StockKey) -> Option<u64> {
        if self.forwarded.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let partitions = self.partitions();
        let partition = partitions.get(stock_key)?;
        partition.is_forwarded(Instant::now()).then_some(partition.available).flatten()
    }
}

/// The same in every process and every version.
fn ownership_key(stock_key: &StockKey) -> u64 {
    let digest = Sha256::new()
        .chain_update(stock_key.product_id.as_str())
        .chain_update([0])
        .chain_update(stock_key.geo_zone.as_str())
        .finalize();
    let parts: Vec<u64> =
        digest.chunks(8).map(|part| part.iter().fold(0, |key, byte| (key << 8) | u64::from(*byte))).collect();
    key_of(&parts)
}

#[cfg(test)]
mod tests {
    use mw_domain::{GeoZone, ProductId};

    use super::*;

    fn stock_key(name: &str) -> StockKey {
        StockKey { product_id: ProductId::parse(name).unwrap(), geo_zone: GeoZone::parse("msk").unwrap() }
    }

    #[test]
    fn a_partition_is_forwarded_after_lost_rounds_in_a_short_time() {
        let (contention, hit, start) = (Contention::default(), stock_key("hit"), Instant::now());
        contention.lost_round(&hit, start);
        assert_eq!(contention.key_to_forward(&hit, start), None, "one lost round is an accident");
        contention.lost_round(&hit, start + Duration::from_secs(2));
        assert_eq!(contention.key_to_forward(&hit, start + Duration::from_secs(2)), None, "two, far apart");
        let contended = start + Duration::from_millis(2_500);
        contention.lost_round(&hit, contended);
        assert_eq!(contention.key_to_forward(&hit, contended), Some(ownership_key(&hit)));
        assert_eq!(contention.key_to_forward(&stock_key("other"), contended), None);
    }

    #[test]
    fn a_partition_is_forwarded_while_there_are_commands_on_it() {
        let (contention, hit, mut now) = (Contention::default(), stock_key("hit"), Instant::now());
        contention.lost_round(&hit, now);
        contention.lost_round(&hit, now);
        for _ in 0..5 {
            now += FORWARDING_IDLE.saturating_sub(Duration::from_millis(1));
            assert!(contention.key_to_forward(&hit, now).is_some());
        }
        now += FORWARDING_IDLE;
        assert_eq!(contention.key_to_forward(&hit, now), None);
        assert_eq!(contention.forwarded.load(Ordering::Relaxed), 0);
        contention.lost_round(&hit, now);
        assert_eq!(contention.key_to_forward(&hit, now), None, "it begins anew");
    }

    #[test]
    fn watched_partitions_are_bounded_and_idle_ones_make_room() {
        let (contention, start) = (Contention::default(), Instant::now());
        for number in 0..PARTITIONS_MAX + 10 {
            contention.lost_round(&stock_key(&format!("p{number}")), start);
        }
        assert_eq!(contention.partitions().len(), PARTITIONS_MAX);
        contention.lost_round(&stock_key("late"), start + 2 * CONTENTION_WINDOW);
        assert_eq!(contention.partitions().len(), 1);
    }

    #[test]
    fn every_version_finds_the_same_owner() {
        assert_eq!(ownership_key(&stock_key("hit")), ownership_key(&stock_key("hit")));
        assert_ne!(ownership_key(&stock_key("hit")), ownership_key(&stock_key("hot")));
    }
}
