//! Combinations that could lose something. Each is told with the setting to change.

use std::time::Duration;

use scylla::statement::{Consistency, SerialConsistency};

use super::{Compaction, Deletions, ReadRepair, Rules, level, serial_name, show_span};
use crate::schema::Replication;
use crate::tables::{Class, Table};

/// A rule, or two rules together, under which a write could be lost or come back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsafe {
    #[error(
        "deletions are forgotten after {} but replicas compared only every {}: what was deleted could come back; \
         make it {} or more, or repair more often", show_span(*.gc_grace), show_span(*.repair), show_span(*.repair)
    )]
    GraceBelowRepair { table: Table, gc_grace: Duration, repair: Duration },

    #[error(
        "a hint lives no longer than gc_grace, {}, and a node may be away for {} before the others stop keeping hints \
         for it: writes in between would be lost to it; make it {} or more",
        show_span(*.gc_grace), show_span(*.window), show_span(*.window)
    )]
    GraceBelowHints { table: Table, gc_grace: Duration, window: Duration },

    #[error(
        "its rows do not expire, so copies that differ would differ for ever: give an interval, such as \"7d\""
    )]
    NeverRepaired { table: Table },

    #[error(
        "without repair a deletion must be remembered as long as the row it deletes can live{}, and it is only for {}: \
         raise gc_grace, or give repair an interval",
        .ttl.map(|ttl| format!(", {}", show_span(ttl))).unwrap_or_default(), show_span(*.gc_grace)
    )]
    GraceBelowLife { table: Table, gc_grace: Duration, ttl: Option<Duration> },

    #[error(
        "{table} is used at {level}, which counts copies in {local_dc}, and class {class} has none there: set how many",
        class = .class.name()
    )]
    NoLocalCopies { table: Table, class: Class, local_dc: String, level: &'static str },

    #[error(
        "{level} needs more copies than the {copies} that there are: choose another level, or keep more copies"
    )]
    TooFewCopies { table: Table, rule: &'static str, level: &'static str, copies: u32 },

    #[error(
        "what is written at {write} need not be seen at {read} ({copies} copies), and this table must be read back: use \
         LOCAL_QUORUM for both"
    )]
    NotReadBack { table: Table, write: &'static str, read: &'static str, copies: u32 },

    #[error(
        "a conditional write at {write} is done before a quorum has it, and could be undone: use LOCAL_QUORUM"
    )]
    ConditionalBelowQuorum { table: Table, write: &'static str },

    #[error("ANY is content with a hint, which no conditional write can see: use LOCAL_QUORUM")]
    ConditionalAny { table: Table },

    #[error("Cassandra takes no conditional write at EACH_QUORUM: use QUORUM or LOCAL_QUORUM")]
    ConditionalEachQuorum { table: Table },

    #[error(
        "{serial} decides among all data centres, and {rule} = {level} looks at one: use SERIAL with QUORUM, or \
         LOCAL_SERIAL with LOCAL_QUORUM"
    )]
    SerialMixed { table: Table, serial: &'static str, rule: &'static str, level: &'static str },

    #[error(
        "TWCS drops whole files when all their rows have expired, and without ttl none ever does: set ttl"
    )]
    WindowsWithoutTtl { table: Table },

    #[error(
        "BLOCKING writes old rows into new windows, and TWCS then keeps both: use NONE, or another compaction"
    )]
    WindowsWithReadRepair { table: Table },

    #[error(
        "a conditional write that failed half-way may be on one copy: without read repair it could be seen once and not \
         again; use BLOCKING"
    )]
    ConditionalWithoutReadRepair { table: Table },
}

