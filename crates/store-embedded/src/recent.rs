//! Rows that the writer wrote lately and will read before it writes them again. It is alone to write, so what it wrote last
//! is what the store has.

use fjall::Slice;
use quick_cache::Weighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use rustc_hash::FxBuildHasher;

use crate::tables::Table;

/// About what an entry takes besides its bytes.
const ENTRY_BYTES: u64 = 128;

/// By [`Table`]; `None` where nothing is remembered.
pub(crate) struct Recent(Vec<Option<Rows>>);

type Rows = Cache<Slice, Slice, Weight, FxBuildHasher>;

/// Quarters of the memory that a table gets.
const fn quarters(table: Table) -> u64 {
    match table {
        Table::Carts => 2,
        Table::Sessions | Table::Stock => 1,
        _ => 0,
    }
}

impl Recent {
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

    /// For a row that is committed; `None` where it is removed.
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
