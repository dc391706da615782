//! The running batch: commands run one after another on the writer's thread, and their rows are committed together.
//!
//! Invariants: a command sees the rows of all commands before it; a refused command leaves no row, because an undo log rolls it
//! back before the next one runs; a batch is one fjall write batch with one sync, so it is on disk completely or not at all.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fjall::{Database, OwnedWriteBatch, PersistMode, Slice};
use mw_codec::changes::ChangeRef;
use mw_domain::Timestamp;
use mw_store::Result;

use crate::archive::Archive;
use crate::cache::ReadCache;
use crate::changes::{Feed, PendingChanges};
use crate::holds::{HoldChange, HoldEnd, HoldIndex};
use crate::keys::Key;
use crate::open::write_format;
use crate::reader::{KeyRange, Reader, RowVisitor, storage_error};
use crate::row_cache::RowCache;
use crate::sales::{HOURLY_FROM_KEY, HourlyFrom};
use crate::tables::{Table, Tables};
use crate::timers::NextTimers;

/// Rows to be written; `None` removes one.
type Pending = HashMap<Slice, Option<Slice>>;

/// A pending row as it was before a write; the outer `None`: the batch had not written it.
type UndoEntry = (Table, Slice, Option<Option<Slice>>);

/// The row of [`Table::Meta`] with the commit sequence number.
pub(crate) const COMMIT_SEQUENCE_KEY: &[u8] = b"commit_sequence";

pub(crate) struct Tx {
    db: Database,
    tables: Tables,
    row_cache: RowCache,
    pending: Vec<Pending>,
    undo_log: Vec<UndoEntry>,
    /// Entries that were discarded from the undo log so far: their writes are final.
    undo_discarded: usize,
    /// The commit sequence number: how many batches this store has committed.
    commit_sequence: u64,
    /// Lower bounds of the earliest timers, with the pending rows.
    pub(crate) next_timers: NextTimers,
    /// Which sums count a sale.
    pub(crate) hourly_from: HourlyFrom,
    /// The directory whose version is renewed before the first commit.
    outdated: Option<PathBuf>,
    /// The open holds of the last batch.
    holds: Arc<HoldIndex>,
    /// The holds that the running batch has opened and closed.
    hold_changes: Vec<HoldChange>,
    /// How many of them are final.
    hold_changes_final: usize,
    /// What the running batch adds to the change feed.
    changes: PendingChanges,
    commit_batch: CommitBatch,
    archive: Option<Archive>,
}

/// Writes a batch to the journal, makes it durable as the mode says, and then makes it visible. Injected by tests.
pub(crate) type CommitBatch = Box<dyn FnMut(OwnedWriteBatch, PersistMode) -> fjall::Result<()> + Send>;

fn commit_batch(batch: OwnedWriteBatch, mode: PersistMode) -> fjall::Result<()> {
    batch.durability(Some(mode)).commit()
}

/// What the first batch starts with.
pub(crate) struct TxStart {
    pub(crate) commit_sequence: u64,
    pub(crate) next_timers: NextTimers,
    pub(crate) hourly_from: HourlyFrom,
    pub(crate) outdated: Option<PathBuf>,
    pub(crate) holds: Arc<HoldIndex>,
    pub(crate) archive: Option<Archive>,
    pub(crate) feed: Arc<Feed>,
}

#[cfg(test)]
impl TxStart {
    /// Of a new store.
    pub(crate) fn new() -> Self {
        Self {
            commit_sequence: 0,
            next_timers: NextTimers::NONE,
            hourly_from: HourlyFrom { hour: i64::MIN, is_stored: false },
            outdated: None,
            holds: Arc::default(),
            archive: None,
            feed: Arc::new(Feed::new()),
        }
    }
}

/// What a commit wrote.
#[derive(Debug)]
pub(crate) struct Committed {
    /// Rows of the tables that the read cache covers.
    pub(crate) changed: Vec<(Table, Slice)>,
    /// Keys and values of all rows.
    pub(crate) bytes: usize,
    /// How long it took to write and sync the journal.
    pub(crate) synced_in: Duration,
}

impl Tx {
    pub(crate) fn new(db: Database, tables: Tables, row_cache: RowCache, start: TxStart) -> Self {
        let TxStart { commit_sequence, next_timers, hourly_from, outdated, holds, archive, feed } = start;
        Self {
            db,
            tables,
            row_cache,
            pending: Table::ALL.iter().map(|_| Pending::new()).collect(),
            undo_log: Vec::new(),
            undo_discarded: 0,
            commit_sequence,
            next_timers,
            hourly_from,
            outdated,
            holds,
            hold_changes: Vec::new(),
            hold_changes_final: 0,
            changes: PendingChanges::new(feed),
            commit_batch: Box::new(commit_batch),
            archive,
        }
    }