impl Unsafe {
    /// The settings that together make it, the one to change first.
    pub fn keys(&self) -> Vec<String> {
        let of = |table: &Table, rules: &[&str]| {
            rules.iter().map(|rule| format!("store.cassandra.policy.{table}.{rule}")).collect()
        };
        match self {
            Self::GraceBelowRepair { table, .. } => of(table, &["gc_grace", "repair"]),
            Self::GraceBelowHints { table, .. } => of(table, &["gc_grace"]),
            Self::GraceBelowLife { table, .. } => of(table, &["gc_grace", "repair", "ttl"]),
            Self::NeverRepaired { table } => of(table, &["repair"]),
            Self::NoLocalCopies { class, local_dc, .. } => {
                vec![format!("store.cassandra.replication.{}.{local_dc}", class.name())]
            }
            Self::TooFewCopies { table, rule, .. } => of(table, &[rule]),
            Self::NotReadBack { table, .. } => of(table, &["read", "write"]),
            Self::ConditionalBelowQuorum { table, .. }
            | Self::ConditionalAny { table }
            | Self::ConditionalEachQuorum { table } => of(table, &["write"]),
            Self::SerialMixed { table, rule, .. } => of(table, &["serial", rule]),
            Self::WindowsWithoutTtl { table } => of(table, &["compaction", "ttl"]),
            Self::WindowsWithReadRepair { table } => of(table, &["read_repair", "compaction"]),
            Self::ConditionalWithoutReadRepair { table } => of(table, &["read_repair"]),
        }
    }
}

/// What the rules have to be safe in.
pub(super) struct Surroundings<'a> {
    pub(super) replication: &'a Replication,
    pub(super) local_dc: &'a str,
    pub(super) hint_window: Duration,
}

impl Surroundings<'_> {
    pub(super) fn check(&self, table: Table, rules: &Rules) -> Vec<Unsafe> {
        let mut found = Vec::new();
        self.deletions(table, rules, &mut found);
        files(table, rules, &mut found);
        conditions(table, rules, &mut found);
        self.levels(table, rules, &mut found);
        found
    }

    fn deletions(&self, table: Table, rules: &Rules, found: &mut Vec<Unsafe>) {
        let (gc_grace, nature) = (rules.gc_grace, table.nature());
        if gc_grace < self.hint_window {
            found.push(Unsafe::GraceBelowHints { table, gc_grace, window: self.hint_window });
        }
        match rules.repair {
            Some(repair) if gc_grace < repair => {
                found.push(Unsafe::GraceBelowRepair { table, gc_grace, repair });
            }
            None if !nature.expires => found.push(Unsafe::NeverRepaired { table }),
            None if nature.deletions == Deletions::Matter && rules.ttl.is_none_or(|ttl| gc_grace < ttl) => {
                found.push(Unsafe::GraceBelowLife { table, gc_grace, ttl: rules.ttl });
            }
            _ => {}
        }
    }

    fn levels(&self, table: Table, rules: &Rules, found: &mut Vec<Unsafe>) {
        let class = table.class();
        let copies = level::Copies::of(self.replication.of(class), self.local_dc);
        let used = [("write", rules.write), ("read", rules.read), ("showcase", rules.showcase)];
        let local =
            used.iter().find(|(_, level)| level::is_local(*level)).map(|(_, level)| level::name(*level));
        let serial = (table.nature().is_conditional && rules.serial == SerialConsistency::LocalSerial)
            .then(|| serial_name(rules.serial));
        if copies.local == 0
            && let Some(level) = local.or(serial)
        {
            let local_dc = self.local_dc.to_owned();
            found.push(Unsafe::NoLocalCopies { table, class, local_dc, level });
            return;
        }
        for (rule, level) in used {
            if !copies.suffice(level) {
                let level = level::name(level);
                found.push(Unsafe::TooFewCopies { table, rule, level, copies: copies.all });
            }
        }
        if table.nature().is_read_back && !copies.overlap(rules.write, rules.read) {
            let [write, read] = [rules.write, rules.read].map(level::name);
            found.push(Unsafe::NotReadBack { table, write, read, copies: copies.all });
        }
    }
}

fn files(table: Table, rules: &Rules, found: &mut Vec<Unsafe>) {
    if !matches!(rules.compaction, Compaction::TimeWindow { .. }) {
        return;
    }
    if rules.ttl.is_none() {
        found.push(Unsafe::WindowsWithoutTtl { table });
    }
    if rules.read_repair == ReadRepair::Blocking {
        found.push(Unsafe::WindowsWithReadRepair { table });
    }
}

