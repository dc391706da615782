//! The rules as options of a real table: what CREATE TABLE … WITH gets and what the live table is compared with.

use std::fmt;
use std::time::Duration;

use super::{Rules, serial_name};
use crate::tables::Table;

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

impl Rules {
    /// `auto_repair` is left out where the nodes do not know that option.
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
        // Processes that disagree about the serial level would not exclude each other, so the level stands at the table.
        if table.nature().is_conditional {
            options.push(option("comment", OptionValue::Text(self.serial_mark())));
        }
        options
    }

    /// Whether the nodes' own schedule takes the table along, and how early: how often it runs is a setting of the nodes.
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

    pub(crate) fn serial_mark(&self) -> String {
        format!("conditional writes at {}", serial_name(self.serial))
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
    fn rules_become_table_options() {
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
                "comment = 'conditional writes at LOCAL_SERIAL'",
            ]
        );
        assert!(!options(Table::Stock, false).concat().contains("auto_repair"));
    }
}
