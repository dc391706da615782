//! A model of MongoDB's balancer: what it moves when a shard is added, or when a filled shard gets company.
//!
//! A collection is balanced when its fullest and its emptiest shard differ by less than three ranges. Until then the fullest gives
//! one range to the emptiest.

/// Ranges by which shards may differ.
const BALANCED_RANGES: u64 = 3;
/// More migrations are not followed: the ranges are too small for the data.
const MIGRATIONS_MAX: u64 = 10_000_000;

/// What the balancer moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balanced {
    pub migrations: u64,
    pub bytes: u64,
}

/// Balances shards with so many bytes of a collection each; a shard that was added has none. `range_bytes` is the size of a range
/// (`chunkSize`).
pub fn balance(shards: &[u64], range_bytes: u64) -> Balanced {
    let mut shards = shards.to_vec();
    let mut done = Balanced { migrations: 0, bytes: 0 };
    let range_bytes = range_bytes.max(1);
    while done.migrations < MIGRATIONS_MAX {
        let (Some(fullest), Some(emptiest)) = (shards.iter().max().copied(), shards.iter().min().copied())
        else {
            break;
        };
        if fullest - emptiest < BALANCED_RANGES.saturating_mul(range_bytes) {
            break;
        }
        move_between(&mut shards, fullest, emptiest, range_bytes);
        done.migrations += 1;
        done.bytes += range_bytes;
    }
    done
}

fn move_between(shards: &mut [u64], fullest: u64, emptiest: u64, bytes: u64) {
    if let Some(shard) = shards.iter_mut().find(|shard| **shard == fullest) {
        *shard -= bytes;
    }
    if let Some(shard) = shards.iter_mut().find(|shard| **shard == emptiest) {
        *shard += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_shard_that_is_added_gets_its_part() {
        let two = balance(&[300 * MIB, 300 * MIB, 0], MIB);
        // A third of 600 MiB, less what the balancer tolerates.
        assert!((197..=200).contains(&(two.bytes / MIB)) && two.migrations == two.bytes / MIB, "{two:?}");
        let nine: Vec<u64> = [100 * MIB; 9].into_iter().chain([0]).collect();
        assert!((87..=90).contains(&(balance(&nine, MIB).bytes / MIB)));
    }

    #[test]
    fn a_collection_that_lies_on_one_shard_moves_by_half_before_it_can_grow() {
        let filled = balance(&[600 * MIB, 0], MIB);
        assert!((298..=300).contains(&(filled.bytes / MIB)), "{filled:?}");
    }

    #[test]
    fn shards_that_differ_by_less_than_three_ranges_stay() {
        assert_eq!(balance(&[130 * MIB, 128 * MIB], MIB).bytes, 0);
        assert_eq!(balance(&[383 * MIB, 0], 128 * MIB), Balanced { migrations: 0, bytes: 0 });
        assert_eq!(balance(&[384 * MIB, 0], 128 * MIB).migrations, 1);
        assert_eq!(balance(&[], MIB).bytes, 0);
    }
}
