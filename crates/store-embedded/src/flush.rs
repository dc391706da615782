//! Flush scheduler: flushes one table at a time, round robin, on a thread of its own, and steers the compaction throttle.
//!
//! fjall deletes a journal once every table has flushed the rows in it. At its journal limit it flushes all tables at once,
//! which takes a processor for about a second. Flushing round robin before that limit spreads the work. Flushing never
//! decides about durability: a crash before, during or after a flush leaves the rows in the journal, and the next open
//! replays them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fjall::Database;

use crate::compaction::CompactionThrottle;
use crate::open::JOURNAL_BYTES;
use crate::tables::{Table, Tables};

/// Committed bytes of rows between two flushes. All tables have flushed well before a journal is full: a row is shorter
/// than its journal entry.
const FLUSH_INTERVAL_BYTES: usize = JOURNAL_BYTES / 2 / Table::ALL.len();
/// How often the tables in level 0 are counted.
const BACKLOG_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Tables in level 0 from which on compactions are behind. fjall compacts from four on and stalls writes from twenty.
const BACKLOG_BEGIN_L0_TABLES: usize = 12;
/// Below so many tables the backlog is over.
const BACKLOG_END_L0_TABLES: usize = 8;
/// Journals in normal operation: the full ones that are not flushed yet, and the active one.
const JOURNALS_EXPECTED: usize = 3;
/// A key that no row has.
const ABSENT_KEY: &[u8] = &[0xFF; 32];

/// The writer's handle of the flush thread. Dropping it runs the requested flushes and ends the thread.
pub(crate) struct FlushScheduler {
    requests: Option<SyncSender<()>>,
    /// Committed bytes since the last request.
    bytes: usize,
    thread: Option<JoinHandle<()>>,
}

impl FlushScheduler {
    pub(crate) fn start(
        db: Database,
        tables: Tables,
        throttle: Arc<CompactionThrottle>,
    ) -> std::io::Result<Self> {
        let (requests, requested) = sync_channel(Table::ALL.len());
        let flusher = Flusher { db, tables, throttle, is_backlogged: false, next: Table::ALL.iter().cycle() };
        let thread =
            std::thread::Builder::new().name("mw-flush".into()).spawn(move || flusher.run(&requested))?;
        Ok(Self { requests: Some(requests), bytes: 0, thread: Some(thread) })
    }

    /// Requests flushes for a batch of so many bytes that was committed.
    pub(crate) fn committed(&mut self, bytes: usize) {
        self.bytes += bytes;
        while self.bytes >= FLUSH_INTERVAL_BYTES {
            self.bytes -= FLUSH_INTERVAL_BYTES;
            // A full queue already holds a request for every table.
            let _ = self.requests.as_ref().map(|requests| requests.try_send(()));
        }
    }
}

impl Drop for FlushScheduler {
    fn drop(&mut self) {
        drop(self.requests.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("stop flush thread: it panicked; rows that were not flushed are in the journal");
        }
    }
}

/// What the flush thread owns.
struct Flusher {
    db: Database,
    tables: Tables,
    throttle: Arc<CompactionThrottle>,
    is_backlogged: bool,
    /// The round-robin order.
    next: std::iter::Cycle<std::slice::Iter<'static, Table>>,
}

impl Flusher {
    fn run(mut self, requested: &Receiver<()>) {
        loop {
            self.update_throttle();
            match requested.recv_timeout(BACKLOG_CHECK_INTERVAL) {
                Ok(()) => self.flush_next(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // Closing the database waits for running compactions.
        self.throttle.close();
    }

    fn update_throttle(&mut self) {
        let l0_tables = Table::ALL.iter().map(|table| self.tables.get(*table).l0_table_count()).max();
        self.is_backlogged = is_backlogged(l0_tables.unwrap_or_default(), self.is_backlogged);
        self.throttle.set_backlogged(self.is_backlogged);
    }

    fn flush_next(&mut self) {
        let Some(table) = self.next.next() else { return };
        if let Err(error) = self.flush(*table) {
            // fjall refuses every write from here on; the writer reports it at the next commit.
            tracing::error!(?error, ?table, "flush table: writes stop; check the disk, then restart mw");
        }
    }

    fn flush(&self, table: Table) -> fjall::Result<()> {
        let keyspace = self.tables.get(table);
        let has_rotated = keyspace.rotate_memtable()?;
        // fjall derives how far a table is flushed from the rows that the table has. After a compaction that dropped all of
        // them it keeps every journal until the table's next row, which may never come; a tombstone serves as that row.
        if !has_rotated && self.db.journal_count() > JOURNALS_EXPECTED {
            keyspace.remove(ABSENT_KEY)?;
            keyspace.rotate_memtable()?;
        }
        Ok(())
    }
}

/// Whether compactions are behind, with hysteresis.
const fn is_backlogged(l0_tables: usize, was_backlogged: bool) -> bool {
    l0_tables >= if was_backlogged { BACKLOG_END_L0_TABLES } else { BACKLOG_BEGIN_L0_TABLES }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &std::path::Path) -> (Database, Tables) {
        let db = Database::builder(folder).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        (db, tables)
    }

    /// Waits for the flush of a table whose memtable is sealed. fjall flushes for as long as a database handle exists.
    fn wait_for_flush(tables: &Tables, table: Table) {
        loop {
            // Read first: a memtable that is no longer sealed has become a table.
            let is_sealed = tables.get(table).sealed_memtable_count() > 0;
            if tables.get(table).table_count() > 0 {
                return;
            }
            assert!(is_sealed, "{table:?} is neither flushed nor about to be");
            std::thread::yield_now();
        }
    }

    #[test]
    fn every_table_has_flushed_before_a_journal_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let (db, tables) = open(folder.path());
        for table in Table::ALL {
            tables.get(table).insert("key", "value").unwrap();
        }
        let mut scheduler = FlushScheduler::start(db.clone(), tables.clone(), Arc::default()).unwrap();
        let batch_bytes = FLUSH_INTERVAL_BYTES / 3;
        for _ in 0..JOURNAL_BYTES / batch_bytes {
            scheduler.committed(batch_bytes);
        }
        // Runs all requested flushes first.
        drop(scheduler);
        for table in Table::ALL {
            wait_for_flush(&tables, table);
        }
    }

    #[test]
    fn a_large_batch_requests_several_flushes() {
        let folder = tempfile::tempdir().unwrap();
        let (db, tables) = open(folder.path());
        tables.get(Table::Meta).insert("key", "value").unwrap();
        let mut scheduler = FlushScheduler::start(db.clone(), tables.clone(), Arc::default()).unwrap();
        scheduler.committed(JOURNAL_BYTES / 2);
        drop(scheduler);
        wait_for_flush(&tables, Table::Meta);
    }

    #[test]
    fn a_backlog_begins_before_writes_stall_and_ends_with_few_tables() {
        assert!(!is_backlogged(BACKLOG_BEGIN_L0_TABLES - 1, false));
        assert!(is_backlogged(BACKLOG_BEGIN_L0_TABLES, false));
        assert!(is_backlogged(BACKLOG_END_L0_TABLES, true));
        assert!(!is_backlogged(BACKLOG_END_L0_TABLES - 1, true));
    }

    #[test]
    fn closing_ends_the_pauses_of_compactions() {
        let folder = tempfile::tempdir().unwrap();
        let (db, tables) = open(folder.path());
        let throttle = Arc::new(CompactionThrottle::default());
        let scheduler = FlushScheduler::start(db, tables, Arc::clone(&throttle)).unwrap();
        assert!(!throttle.is_closing());
        drop(scheduler);
        assert!(throttle.is_closing());
    }
}
