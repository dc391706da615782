//! Quorum availability: which token ranges have enough connected replicas for the consistency levels of their tables.
//!
//! A query proves it for one partition only: a cluster with more nodes than the replication factor can have lost the replicas of
//! another range. A lost node then loses part of the keys, not the shop: readiness weighs the share of lost ranges, and where a
//! process can choose a partition it chooses one that has its quorum.

use std::collections::{BTreeMap, BTreeSet};

use scylla::cluster::ClusterState;
use scylla::cluster::metadata::Strategy;
use scylla::frame::response::result::TableSpec;
use scylla::routing::Token;
use scylla::statement::{Consistency, SerialConsistency};

use crate::policy::{Policy, level_name};
use crate::schema::tables::{Class, Table};

/// The replicas of one range in one data centre.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Replicas {
    alive: usize,
    all: usize,
}

impl Replicas {
    const fn has_quorum(self) -> bool {
        self.alive > self.all / 2
    }
}

/// The token ranges of the keyspace that has lost the largest share of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct QuorumAvailability {
    /// Of all ranges, 0 to 1.
    pub(crate) lost_share: f64,
    /// Names the keyspace, the level and the nodes that are not connected; `None` where no range is lost.
    pub(crate) reason: Option<String>,
}

pub(crate) fn of_cluster(
    cluster: &ClusterState,
    prefix: &str,
    policy: &Policy,
    local_dc: &str,
) -> QuorumAvailability {
    let of_class = |class| of_keyspace(cluster, class, prefix, policy, local_dc);
    let worst = Class::ALL.into_iter().map(of_class);
    worst.max_by(|a, b| a.lost_share.total_cmp(&b.lost_share)).unwrap_or_default()
}

fn of_keyspace(
    cluster: &ClusterState,
    class: Class,
    prefix: &str,
    policy: &Policy,
    local_dc: &str,
) -> QuorumAvailability {
    let name = class.keyspace(prefix);
    let Some(keyspace) = cluster.get_keyspace(&name) else { return QuorumAvailability::default() };
    let levels = levels(class, policy);
    let (mut ranges, mut lost) = (0_u32, 0_u32);
    let mut down = BTreeSet::new();
    let mut unmet = None;
    for (token, _) in cluster.replica_locator().ring().iter() {
        let (by_dc, disconnected) = replicas(cluster, &keyspace.strategy, *token);
        ranges += 1;
        if let Some(level) = levels.iter().find(|level| !is_met(**level, &by_dc, local_dc)) {
            lost += 1;
            down.extend(disconnected);
            unmet = Some(*level);
        }
    }
    let reason = unmet.map(|level| {
        let down: Vec<String> = down.into_iter().collect();
        format!(
            "{lost} of {ranges} token ranges of {name} have too few replicas for {}: no connection to {}",
            level_name(level),
            down.join(", ")
        )
    });
    QuorumAvailability { lost_share: f64::from(lost) / f64::from(ranges.max(1)), reason }
}

/// Whether a partition of a table can be read and written.
pub(crate) fn has_quorum(
    cluster: &ClusterState,
    (prefix, table): (&str, Table),
    policy: &Policy,
    local_dc: &str,
    token: Token,
) -> bool {
    let Some(keyspace) = cluster.get_keyspace(table.class().keyspace(prefix)) else { return true };
    let (by_dc, _) = replicas(cluster, &keyspace.strategy, token);
    table_levels(table, policy).into_iter().all(|level| is_met(level, &by_dc, local_dc))
}

/// The replicas of a token by data centre, and the addresses of those that are not connected.
fn replicas<'a>(
    cluster: &'a ClusterState,
    strategy: &'a Strategy,
    token: Token,
) -> (BTreeMap<&'a str, Replicas>, Vec<String>) {
    let spec = TableSpec::borrowed("", "");
    let found = cluster.replica_locator().replicas_for_token(token, strategy, None, &spec);
    let mut by_dc: BTreeMap<&str, Replicas> = BTreeMap::new();
    let mut disconnected = Vec::new();
    for (node, _) in found.into_replicas_ordered() {
        let replicas = by_dc.entry(node.datacenter.as_deref().unwrap_or_default()).or_default();
        replicas.all += 1;
        if node.is_connected() {
            replicas.alive += 1;
        } else {
            disconnected.push(node.address.to_string());
        }
    }
    (by_dc, disconnected)
}

