//! Rows that the writer wrote lately and will read before it writes them again. It is alone to write, so what it wrote last
//! is what the store has.

use fjall::Slice;
use quick_cache::Weighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use rustc_hash::FxBuildHasher;

use crate::tables::Table;

/// About what an entry takes besides its bytes.
const ENTRY_BYTES: u64 = 128;

pub(crate) struct Recent {
    carts: Rows,
    sessions: Rows,
    stock: Rows,
}

type Rows = Cache<Slice, Slice, Weight, FxBuildHasher>;

impl Recent {
    pub(crate) fn new(bytes: u64) -> Self {
        let part = bytes / 4;
        Self { carts: rows(bytes - 2 * part), sessions: rows(part), stock: rows(part) }
    }

    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<&Slice> {
        let rows = match table {
            Table::Carts => &self.carts,
            Table::Sessions => &self.sessions,
            Table::Stock => &self.stock,
            _ => return None,
        };
        rows.get(key)
    }

    /// Whether rows of a table are remembered.
    pub(crate) const fn has(table: Table) -> bool {
        matches!(table, Table::Carts | Table::Sessions | Table::Stock)
    }

    /// For a row that was committed; `None` where it was removed.
    pub(crate) fn put(&mut self, table: Table, key: Slice, value: Option<Slice>) {
        let rows = match table {
            Table::Carts => &mut self.carts,
            Table::Sessions => &mut self.sessions,
            Table::Stock => &mut self.stock,
            _ => return,
        };
        match value {
            Some(value) => rows.insert(key, value),
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