fn conditions(table: Table, rules: &Rules, found: &mut Vec<Unsafe>) {
    if !table.nature().is_conditional {
        return;
    }
    match rules.write {
        Consistency::Any => found.push(Unsafe::ConditionalAny { table }),
        Consistency::EachQuorum => found.push(Unsafe::ConditionalEachQuorum { table }),
        write if !level::is_quorum(write) => {
            found.push(Unsafe::ConditionalBelowQuorum { table, write: level::name(write) });
        }
        _ => {}
    }
    if rules.read_repair == ReadRepair::None {
        found.push(Unsafe::ConditionalWithoutReadRepair { table });
    }
    if rules.serial == SerialConsistency::Serial {
        let used = [("write", rules.write), ("read", rules.read)];
        if let Some((rule, level)) = used.into_iter().find(|(_, level)| level::is_local(*level)) {
            let [serial, level] = [serial_name(rules.serial), level::name(level)];
            found.push(Unsafe::SerialMixed { table, serial, rule, level });
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

    /// What is said of these settings on three nodes of one data centre.
    fn refused(settings: &[(&str, &str, &str)]) -> Vec<String> {
        refused_on(settings, &replication(&[("dc1", 3)]))
    }

    fn refused_on(settings: &[(&str, &str, &str)], replication: &Replication) -> Vec<String> {
        let mut policy = Policy::default();
        for (table, key, value) in settings {
            policy.set(table, key, value).unwrap();
        }
        let found = policy.check(replication, "dc1", HINT_WINDOW);
        found.iter().map(|it| format!("{}: {it}", it.keys()[0])).collect()
    }

    #[track_caller]
    fn assert_one(refused: &[String], start: &str) {
        assert_eq!(refused.len(), 1, "{refused:#?}");
        assert!(refused[0].starts_with(start), "{refused:#?}");
    }

    #[test]
    fn the_defaults_are_safe_on_one_to_three_copies_in_one_or_two_data_centres() {
        for factor in 1..=3 {
            assert_eq!(refused_on(&[], &replication(&[("dc1", factor)])), [""; 0]);
            assert_eq!(refused_on(&[], &replication(&[("dc1", factor), ("dc2", 3)])), [""; 0]);
        }
    }

    #[test]
    fn a_grace_shorter_than_the_repair_interval() {
        assert_one(
            &refused(&[("order_by_id", "gc_grace", "12h")]),
            "store.cassandra.policy.order_by_id.gc_grace: deletions are forgotten after 12h but replicas compared only \
             every 1d: what was deleted could come back; make it 1d or more, or repair more often",
        );
        assert_one(&refused(&[("stock", "repair", "7d")]), "store.cassandra.policy.stock.gc_grace: ");
    }

    #[test]
    fn a_grace_shorter_than_a_hint_may_have_to_wait() {
        assert_one(
            &refused(&[("intents", "gc_grace", "1h")]),
            "store.cassandra.policy.intents.gc_grace: a hint lives no longer than gc_grace, 1h, and a node may be away \
             for 3h",
        );
    }

    #[test]
    fn no_repair_where_rows_live_on() {
        assert_one(
            &refused(&[("orders_by_day", "repair", "off")]),
            "store.cassandra.policy.orders_by_day.repair: its rows do not expire",
        );
    }

    #[test]
    fn no_repair_where_a_deletion_is_forgotten_before_its_row_would_have_died() {
        assert_one(
            &refused(&[("carts_by_owner", "repair", "off")]),
            "store.cassandra.policy.carts_by_owner.gc_grace: without repair a deletion must be remembered as long as the \
             row it deletes can live, and it is only for 10d",
        );
        assert_one(
            &refused(&[("idempotency_keys", "gc_grace", "1d")]),
            "store.cassandra.policy.idempotency_keys.gc_grace: without repair a deletion must be remembered as long as \
             the row it deletes can live, 2d, and it is only for 1d",
        );
        let kept = [("carts_by_owner", "repair", "off"), ("carts_by_owner", "ttl", "10d")];
        assert_eq!(refused(&kept), [""; 0]);
    }

    #[test]
    fn a_local_level_where_the_local_data_centre_has_no_copies() {
        let mut away = replication(&[("dc1", 3)]);
        away.replace(Class::History, [("dc2".to_owned(), 3)].into());
        let said = refused_on(&[], &away);
        assert_eq!(said.len(), 2, "{said:#?}");
        assert_eq!(
            said[0],
            "store.cassandra.replication.history.dc1: orders_by_zone_day is used at LOCAL_QUORUM, which counts copies in \
             dc1, and class history has none there: set how many"
        );
    }

    #[test]
    fn a_level_that_needs_more_copies_than_there_are() {
        let said = refused_on(&[("products_by_category", "showcase", "THREE")], &replication(&[("dc1", 2)]));
        assert_one(
            &said,
            "store.cassandra.policy.products_by_category.showcase: THREE needs more copies than the 2 that there are",
        );
    }

    #[test]
    fn levels_that_do_not_overlap_on_a_table_that_must_be_read_back() {
        assert_one(
            &refused(&[("orders_by_day", "write", "ANY"), ("orders_by_day", "read", "ONE")]),
            "store.cassandra.policy.orders_by_day.read: what is written at ANY need not be seen at ONE (3 copies)",
        );
        assert_one(
            &refused(&[("carts_by_owner", "read", "LOCAL_ONE")]),
            "store.cassandra.policy.carts_by_owner.read: ",
        );
        assert_one(
            &refused(&[("cart_changes", "write", "ONE")]),
            "store.cassandra.policy.cart_changes.read: ",
        );
        assert_eq!(refused(&[("carts_by_day", "read", "LOCAL_ONE")]), [""; 0], "an index for reports");
        assert_eq!(refused(&[("stock", "write", "ALL"), ("stock", "read", "LOCAL_ONE")]), [""; 0]);
    }

    #[test]
    fn conditional_writes_below_a_quorum() {
        let said = refused(&[("sessions_by_id", "write", "ONE"), ("sessions_by_id", "read", "ALL")]);
        assert_one(
            &said,
            "store.cassandra.policy.sessions_by_id.write: a conditional write at ONE is done before",
        );
        let said = refused(&[("stock", "write", "ANY"), ("stock", "read", "ALL")]);
        assert!(
            said[0].starts_with("store.cassandra.policy.stock.write: ANY is content with a hint"),
            "{said:#?}"
        );
        let said = refused(&[("stock", "write", "EACH_QUORUM")]);
        assert_one(
            &said,
            "store.cassandra.policy.stock.write: Cassandra takes no conditional write at EACH_QUORUM",
        );
    }

    #[test]
    fn serial_with_local_levels() {
        assert_one(
            &refused(&[("stock", "serial", "SERIAL")]),
            "store.cassandra.policy.stock.serial: SERIAL decides among all data centres, and write = LOCAL_QUORUM looks \
             at one",
        );
        let half = [("stock", "serial", "SERIAL"), ("stock", "write", "QUORUM")];
        assert!(refused(&half)[0].contains("read = LOCAL_QUORUM looks at one"));
        let whole = [half[0], half[1], ("stock", "read", "QUORUM")];
        assert_eq!(refused(&whole), [""; 0]);
    }

    #[test]
    fn windows_without_a_time_to_live_or_with_read_repair() {
        assert_one(
            &refused(&[("cart_changes", "ttl", "off")]),
            "store.cassandra.policy.cart_changes.compaction: TWCS drops whole files",
        );
        assert_one(
            &refused(&[("cart_changes", "read_repair", "BLOCKING")]),
            "store.cassandra.policy.cart_changes.read_repair: BLOCKING writes old rows into new windows",
        );
    }

    #[test]
    fn conditional_writes_without_read_repair() {
        assert_one(
            &refused(&[("order_by_id", "read_repair", "NONE")]),
            "store.cassandra.policy.order_by_id.read_repair: a conditional write that failed half-way",
        );
    }
}
