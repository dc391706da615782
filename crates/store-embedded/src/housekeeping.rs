//! What is done for the engine beside the commits, on a thread of its own, so that the engine's work comes in small portions.
//!
//! A journal is deleted once every table has flushed what it holds. The engine asks all tables for it in one moment, when
//! the journals have grown to their limit: a second of a processor at once. So each table flushes in its turn before.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fjall::Database;

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
/// The journals that there are while all goes well: those that are full and not yet flushed, and the one that is written.
const JOURNALS_USUAL: usize = 3;
/// A key that no row has.
const NO_ROW: &[u8] = &[0xFF; 32];

/// The writer's end of it.
pub(crate) struct Housekeeping {
    turns: Option<SyncSender<()>>,
    /// Bytes since the last turn.
    bytes: usize,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeping {
    pub(crate) fn start(db: Database, tables: Tables, pace: Arc<Pace>) -> std::io::Result<Self> {
        let (turns, asked) = sync_channel(Table::ALL.len());
        let keeper = Keeper { db, tables, pace, is_hurried: false, next: Table::ALL.iter().cycle() };
        let thread =
            std::thread::Builder::new().name("mw-housekeeping".into()).spawn(move || keeper.run(&asked))?;
        Ok(Self { turns: Some(turns), bytes: 0, thread: Some(thread) })
    }

    /// After a group of so many bytes was committed.
    pub(crate) fn committed(&mut self, bytes: usize) {
        self.bytes += bytes;
        while self.bytes >= TURN_BYTES {
            self.bytes -= TURN_BYTES;
            // Where as many wait as there are tables, each of them will have its turn.
            let _ = self.turns.as_ref().map(|turns| turns.try_send(()));
        }
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        drop(self.turns.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("housekeeping ended abnormally");
        }
    }
}

struct Keeper {
    db: Database,
    tables: Tables,
    pace: Arc<Pace>,
    is_hurried: bool,
    /// Whose turn is next.
    next: std::iter::Cycle<std::slice::Iter<'static, Table>>,
}

impl Keeper {
    fn run(mut self, asked: &Receiver<()>) {
        loop {
            self.look();
            match asked.recv_timeout(LOOK_INTERVAL) {
                Ok(()) => self.turn(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // The store closes, and waits for what is being compacted.
        self.pace.close();
    }

    fn look(&mut self) {
        let waiting = Table::ALL.iter().map(|table| self.tables.get(*table).l0_table_count()).max();
        self.is_hurried = is_to_hurry(waiting.unwrap_or_default(), self.is_hurried);
        self.pace.hurry(self.is_hurried);
    }

    fn turn(&mut self) {
        let Some(table) = self.next.next() else { return };
        if let Err(error) = self.flush(*table) {
            // The engine takes no writes after this; the next commit tells.
            tracing::error!(?error, ?table, "flush a table");
        }
    }

    fn flush(&self, table: Table) -> fjall::Result<()> {
        let keyspace = self.tables.get(table);
        let has_rotated = keyspace.rotate_memtable()?;
        // How far a table is flushed is told by the rows it has. Where a compaction dropped the last of them, the engine waits
        // for the next one before it deletes a journal, and a table may never get one.
        if !has_rotated && self.db.journal_count() > JOURNALS_USUAL {
            keyspace.remove(NO_ROW)?;
            keyspace.rotate_memtable()?;
        }
        Ok(())
    }
}

/// Whether so many tables that wait make compactions hurry; those that do go on until few are left.
const fn is_to_hurry(waiting: usize, is_hurried: bool) -> bool {
    waiting >= if is_hurried { REST_FROM } else { HURRY_FROM }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &std::path::Path) -> (Database, Tables) {
        let db = Database::builder(folder).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        (db, tables)
    }

    #[test]
    fn every_table_has_flushed_before_a_journal_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let (db, tables) = open(folder.path());
        for table in Table::ALL {
            tables.get(table).insert("key", "value").unwrap();
        }
        // The engine flushes for as long as somebody has the database.
        let mut housekeeping = Housekeeping::start(db.clone(), tables.clone(), Arc::default()).unwrap();
        let group = TURN_BYTES / 3;
        for _ in 0..JOURNAL_BYTES / group {
            housekeeping.committed(group);
        }
        // Whatever was asked for is done before it ends.
        drop(housekeeping);
        for table in Table::ALL {
            while tables.get(table).table_count() == 0 {
                let is_about_to = tables.get(table).sealed_memtable_count() > 0;
                assert!(is_about_to, "{table:?} is neither flushed nor about to be");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_group_of_many_bytes_is_as_many_turns() {
        let folder = tempfile::tempdir().unwrap();
        let (db, tables) = open(folder.path());
        tables.get(Table::Meta).insert("key", "value").unwrap();
        // The engine flushes for as long as somebody has the database.
        let mut housekeeping = Housekeeping::start(db.clone(), tables.clone(), Arc::default()).unwrap();
        housekeeping.committed(JOURNAL_BYTES / 2);
        drop(housekeeping);
        while tables.get(Table::Meta).table_count() == 0 {
            assert!(tables.get(Table::Meta).sealed_memtable_count() > 0, "the last table had no turn");
            std::thread::yield_now();
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
        let (db, tables) = open(folder.path());
        let pace = Arc::new(Pace::default());
        let housekeeping = Housekeeping::start(db, tables, Arc::clone(&pace)).unwrap();
        assert!(!pace.is_closing());
        drop(housekeeping);
        assert!(pace.is_closing());
    }
}
