//! What the writer does for the engine beside its commits, so that the engine's own work comes in small portions.
//!
//! A journal is deleted once every table has flushed what it holds. The engine asks all tables for it in one moment, when
//! the journals have grown to their limit: a second of a processor at once. So each table flushes in its turn before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::compaction::Pace;
use crate::open::JOURNAL_BYTES;
use crate::tables::{Table, Tables};

/// A table's turn comes after so many bytes of rows. All have had theirs well before a journal is full: rows are shorter
/// than what a journal needs for them.
const TURN_BYTES: usize = JOURNAL_BYTES / 2 / Table::ALL.len();
/// How often the tables that wait for a compaction are counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// So many tables of the first level make compactions hurry. The engine compacts from four on, and holds writes up from twenty.
const HURRY_FROM: usize = 12;
/// So many let them rest again.
const REST_FROM: usize = 8;

pub(crate) struct Housekeeping {
    tables: Tables,
    pace: Arc<Pace>,
    is_hurried: bool,
    looked_at: Instant,
    /// Bytes since the last turn.
    bytes: usize,
    /// Whose turn is next.
    turns: std::iter::Cycle<std::slice::Iter<'static, Table>>,
}

impl Housekeeping {
    pub(crate) fn new(tables: Tables, pace: Arc<Pace>) -> Self {
        let turns = Table::ALL.iter().cycle();
        Self { tables, pace, is_hurried: false, looked_at: Instant::now(), bytes: 0, turns }
    }

    /// After a group of so many bytes was committed.
    pub(crate) fn committed(&mut self, bytes: usize) -> fjall::Result<()> {
        if self.looked_at.elapsed() >= LOOK_INTERVAL {
            self.looked_at = Instant::now();
            self.look();
        }
        self.bytes += bytes;
        if self.bytes < TURN_BYTES {
            return Ok(());
        }
        self.bytes = 0;
        match self.turns.next() {
            Some(table) => self.tables.get(*table).rotate_memtable().map(drop),
            None => Ok(()),
        }
    }

    fn look(&mut self) {
        let waiting = Table::ALL.iter().map(|table| self.tables.get(*table).l0_table_count()).max();
        self.is_hurried = is_to_hurry(waiting.unwrap_or_default(), self.is_hurried);
        self.pace.hurry(self.is_hurried);
    }
}

/// Whether so many tables that wait make compactions hurry; those that do go on until few are left.
const fn is_to_hurry(waiting: usize, is_hurried: bool) -> bool {
    waiting >= if is_hurried { REST_FROM } else { HURRY_FROM }
}

impl Drop for Housekeeping {
    /// The store closes, and waits for what is being compacted.
    fn drop(&mut self) {
        self.pace.hurry(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fjall::Database;

    #[test]
    fn every_table_has_flushed_before_a_journal_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let db = Database::builder(folder.path()).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        for table in Table::ALL {
            tables.get(table).insert("key", "value").unwrap();
        }
        let mut housekeeping = Housekeeping::new(tables.clone(), Arc::default());
        let group = TURN_BYTES / 3;
        for _ in 0..JOURNAL_BYTES / group {
            housekeeping.committed(group).unwrap();
        }
        for table in Table::ALL {
            while tables.get(table).table_count() == 0 {
                assert!(
                    tables.get(table).sealed_memtable_count() > 0,
                    "{table:?} is neither flushed nor about to be"
                );
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn compactions_hurry_before_writes_are_held_up_and_until_few_tables_wait() {
        assert!(!is_to_hurry(HURRY_FROM - 1, false));
        assert!(is_to_hurry(HURRY_FROM, false));
        assert!(is_to_hurry(REST_FROM, true));
        assert!(!is_to_hurry(REST_FROM - 1, true));
    }

    #[test]
    fn closing_does_not_wait_for_compactions_that_rest() {
        let folder = tempfile::tempdir().unwrap();
        let db = Database::builder(folder.path()).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        let pace = Arc::new(Pace::default());
        let housekeeping = Housekeeping::new(tables, Arc::clone(&pace));
        assert!(!pace.is_hurried());
        drop(housekeeping);
        assert!(pace.is_hurried());
    }
}