/// The consistency levels of the tables of a class. Levels of stale reads are not needed to serve.
fn levels(class: Class, policy: &Policy) -> Vec<Consistency> {
    let tables = Table::ALL.iter().filter(|table| table.class() == class);
    let mut levels: Vec<Consistency> = tables.flat_map(|table| table_levels(*table, policy)).collect();
    levels.dedup();
    levels
}

fn table_levels(table: Table, policy: &Policy) -> Vec<Consistency> {
    let rules = policy.of(table);
    let serial = table.traits().has_lwt.then_some(match rules.serial {
        SerialConsistency::Serial => Consistency::Quorum,
        SerialConsistency::LocalSerial => Consistency::LocalQuorum,
    });
    [rules.write, rules.read].into_iter().chain(serial).collect()
}

fn is_met(level: Consistency, by_dc: &BTreeMap<&str, Replicas>, local_dc: &str) -> bool {
    let local = by_dc.get(local_dc).copied().unwrap_or_default();
    let all = by_dc
        .values()
        .fold(Replicas::default(), |sum, dc| Replicas { alive: sum.alive + dc.alive, all: sum.all + dc.all });
    match level {
        Consistency::Any => true,
        Consistency::Two => all.alive >= 2,
        Consistency::Three => all.alive >= 3,
        Consistency::Quorum | Consistency::Serial => all.has_quorum(),
        Consistency::All => all.alive == all.all,
        Consistency::EachQuorum => by_dc.values().all(|dc| dc.has_quorum()),
        Consistency::LocalQuorum | Consistency::LocalSerial => local.has_quorum(),
        Consistency::LocalOne => local.alive >= 1,
        Consistency::One => all.alive >= 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_dc(dcs: &[(&'static str, usize, usize)]) -> BTreeMap<&'static str, Replicas> {
        dcs.iter().map(|(dc, alive, all)| (*dc, Replicas { alive: *alive, all: *all })).collect()
    }

    #[test]
    fn level_is_met_by_enough_connected_replicas() {
        use Consistency::{All, Any, EachQuorum, LocalOne, LocalQuorum, One, Quorum, Three, Two};
        let one_lost = by_dc(&[("dc1", 2, 3)]);
        for level in [Any, One, Two, Quorum, LocalQuorum, LocalOne, EachQuorum] {
            assert!(is_met(level, &one_lost, "dc1"), "{level:?}");
        }
        assert!(!is_met(All, &one_lost, "dc1") && !is_met(Three, &one_lost, "dc1"));
        let two_lost = by_dc(&[("dc1", 1, 3)]);
        for level in [Two, Quorum, LocalQuorum, EachQuorum, All] {
            assert!(!is_met(level, &two_lost, "dc1"), "{level:?}");
        }
        let other_dc_lost = by_dc(&[("dc1", 3, 3), ("dc2", 0, 3)]);
        assert!(is_met(LocalQuorum, &other_dc_lost, "dc1"));
        assert!(!is_met(Quorum, &other_dc_lost, "dc1") && !is_met(EachQuorum, &other_dc_lost, "dc1"));
        assert!(!is_met(LocalOne, &other_dc_lost, "dc2"));
        assert!(!is_met(LocalQuorum, &by_dc(&[]), "dc1"));
    }

    #[test]
    fn levels_of_a_class_are_those_of_its_tables() {
        let mut policy = Policy::default();
        assert_eq!(levels(Class::Core, &policy), [Consistency::LocalQuorum]);
        policy.set("stock", "serial", "SERIAL").unwrap();
        assert!(levels(Class::Core, &policy).contains(&Consistency::Quorum));
        assert_eq!(levels(Class::Carts, &policy), [Consistency::LocalQuorum]);
    }
}
