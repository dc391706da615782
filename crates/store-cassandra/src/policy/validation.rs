//! Policy validation: combinations under which Cassandra may lose or resurrect data. Each violation names the settings
//! to change.

use std::time::Duration;

use scylla::statement::{Consistency, SerialConsistency};

use super::duration::format;
use super::level::{self, ReplicaCounts};
use super::{Compaction, ReadRepair, ResurrectedRows, TablePolicy, serial_name};
use crate::schema::Replication;
use crate::schema::tables::{Class, Table};

/// A setting, or several together, under which a write may be lost or a deleted row may reappear.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyViolation {
    #[error(
        "gc_grace {} is below the repair interval {}: tombstones may be purged early and deleted rows reappear; set \
         gc_grace to {} or more, or repair to {} or less",
        format(*.gc_grace), format(*.repair), format(*.repair), format(*.gc_grace)
    )]
    GcGraceBelowRepairInterval { table: Table, gc_grace: Duration, repair: Duration },

    #[error(
        "gc_grace {} is below the hint window {}: hints expire with gc_grace, so a replica that was down for longer \
         misses writes; set gc_grace to {} or more",
        format(*.gc_grace), format(*.hint_window), format(*.hint_window)
    )]
    GcGraceBelowHintWindow { table: Table, gc_grace: Duration, hint_window: Duration },

    #[error(
        "repair is off and rows have no TTL: replicas that diverged are never repaired; set an interval, such as \"7d\""
    )]
    NeverRepaired { table: Table },

    #[error(
        "repair is off and gc_grace {} is below the life of a row ({}): tombstones may be purged while a replica still \
         has the deleted row, which reappears; raise gc_grace, or set a repair interval",
        format(*.gc_grace), .ttl.map_or("no ttl".to_owned(), |ttl| format!("ttl {}", format(ttl)))
    )]
    GcGraceBelowTtl { table: Table, gc_grace: Duration, ttl: Option<Duration> },

    #[error(
        "{table} is used at consistency level {level}, and class {class} has replication factor 0 in {local_dc}: set a \
         replication factor for {local_dc}",
        class = .class.name()
    )]
    NoLocalReplica { table: Table, class: Class, local_dc: String, level: &'static str },

    #[error(
        "consistency level {level} needs more replicas than the replication factor {replication_factor}: choose a lower \
         level, or raise the replication factor"
    )]
    TooFewReplicas { table: Table, rule: &'static str, level: &'static str, replication_factor: u32 },

    #[error(
        "a read at {read} may miss a write acknowledged at {write} (replication factor {replication_factor}), and this \
         table must be read back: use LOCAL_QUORUM for both"
    )]
    NoReadWriteOverlap { table: Table, write: &'static str, read: &'static str, replication_factor: u32 },

    #[error(
        "an LWT at {write} is acknowledged before a quorum of replicas has it, and may be lost: use LOCAL_QUORUM"
    )]
    LwtBelowQuorum { table: Table, write: &'static str },

    #[error("ANY acknowledges a write that only a hint has, and no LWT sees hints: use LOCAL_QUORUM")]
    LwtAtAny { table: Table },

    #[error("Cassandra rejects LWTs at EACH_QUORUM: use QUORUM or LOCAL_QUORUM")]
    LwtAtEachQuorum { table: Table },

    #[error(
        "LWTs at {serial} are decided across all data centres, and {rule} = {level} counts replicas of the local one: use \
         SERIAL with QUORUM, or LOCAL_SERIAL with LOCAL_QUORUM"
    )]
    SerialWithLocalLevel { table: Table, serial: &'static str, rule: &'static str, level: &'static str },

    #[error(
        "TWCS drops an SSTable once all its rows have expired, and without ttl none does: set ttl, or choose another \
         compaction"
    )]
    TwcsWithoutTtl { table: Table },

    #[error(
        "BLOCKING read repair writes old rows into new TWCS windows, whose SSTables are then dropped late: use NONE, or \
         choose another compaction"
    )]
    TwcsWithReadRepair { table: Table },

    #[error(
        "an LWT that timed out may be on one replica: without read repair one read returns it and the next does not; use \
         BLOCKING"
    )]
    LwtWithoutReadRepair { table: Table },
}

