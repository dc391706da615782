//! Token ranges and their replicas.
//!
//! The token space is divided into equal ranges, dealt to the nodes in rounds of seeded random order: every node has the same number of
//! ranges, and neighbours differ from round to round. The replicas of a range are its owner and the next distinct owners clockwise
//! (one rack, one data centre).

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// Who owns which range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Replicas of each range, the owner first.
    replicas: Vec<Vec<usize>>,
    nodes: usize,
}

/// Where a joining node's ranges begin: in which range of the old ring, and at which share of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Joined {
    /// By range of the old ring: the share of its width up to which the new node becomes its owner.
    owned_up_to: Vec<f64>,
    /// By range of the old ring: whether the new node becomes a replica of the part it does not own.
    replicates_rest: Vec<bool>,
}

const TOKEN_SPACE: u128 = 1 << 64;
/// Random choices of ranges for a joining node, of which the best is taken.
const JOIN_CHOICES: usize = 64;
/// The least part of a range that a joining node takes, and that it leaves to the old owner.
const PART_MIN: f64 = 0.05;

impl Joined {
    /// The share of all rows that the new node stores.
    fn stored_share(&self) -> f64 {
        let parts = self.owned_up_to.iter().zip(&self.replicates_rest);
        let stored: f64 = parts.map(|(part, is_whole)| if *is_whole { 1.0 } else { *part }).sum();
        stored / as_f64(self.owned_up_to.len().max(1))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of nodes or ranges")]
const fn as_f64(count: usize) -> f64 {
    count as f64
}

impl Topology {
    pub fn new(nodes: usize, vnodes: usize, replicas: usize, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut owners = Vec::with_capacity(nodes * vnodes);
        for _ in 0..vnodes {
            let mut round: Vec<usize> = (0..nodes).collect();
            round.shuffle(&mut rng);
            owners.extend(round);
        }
        let replicas = (0..owners.len()).map(|range| distinct_from(&owners, range, replicas)).collect();
        Self { replicas, nodes }
    }

    pub const fn nodes(&self) -> usize {
        self.nodes
    }

    /// The nodes that store a token.
    pub fn replicas(&self, token: i64) -> &[usize] {
        let (range, _) = self.position(token);
        self.replicas.get(range).map_or(&[], Vec::as_slice)
    }

    /// The range of a token, and how far into it the token lies (0 to 1).
    fn position(&self, token: i64) -> (usize, f64) {
        let offset = u128::from(token.cast_unsigned() ^ (1 << 63));
        let scaled = offset * self.replicas.len() as u128;
        let range = usize::try_from(scaled / TOKEN_SPACE).unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "a share of a range: rounding does not matter")]
        let within = (scaled % TOKEN_SPACE) as f64 / TOKEN_SPACE as f64;
        (range, within)
    }

    /// A node that joins with as many ranges as the others, one of each round. What it stores, as owner or further replica, is as much
    /// as what every other node then stores: the allocation of tokens for a replication factor has that aim, and of some random
    /// choices the one that comes nearest to it is taken.
    pub(super) fn join(&self, vnodes: usize, replicas: usize, seed: u64) -> Joined {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x6e6f_6465);
        let fair = as_f64(replicas) / (as_f64(self.nodes) + 1.0);
        let choices = (0..JOIN_CHOICES).map(|_| {
            let chosen = (0..vnodes).map(|round| round * self.nodes + rng.random_range(0..self.nodes));
            self.joined_in(&chosen.collect::<Vec<usize>>(), replicas, fair)
        });
        let distance = |joined: &Joined| (joined.stored_share() - fair).abs();
        let nearest = choices.min_by(|one, other| distance(one).total_cmp(&distance(other)));
        nearest.unwrap_or_else(|| Joined { owned_up_to: Vec::new(), replicates_rest: Vec::new() })
    }

    /// A node that takes a part of each of these ranges, the part by which it comes nearest to its fair share of the rows.
    fn joined_in(&self, chosen: &[usize], replicas: usize, fair: f64) -> Joined {
        let ranges = self.replicas.len();
        let mut is_chosen = vec![false; ranges];
        for range in chosen {
            if let Some(chosen) = is_chosen.get_mut(*range) {
                *chosen = true;
            }
        }
        let replicates_rest: Vec<bool> =
            (0..ranges).map(|range| self.meets_joined(&is_chosen, range, replicas)).collect();
        let whole = replicates_rest.iter().filter(|is_whole| **is_whole).count();
        let parts =
            is_chosen.iter().zip(&replicates_rest).filter(|(chosen, whole)| **chosen && !**whole).count();
        let missing = fair * as_f64(ranges) - as_f64(whole);
        let part = (missing / as_f64(parts.max(1))).clamp(PART_MIN, 1.0 - PART_MIN);
        let owned_up_to = is_chosen.iter().map(|chosen| if *chosen { part } else { 0.0 }).collect();
        Joined { owned_up_to, replicates_rest }
    }

    /// Whether a walk clockwise from the end of a range meets the node that joined before as many distinct old nodes as there are
    /// replicas.
    fn meets_joined(&self, is_chosen: &[bool], range: usize, replicas: usize) -> bool {
        let ranges = self.replicas.len();
        let mut passed: Vec<usize> = Vec::with_capacity(replicas);
        for step in 0..ranges {
            let at = (range + step) % ranges;
            if step > 0 && is_chosen.get(at).copied().unwrap_or_default() {
                return true;
            }
            let owner = self.replicas.get(at).and_then(|nodes| nodes.first()).copied();
            if let Some(owner) = owner.filter(|owner| !passed.contains(owner)) {
                passed.push(owner);
            }
            if passed.len() >= replicas {
                return false;
            }
        }
        false
    }

    /// Whether a token's row streams to the node that joined.
    pub(super) fn moves(&self, joined: &Joined, token: i64) -> bool {
        let (range, within) = self.position(token);
        let is_owned = joined.owned_up_to.get(range).is_some_and(|share| within < *share);
        is_owned || joined.replicates_rest.get(range).copied().unwrap_or_default()
    }
}

