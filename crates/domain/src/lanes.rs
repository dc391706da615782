//! Lanes: ids that one process makes have the same low bits, so that rows keyed by id can share a partition per process.
//!
//! A partition that all processes share at one instant is a hot spot, and a partition per id is a write per row. The
//! time bucket of an id is its process and a slot of time: a process coalesces the rows of a slot into one write, and
//! thirty processes write thirty partitions.

use uuid::Uuid;

/// The bits of a version 7 UUID that are not milliseconds.
const BITS_BELOW_TIME: u32 = 80;
const LANE_BITS: u32 = 16;

/// The mark of a process in the ids that it makes. Two processes may have the same lane: they share partitions then, and
/// nothing else changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(u16);

impl Lane {
    /// The lane in an id, also of one that another process or a client made.
    pub fn of(id: Uuid) -> Self {
        let [.., high, low] = *id.as_bytes();
        Self(u16::from_be_bytes([high, low]))
    }

    pub const fn number(self) -> u16 {
        self.0
    }

    /// The id with this lane in its lowest 16 bits. A version 7 UUID stays one: its time and counter are above.
    #[must_use]
    pub fn stamp(self, id: Uuid) -> Uuid {
        let above = id.as_u128() >> LANE_BITS << LANE_BITS;
        Uuid::from_u128(above | u128::from(self.0))
    }
}

/// Other ids that a process may use instead of one that it made, in other partitions.
const LANES_TO_CHOOSE: u16 = 64;

/// The id in its own lane, then in others: where the partition of one is not available, the process takes the next. The ids that
/// it makes in one slot go to the same lanes.
pub fn other_lanes(id: Uuid) -> impl Iterator<Item = Uuid> {
    let Lane(own) = Lane::of(id);
    (0..LANES_TO_CHOOSE).map(move |next| Lane(own.wrapping_add(next)).stamp(id))
}

/// The id with other random bits, in the same lane and of the same time. The salt 0 leaves it as it is.
pub fn salted(id: Uuid, salt: u16) -> Uuid {
    Uuid::from_u128(id.as_u128() ^ u128::from(salt) << LANE_BITS)
}

/// The partition of an id: its lane and a slot of `2^slot_bits` milliseconds, if it is a version 7 UUID, or else a hash
/// of all its bits. Different lanes and slots have different numbers, spread over all of `i64`. The mapping never
/// changes.
pub fn time_bucket(id: Uuid, slot_bits: u32) -> i64 {
    if id.get_version_num() != 7 {
        let (high, low) = id.as_u64_pair();
        return mix(mix(high) ^ low).cast_signed();
    }
    let millis = u64::try_from(id.as_u128() >> BITS_BELOW_TIME).unwrap_or_default();
    let Lane(lane) = Lane::of(id);
    mix(u64::from(lane) << 48 | millis >> slot_bits).cast_signed()
}

/// The finalizer of `SplitMix64`: a bijection that spreads neighbours.
const fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn id(millis: u64, lane: u16, counter: u64) -> Uuid {
        let bits = u128::from(millis) << 80 | 0x7 << 76 | 0x8 << 60 | u128::from(counter) << 16;
        Lane(lane).stamp(Uuid::from_u128(bits))
    }

    #[test]
    fn a_process_writes_one_partition_per_slot_and_no_other_process_does() {
        let slot = |lane| {
            let ids = (0..256).map(|at| time_bucket(id(1_790_000_000_000 / 256 * 256 + at, lane, at), 8));
            ids.collect::<HashSet<i64>>()
        };
        assert_eq!(slot(7).len(), 1, "one write of a burst");
        let buckets: HashSet<i64> = (0..30).flat_map(slot).collect();
        assert_eq!(buckets.len(), 30);
        assert_ne!(time_bucket(id(1_790_000_000_000, 7, 0), 8), time_bucket(id(1_790_000_000_256, 7, 0), 8));
    }

    #[test]
    fn a_stamped_id_keeps_its_version_and_time() {
        let before = id(1_790_000_000_123, 0, 99);
        let stamped = Lane(0xbeef).stamp(before);
        assert_eq!((stamped.get_version_num(), Lane::of(stamped)), (7, Lane(0xbeef)));
        assert_eq!(stamped.as_u128() >> 16, before.as_u128() >> 16);
    }

    #[test]
    fn an_id_can_be_exchanged_for_others_of_the_same_time() {
        let own = id(1_790_000_000_123, 0xffff, 99);
        let lanes: Vec<Uuid> = other_lanes(own).collect();
        assert_eq!(lanes.first(), Some(&own), "its own lane comes first");
        let partitions: HashSet<i64> = lanes.iter().map(|id| time_bucket(*id, 8)).collect();
        assert_eq!(partitions.len(), lanes.len());
        let salts: HashSet<Uuid> = (0..64).map(|salt| salted(own, salt)).collect();
        assert!(salts.len() == 64 && salts.contains(&own));
        assert!(salts.iter().all(|id| time_bucket(*id, 8) == time_bucket(own, 8)), "the same partition");
        for other in lanes.iter().chain(&salts) {
            assert_eq!((other.get_version_num(), other.as_u128() >> 80), (7, own.as_u128() >> 80));
        }
    }

    #[test]
    fn partitions_of_lanes_slots_and_foreign_ids_are_spread() {
        let of_slots = (0..4_096).map(|slot| id(1_790_000_000_000 + slot * 256, 7, 0));
        let of_lanes = (0..4_096).map(|lane| id(1_790_000_000_000, lane, 0));
        // An id that was made from an ObjectId ends with zeros, one that a client counted begins with them.
        let object_ids = (0..4_096_u128).map(|n| Uuid::from_u128(n << 80 | 0x8 << 76 | 0x8 << 60));
        let counted = (0..4_096_u128).map(Uuid::from_u128);
        let kinds: [Vec<Uuid>; 4] =
            [of_slots.collect(), of_lanes.collect(), object_ids.collect(), counted.collect()];
        for ids in kinds {
            let mut counts = [0_u32; 16];
            for id in &ids {
                counts[usize::try_from(time_bucket(*id, 8).rem_euclid(16)).unwrap()] += 1;
            }
            assert!(counts.iter().all(|count| (180..340).contains(count)), "{counts:?} of {}", ids[0]);
        }
    }

    #[test]
    fn a_partition_of_a_busy_process_stays_within_its_bound() {
        // 500 orders a second of one process, each with seven rows and 4 KiB at most.
        let buckets: Vec<i64> = (0..5_000_u64)
            .map(|number| time_bucket(id(1_790_000_000_000 + number * 2, 7, number), 8))
            .collect();
        let most = buckets.chunk_by(|one, other| one == other).map(<[i64]>::len).max().unwrap();
        assert!(most * 7 < 100_000 && most * 4_096 < 10 * 1024 * 1024, "{most} orders");
    }
}
