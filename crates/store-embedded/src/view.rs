//! Reading: one row, or rows in order. A [`View`] sees the state between two commits and never waits for the writer.

use std::ops::ControlFlow;

use fjall::{Database, Readable, Slice, Snapshot};
use mw_store::{Page, PageRequest, Position, Refusal, Result, StoreError};

use crate::keys::{self, Key};
use crate::tables::{Table, Tables};

/// From `from` on, up to but without `to`; `None` is no end.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) from: Key,
    pub(crate) to: Option<Key>,
}

impl Span {
    pub(crate) fn prefix(prefix: Key) -> Self {
        let to = keys::after_prefix(&prefix);
        Self { from: prefix, to }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.to.as_ref().is_none_or(|to| key < to.as_slice())
    }

    /// The part after a key; the bound stays.
    pub(crate) fn after(&self, key: Key) -> Self {
        Self { from: keys::just_after(key).max(self.from.clone()), to: self.to.clone() }
    }

    fn is_empty(&self) -> bool {
        self.to.as_ref().is_some_and(|to| *to <= self.from)
    }
}

/// Told each row of a scan; says whether to go on.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>;

/// What both readers and the writer can look at.
pub(crate) trait Look {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Slice>>;

    /// Visits the rows of a span in key order, or in the reverse.
    fn scan(&self, table: Table, span: &Span, reverse: bool, visit: Visit<'_>) -> Result<()>;
}

pub(crate) fn storage_error(error: &fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io)) => {
            StoreError::Unavailable(format!("read from disk: {io}"))
        }
        other => StoreError::Corrupt(format!("{other:?}")),
    }
}

/// The state at one moment.
pub(crate) struct View {
    snapshot: Snapshot,
    tables: Tables,
}

impl View {
    pub(crate) fn new(db: &Database, tables: &Tables) -> Self {
        Self { snapshot: db.snapshot(), tables: tables.clone() }
    }
}

impl Look for View {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        self.snapshot.get(self.tables.get(table), key).map_err(|error| storage_error(&error))
    }

    fn scan(&self, table: Table, span: &Span, reverse: bool, visit: Visit<'_>) -> Result<()> {
        if span.is_empty() {
            return Ok(());
        }
        let keyspace = self.tables.get(table);
        let mut rows = match &span.to {
            Some(to) => self.snapshot.range(keyspace, span.from.as_slice()..to.as_slice()),
            None => self.snapshot.range(keyspace, span.from.as_slice()..),
        };
        while let Some(row) = if reverse { rows.next_back() } else { rows.next() } {
            let (key, value) = row.into_inner().map_err(|error| storage_error(&error))?;
            if visit(&key, &value)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// Makes an item of a row; `None` skips it.
pub(crate) type Read<'a, T> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<Option<T>>;

/// How many rows one page may look at before it is handed out short.
const ROWS_PER_PAGE_MAX: usize = 20_000;

/// Reads a page of a list: rows of `span` after the asked position, as `read` makes items of them.
pub(crate) fn page<T>(
    look: &dyn Look,
    table: Table,
    list: &List,
    request: &PageRequest,
    read: Read<'_, T>,
) -> Result<Page<T>> {
    let span = list.rest(request.after.as_ref())?;
    let mut items = Vec::with_capacity(request.limit.min(128));
    let (mut end, mut rows, mut more) = (Key::new(), 0, false);
    look.scan(table, &span, list.reverse, &mut |key, value| {
        if items.len() == request.limit || rows == ROWS_PER_PAGE_MAX {
            more = true;
            return Ok(ControlFlow::Break(()));
        }
        rows += 1;
        end.clear();
        end.extend_from_slice(key);
        items.extend(read(key, value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    let next = more.then(|| Position(end.get(list.prefix.len()..).unwrap_or_default().to_vec()));
    Ok(Page { items, next })
}

/// The rows a list is made of.
pub(crate) struct List {
    /// What all keys of the list begin with.
    pub(crate) prefix: Key,
    pub(crate) span: Span,
    pub(crate) reverse: bool,
    /// Whether bytes can be the end of a key of this list.
    pub(crate) is_position: fn(&[u8]) -> bool,
}

impl List {
    /// Which page of which list a request asks for.
    pub(crate) fn page_key(&self, request: &PageRequest) -> Result<Key> {
        let Span { from, to } = self.rest(request.after.as_ref())?;
        let mut key = Vec::with_capacity(2 * from.len() + 32);
        key.push(u8::from(self.reverse));
        key.extend_from_slice(&request.limit.to_be_bytes());
        key.extend_from_slice(&from.len().to_be_bytes());
        key.extend_from_slice(&from);
        key.push(u8::from(to.is_some()));
        key.extend_from_slice(to.as_deref().unwrap_or_default());
        Ok(key)
    }

    /// All rows that begin with a prefix.
    pub(crate) fn of(prefix: Key, is_position: fn(&[u8]) -> bool) -> Self {
        Self { span: Span::prefix(prefix.clone()), prefix, reverse: false, is_position }
    }

    pub(crate) fn rest(&self, after: Option<&Position>) -> Result<Span> {
        let Some(Position(tail)) = after else {
            return Ok(self.span.clone());
        };
        if !(self.is_position)(tail) {
            return Err(Refusal::InvalidCursor.into());
        }
        let key = [self.prefix.as_slice(), tail].concat();
        if self.reverse {
            let to = self.span.to.clone().map_or_else(|| key.clone(), |to| to.min(key.clone()));
            Ok(Span { from: self.span.from.clone(), to: Some(to) })
        } else {
            Ok(self.span.after(key))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_disk_that_fails_is_no_damage() {
        let failed = || io::Error::other("too many open files");
        for error in [fjall::Error::Io(failed()), fjall::Error::Storage(fjall::LsmError::Io(failed()))] {
            let told = storage_error(&error);
            assert!(matches!(told, StoreError::Unavailable(_)), "{told:?}");
        }
    }
}