impl PolicyViolation {
    /// The settings that together cause it, the one to change first.
    pub fn keys(&self) -> Vec<String> {
        let of = |table: &Table, rules: &[&str]| {
            rules.iter().map(|rule| format!("store.cassandra.policy.{table}.{rule}")).collect()
        };
        match self {
            Self::GcGraceBelowRepairInterval { table, .. } => of(table, &["gc_grace", "repair"]),
            Self::GcGraceBelowHintWindow { table, .. } => of(table, &["gc_grace"]),
            Self::GcGraceBelowTtl { table, .. } => of(table, &["gc_grace", "repair", "ttl"]),
            Self::NeverRepaired { table } => of(table, &["repair"]),
            Self::NoLocalReplica { class, local_dc, .. } => {
                vec![format!("store.cassandra.replication.{}.{local_dc}", class.name())]
            }
            Self::TooFewReplicas { table, rule, .. } => of(table, &[rule]),
            Self::NoReadWriteOverlap { table, .. } => of(table, &["read", "write"]),
            Self::LwtBelowQuorum { table, .. }
            | Self::LwtAtAny { table }
            | Self::LwtAtEachQuorum { table } => of(table, &["write"]),
            Self::SerialWithLocalLevel { table, rule, .. } => of(table, &["serial", rule]),
            Self::TwcsWithoutTtl { table } => of(table, &["compaction", "ttl"]),
            Self::TwcsWithReadRepair { table } => of(table, &["read_repair", "compaction"]),
            Self::LwtWithoutReadRepair { table } => of(table, &["read_repair"]),
        }
    }
}

/// The cluster that the policy must be safe on.
pub(super) struct ClusterContext<'a> {
    pub(super) replication: &'a Replication,
    pub(super) local_dc: &'a str,
    pub(super) hint_window: Duration,
}

impl ClusterContext<'_> {
    pub(super) fn check(&self, table: Table, policy: &TablePolicy) -> Vec<PolicyViolation> {
        let mut found = Vec::new();
        self.check_gc_grace(table, policy, &mut found);
        check_compaction(table, policy, &mut found);
        check_lwt(table, policy, &mut found);
        self.check_levels(table, policy, &mut found);
        found
    }

    fn check_gc_grace(&self, table: Table, policy: &TablePolicy, found: &mut Vec<PolicyViolation>) {
        let (gc_grace, traits, hint_window) = (policy.gc_grace, table.traits(), self.hint_window);
        if gc_grace < hint_window {
            found.push(PolicyViolation::GcGraceBelowHintWindow { table, gc_grace, hint_window });
        }
        match policy.repair {
            Some(repair) if gc_grace < repair => {
                found.push(PolicyViolation::GcGraceBelowRepairInterval { table, gc_grace, repair });
            }
            None if !traits.expires => found.push(PolicyViolation::NeverRepaired { table }),
            None if traits.resurrected_rows == ResurrectedRows::Harmful
                && policy.ttl.is_none_or(|ttl| gc_grace < ttl) =>
            {
                found.push(PolicyViolation::GcGraceBelowTtl { table, gc_grace, ttl: policy.ttl });
            }
            _ => {}
        }
    }

    fn check_levels(&self, table: Table, policy: &TablePolicy, found: &mut Vec<PolicyViolation>) {
        let class = table.class();
        let replicas = ReplicaCounts::of(self.replication.of(class), self.local_dc);
        let replication_factor = replicas.total;
        let used = [("write", policy.write), ("read", policy.read), ("stale_read", policy.stale_read)];
        let local =
            used.iter().find(|(_, level)| level::is_local(*level)).map(|(_, level)| level::name(*level));
        let serial = (table.traits().has_lwt && policy.serial == SerialConsistency::LocalSerial)
            .then(|| serial_name(policy.serial));
        if replicas.local == 0
            && let Some(level) = local.or(serial)
        {
            let local_dc = self.local_dc.to_owned();
            found.push(PolicyViolation::NoLocalReplica { table, class, local_dc, level });
            return;
        }
        for (rule, level) in used {
            if !replicas.allow(level) {
                let level = level::name(level);
                found.push(PolicyViolation::TooFewReplicas { table, rule, level, replication_factor });
            }
        }
        if table.traits().is_read_back && !replicas.overlap(policy.write, policy.read) {
            let [write, read] = [policy.write, policy.read].map(level::name);
            found.push(PolicyViolation::NoReadWriteOverlap { table, write, read, replication_factor });
        }
    }
}