    #[cfg(test)]
    pub(crate) fn with_commit_batch(self, commit_batch: CommitBatch) -> Self {
        Self { commit_batch, ..self }
    }

    /// Runs a command, or a part of one; an error rolls its writes back.
    pub(crate) fn attempt<T>(&mut self, command: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let (timers_before, savepoint) = (self.next_timers, self.undo_discarded + self.undo_log.len());
        let hold_changes_before = self.hold_changes.len();
        let changes_before = self.changes.count();
        let result = command(self);
        if result.is_err() {
            self.roll_back_to(savepoint.saturating_sub(self.undo_discarded));
            self.hold_changes.truncate(hold_changes_before.max(self.hold_changes_final));
            self.changes.roll_back_to(changes_before);
            // The timers that the command removed are back.
            self.next_timers = self.next_timers.min(timers_before);
        }
        result
    }

    /// Runs a whole command.
    pub(crate) fn run<T>(&mut self, command: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let result = self.attempt(command);
        self.discard_undo_log();
        result
    }

    /// Makes the writes of the running command so far final, even if the command is refused later.
    pub(crate) fn discard_undo_log(&mut self) {
        self.undo_discarded += self.undo_log.len();
        self.undo_log.clear();
        self.hold_changes_final = self.hold_changes.len();
        self.changes.make_final();
    }

    /// Adds a change of the running command to the feed.
    pub(crate) fn record_change(&mut self, at: Timestamp, change: ChangeRef<'_>) {
        self.changes.record(at, change);
    }

    /// Tells readers of the feed that the last batch is visible.
    pub(crate) fn publish_changes(&self) {
        self.changes.publish();
    }

    /// Notes what the running command does to the open holds.
    pub(crate) fn change_holds(&mut self, changes: impl Iterator<Item = HoldChange>) {
        self.hold_changes.extend(changes);
    }

    /// Up to `limit` holds of a stock level that ended by `now` and still count as reserved.
    pub(crate) fn ended_holds(&self, stock_key: &[u8], now: Timestamp, limit: usize) -> Vec<HoldEnd> {
        self.holds.pending_ends(stock_key, now, &self.hold_changes, limit)
    }

    /// The units of all holds of a stock level that ended by `now` and still count as reserved.
    pub(crate) fn ended_units(&self, stock_key: &[u8], now: Timestamp) -> u64 {
        if now < self.next_timers.hold {
            return 0;
        }
        self.holds.pending_units(stock_key, now, &self.hold_changes)
    }

    pub(crate) fn put(&mut self, table: Table, key: Key, value: Vec<u8>) {
        self.write(table, key.into(), Some(value.into()));
    }

    pub(crate) fn remove(&mut self, table: Table, key: Key) {
        self.write(table, key.into(), None);
    }

    fn write(&mut self, table: Table, key: Slice, value: Option<Slice>) {
        let before = self.pending_mut(table).insert(key.clone(), value);
        self.undo_log.push((table, key, before));
    }

    fn roll_back_to(&mut self, savepoint: usize) {
        while self.undo_log.len() > savepoint {
            let Some((table, key, before)) = self.undo_log.pop() else { return };
            match before {
                Some(value) => self.pending_mut(table).insert(key, value),
                None => self.pending_mut(table).remove(&key),
            };
        }
    }

    #[expect(clippy::indexing_slicing, reason = "one map was made for each table")]
    fn pending_mut(&mut self, table: Table) -> &mut Pending {
        &mut self.pending[table as usize]
    }

    #[expect(clippy::indexing_slicing, reason = "one map was made for each table")]
    fn pending(&self, table: Table) -> &Pending {
        &self.pending[table as usize]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.iter().all(HashMap::is_empty)
    }

