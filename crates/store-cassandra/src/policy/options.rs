//! The policy as table options: the WITH clause of CREATE TABLE, and what the live table is compared with.

use std::fmt;
use std::time::Duration;

use super::{TablePolicy, serial_name};
use crate::schema::tables::Table;

const DAY: Duration = Duration::from_hours(24);

/// One option of a table, named as in `system_schema.tables`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableOption {
    pub(crate) name: &'static str,
    pub(crate) value: OptionValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OptionValue {
    Seconds(u64),
    Text(String),
    Map(Vec<(&'static str, String)>),
}

impl TablePolicy {
    /// `auto_repair` is omitted for nodes that do not have that option.
    pub(crate) fn options(&self, table: Table, with_auto_repair: bool) -> Vec<TableOption> {
        let option = |name, value| TableOption { name, value };
        let mut options = vec![
            option("compaction", OptionValue::Map(self.compaction.option())),
            option("gc_grace_seconds", OptionValue::Seconds(self.gc_grace.as_secs())),
            option("read_repair", OptionValue::Text(self.read_repair.name().to_owned())),
            option("default_time_to_live", OptionValue::Seconds(self.ttl.map_or(0, |ttl| ttl.as_secs()))),
        ];
        if with_auto_repair {
            options.push(option("auto_repair", OptionValue::Map(self.auto_repair())));
        }
        // LWTs at different serial levels do not exclude each other, so the level is stored with the table, and a process
        // that is configured with another one does not start.
        if table.traits().has_lwt {
            options.push(option("comment", OptionValue::Text(self.serial_comment())));
        }
        options
    }

    /// Whether Cassandra's auto-repair includes the table, and with which priority. Its interval is a setting of the nodes.
    fn auto_repair(&self) -> Vec<(&'static str, String)> {
        let priority = match self.repair {
            Some(interval) if interval <= DAY => 2,
            Some(interval) if interval <= 7 * DAY => 1,
            _ => 0,
        };
        let enabled = self.repair.is_some().to_string();
        vec![
            ("full_enabled", enabled.clone()),
            ("incremental_enabled", enabled.clone()),
            ("preview_repaired_enabled", enabled),
            ("priority", priority.to_string()),
        ]
    }

    /// The table comment that stores the serial level.
    pub(crate) fn serial_comment(&self) -> String {
        format!("LWT serial consistency {}", serial_name(self.serial))
    }
}

impl fmt::Display for TableOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.value)
    }
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seconds(seconds) => write!(f, "{seconds}"),
            Self::Text(text) => write!(f, "'{text}'"),
            Self::Map(entries) => {
                let entries: Vec<String> =
                    entries.iter().map(|(name, value)| format!("'{name}': '{value}'")).collect();
                write!(f, "{{{}}}", entries.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    fn options(table: Table, with_auto_repair: bool) -> Vec<String> {
        let policy = Policy::default();
        policy.of(table).options(table, with_auto_repair).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_policy_becomes_table_options() {
        assert_eq!(
            options(Table::CartChanges, true),
            [
                "compaction = {'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'DAYS', \
                 'compaction_window_size': '1'}",
                "gc_grace_seconds = 86400",
                "read_repair = 'NONE'",
                "default_time_to_live = 2592000",
                "auto_repair = {'full_enabled': 'false', 'incremental_enabled': 'false', \
                 'preview_repaired_enabled': 'false', 'priority': '0'}",
            ]
        );
        assert_eq!(
            options(Table::Stock, true)[1..],
            [
                "gc_grace_seconds = 172800",
                "read_repair = 'BLOCKING'",
                "default_time_to_live = 0",
                "auto_repair = {'full_enabled': 'true', 'incremental_enabled': 'true', \
                 'preview_repaired_enabled': 'true', 'priority': '2'}",
                "comment = 'LWT serial consistency LOCAL_SERIAL'",
            ]
        );
        assert!(!options(Table::Stock, false).concat().contains("auto_repair"));
    }
}
