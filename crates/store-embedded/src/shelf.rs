//! What the showcase asks for most, kept ready in memory: cards as they are shown, and figures of stock.
//!
//! A row is taken off when it changes: after the change is visible and before whoever asked for it is answered. A reader who
//! finds nothing leaves a mark, reads the row and puts it where the mark is; taking the row off removes the mark too, so
//! what was read before a change is never kept after it.

use fjall::{Database, Slice};
use mw_domain::{Level, Timestamp};
use mw_store::Result;
use mw_store::products::Card;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, GuardResult};

use crate::keys::Key;
use crate::tables::{Table, Tables};
use crate::view::{Look, View};

/// Figures of stock get this part of the memory; cards are larger.
const FIGURES_SHARE: u64 = 4;
/// About what an entry takes besides its text.
const ENTRY_BYTES: u64 = 160;

pub(crate) struct Shelf {
    db: Database,
    tables: Tables,
    cards: Cache<Key, Card, Weight>,
    figures: Cache<Key, Figures, Weight>,
}

/// The figures of a place, and when they changed.
pub(crate) type Figures = (Level, Timestamp);

impl Shelf {
    pub(crate) fn new(db: Database, tables: Tables, bytes: u64) -> Self {
        let figures = bytes / FIGURES_SHARE;
        Self { db, tables, cards: cache(bytes - figures, 1_024), figures: cache(figures, 2 * ENTRY_BYTES) }
    }

    pub(crate) fn card(&self, key: &[u8]) -> Result<Option<Card>> {
        self.find(&self.cards, Table::Products, key, |row| Ok(mw_codec::products::decode(row)?.into()))
    }

    pub(crate) fn figures(&self, key: &[u8]) -> Result<Option<Figures>> {
        self.find(&self.figures, Table::Stock, key, |row| Ok(mw_codec::stock::decode_level(row)?))
    }

    fn find<V: Clone>(
        &self,
        cache: &Cache<Key, V, Weight>,
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

    /// For each row that a group changed, once the group is visible.
    pub(crate) fn take_off(&self, table: Table, key: &[u8]) {
        match table {
            Table::Products => drop(self.cards.remove(key)),
            Table::Stock => drop(self.figures.remove(key)),
            _ => {}
        }
    }

    /// Whether rows of a table can be on the shelf.
    pub(crate) const fn has(table: Table) -> bool {
        matches!(table, Table::Products | Table::Stock)
    }
}

fn cache<V: Clone>(bytes: u64, entry: u64) -> Cache<Key, V, Weight>
where
    Weight: Weighter<Key, V>,
{
    Cache::with_weighter(usize::try_from(bytes / entry).unwrap_or(usize::MAX), bytes, Weight)
}

/// About how many bytes an entry takes.
#[derive(Clone)]
struct Weight;

impl Weighter<Key, Card> for Weight {
    fn weight(&self, key: &Key, card: &Card) -> u64 {
        let text = card.name.len() + card.description.len() + card.attributes.text_len();
        // As fields, and as it is shown with the names of its members.
        3 * ENTRY_BYTES + 256 + (3 * key.len() + 2 * text) as u64
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
            shelf.take_off(Table::Stock, b"place");
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
