//! The policy table: per table how it is written, read, repaired and kept, and per call how old its answer may be.
//!
//! It has one source: the defaults of [`defaults`] and above them what the configuration sets. Everything else follows from
//! it: the consistency of statements (`cql.rs`), the options of tables (`schema.rs`), what `mw policy` prints. A combination
//! that could lose something is refused before anything is opened (`unsafe_rules.rs`).

mod calls;
mod compaction;
mod defaults;
mod level;
mod options;
mod span;
mod unsafe_rules;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use scylla::statement::{Consistency, SerialConsistency};

use crate::schema::Replication;
use crate::tables::Table;
pub(crate) use calls::CARD;
pub use calls::{CALLS, Call, Reads, SHOWCASE_LAG};
pub use compaction::Compaction;
pub use level::{name as level_name, serial_name};
pub(crate) use options::{OptionValue, TableOption};
pub use span::show as show_span;
pub use unsafe_rules::Unsafe;

/// How one table is used and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub write: Consistency,
    pub read: Consistency,
    /// Of reads that may show what is a little old.
    pub showcase: Consistency,
    /// Of conditional writes, and of the reads that look for their outcome.
    pub serial: SerialConsistency,
    pub read_repair: ReadRepair,
    /// How long a deletion is remembered, and a hint kept.
    pub gc_grace: Duration,
    /// How often all replicas are compared; `None`: never.
    pub repair: Option<Duration>,
    /// Of rows that are written without a life of their own.
    pub ttl: Option<Duration>,
    pub compaction: Compaction,
}

/// What a read does about replicas that differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadRepair {
    /// Mends them before it answers, so that what was seen once is seen by everybody after.
    Blocking,
    None,
}

impl ReadRepair {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blocking => "BLOCKING",
            Self::None => "NONE",
        }
    }
}

/// What a table is by the way the engine uses it. No configuration changes this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nature {
    /// Has conditional writes.
    pub is_conditional: bool,
    /// What was written must be seen by the next read at the table's read level.
    pub is_read_back: bool,
    /// Every row has a time to live.
    pub expires: bool,
    pub deletions: Deletions,
}

/// What a deleted row that came back would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletions {
    Matter,
    /// No harm: nothing is deleted, or whoever finds such a row checks it first.
    Harmless,
}

/// The rules of every table.
#[derive(Debug, Clone)]
pub struct Policy {
    rules: BTreeMap<Table, Rules>,
    /// The fallback that keeps `of` total; every table is in `rules`.
    strictest: Rules,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            rules: Table::ALL.iter().map(|table| (*table, defaults::rules(*table))).collect(),
            strictest: defaults::STRICT,
        }
    }
}

/// A setting of the policy that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    #[error("there is no table {0:?}; `mw policy` lists those there are")]
    UnknownTable(String),
    #[error("a table has no {0:?}; it has {KEYS}")]
    UnknownKey(String),
    #[error("expected {expected}, found {found:?}")]
    BadValue { expected: &'static str, found: String },
}

const KEYS: &str = "write, read, showcase, serial, read_repair, gc_grace, repair, ttl and compaction";
const LEVELS: &str =
    "LOCAL_ONE, LOCAL_QUORUM, ONE, TWO, THREE, QUORUM, EACH_QUORUM or ALL, and for write also ANY";

impl Policy {
    pub fn of(&self, table: Table) -> &Rules {
        self.rules.get(&table).unwrap_or(&self.strictest)
    }

    /// Sets one rule of one table, as the configuration writes it.
    pub fn set(&mut self, table: &str, key: &str, value: &str) -> Result<(), SettingError> {
        let table = Table::named(table).ok_or_else(|| SettingError::UnknownTable(table.to_owned()))?;
        let rules = self.rules.entry(table).or_insert(defaults::STRICT);
        let bad = |expected| SettingError::BadValue { expected, found: value.to_owned() };
        let level = |may_be_any| {
            level::named(value).filter(|level| may_be_any || *level != Consistency::Any).ok_or(bad(LEVELS))
        };
        let time = || span::parse(value).ok_or(bad("a whole number with a unit (90s, 3h or 10d)"));
        let time_or_off = || {
            if value.eq_ignore_ascii_case("off") {
                return Ok(None);
            }
            let wanted = "a whole number with a unit (90s, 3h or 10d), or \"off\"";
            span::parse(value).filter(|time| !time.is_zero()).map(Some).ok_or(bad(wanted))
        };
        match key {
            "write" => rules.write = level(true)?,
            "read" => rules.read = level(false)?,
            "showcase" => rules.showcase = level(false)?,
            "serial" => rules.serial = level::serial_named(value).ok_or(bad("SERIAL or LOCAL_SERIAL"))?,
            "read_repair" => {
                rules.read_repair = [ReadRepair::Blocking, ReadRepair::None]
                    .into_iter()
                    .find(|known| known.name().eq_ignore_ascii_case(value))
                    .ok_or(bad("BLOCKING or NONE"))?;
            }
            "gc_grace" => rules.gc_grace = time()?,
            "repair" => rules.repair = time_or_off()?,
            "ttl" => rules.ttl = time_or_off()?,
            "compaction" => rules.compaction = value.parse().map_err(|()| bad(compaction::EXPECTED))?,
            other => return Err(SettingError::UnknownKey(other.to_owned())),
        }
        Ok(())
    }

