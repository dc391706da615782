//! The read cache: products, pages of a category and stock levels, decoded and in memory.
//!
//! Invariant: a reader never gets an entry that is older than a change whose caller has its reply. The writer invalidates a row
//! after its change is visible and before it replies. A reader that misses installs a placeholder, reads the row and fills the
//! placeholder; invalidation removes the placeholder too, so a row read before a change is not cached after it. Pages have no
//! placeholders: a page is valid for one version of the catalogue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fjall::{Database, Slice};
use mw_domain::{Level, Product, Timestamp};
use mw_store::{Page, Result};
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use rustc_hash::FxBuildHasher;

use crate::keys::Key;
use crate::reader::{Reader, SnapshotReader};
use crate::tables::{Table, Tables};

/// Stock levels get this part of the memory, and pages as much; products have the rest.
const SHARE: u64 = 4;
/// Approximate size of an entry besides its content.
const ENTRY_BYTES: u64 = 160;

/// Keys come from stored rows, so a client cannot choose them to collide.
type Entries<V> = Cache<Key, V, Weight, FxBuildHasher>;

pub(crate) struct ReadCache {
    db: Database,
    tables: Tables,
    products: Entries<Arc<Product>>,
    levels: Entries<StoredLevel>,
    pages: Entries<Arc<ProductPage>>,
    /// Changes of the catalogue since the store was opened.
    catalogue_version: AtomicU64,
}

/// A page of a category, as of one version of the catalogue.
pub(crate) struct ProductPage {
    catalogue_version: u64,
    pub(crate) page: Page<Arc<Product>>,
}

/// The stock level of a product in a zone, and when it changed.
pub(crate) type StoredLevel = (Level, Timestamp);

impl ReadCache {
    pub(crate) fn new(db: Database, tables: Tables, bytes: u64) -> Self {
        let share = bytes / SHARE;
        Self {
            db,
            tables,
            products: entries(bytes - 2 * share, 1_024),
            levels: entries(share, 2 * ENTRY_BYTES),
            pages: entries(share, 20 * 1_024),
            catalogue_version: AtomicU64::new(0),
        }
    }

    pub(crate) fn product(&self, key: &[u8]) -> Result<Option<Arc<Product>>> {
        let decode = |row: &Slice| Ok(mw_codec::products::decode(row)?.into());
        self.get_or_load(&self.products, Table::Products, key, decode)
    }

    pub(crate) fn level(&self, key: &[u8]) -> Result<Option<StoredLevel>> {
        let decode = |row: &Slice| Ok(mw_codec::stock::decode_level(row)?);
        self.get_or_load(&self.levels, Table::Stock, key, decode)
    }

    fn get_or_load<V: Clone>(
        &self,
        entries: &Entries<V>,
        table: Table,
        key: &[u8],
        decode: impl Fn(&Slice) -> Result<V>,
    ) -> Result<Option<V>>
    where
        Weight: Weighter<Key, V>,
    {
        let placeholder = match entries.get_value_or_guard(key, None) {
            GuardResult::Value(value) => return Ok(Some(value)),
            GuardResult::Guard(placeholder) => placeholder,
            GuardResult::Timeout => return self.read_row(table, key)?.as_ref().map(decode).transpose(),
        };
        // Read after the placeholder is installed: a change that becomes visible later removes the placeholder.
        let Some(row) = self.read_row(table, key)? else { return Ok(None) };
        let value = decode(&row)?;
        // Fails where the placeholder is gone: the value is right for this request and too old for later ones.
        let _ = placeholder.insert(value.clone());
        Ok(Some(value))
    }

    fn read_row(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        SnapshotReader::new(&self.db, &self.tables).get(table, key)
    }

    /// The page with this key; `read` makes it from a snapshot.
    pub(crate) fn page(
        &self,
        key: Key,
        read: impl FnOnce(&SnapshotReader) -> Result<Page<Arc<Product>>>,
    ) -> Result<Arc<ProductPage>> {
        // Read before the snapshot is taken: a later change makes the page stale.
        let catalogue_version = self.catalogue_version.load(Ordering::Acquire);
        let cached = self.pages.get(&key);
        if let Some(page) = cached.filter(|page| page.catalogue_version == catalogue_version) {
            return Ok(page);
        }
        let page = read(&SnapshotReader::new(&self.db, &self.tables))?;
        let page = Arc::new(ProductPage { catalogue_version, page });
        self.pages.insert(key, Arc::clone(&page));
        Ok(page)
    }