    /// Commits all pending rows as one batch and returns once it is synced.
    ///
    /// The commit sequence number is a row of the batch. A crash therefore leaves rows and number of the whole batch or of
    /// none; `open.rs` compares the number with the one that it saved outside of the journal.
    pub(crate) fn commit(&mut self) -> fjall::Result<Committed> {
        if let Some(path) = &self.outdated {
            // A crash after this leaves the new version without newer values, which this release reads as well.
            write_format(path).map_err(fjall::Error::Io)?;
            self.outdated = None;
        }
        if !self.hourly_from.is_stored {
            let hour = self.hourly_from.hour.to_be_bytes().as_slice().into();
            self.pending_mut(Table::Meta).insert(HOURLY_FROM_KEY.into(), Some(hour));
            self.hourly_from.is_stored = true;
        }
        for (key, row) in self.changes.take_rows() {
            self.pending_mut(Table::Changes).insert(key.into(), Some(row.into()));
        }
        self.commit_sequence += 1;
        let sequence = self.commit_sequence.to_be_bytes().as_slice().into();
        self.pending_mut(Table::Meta).insert(COMMIT_SEQUENCE_KEY.into(), Some(sequence));
        let rows = self.pending.iter().map(HashMap::len).sum();
        let mut batch = OwnedWriteBatch::with_capacity(self.db.clone(), rows);
        let mut changed = Vec::new();
        let mut bytes = 0;
        for (table, pending) in Table::ALL.iter().zip(&mut self.pending) {
            // Most batches write to few of the tables.
            if pending.is_empty() {
                continue;
            }
            let keyspace = self.tables.get(*table);
            let is_cached = ReadCache::covers(*table);
            for (key, value) in pending.drain() {
                if is_cached {
                    changed.push((*table, key.clone()));
                }
                bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
                // Cached before the commit: after a failed one no command runs that could read it.
                self.row_cache.put(*table, &key, value.as_ref());
                if let Some(archive) = &mut self.archive {
                    archive.add(*table, &key, value.as_ref());
                }
                match value {
                    Some(value) => batch.insert(keyspace, key, value),
                    None => batch.remove(keyspace, key),
                }
            }
        }
        // Before the batch is visible: readers of an older snapshot take the changes back.
        self.holds.apply(self.commit_sequence, &mut self.hold_changes);
        self.hold_changes_final = 0;
        if let Some(archive) = &mut self.archive {
            // A crash after this leaves a group in the archive that was never committed; the next open removes it.
            archive.append(self.commit_sequence).map_err(|error| {
                let path = archive.path().display();
                fjall::Error::Io(std::io::Error::new(error.kind(), format!("write archive {path}: {error}")))
            })?;
        }
        let began = Instant::now();
        // Returns once the batch is synced, and only then readers see it.
        (self.commit_batch)(batch, PersistMode::SyncData)?;
        Ok(Committed { changed, bytes, synced_in: began.elapsed() })
    }
}

