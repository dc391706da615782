//! A group of commands on its way to disk.
//!
//! Commands of a group run one after another on the writer's thread, each seeing what those before it wrote. A refused
//! command leaves nothing behind: its writes are undone before the next one runs. What is left is committed as one batch.

use std::collections::HashMap;
use std::ops::ControlFlow;

use fjall::{Database, OwnedWriteBatch, PersistMode, Slice};
use mw_domain::Timestamp;
use mw_store::Result;

use crate::keys::Key;
use crate::recent::Recent;
use crate::shelf::Shelf;
use crate::tables::{Table, Tables};
use crate::view::{Look, Span, Visit, storage_error};

/// A row to be: `None` removes it.
type Pending = HashMap<Slice, Option<Slice>>;

/// How a row was before the running command touched it; the outer `None`: untouched by the group.
type Undo = (Table, Slice, Option<Option<Slice>>);

/// Where the number of committed groups is stored, in the table of facts about the store.
pub(crate) const GROUPS_KEY: &[u8] = b"groups";

pub(crate) struct Tx {
    db: Database,
    tables: Tables,
    recent: Recent,
    pending: Vec<Pending>,
    undo: Vec<Undo>,
    /// How many writes can no longer be undone.
    kept: usize,
    /// How many groups were ever committed.
    groups: u64,
    /// What is due next, as far as this group knows.
    pub(crate) due: Due,
}

/// Lower bounds of when something is due next: nothing is due before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) hold: Timestamp,
    pub(crate) payment: Timestamp,
}

/// What a commit did.
#[derive(Debug)]
pub(crate) struct Committed {
    /// The rows that the shelf shows.
    pub(crate) changed: Vec<(Table, Slice)>,
    /// Of all rows, with their keys.
    pub(crate) bytes: usize,
}

impl Tx {
    pub(crate) fn new(db: Database, tables: Tables, recent: Recent, groups: u64, due: Due) -> Self {
        let pending = Table::ALL.iter().map(|_| Pending::new()).collect();
        Self { db, tables, recent, pending, undo: Vec::new(), kept: 0, groups, due }
    }

    /// Runs a command, or a part of one; where it fails, it is as if it had not run.
    pub(crate) fn attempt<T>(&mut self, command: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let (due, mark) = (self.due, self.kept + self.undo.len());
        let result = command(self);
        if result.is_err() {
            self.undo_to(mark.saturating_sub(self.kept));
            // A lower bound may only rise with the command that settled what was due.
            self.due = Due { hold: self.due.hold.min(due.hold), payment: self.due.payment.min(due.payment) };
        }
        result
    }

    /// Runs a whole command.
    pub(crate) fn run<T>(&mut self, command: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let result = self.attempt(command);
        self.keep();
        result
    }

    /// What the running command has written so far stays, also if the rest of it is refused.
    pub(crate) fn keep(&mut self) {
        self.kept += self.undo.len();
        self.undo.clear();
    }

    pub(crate) fn put(&mut self, table: Table, key: Key, value: Vec<u8>) {
        self.write(table, key.into(), Some(value.into()));
    }

    pub(crate) fn remove(&mut self, table: Table, key: Key) {
        self.write(table, key.into(), None);
    }

    fn write(&mut self, table: Table, key: Slice, value: Option<Slice>) {
        let before = self.pending_mut(table).insert(key.clone(), value);
        self.undo.push((table, key, before));
    }

