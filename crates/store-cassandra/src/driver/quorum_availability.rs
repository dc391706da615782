//! Quorum availability: whether every token range has enough connected replicas for the consistency levels of its tables.
//!
//! A query proves it for one partition only: a cluster with more nodes than the replication factor can have lost the replicas of
//! another range.

use std::collections::{BTreeMap, BTreeSet};

use scylla::cluster::ClusterState;
use scylla::frame::response::result::TableSpec;
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

/// `Err` names a keyspace with too few connected replicas, and the nodes that are not connected.
pub(crate) fn check(
    cluster: &ClusterState,
    prefix: &str,
    policy: &Policy,
    local_dc: &str,
) -> Result<(), String> {
    for class in Class::ALL {
        let name = class.keyspace(prefix);
        let Some(keyspace) = cluster.get_keyspace(&name) else { continue };
        let levels = levels(class, policy);
        let spec = TableSpec::borrowed("", "");
        let (mut ranges, mut lost) = (0_usize, 0_usize);
        let mut down = BTreeSet::new();
        let mut unmet = None;
        for (token, _) in cluster.replica_locator().ring().iter() {
            let found = cluster.replica_locator().replicas_for_token(*token, &keyspace.strategy, None, &spec);
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
            ranges += 1;
            if let Some(level) = levels.iter().find(|level| !is_met(**level, &by_dc, local_dc)) {
                lost += 1;
                down.extend(disconnected);
                unmet = Some(*level);
            }
        }
        if let Some(level) = unmet {
            let down: Vec<String> = down.into_iter().collect();
            return Err(format!(
                "{lost} of {ranges} token ranges of {name} have too few replicas for {}: no connection to {}",
                level_name(level),
                down.join(", ")
            ));
        }
    }
    Ok(())
}

/// The consistency levels of the tables of a class. Levels of stale reads are not needed to serve.
fn levels(class: Class, policy: &Policy) -> Vec<Consistency> {
    let mut levels = Vec::new();
    for table in Table::ALL.iter().filter(|table| table.class() == class) {
        let rules = policy.of(*table);
        levels.extend([rules.write, rules.read]);
        if table.traits().has_lwt {
            levels.push(match rules.serial {
                SerialConsistency::Serial => Consistency::Quorum,
                SerialConsistency::LocalSerial => Consistency::LocalQuorum,
            });
        }
    }
    levels.dedup();
    levels
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