    /// Everything about it that could lose something, for processes in `local_dc`. A hint is kept for `hint_window` at
    /// the most, whatever a table says.
    pub fn check(&self, replication: &Replication, local_dc: &str, hint_window: Duration) -> Vec<Unsafe> {
        let surroundings = unsafe_rules::Surroundings { replication, local_dc, hint_window };
        Table::ALL.iter().flat_map(|table| surroundings.check(*table, self.of(*table))).collect()
    }

    /// How long a hint of this table lives.
    pub fn hint_life(&self, table: Table, hint_window: Duration) -> Duration {
        self.of(table).gc_grace.min(hint_window)
    }

    /// How old the answer of a call may be under these rules; nothing where every read sees every write.
    pub fn may_lag(&self, call: &Call, replication: &Replication, local_dc: &str) -> Option<Duration> {
        let lags = |table: &Table| {
            let rules = self.of(*table);
            let read = match call.reads {
                Reads::Showcase => rules.showcase,
                Reads::Fresh => rules.read,
                Reads::Serial => return false,
            };
            let copies = level::Copies::of(replication.of(table.class()), local_dc);
            !copies.overlap(rules.write, read)
        };
        call.tables.iter().any(lags).then_some(SHOWCASE_LAG)
    }
}

impl Table {
    pub const fn nature(self) -> Nature {
        defaults::nature(self)
    }

    /// Why its rules are what they are, where that is not plain.
    pub const fn reason(self) -> &'static str {
        defaults::reason(self)
    }
}

impl fmt::Display for ReadRepair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_rules_of_its_own() {
        let policy = Policy::default();
        assert_eq!(policy.rules.len(), Table::ALL.len());
    }

    #[test]
    fn the_configuration_sets_every_rule() {
        let mut policy = Policy::default();
        for (key, value) in [
            ("write", "all"),
            ("read", "ONE"),
            ("showcase", "QUORUM"),
            ("serial", "SERIAL"),
            ("read_repair", "none"),
            ("gc_grace", "36h"),
            ("repair", "12h"),
            ("ttl", "90d"),
            ("compaction", "TWCS 6h"),
        ] {
            policy.set("orders_by_day", key, value).unwrap();
        }
        assert_eq!(
            *policy.of(Table::OrdersByDay),
            Rules {
                write: Consistency::All,
                read: Consistency::One,
                showcase: Consistency::Quorum,
                serial: SerialConsistency::Serial,
                read_repair: ReadRepair::None,
                gc_grace: Duration::from_hours(36),
                repair: Some(Duration::from_hours(12)),
                ttl: Some(Duration::from_hours(90 * 24)),
                compaction: Compaction::TimeWindow { window: Duration::from_hours(6) },
            }
        );
        policy.set("orders_by_day", "repair", "off").unwrap();
        policy.set("orders_by_day", "ttl", "off").unwrap();
        let rules = policy.of(Table::OrdersByDay);
        assert_eq!((rules.repair, rules.ttl), (None, None));
    }

    #[test]
    fn what_cannot_be_read_says_what_would_be() {
        let said = |table: &str, key: &str, value: &str| {
            Policy::default().set(table, key, value).unwrap_err().to_string()
        };
        assert_eq!(
            said("orders", "read", "ONE"),
            "there is no table \"orders\"; `mw policy` lists those there are"
        );
        assert_eq!(
            said("stock", "consistency", "ONE"),
            "a table has no \"consistency\"; it has write, read, showcase, serial, read_repair, gc_grace, repair, ttl and \
             compaction"
        );
        assert!(said("stock", "read", "MOST").starts_with("expected LOCAL_ONE, LOCAL_QUORUM, "));
        assert!(said("stock", "read", "ANY").ends_with("found \"ANY\""));
        assert!(said("stock", "showcase", "ANY").ends_with("found \"ANY\""));
        assert!(said("stock", "write", "SERIAL").ends_with("found \"SERIAL\""));
        assert_eq!(said("stock", "serial", "ONE"), "expected SERIAL or LOCAL_SERIAL, found \"ONE\"");
        assert_eq!(said("stock", "read_repair", "maybe"), "expected BLOCKING or NONE, found \"maybe\"");
        assert_eq!(
            said("stock", "gc_grace", "10"),
            "expected a whole number with a unit (90s, 3h or 10d), found \"10\""
        );
        assert!(said("stock", "ttl", "0s").ends_with("or \"off\", found \"0s\""));
        assert!(said("stock", "compaction", "DTCS").starts_with("expected LCS, "));
    }

    #[test]
    fn a_call_lags_only_where_its_read_can_miss_a_write() {
        let replication = Replication::even("dc1", 3);
        let of = |policy: &Policy, what: &str| {
            let call = CALLS.iter().find(|call| call.what == what).unwrap();
            policy.may_lag(call, &replication, "dc1")
        };
        let mut policy = Policy::default();
        assert_eq!(of(&policy, "a product's card"), Some(SHOWCASE_LAG));
        assert_eq!(of(&policy, "prices when an order is placed"), None);
        policy.set("product_by_id", "showcase", "LOCAL_QUORUM").unwrap();
        assert_eq!(of(&policy, "a product's card"), None);
        policy.set("product_by_id", "read", "LOCAL_ONE").unwrap();
        assert_eq!(of(&policy, "prices when an order is placed"), Some(SHOWCASE_LAG));
    }
}
