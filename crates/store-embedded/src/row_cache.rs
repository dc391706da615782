//! The writer's row cache: rows that it wrote lately and will read before it changes them again.
//!
//! Only the writer thread reads and fills it. It is the only writer, so a cached row is always the committed one; nothing
//! is ever invalidated from outside.

use fjall::Slice;
use quick_cache::Weighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use rustc_hash::FxBuildHasher;

use crate::tables::Table;

/// Approximate size of an entry besides its key and value.
const ENTRY_BYTES: u64 = 128;

/// One cache a table, indexed by [`Table`]; `None` for tables that are not cached.
pub(crate) struct RowCache(Vec<Option<Rows>>);

type Rows = Cache<Slice, Slice, Weight, FxBuildHasher>;

/// Quarters of the memory for a table.
const fn quarters(table: Table) -> u64 {
    match table {
        Table::Carts => 2,
        Table::Sessions | Table::Stock => 1,
        _ => 0,
    }
}

impl RowCache {
    pub(crate) fn new(bytes: u64) -> Self {
        let rows = |table: &Table| match quarters(*table) {
            0 => None,
            quarters => Some(rows(quarters * bytes / 4)),
        };
        Self(Table::ALL.iter().map(rows).collect())
    }

    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<&Slice> {
        self.0.get(table as usize)?.as_ref()?.get(key)
    }

    /// Caches a row of the batch that is being committed; `None` for a removed row.
    pub(crate) fn put(&mut self, table: Table, key: &Slice, value: Option<&Slice>) {
        let Some(Some(rows)) = self.0.get_mut(table as usize) else { return };
        match value {
            Some(value) => rows.insert(key.clone(), value.clone()),
            None => drop(rows.remove(key.as_ref())),
        }
    }
}

fn rows(bytes: u64) -> Rows {
    let entries = usize::try_from(bytes / (4 * ENTRY_BYTES)).unwrap_or(usize::MAX);
    Cache::with(entries, bytes, Weight, FxBuildHasher, DefaultLifecycle::default())
}

#[derive(Clone)]
struct Weight;

impl Weighter<Slice, Slice> for Weight {
    fn weight(&self, key: &Slice, value: &Slice) -> u64 {
        ENTRY_BYTES + (key.len() + value.len()) as u64
    }
}
