//! Consistency levels: their names, and how many replicas have acknowledged a statement that succeeded at a level.

use std::collections::BTreeMap;

use scylla::statement::{Consistency, SerialConsistency};

const NAMES: [(Consistency, &str); 9] = [
    (Consistency::Any, "ANY"),
    (Consistency::One, "ONE"),
    (Consistency::Two, "TWO"),
    (Consistency::Three, "THREE"),
    (Consistency::Quorum, "QUORUM"),
    (Consistency::All, "ALL"),
    (Consistency::LocalQuorum, "LOCAL_QUORUM"),
    (Consistency::EachQuorum, "EACH_QUORUM"),
    (Consistency::LocalOne, "LOCAL_ONE"),
];

pub(super) fn named(text: &str) -> Option<Consistency> {
    NAMES.iter().find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(level, _)| *level)
}

pub fn name(level: Consistency) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == level).map_or("SERIAL", |(_, name)| name)
}

pub(super) fn serial_named(text: &str) -> Option<SerialConsistency> {
    [SerialConsistency::Serial, SerialConsistency::LocalSerial]
        .into_iter()
        .find(|level| serial_name(*level).eq_ignore_ascii_case(text))
}

pub const fn serial_name(level: SerialConsistency) -> &'static str {
    match level {
        SerialConsistency::Serial => "SERIAL",
        SerialConsistency::LocalSerial => "LOCAL_SERIAL",
    }
}

/// Whether the level counts replicas of the local data centre only.
pub(super) const fn is_local(level: Consistency) -> bool {
    matches!(level, Consistency::LocalOne | Consistency::LocalQuorum)
}

/// Whether the level needs a majority of the replicas that it counts.
pub(super) const fn is_quorum(level: Consistency) -> bool {
    matches!(
        level,
        Consistency::LocalQuorum | Consistency::Quorum | Consistency::EachQuorum | Consistency::All
    )
}

/// The replication factors of a keyspace, as a process in one data centre sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplicaCounts {
    pub(super) local: u32,
    pub(super) total: u32,
    /// A majority in each data centre, summed.
    majorities: u32,
}

const fn majority(of: u32) -> u32 {
    of / 2 + 1
}

impl ReplicaCounts {
    pub(super) fn of(factors: &BTreeMap<String, u32>, local_dc: &str) -> Self {
        Self {
            local: factors.get(local_dc).copied().unwrap_or(0),
            total: factors.values().sum(),
            majorities: factors.values().copied().filter(|factor| *factor > 0).map(majority).sum(),
        }
    }

    /// The least number of replicas that acknowledge a statement at this level: local ones, and in total.
    fn acknowledged(&self, level: Consistency) -> (u32, u32) {
        let remote = self.total - self.local;
        let anywhere = |count: u32| (count.saturating_sub(remote), count);
        match level {
            Consistency::Any => (0, 0),
            Consistency::LocalOne => (1, 1),
            Consistency::LocalQuorum => (majority(self.local), majority(self.local)),
            Consistency::Two => anywhere(2),
            Consistency::Three => anywhere(3),
            Consistency::Quorum => anywhere(majority(self.total)),
            Consistency::EachQuorum => (majority(self.local), self.majorities),
            Consistency::All => (self.local, self.total),
            _ => anywhere(1),
        }
    }

    /// Whether the replication factors allow this level at all.
    pub(super) fn allow(&self, level: Consistency) -> bool {
        let (local, total) = self.acknowledged(level);
        local <= self.local && total <= self.total
    }

    /// Whether every read at `read` includes a replica that acknowledged every write at `write`.
    pub(super) fn overlap(&self, write: Consistency, read: Consistency) -> bool {
        let (write_local, write_total) = self.acknowledged(write);
        let (read_local, read_total) = self.acknowledged(read);
        write_local + read_local > self.local || write_total + read_total > self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Consistency::{All, Any, EachQuorum, LocalOne, LocalQuorum, One, Quorum, Three, Two};

    fn replicas(factors: &[(&str, u32)]) -> ReplicaCounts {
        ReplicaCounts::of(&factors.iter().map(|(dc, factor)| ((*dc).to_owned(), *factor)).collect(), "dc1")
    }

    #[test]
    fn level_names_parse_back() {
        for (level, name) in NAMES {
            assert_eq!(named(&name.to_lowercase()), Some(level));
            assert_eq!(super::name(level), name);
        }
        assert_eq!(named("SERIAL"), None);
        assert_eq!(serial_named("local_serial"), Some(SerialConsistency::LocalSerial));
    }

    #[test]
    fn levels_overlap_where_read_plus_write_exceeds_the_replication_factor() {
        let one_dc = replicas(&[("dc1", 3)]);
        for (write, read) in
            [(LocalQuorum, LocalQuorum), (All, One), (One, All), (Two, Two), (Quorum, LocalQuorum)]
        {
            assert!(one_dc.overlap(write, read), "{write:?} {read:?}");
        }
        for (write, read) in
            [(LocalQuorum, LocalOne), (Any, LocalQuorum), (One, LocalQuorum), (LocalOne, Two)]
        {
            assert!(!one_dc.overlap(write, read), "{write:?} {read:?}");
        }
        assert!(replicas(&[("dc1", 1)]).overlap(One, One));
        assert!(!replicas(&[("dc1", 1)]).overlap(Any, One));
        assert!(replicas(&[("dc1", 2)]).overlap(LocalQuorum, LocalOne));
    }

    #[test]
    fn a_second_data_centre_keeps_local_overlap_and_breaks_mixed_levels() {
        let two_dcs = replicas(&[("dc1", 3), ("dc2", 3)]);
        assert!(two_dcs.overlap(LocalQuorum, LocalQuorum));
        assert!(two_dcs.overlap(EachQuorum, LocalQuorum));
        assert!(two_dcs.overlap(Quorum, Quorum));
        // Four replicas of six may include one local replica only.
        assert!(!two_dcs.overlap(Quorum, LocalQuorum));
        assert!(!two_dcs.overlap(LocalQuorum, Quorum));
        assert!(!two_dcs.overlap(Two, LocalQuorum));
    }

    #[test]
    fn a_level_needs_replicas_where_it_counts_them() {
        let remote = replicas(&[("dc2", 3)]);
        assert!(!remote.allow(LocalQuorum) && !remote.allow(LocalOne) && !remote.allow(EachQuorum));
        assert!(remote.allow(Quorum) && remote.allow(Three) && remote.allow(One));
        let one = replicas(&[("dc1", 1)]);
        assert!(one.allow(LocalQuorum) && one.allow(All) && one.allow(Any));
        assert!(!one.allow(Two));
    }
}
