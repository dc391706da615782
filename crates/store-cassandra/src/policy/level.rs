//! Consistency levels: their names, and how many replicas have answered when a statement at one of them is done.

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

/// Whether it counts replicas of the local data centre only.
pub(super) const fn is_local(level: Consistency) -> bool {
    matches!(level, Consistency::LocalOne | Consistency::LocalQuorum)
}

/// Whether more than half of the replicas that it counts have to answer.
pub(super) const fn is_quorum(level: Consistency) -> bool {
    matches!(
        level,
        Consistency::LocalQuorum | Consistency::Quorum | Consistency::EachQuorum | Consistency::All
    )
}

/// The copies of a row, as a process in one of the data centres sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) local: u32,
    pub(super) all: u32,
    /// A majority in each data centre, summed.
    majorities: u32,
}

const fn majority(of: u32) -> u32 {
    of / 2 + 1
}

impl Copies {
    pub(super) fn of(factors: &BTreeMap<String, u32>, local_dc: &str) -> Self {
        let held = || factors.values().copied().filter(|factor| *factor > 0);
        Self {
            local: factors.get(local_dc).copied().unwrap_or(0),
            all: held().sum(),
            majorities: held().map(majority).sum(),
        }
    }

    /// How many replicas have surely answered, locally and in all.
    fn answered(&self, level: Consistency) -> (u32, u32) {
        let remote = self.all - self.local;
        let anywhere = |count: u32| (count.saturating_sub(remote), count);
        match level {
            Consistency::Any => (0, 0),
            Consistency::LocalOne => (1, 1),
            Consistency::LocalQuorum => (majority(self.local), majority(self.local)),
            Consistency::Two => anywhere(2),
            Consistency::Three => anywhere(3),
            Consistency::Quorum => anywhere(majority(self.all)),
            Consistency::EachQuorum => (majority(self.local), self.majorities),
            Consistency::All => (self.local, self.all),
            _ => anywhere(1),
        }
    }

    /// Whether there are enough copies for this level at all.
    pub(super) fn suffice(&self, level: Consistency) -> bool {
        let (local, all) = self.answered(level);
        local <= self.local && all <= self.all
    }

    /// Whether a read surely meets a replica that has what was written before.
    pub(super) fn overlap(&self, write: Consistency, read: Consistency) -> bool {
        let (write_local, write_all) = self.answered(write);
        let (read_local, read_all) = self.answered(read);
        write_local + read_local > self.local || write_all + read_all > self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Consistency::{All, Any, EachQuorum, LocalOne, LocalQuorum, One, Quorum, Three, Two};

    fn copies(factors: &[(&str, u32)]) -> Copies {
        Copies::of(&factors.iter().map(|(dc, factor)| ((*dc).to_owned(), *factor)).collect(), "dc1")
    }

    #[test]
    fn names_read_back() {
        for (level, name) in NAMES {
            assert_eq!(named(&name.to_lowercase()), Some(level));
            assert_eq!(super::name(level), name);
        }
        assert_eq!(named("SERIAL"), None);
        assert_eq!(serial_named("local_serial"), Some(SerialConsistency::LocalSerial));
    }

    #[test]
    fn a_read_meets_a_write_where_their_replicas_must_overlap() {
        let one_dc = copies(&[("dc1", 3)]);
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
        assert!(copies(&[("dc1", 1)]).overlap(One, One));
        assert!(!copies(&[("dc1", 1)]).overlap(Any, One));
        assert!(copies(&[("dc1", 2)]).overlap(LocalQuorum, LocalOne));
    }

    #[test]
    fn a_second_data_centre_takes_nothing_from_local_levels_and_much_from_the_others() {
        let two_dcs = copies(&[("dc1", 3), ("dc2", 3)]);
        assert!(two_dcs.overlap(LocalQuorum, LocalQuorum));
        assert!(two_dcs.overlap(EachQuorum, LocalQuorum));
        assert!(two_dcs.overlap(Quorum, Quorum));
        // Four of six may leave one local copy only.
        assert!(!two_dcs.overlap(Quorum, LocalQuorum));
        assert!(!two_dcs.overlap(LocalQuorum, Quorum));
        assert!(!two_dcs.overlap(Two, LocalQuorum));
    }

    #[test]
    fn a_level_needs_copies_where_it_counts_them() {
        let away = copies(&[("dc2", 3)]);
        assert!(!away.suffice(LocalQuorum) && !away.suffice(LocalOne) && !away.suffice(EachQuorum));
        assert!(away.suffice(Quorum) && away.suffice(Three) && away.suffice(One));
        let one = copies(&[("dc1", 1)]);
        assert!(one.suffice(LocalQuorum) && one.suffice(All) && one.suffice(Any));
        assert!(!one.suffice(Two));
    }
}
