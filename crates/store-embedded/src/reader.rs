//! Reading: single rows, key ranges, and pages of a list.
//!
//! Invariants: a [`SnapshotReader`] sees the state between two commits and never waits for the writer; the cost of a page is
//! bounded by [`ROWS_PER_PAGE_MAX`], whatever the list holds.

use std::ops::ControlFlow;

use fjall::{Database, Readable, Slice, Snapshot};
use mw_store::{Page, PageRequest, Position, Refusal, Result, StoreError};

use crate::keys::{self, Key};
use crate::tables::{Table, Tables};

/// Keys from `from` up to, not including, `to`; `None`: to the end of the table.
#[derive(Debug, Clone)]
pub(crate) struct KeyRange {
    pub(crate) from: Key,
    pub(crate) to: Option<Key>,
}

impl KeyRange {
    pub(crate) fn prefix(prefix: Key) -> Self {
        let to = keys::after_prefix(&prefix);
        Self { from: prefix, to }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.to.as_ref().is_none_or(|to| key < to.as_slice())
    }

    /// The part of the range after a key.
    pub(crate) fn after(&self, key: Key) -> Self {
        Self { from: keys::just_after(key).max(self.from.clone()), to: self.to.clone() }
    }

    fn is_empty(&self) -> bool {
        self.to.as_ref().is_some_and(|to| *to <= self.from)
    }
}

/// Called with key and value of each row of a scan; breaks to end it.
pub(crate) type RowVisitor<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>;

/// Read access for queries, and for commands that run on the writer's thread.
pub(crate) trait Reader {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Slice>>;

    /// Visits the rows of a range in key order, or in reverse.
    fn scan(&self, table: Table, range: &KeyRange, reverse: bool, visit: RowVisitor<'_>) -> Result<()>;
}

/// An IO error says nothing about the stored data; any other error of fjall means damage.
pub(crate) fn storage_error(table: Table, error: &fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io)) => {
            StoreError::Unavailable(format!("read table {}: {io}; check the disk", table.name()))
        }
        other => StoreError::Corrupt(format!("read table {}: {other:?}", table.name())),
    }
}

/// The keys of a range, in order.
pub(crate) fn collect_keys(reader: &dyn Reader, table: Table, range: &KeyRange) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    reader.scan(table, range, false, &mut |key, _| {
        keys.push(key.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(keys)
}

/// The state of all tables between two commits.
pub(crate) struct SnapshotReader {
    snapshot: Snapshot,
    tables: Tables,
}

impl SnapshotReader {
    pub(crate) fn new(db: &Database, tables: &Tables) -> Self {
        Self { snapshot: db.snapshot(), tables: tables.clone() }
    }
}

impl Reader for SnapshotReader {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        self.snapshot.get(self.tables.get(table), key).map_err(|error| storage_error(table, &error))
    }

    fn scan(&self, table: Table, range: &KeyRange, reverse: bool, visit: RowVisitor<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let keyspace = self.tables.get(table);
        let mut rows = match &range.to {
            Some(to) => self.snapshot.range(keyspace, range.from.as_slice()..to.as_slice()),
            None => self.snapshot.range(keyspace, range.from.as_slice()..),
        };
        while let Some(row) = if reverse { rows.next_back() } else { rows.next() } {
            let (key, value) = row.into_inner().map_err(|error| storage_error(table, &error))?;
            if visit(&key, &value)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// Makes an item of a row; `None` skips the row.
pub(crate) type RowMapper<'a, T> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<Option<T>>;

/// Rows read for one page at most; a page that skipped many rows is returned short.
const ROWS_PER_PAGE_MAX: usize = 20_000;

/// Reads a page of a list: the rows after the requested position, mapped by `map_row`.
pub(crate) fn page<T>(
    reader: &dyn Reader,
    table: Table,
    list: &List,
    request: &PageRequest,
    map_row: RowMapper<'_, T>,
) -> Result<Page<T>> {
    let range = list.remaining(request.after.as_ref())?;
    let mut items = Vec::with_capacity(request.limit.min(128));
    let (mut last_key, mut rows, mut has_more) = (Key::new(), 0, false);
    reader.scan(table, &range, list.reverse, &mut |key, value| {
        if items.len() == request.limit || rows == ROWS_PER_PAGE_MAX {
            has_more = true;
            return Ok(ControlFlow::Break(()));
        }
        rows += 1;
        last_key.clear();
        last_key.extend_from_slice(key);
        items.extend(map_row(key, value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    let next = has_more.then(|| Position(last_key.get(list.prefix.len()..).unwrap_or_default().to_vec()));
    Ok(Page { items, next })
}

/// The rows of a list, in order.
pub(crate) struct List {
    /// The common prefix of all keys; a [`Position`] is the part of a key after it.
    pub(crate) prefix: Key,
    pub(crate) range: KeyRange,
    pub(crate) reverse: bool,
    /// Whether bytes can be the part of a key after the prefix.
    pub(crate) is_position: fn(&[u8]) -> bool,
}

impl List {
    /// The cache key of the requested page of this list.
    pub(crate) fn page_key(&self, request: &PageRequest) -> Result<Key> {
        let KeyRange { from, to } = self.remaining(request.after.as_ref())?;
        let mut key = Vec::with_capacity(2 * from.len() + 32);
        key.push(u8::from(self.reverse));
        key.extend_from_slice(&request.limit.to_be_bytes());
        key.extend_from_slice(&from.len().to_be_bytes());
        key.extend_from_slice(&from);
        key.push(u8::from(to.is_some()));
        key.extend_from_slice(to.as_deref().unwrap_or_default());
        Ok(key)
    }

    /// All rows with a key prefix, in key order.
    pub(crate) fn of(prefix: Key, is_position: fn(&[u8]) -> bool) -> Self {
        Self { range: KeyRange::prefix(prefix.clone()), prefix, reverse: false, is_position }
    }

    /// The range of the list after a position.
    pub(crate) fn remaining(&self, after: Option<&Position>) -> Result<KeyRange> {
        let Some(Position(tail)) = after else {
            return Ok(self.range.clone());
        };
        if !(self.is_position)(tail) {
            return Err(Refusal::InvalidCursor.into());
        }
        let key = [self.prefix.as_slice(), tail].concat();
        if self.reverse {
            let to = self.range.to.clone().map_or_else(|| key.clone(), |to| to.min(key.clone()));
            Ok(KeyRange { from: self.range.from.clone(), to: Some(to) })
        } else {
            Ok(self.range.after(key))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn an_io_error_is_unavailable_and_not_damage() {
        let failed = || io::Error::other("too many open files");
        for error in [fjall::Error::Io(failed()), fjall::Error::Storage(fjall::LsmError::Io(failed()))] {
            let mapped = storage_error(Table::Carts, &error);
            assert!(matches!(mapped, StoreError::Unavailable(_)), "{mapped:?}");
        }
    }
}