impl Reader for Tx {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        if let Some(value) = self.pending(table).get(key) {
            return Ok(value.clone());
        }
        if let Some(value) = self.row_cache.get(table, key) {
            return Ok(Some(value.clone()));
        }
        // Only this thread writes, so the latest row is the one of the last batch.
        self.tables.get(table).get(key).map_err(|error| storage_error(table, &error))
    }

    fn scan(&self, table: Table, range: &KeyRange, reverse: bool, visit: RowVisitor<'_>) -> Result<()> {
        let mut pending: Vec<(&Slice, &Option<Slice>)> =
            self.pending(table).iter().filter(|(key, _)| range.contains(key)).collect();
        pending.sort_unstable_by(|(a, _), (b, _)| if reverse { b.cmp(a) } else { a.cmp(b) });
        let mut pending = pending.into_iter().peekable();

        let precedes = |a: &[u8], b: &[u8]| if reverse { a > b } else { a < b };
        let keyspace = self.tables.get(table);
        let mut rows = match &range.to {
            Some(to) if *to <= range.from => return Ok(()),
            Some(to) => keyspace.range(range.from.as_slice()..to.as_slice()),
            None => keyspace.range(range.from.as_slice()..),
        };
        while let Some(row) = if reverse { rows.next_back() } else { rows.next() } {
            let (key, value) = row.into_inner().map_err(|error| storage_error(table, &error))?;
            while let Some((own, value)) = pending.next_if(|(own, _)| precedes(own, &key)) {
                if visit_present(own, value.as_ref(), visit)?.is_break() {
                    return Ok(());
                }
            }
            let flow = match pending.next_if(|(own, _)| own.as_ref() == key.as_ref()) {
                Some((own, value)) => visit_present(own, value.as_ref(), visit)?,
                None => visit(&key, &value)?,
            };
            if flow.is_break() {
                return Ok(());
            }
        }
        for (own, value) in pending {
            if visit_present(own, value.as_ref(), visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn visit_present(key: &Slice, value: Option<&Slice>, visit: RowVisitor<'_>) -> Result<ControlFlow<()>> {
    value.map_or(Ok(ControlFlow::Continue(())), |value| visit(key, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_store::{Refusal, StoreError};

    const TABLE: Table = Table::Products;

    fn tx(folder: &std::path::Path) -> Tx {
        let db = Database::builder(folder).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        Tx::new(db, tables, RowCache::new(1 << 20), TxStart::new())
    }

    fn keys(tx: &Tx, range: &KeyRange, reverse: bool) -> String {
        let mut found = Vec::new();
        tx.scan(TABLE, range, reverse, &mut |key, value| {
            found.push(format!("{}{}", String::from_utf8_lossy(key), String::from_utf8_lossy(value)));
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
        found.join(" ")
    }

    fn put(tx: &mut Tx, rows: &[(&str, &str)]) {
        for (key, value) in rows {
            tx.put(TABLE, key.as_bytes().to_vec(), value.as_bytes().to_vec());
        }
    }

    #[test]
    fn a_scan_merges_stored_and_pending_rows_in_key_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut tx = tx(folder.path());
        put(&mut tx, &[("b", "1"), ("d", "1"), ("f", "1"), ("z", "1")]);
        tx.commit().unwrap();
        put(&mut tx, &[("a", "2"), ("d", "2"), ("e", "2"), ("g", "2")]);
        tx.remove(TABLE, b"f".to_vec());
        let all = KeyRange { from: Vec::new(), to: Some(b"x".to_vec()) };
        assert_eq!(keys(&tx, &all, false), "a2 b1 d2 e2 g2");
        assert_eq!(keys(&tx, &all, true), "g2 e2 d2 b1 a2");
        let part = KeyRange { from: b"b".to_vec(), to: Some(b"e".to_vec()) };
        assert_eq!(keys(&tx, &part, false), "b1 d2");
        let none = KeyRange { from: b"e".to_vec(), to: Some(b"b".to_vec()) };
        assert_eq!(keys(&tx, &none, false), "");
    }

    #[test]
    fn a_refused_command_is_rolled_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut tx = tx(folder.path());
        put(&mut tx, &[("a", "1")]);
        tx.commit().unwrap();
        tx.run(|tx| {
            put(tx, &[("b", "1")]);
            Ok(())
        })
        .unwrap();
        let refused: Result<()> = tx.run(|tx| {
            put(tx, &[("final", "1")]);
            tx.discard_undo_log();
            put(tx, &[("a", "2"), ("b", "2"), ("b", "3"), ("c", "2")]);
            tx.remove(TABLE, b"a".to_vec());
            Err(Refusal::CartEmpty.into())
        });
        assert_eq!(refused, Err(StoreError::from(Refusal::CartEmpty)));
        assert_eq!(keys(&tx, &KeyRange::prefix(Vec::new()), false), "a1 b1 final1");
    }

    #[test]
    fn a_failed_part_is_rolled_back_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut tx = tx(folder.path());
        let whole = |tx: &mut Tx, outcome: Result<()>| {
            tx.run(|tx| {
                put(tx, &[("a", "1")]);
                let part: Result<()> = tx.attempt(|tx| {
                    put(tx, &[("a", "2"), ("b", "2")]);
                    Err(Refusal::CartEmpty.into())
                });
                assert!(part.is_err());
                tx.attempt(|tx| {
                    put(tx, &[("c", "3")]);
                    Ok(())
                })?;
                outcome
            })
        };
        assert!(whole(&mut tx, Err(Refusal::CartEmpty.into())).is_err());
        assert_eq!(keys(&tx, &KeyRange::prefix(Vec::new()), false), "");
        assert!(whole(&mut tx, Ok(())).is_ok());
        assert_eq!(keys(&tx, &KeyRange::prefix(Vec::new()), false), "a1 c3");
    }

    #[test]
    fn a_refused_command_does_not_raise_a_timer_bound() {
        let folder = tempfile::tempdir().unwrap();
        let mut tx = tx(folder.path());
        tx.next_timers.hold = Timestamp::from_millis(5);
        let refused: Result<()> = tx.attempt(|tx| {
            tx.next_timers.hold = Timestamp::MAX;
            Err(Refusal::CartEmpty.into())
        });
        assert!(refused.is_err());
        assert_eq!(tx.next_timers.hold, Timestamp::from_millis(5));
    }
}
