//! The policy: consistency levels, read repair, `gc_grace`, repair interval, TTL and compaction of every table.
//!
//! It has one source: the defaults in `defaults.rs`, overridden by the configuration. The consistency of statements
//! (`driver/statements.rs`), the table options (`schema.rs`) and the output of `mw policy` follow from it. A combination
//! that may lose or resurrect data is refused before the process connects (`validation.rs`).

mod compaction;
mod defaults;
mod duration;
mod level;
mod options;
mod staleness;
mod validation;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use scylla::statement::{Consistency, SerialConsistency};

use crate::schema::Replication;
use crate::schema::tables::Table;
pub use compaction::Compaction;
pub use duration::format as format_duration;
pub use level::{name as level_name, serial_name};
pub(crate) use options::{OptionValue, TableOption};
pub use staleness::MAX_STALENESS;
pub use validation::PolicyViolation;

/// The policy of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePolicy {
    pub write: Consistency,
    pub read: Consistency,
    /// Consistency level of reads that may be stale.
    pub stale_read: Consistency,
    /// Serial consistency level of LWTs, and of the reads that look for the result of one.
    pub serial: SerialConsistency,
    pub read_repair: ReadRepair,
    /// How long a tombstone is kept; a hint expires after the same time.
    pub gc_grace: Duration,
    /// How often anti-entropy repair runs; `None`: never.
    pub repair: Option<Duration>,
    /// The default TTL of the table.
    pub ttl: Option<Duration>,
    pub compaction: Compaction,
}

/// What a read does when replicas differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadRepair {
    /// Writes the newest row to the replicas that were read before it returns: quorum reads are monotonic.
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

/// How the engine uses a table. The configuration does not change this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableTraits {
    /// Some of its writes are LWTs.
    pub has_lwt: bool,
    /// A read at the table's read level must see every acknowledged write.
    pub is_read_back: bool,
    /// Every row has a TTL.
    pub expires: bool,
    pub resurrected_rows: ResurrectedRows,
}

/// What a deleted row does that reappears because its tombstone was purged early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResurrectedRows {
    Harmful,
    /// Rows are never deleted, or the reader checks such a row before it acts on it.
    Harmless,
}

/// The policy of every table.
#[derive(Debug, Clone)]
pub struct Policy {
    tables: BTreeMap<Table, TablePolicy>,
    /// Makes `of` total; every table is in `tables`.
    fallback: TablePolicy,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            tables: Table::ALL.iter().map(|table| (*table, defaults::policy(*table))).collect(),
            fallback: defaults::STRICT,
        }
    }
}

/// A policy setting that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    #[error("there is no table {0:?}; `mw policy` lists the tables")]
    UnknownTable(String),
    #[error("there is no policy setting {0:?}; a table has {KEYS}")]
    UnknownKey(String),
    #[error("expected {expected}, found {found:?}")]
    BadValue { expected: &'static str, found: String },
}

const KEYS: &str = "write, read, stale_read, serial, read_repair, gc_grace, repair, ttl and compaction";
const LEVELS: &str =
    "LOCAL_ONE, LOCAL_QUORUM, ONE, TWO, THREE, QUORUM, EACH_QUORUM or ALL, and for write also ANY";

impl Policy {
    pub fn of(&self, table: Table) -> &TablePolicy {
        self.tables.get(&table).unwrap_or(&self.fallback)
    }

