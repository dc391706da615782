//! What the showcase asks for most, kept ready in memory: cards as they are shown, pages of them, and figures of stock.
//!
//! A row is taken off when it changes: after the change is visible and before whoever asked for it is answered. A reader who
//! finds nothing leaves a mark, reads the row and puts it where the mark is; taking the row off removes the mark too, so
//! what was read before a change is never kept after it. Pages have no marks: they are good for as long as no card changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fjall::{Database, Slice};
use mw_domain::{Level, Timestamp};
use mw_store::products::Card;
use mw_store::{Page, Result};
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use rustc_hash::FxBuildHasher;

use crate::keys::Key;
use crate::tables::{Table, Tables};
use crate::view::{Look, View};

/// Figures of stock get this part of the memory, and pages of cards too; cards have the rest.
const SHARE: u64 = 4;
/// About what an entry takes besides its text.
const ENTRY_BYTES: u64 = 160;

/// Keys come from rows that are there, so that nobody can choose them to collide.
type Ready<V> = Cache<Key, V, Weight, FxBuildHasher>;

pub(crate) struct Shelf {
    db: Database,
    tables: Tables,
    cards: Ready<Card>,
    figures: Ready<Figures>,
    pages: Ready<Arc<Cards>>,
    /// How often the catalogue has changed since the store was opened.
    changes: AtomicU64,
}

/// A page of cards, as of so many changes of the catalogue.
pub(crate) struct Cards {
    changes: u64,
    pub(crate) page: Page<Card>,
}

/// The figures of a place, and when they changed.
pub(crate) type Figures = (Level, Timestamp);

impl Shelf {
    pub(crate) fn new(db: Database, tables: Tables, bytes: u64) -> Self {
        let part = bytes / SHARE;
        Self {
            db,
            tables,
            cards: cache(bytes - 2 * part, 1_024),
            figures: cache(part, 2 * ENTRY_BYTES),
            pages: cache(part, 20 * 1_024),
            changes: AtomicU64::new(0),
        }
    }

    pub(crate) fn card(&self, key: &[u8]) -> Result<Option<Card>> {
        self.find(&self.cards, Table::Products, key, |row| Ok(mw_codec::products::decode(row)?.into()))
    }

    pub(crate) fn figures(&self, key: &[u8]) -> Result<Option<Figures>> {
        self.find(&self.figures, Table::Stock, key, |row| Ok(mw_codec::stock::decode_level(row)?))
    }

    fn find<V: Clone>(
        &self,
        cache: &Ready<V>,
        table: Table,
        key: &[u8],
        read: impl Fn(&Slice) -> Result<V>,
    ) -> Result<Option<V>>
    where
        Weight: Weighter<Key, V>,
    {
        let mark = match cache.get_value_or_guard(key, None) {
            GuardResult::Value(value) => return Ok(Some(value)),
            GuardResult::Guard(mark) => mark,
            GuardResult::Timeout => return self.row(table, key)?.as_ref().map(read).transpose(),
        };
        // Looked at after the mark is there: what becomes visible later takes the mark away.
        let Some(row) = self.row(table, key)? else { return Ok(None) };
        let value = read(&row)?;
        // Without its mark it is as old as the request, and good for nobody else.
        let _ = mark.insert(value.clone());
        Ok(Some(value))
    }

    fn row(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        View::new(&self.db, &self.tables).get(table, key)
    }

    /// The page of a listing, where `read` makes it of a view; `key` says which page of which listing.
    pub(crate) fn page(
        &self,
        key: Key,
        read: impl FnOnce(&View) -> Result<Page<Card>>,
    ) -> Result<Arc<Cards>> {
        // Asked before the view is taken: a change that comes later makes the page stale.
        let changes = self.changes.load(Ordering::Acquire);
        if let Some(cards) = self.pages.get(&key).filter(|cards| cards.changes == changes) {
            return Ok(cards);
        }
        let page = read(&View::new(&self.db, &self.tables))?;
        let cards = Arc::new(Cards { changes, page });
        self.pages.insert(key, Arc::clone(&cards));
        Ok(cards)
    }

    /// For the rows that a group changed, once the group is visible.
    pub(crate) fn take_off(&self, rows: &[(Table, Slice)]) {
        let mut is_catalogue = false;
        for (table, key) in rows {
            match table {
                Table::Products => drop(self.cards.remove(key.as_ref())),
                Table::Stock => drop(self.figures.remove(key.as_ref())),
                _ => {}
            }
            is_catalogue |= matches!(table, Table::Products | Table::ProductsByCategory);
        }
        if is_catalogue {
            // After the cards: a page that counts this change has none of the old ones.
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether something on the shelf is made of a table's rows.
    pub(crate) const fn shows(table: Table) -> bool {
        matches!(table, Table::Products | Table::ProductsByCategory | Table::Stock)
    }
}

fn cache<V: Clone>(bytes: u64, entry: u64) -> Ready<V>
where
    Weight: Weighter<Key, V>,
{
    let entries = usize::try_from(bytes / entry).unwrap_or(usize::MAX);
    Cache::with(entries, bytes, Weight, FxBuildHasher, DefaultLifecycle::default())
}

/// About how many bytes an entry takes.
#[derive(Clone)]
struct Weight;

impl Weighter<Key, Card> for Weight {
    fn weight(&self, _: &Key, card: &Card) -> u64 {
        card.bytes()
    }
}

impl Weighter<Key, Arc<Cards>> for Weight {
    fn weight(&self, key: &Key, cards: &Arc<Cards>) -> u64 {
        // Its cards count in full, since they may be on the shelf for its sake alone.
        ENTRY_BYTES
            + key.len() as u64
            + cards.page.items.iter().map(|card| self.weight(key, card)).sum::<u64>()
    }
}

impl Weighter<Key, Figures> for Weight {
    fn weight(&self, key: &Key, _: &Figures) -> u64 {
        ENTRY_BYTES + key.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf(folder: &std::path::Path) -> Shelf {
        let db = Database::builder(folder).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        Shelf::new(db, tables, 1 << 20)
    }

    fn find(shelf: &Shelf, meanwhile: impl Fn()) -> Option<Figures> {
        let read = |row: &Slice| {
            meanwhile();
            Ok(mw_codec::stock::decode_level(row)?)
        };
        shelf.find(&shelf.figures, Table::Stock, b"place", read).unwrap()
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = shelf(folder.path());
        let figures = |on_hand| (Level { on_hand, reserved: 0 }, Timestamp::EPOCH);
        let put = |on_hand| {
            let row = mw_codec::stock::encode_level(figures(on_hand).0, Timestamp::EPOCH);
            shelf.tables.get(Table::Stock).insert("place", row).unwrap();
            shelf.take_off(&[(Table::Stock, "place".into())]);
        };
        assert_eq!(find(&shelf, || ()), None);
        put(1);
        assert_eq!(find(&shelf, || put(2)), Some(figures(1)));
        assert_eq!(find(&shelf, || ()), Some(figures(2)));
        assert_eq!(find(&shelf, || unreachable!("it is on the shelf")), Some(figures(2)));
        put(3);
        assert_eq!(find(&shelf, || ()), Some(figures(3)));
    }
}