fn distinct_from(owners: &[usize], range: usize, count: usize) -> Vec<usize> {
    let mut nodes = Vec::with_capacity(count);
    for owner in owners.iter().cycle().skip(range).take(owners.len()) {
        if nodes.len() < count && !nodes.contains(owner) {
            nodes.push(*owner);
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens spread evenly over the whole space.
    fn tokens(count: u64) -> impl Iterator<Item = i64> {
        (0..count).map(move |index| (u64::MAX / count * index).cast_signed())
    }

    #[test]
    fn every_token_has_distinct_replicas_and_every_node_its_share() {
        let topology = Topology::new(30, 16, 3, 7);
        let mut load = [0_u32; 30];
        for token in tokens(48_000) {
            let replicas = topology.replicas(token);
            assert_eq!(replicas.len(), 3);
            let mut distinct = replicas.to_vec();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), 3);
            for node in replicas {
                load[*node] += 1;
            }
        }
        let mean = 48_000.0 * 3.0 / 30.0;
        for count in load {
            assert!((f64::from(count) / mean - 1.0).abs() < 0.35, "{load:?}");
        }
    }

    #[test]
    fn the_ends_of_the_token_space_have_replicas() {
        let topology = Topology::new(3, 16, 3, 1);
        for token in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(topology.replicas(token).len(), 3);
        }
    }

    #[test]
    fn a_seed_makes_the_same_ring() {
        assert_eq!(Topology::new(6, 4, 3, 5), Topology::new(6, 4, 3, 5));
        assert_ne!(Topology::new(6, 4, 3, 5), Topology::new(6, 4, 3, 6));
    }

    #[test]
    fn a_joining_node_takes_about_its_share_of_the_replicas() {
        for (nodes, replicas, fair) in
            [(3, 3, 3.0 / 4.0), (6, 3, 3.0 / 7.0), (30, 3, 3.0 / 31.0), (30, 1, 1.0 / 31.0)]
        {
            let topology = Topology::new(nodes, 16, replicas, 11);
            let joined = topology.join(16, replicas, 11);
            let moved = tokens(60_000).filter(|token| topology.moves(&joined, *token)).count();
            let share = f64::from(u32::try_from(moved).unwrap()) / 60_000.0;
            assert!(
                (share / fair - 1.0).abs() < 0.25,
                "{nodes} nodes, {replicas} replicas: {share} of {fair}"
            );
        }
    }

    #[test]
    fn a_joining_node_stores_no_more_than_the_others_whatever_the_seed() {
        for seed in 0..20 {
            for (nodes, fair) in [(3, 3.0 / 4.0), (6, 3.0 / 7.0), (30, 3.0 / 31.0)] {
                let topology = Topology::new(nodes, 16, 3, seed);
                let share = topology.join(16, 3, seed).stored_share();
                assert!((share / fair - 1.0).abs() < 0.1, "{nodes} nodes, seed {seed}: {share} of {fair}");
            }
        }
    }
}