    /// Sets one key of one table, as the configuration spells it.
    pub fn set(&mut self, table: &str, key: &str, value: &str) -> Result<(), SettingError> {
        let table = Table::named(table).ok_or_else(|| SettingError::UnknownTable(table.to_owned()))?;
        let policy = self.tables.entry(table).or_insert(defaults::STRICT);
        let bad = |expected| SettingError::BadValue { expected, found: value.to_owned() };
        let level = |allows_any| {
            level::named(value).filter(|level| allows_any || *level != Consistency::Any).ok_or(bad(LEVELS))
        };
        let duration = || duration::parse(value).ok_or(bad("a whole number with a unit (90s, 3h or 10d)"));
        let duration_or_off = || {
            if value.eq_ignore_ascii_case("off") {
                return Ok(None);
            }
            let expected = "a whole number with a unit (90s, 3h or 10d), or \"off\"";
            duration::parse(value).filter(|duration| !duration.is_zero()).map(Some).ok_or(bad(expected))
        };
        match key {
            "write" => policy.write = level(true)?,
            "read" => policy.read = level(false)?,
            "stale_read" => policy.stale_read = level(false)?,
            "serial" => policy.serial = level::serial_named(value).ok_or(bad("SERIAL or LOCAL_SERIAL"))?,
            "read_repair" => {
                policy.read_repair = [ReadRepair::Blocking, ReadRepair::None]
                    .into_iter()
                    .find(|known| known.name().eq_ignore_ascii_case(value))
                    .ok_or(bad("BLOCKING or NONE"))?;
            }
            "gc_grace" => policy.gc_grace = duration()?,
            "repair" => policy.repair = duration_or_off()?,
            "ttl" => policy.ttl = duration_or_off()?,
            "compaction" => policy.compaction = value.parse().map_err(|()| bad(compaction::EXPECTED))?,
            other => return Err(SettingError::UnknownKey(other.to_owned())),
        }
        Ok(())
    }

    /// Every combination that may lose or resurrect data, for processes in `local_dc`. The nodes keep hints for a replica
    /// that is down for `hint_window` at most.
    pub fn check(
        &self,
        replication: &Replication,
        local_dc: &str,
        hint_window: Duration,
    ) -> Vec<PolicyViolation> {
        let context = validation::ClusterContext { replication, local_dc, hint_window };
        Table::ALL.iter().flat_map(|table| context.check(*table, self.of(*table))).collect()
    }

    /// How long writes to this table are hinted for a replica that is down.
    pub fn hint_window(&self, table: Table, hint_window: Duration) -> Duration {
        self.of(table).gc_grace.min(hint_window)
    }
}

impl Table {
    pub const fn traits(self) -> TableTraits {
        defaults::traits(self)
    }

    /// Why its policy is what it is, where that is not obvious.
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
    fn every_table_has_a_policy() {
        let policy = Policy::default();
        assert_eq!(policy.tables.len(), Table::ALL.len());
    }

    #[test]
    fn the_configuration_sets_every_key() {
        let mut policy = Policy::default();
        for (key, value) in [
            ("write", "all"),
            ("read", "ONE"),
            ("stale_read", "QUORUM"),
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
            TablePolicy {
                write: Consistency::All,
                read: Consistency::One,
                stale_read: Consistency::Quorum,
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
        let set = policy.of(Table::OrdersByDay);
        assert_eq!((set.repair, set.ttl), (None, None));
    }

    #[test]
    fn a_setting_that_does_not_parse_names_what_is_expected() {
        let error = |table: &str, key: &str, value: &str| {
            Policy::default().set(table, key, value).unwrap_err().to_string()
        };
        assert_eq!(
            error("orders", "read", "ONE"),
            "there is no table \"orders\"; `mw policy` lists the tables"
        );
        assert_eq!(
            error("stock", "consistency", "ONE"),
            "there is no policy setting \"consistency\"; a table has write, read, stale_read, serial, read_repair, gc_grace, repair, ttl and \
             compaction"
        );
        assert!(error("stock", "read", "MOST").starts_with("expected LOCAL_ONE, LOCAL_QUORUM, "));
        assert!(error("stock", "read", "ANY").ends_with("found \"ANY\""));
        assert!(error("stock", "stale_read", "ANY").ends_with("found \"ANY\""));
        assert!(error("stock", "write", "SERIAL").ends_with("found \"SERIAL\""));
        assert_eq!(error("stock", "serial", "ONE"), "expected SERIAL or LOCAL_SERIAL, found \"ONE\"");
        assert_eq!(error("stock", "read_repair", "maybe"), "expected BLOCKING or NONE, found \"maybe\"");
        assert_eq!(
            error("stock", "gc_grace", "10"),
            "expected a whole number with a unit (90s, 3h or 10d), found \"10\""
        );
        assert!(error("stock", "ttl", "0s").ends_with("or \"off\", found \"0s\""));
        assert!(error("stock", "compaction", "DTCS").starts_with("expected LCS, "));
    }
}