fn check_compaction(table: Table, policy: &TablePolicy, found: &mut Vec<PolicyViolation>) {
    if !matches!(policy.compaction, Compaction::TimeWindow { .. }) {
        return;
    }
    if policy.ttl.is_none() {
        found.push(PolicyViolation::TwcsWithoutTtl { table });
    }
    if policy.read_repair == ReadRepair::Blocking {
        found.push(PolicyViolation::TwcsWithReadRepair { table });
    }
}

fn check_lwt(table: Table, policy: &TablePolicy, found: &mut Vec<PolicyViolation>) {
    if !table.traits().has_lwt {
        return;
    }
    match policy.write {
        Consistency::Any => found.push(PolicyViolation::LwtAtAny { table }),
        Consistency::EachQuorum => found.push(PolicyViolation::LwtAtEachQuorum { table }),
        write if !level::is_quorum(write) => {
            found.push(PolicyViolation::LwtBelowQuorum { table, write: level::name(write) });
        }
        _ => {}
    }
    if policy.read_repair == ReadRepair::None {
        found.push(PolicyViolation::LwtWithoutReadRepair { table });
    }
    if policy.serial == SerialConsistency::Serial {
        let used = [("write", policy.write), ("read", policy.read)];
        if let Some((rule, level)) = used.into_iter().find(|(_, level)| level::is_local(*level)) {
            let [serial, level] = [serial_name(policy.serial), level::name(level)];
            found.push(PolicyViolation::SerialWithLocalLevel { table, serial, rule, level });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const HINT_WINDOW: Duration = Duration::from_hours(3);

    fn replication(factors: &[(&str, u32)]) -> Replication {
        let mut replication = Replication::default();
        for class in Class::ALL {
            for (dc, factor) in factors {
                replication.set(class, dc, *factor);
            }
        }
        replication
    }

    /// The violations of these settings at replication factor 3 in one data centre, each after its first key.
    fn violations(settings: &[(&str, &str, &str)]) -> Vec<String> {
        violations_on(settings, &replication(&[("dc1", 3)]))
    }

    fn violations_on(settings: &[(&str, &str, &str)], replication: &Replication) -> Vec<String> {
        let mut policy = Policy::default();
        for (table, key, value) in settings {
            policy.set(table, key, value).unwrap();
        }
        let found = policy.check(replication, "dc1", HINT_WINDOW);
        found.iter().map(|it| format!("{}: {it}", it.keys()[0])).collect()
    }

    #[track_caller]
    fn assert_one(violations: &[String], start: &str) {
        assert_eq!(violations.len(), 1, "{violations:#?}");
        assert!(violations[0].starts_with(start), "{violations:#?}");
    }

    #[test]
    fn the_defaults_are_safe_at_replication_factor_1_to_3_in_one_or_two_data_centres() {
        for factor in 1..=3 {
            assert_eq!(violations_on(&[], &replication(&[("dc1", factor)])), [""; 0]);
            assert_eq!(violations_on(&[], &replication(&[("dc1", factor), ("dc2", 3)])), [""; 0]);
        }
    }

    #[test]
    fn gc_grace_below_the_repair_interval_is_refused() {
        assert_one(
            &violations(&[("order_by_id", "gc_grace", "12h")]),
            "store.cassandra.policy.order_by_id.gc_grace: gc_grace 12h is below the repair interval 1d: tombstones may be \
             purged early and deleted rows reappear; set gc_grace to 1d or more, or repair to 12h or less",
        );
        assert_one(&violations(&[("stock", "repair", "7d")]), "store.cassandra.policy.stock.gc_grace: ");
    }

    #[test]
    fn gc_grace_below_the_hint_window_is_refused() {
        assert_one(
            &violations(&[("intents", "gc_grace", "1h")]),
            "store.cassandra.policy.intents.gc_grace: gc_grace 1h is below the hint window 3h: hints expire with gc_grace",
        );
    }

    #[test]
    fn repair_off_is_refused_where_rows_have_no_ttl() {
        assert_one(
            &violations(&[("orders_by_day", "repair", "off")]),
            "store.cassandra.policy.orders_by_day.repair: repair is off and rows have no TTL",
        );
    }

    #[test]
    fn repair_off_is_refused_where_gc_grace_is_below_the_life_of_a_row() {
        assert_one(
            &violations(&[("carts_by_owner", "repair", "off")]),
            "store.cassandra.policy.carts_by_owner.gc_grace: repair is off and gc_grace 10d is below the life of a row \
             (no ttl)",
        );
        assert_one(
            &violations(&[("idempotency_keys", "gc_grace", "1d")]),
            "store.cassandra.policy.idempotency_keys.gc_grace: repair is off and gc_grace 1d is below the life of a row \
             (ttl 2d)",
        );
        let covered = [("carts_by_owner", "repair", "off"), ("carts_by_owner", "ttl", "10d")];
        assert_eq!(violations(&covered), [""; 0]);
    }

    #[test]
    fn a_local_level_is_refused_without_local_replicas() {
        let mut remote = replication(&[("dc1", 3)]);
        remote.replace(Class::History, [("dc2".to_owned(), 3)].into());
        let found = violations_on(&[], &remote);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0],
            "store.cassandra.replication.history.dc1: orders_by_day is used at consistency level LOCAL_QUORUM, and \
             class history has replication factor 0 in dc1: set a replication factor for dc1"
        );
    }

    #[test]
    fn a_level_above_the_replication_factor_is_refused() {
        assert_one(
            &violations_on(&[("products_by_category", "stale_read", "THREE")], &replication(&[("dc1", 2)])),
            "store.cassandra.policy.products_by_category.stale_read: consistency level THREE needs more replicas than the \
             replication factor 2",
        );
    }

    #[test]
    fn levels_without_overlap_are_refused_where_the_table_is_read_back() {
        assert_one(
            &violations(&[("orders_by_day", "write", "ANY"), ("orders_by_day", "read", "ONE")]),
            "store.cassandra.policy.orders_by_day.read: a read at ONE may miss a write acknowledged at ANY (replication \
             factor 3)",
        );
        assert_one(
            &violations(&[("carts_by_owner", "read", "LOCAL_ONE")]),
            "store.cassandra.policy.carts_by_owner.read: ",
        );
        assert_one(
            &violations(&[("cart_changes", "write", "ONE")]),
            "store.cassandra.policy.cart_changes.read: ",
        );
        assert_eq!(violations(&[("carts_by_day", "read", "LOCAL_ONE")]), [""; 0], "an index for reports");
        assert_eq!(violations(&[("stock", "write", "ALL"), ("stock", "read", "LOCAL_ONE")]), [""; 0]);
    }

    #[test]
    fn lwts_below_a_quorum_are_refused() {
        assert_one(
            &violations(&[("sessions_by_id", "write", "ONE"), ("sessions_by_id", "read", "ALL")]),
            "store.cassandra.policy.sessions_by_id.write: an LWT at ONE is acknowledged before a quorum",
        );
        let found = violations(&[("stock", "write", "ANY"), ("stock", "read", "ALL")]);
        assert!(
            found[0]
                .starts_with("store.cassandra.policy.stock.write: ANY acknowledges a write that only a hint"),
            "{found:#?}"
        );
        assert_one(
            &violations(&[("stock", "write", "EACH_QUORUM")]),
            "store.cassandra.policy.stock.write: Cassandra rejects LWTs at EACH_QUORUM",
        );
    }

    #[test]
    fn serial_with_a_local_level_is_refused() {
        assert_one(
            &violations(&[("stock", "serial", "SERIAL")]),
            "store.cassandra.policy.stock.serial: LWTs at SERIAL are decided across all data centres, and write = \
             LOCAL_QUORUM counts replicas of the local one",
        );
        let half = [("stock", "serial", "SERIAL"), ("stock", "write", "QUORUM")];
        assert!(violations(&half)[0].contains("read = LOCAL_QUORUM counts replicas of the local one"));
        let whole = [half[0], half[1], ("stock", "read", "QUORUM")];
        assert_eq!(violations(&whole), [""; 0]);
    }

    #[test]
    fn twcs_without_ttl_or_with_read_repair_is_refused() {
        assert_one(
            &violations(&[("cart_changes", "ttl", "off")]),
            "store.cassandra.policy.cart_changes.compaction: TWCS drops an SSTable once",
        );
        assert_one(
            &violations(&[("cart_changes", "read_repair", "BLOCKING")]),
            "store.cassandra.policy.cart_changes.read_repair: BLOCKING read repair writes old rows into new TWCS windows",
        );
    }

    #[test]
    fn lwts_without_read_repair_are_refused() {
        assert_one(
            &violations(&[("order_by_id", "read_repair", "NONE")]),
            "store.cassandra.policy.order_by_id.read_repair: an LWT that timed out may be on one replica",
        );
    }
}