    /// Removes the rows of a batch, once the batch is visible.
    pub(crate) fn invalidate(&self, rows: &[(Table, Slice)]) {
        let mut is_catalogue = false;
        for (table, key) in rows {
            match table {
                Table::Products => drop(self.products.remove(key.as_ref())),
                Table::Stock => drop(self.levels.remove(key.as_ref())),
                _ => {}
            }
            is_catalogue |= matches!(table, Table::Products | Table::ProductsByCategory);
        }
        if is_catalogue {
            // After the products: a page of the new version must not be made of old products.
            self.catalogue_version.fetch_add(1, Ordering::Release);
        }
    }

    /// Hits and misses since the store was opened, by the name of the cache.
    pub(crate) fn lookups(&self) -> [(&'static str, (u64, u64)); 3] {
        [
            ("products", (self.products.hits(), self.products.misses())),
            ("stock", (self.levels.hits(), self.levels.misses())),
            ("pages", (self.pages.hits(), self.pages.misses())),
        ]
    }

    /// Whether entries are made of this table's rows.
    pub(crate) const fn covers(table: Table) -> bool {
        matches!(table, Table::Products | Table::ProductsByCategory | Table::Stock)
    }
}

fn entries<V: Clone>(bytes: u64, entry_bytes: u64) -> Entries<V>
where
    Weight: Weighter<Key, V>,
{
    let count = usize::try_from(bytes / entry_bytes).unwrap_or(usize::MAX);
    Cache::with(count, bytes, Weight, FxBuildHasher, DefaultLifecycle::default())
}

/// The approximate size of an entry.
#[derive(Clone)]
struct Weight;

impl Weighter<Key, Arc<Product>> for Weight {
    fn weight(&self, key: &Key, product: &Arc<Product>) -> u64 {
        ENTRY_BYTES + key.len() as u64 + product.memory_bytes()
    }
}

impl Weighter<Key, Arc<ProductPage>> for Weight {
    fn weight(&self, key: &Key, page: &Arc<ProductPage>) -> u64 {
        // Products count in full: the page may be the only one to hold them.
        let products = page.page.items.iter();
        ENTRY_BYTES + key.len() as u64 + products.map(|product| product.memory_bytes()).sum::<u64>()
    }
}

impl Weighter<Key, StoredLevel> for Weight {
    fn weight(&self, key: &Key, _: &StoredLevel) -> u64 {
        ENTRY_BYTES + key.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &std::path::Path) -> ReadCache {
        let db = Database::builder(folder).open().unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        ReadCache::new(db, tables, 1 << 20)
    }

    /// Reads a level through the cache; `meanwhile` runs between reading the row and caching it.
    fn level(cache: &ReadCache, meanwhile: impl Fn()) -> Option<StoredLevel> {
        let decode = |row: &Slice| {
            meanwhile();
            Ok(mw_codec::stock::decode_level(row)?)
        };
        cache.get_or_load(&cache.levels, Table::Stock, b"key", decode).unwrap()
    }

    #[test]
    fn a_row_read_before_a_change_is_not_cached_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let cache = open(folder.path());
        let stored = |on_hand| (Level { on_hand, reserved: 0 }, Timestamp::EPOCH);
        let put = |on_hand| {
            let row = mw_codec::stock::encode_level(stored(on_hand).0, Timestamp::EPOCH);
            cache.tables.get(Table::Stock).insert("key", row).unwrap();
            cache.invalidate(&[(Table::Stock, "key".into())]);
        };
        assert_eq!(level(&cache, || ()), None);
        put(1);
        assert_eq!(level(&cache, || put(2)), Some(stored(1)));
        assert_eq!(level(&cache, || ()), Some(stored(2)));
        assert_eq!(level(&cache, || unreachable!("it is cached")), Some(stored(2)));
        put(3);
        assert_eq!(level(&cache, || ()), Some(stored(3)));
    }
}
