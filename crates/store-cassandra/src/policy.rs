//! The policy table: per table, how it is written, read and kept.

use scylla::statement::{Consistency, SerialConsistency};

use crate::tables::Table;

/// How one table is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub write: Consistency,
    pub read: Consistency,
    /// Of reads that may show what is a little old.
    pub showcase: Consistency,
    pub serial: SerialConsistency,
}

#[derive(Debug, Clone)]
pub struct Policy {
    rules: Rules,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            rules: Rules {
                write: Consistency::LocalQuorum,
                read: Consistency::LocalQuorum,
                showcase: Consistency::LocalOne,
                serial: SerialConsistency::LocalSerial,
            },
        }
    }
}

impl Policy {
    pub fn of(&self, _table: Table) -> &Rules {
        &self.rules
    }
}