    fn undo_to(&mut self, mark: usize) {
        while self.undo.len() > mark {
            let Some((table, key, before)) = self.undo.pop() else { return };
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

    /// Writes all that is pending as one batch, and answers once it is on disk.
    pub(crate) fn commit(&mut self) -> fjall::Result<Committed> {
        self.groups += 1;
        let count = self.groups.to_be_bytes().as_slice().into();
        self.pending_mut(Table::Meta).insert(GROUPS_KEY.into(), Some(count));
        let rows = self.pending.iter().map(HashMap::len).sum();
        let mut batch =
            OwnedWriteBatch::with_capacity(self.db.clone(), rows).durability(Some(PersistMode::SyncData));
        let mut changed = Vec::new();
        let mut bytes = 0;
        for (table, pending) in Table::ALL.iter().zip(&mut self.pending) {
            // A command touches a few of the tables.
            if pending.is_empty() {
                continue;
            }
            let keyspace = self.tables.get(*table);
            let is_shown = Shelf::shows(*table);
            for (key, value) in pending.drain() {
                if is_shown {
                    changed.push((*table, key.clone()));
                }
                bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
                // Nothing runs any more after a commit that failed, so it may be remembered before.
                self.recent.put(*table, &key, value.as_ref());
                match value {
                    Some(value) => batch.insert(keyspace, key, value),
                    None => batch.remove(keyspace, key),
                }
            }
        }
        batch.commit()?;
        Ok(Committed { changed, bytes })
    }
}

impl Look for Tx {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        if let Some(value) = self.pending(table).get(key) {
            return Ok(value.clone());
        }
        if let Some(value) = self.recent.get(table, key) {
            return Ok(Some(value.clone()));
        }
        // Only this thread writes, so the latest is what the last group left.
        self.tables.get(table).get(key).map_err(|error| storage_error(&error))
    }

    fn scan(&self, table: Table, span: &Span, reverse: bool, visit: Visit<'_>) -> Result<()> {
        let mut pending: Vec<(&Slice, &Option<Slice>)> =
            self.pending(table).iter().filter(|(key, _)| span.contains(key)).collect();
        pending.sort_unstable_by(|(a, _), (b, _)| if reverse { b.cmp(a) } else { a.cmp(b) });
        let mut pending = pending.into_iter().peekable();

        let precedes = |a: &[u8], b: &[u8]| if reverse { a > b } else { a < b };
        let keyspace = self.tables.get(table);
        let mut rows = match &span.to {
            Some(to) if *to <= span.from => return Ok(()),
            Some(to) => keyspace.range(span.from.as_slice()..to.as_slice()),
            None => keyspace.range(span.from.as_slice()..),
        };
        while let Some(row) = if reverse { rows.next_back() } else { rows.next() } {
            let (key, value) = row.into_inner().map_err(|error| storage_error(&error))?;
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

fn visit_present(key: &Slice, value: Option<&Slice>, visit: Visit<'_>) -> Result<ControlFlow<()>> {
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
        Tx::new(db, tables, Recent::new(1 << 20), 0, Due { hold: Timestamp::MAX, payment: Timestamp::MAX })
    }

    fn keys(tx: &Tx, span: &Span, reverse: bool) -> String {
        let mut found = Vec::new();
        tx.scan(TABLE, span, reverse, &mut |key, value| {
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
    fn a_scan_sees_what_is_stored_and_what_is_pending_in_one_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut tx = tx(folder.path());
        put(&mut tx, &[("b", "1"), ("d", "1"), ("f", "1"), ("z", "1")]);
        tx.commit().unwrap();
        put(&mut tx, &[("a", "2"), ("d", "2"), ("e", "2"), ("g", "2")]);
        tx.remove(TABLE, b"f".to_vec());
        let all = Span { from: Vec::new(), to: Some(b"x".to_vec()) };
        assert_eq!(keys(&tx, &all, false), "a2 b1 d2 e2 g2");
        assert_eq!(keys(&tx, &all, true), "g2 e2 d2 b1 a2");
        let part = Span { from: b"b".to_vec(), to: Some(b"e".to_vec()) };
        assert_eq!(keys(&tx, &part, false), "b1 d2");
        let none = Span { from: b"e".to_vec(), to: Some(b"b".to_vec()) };
        assert_eq!(keys(&tx, &none, false), "");
    }

    #[test]
    fn a_refused_command_leaves_the_group_as_it_was() {
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
            put(tx, &[("kept", "1")]);
            tx.keep();
            put(tx, &[("a", "2"), ("b", "2"), ("b", "3"), ("c", "2")]);
            tx.remove(TABLE, b"a".to_vec());
            Err(Refusal::CartEmpty.into())
        });
        assert_eq!(refused, Err(StoreError::from(Refusal::CartEmpty)));
        assert_eq!(keys(&tx, &Span::prefix(Vec::new()), false), "a1 b1 kept1");
    }

    #[test]
    fn a_part_that_fails_takes_nothing_else_with_it() {
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
        assert_eq!(keys(&tx, &Span::prefix(Vec::new()), false), "");
        assert!(whole(&mut tx, Ok(())).is_ok());
        assert_eq!(keys(&tx, &Span::prefix(Vec::new()), false), "a1 c3");
    }

    #[test]
    fn a_bound_that_a_refused_command_raised_falls_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut tx = tx(folder.path());
        tx.due.hold = Timestamp::from_millis(5);
        let refused: Result<()> = tx.attempt(|tx| {
            tx.due.hold = Timestamp::MAX;
            Err(Refusal::CartEmpty.into())
        });
        assert!(refused.is_err());
        assert_eq!(tx.due.hold, Timestamp::from_millis(5));
    }
}
