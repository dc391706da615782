//! The listing of a category by price, and the list of categories that have products.
//!
//! Bands of prices are read one after another; the partitions of one band are merged by price. The partitions that a
//! category has are read first, so that no empty band is queried.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use mw_codec::intents::product::ListingKey;
use mw_domain::{Attributes, Category, Money, Product, ProductId, Timestamp};
use mw_store::products::{CategoryQuery, Listed};
use mw_store::{Freshness, Page, PageRequest, Position, Refusal, Result, StoreError};
use scylla::DeserializeRow;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;

use super::bands;
use super::rows::StoredProduct;
use crate::CassandraStore;
use crate::bucketing::hash_of;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql};
use crate::schema::tables::Table;
use crate::stock::decision::StockKey;

/// Partitions of `categories`, by a hash of the name. A page of the list reads all of them.
const PARTS: i32 = 16;
/// Bands of categories that this process remembers to be registered.
const REGISTERED_MAX: usize = 10_000;
/// Partitions, stock levels or categories read at the same time for one page.
const CONCURRENT_READS: usize = 16;
/// Rows read at a time.
const ROWS_MAX: usize = 100;
/// Rows read for one page of a category, products that are out of stock included.
const PAGE_ROWS_MAX: usize = 1_000;
/// Rows read for one page of categories, categories without products included.
const CATEGORIES_MAX: usize = 256;

/// A read at both levels of freshness.
#[derive(Debug)]
struct FreshnessRead {
    latest: PreparedStatement,
    stale: PreparedStatement,
}

impl FreshnessRead {
    async fn prepare(cql: &Cql, table: Table, text: &str) -> Result<Self> {
        Ok(Self {
            latest: cql.prepare(table, Access::Read, text).await?,
            stale: cql.prepare(table, Access::StaleRead, text).await?,
        })
    }

    const fn at(&self, freshness: Freshness) -> &PreparedStatement {
        match freshness {
            Freshness::Latest => &self.latest,
            Freshness::StaleOk => &self.stale,
        }
    }
}

#[derive(Debug)]
pub(super) struct ListingStatements {
    insert: PreparedStatement,
    delete: PreparedStatement,
    ascending: FreshnessRead,
    descending: FreshnessRead,
    any: PreparedStatement,
    insert_category: PreparedStatement,
    categories: PreparedStatement,
    insert_band: PreparedStatement,
    bands: FreshnessRead,
    /// Bands that this process knows to be registered: no registration is ever removed.
    registered: Mutex<HashSet<(Category, i32)>>,
}

impl ListingStatements {
    pub(super) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::ProductsByCategory;
        let insert = "INSERT INTO {} (category, band, price, product_id, name, description, attributes, created_at, \
                      updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let delete = "DELETE FROM {} USING TIMESTAMP ? WHERE category = ? AND band = ? AND price = ? AND product_id = ?";
        let columns = "price, product_id, name, description, attributes, created_at, updated_at";
        let ascending = format!(
            "SELECT {columns} FROM {{}} WHERE category = ? AND band = ? AND (price, product_id) > (?, ?) \
             AND (price) <= (?) LIMIT ?"
        );
        let descending = format!(
            "SELECT {columns} FROM {{}} WHERE category = ? AND band = ? AND (price, product_id) < (?, ?) \
             AND (price) >= (?) ORDER BY price DESC, product_id DESC LIMIT ?"
        );
        let any = "SELECT product_id FROM {} WHERE category = ? AND band = ? LIMIT 1";
        let (names, bands) = (Table::Categories, Table::CategoryBands);
        let categories = "SELECT category FROM {} WHERE part = ? AND category > ? LIMIT ?";
        Ok(Self {
            insert: cql.prepare(table, Access::Write, insert).await?,
            delete: cql.prepare(table, Access::Write, delete).await?,
            ascending: FreshnessRead::prepare(cql, table, &ascending).await?,
            descending: FreshnessRead::prepare(cql, table, &descending).await?,
            any: cql.prepare(table, Access::Read, any).await?,
            insert_category: cql
                .prepare(names, Access::Write, "INSERT INTO {} (part, category) VALUES (?, ?)")
                .await?,
            categories: cql.prepare(names, Access::Read, categories).await?,
            insert_band: cql
                .prepare(bands, Access::Write, "INSERT INTO {} (category, band) VALUES (?, ?)")
                .await?,
            // More than there are numbers of partitions.
            bands: FreshnessRead::prepare(cql, bands, "SELECT band FROM {} WHERE category = ? LIMIT 4096")
                .await?,
            registered: Mutex::default(),
        })
    }
}

#[derive(Debug, DeserializeRow)]
pub(super) struct ListingRow {
    price: i64,
    product_id: String,
    name: Option<String>,
    description: Option<String>,
    attributes: Option<BTreeMap<String, String>>,
    created_at: Option<CqlTimestamp>,
    updated_at: Option<CqlTimestamp>,
}

impl ListingRow {
    fn into_product(self, category: &Category) -> Result<Product> {
        let corrupt = || {
            StoreError::Corrupt(format!(
                "cannot read product {} of {category} in products_by_category",
                self.product_id
            ))
        };
        Ok(Product {
            product_id: ProductId::parse(&self.product_id).map_err(|_| corrupt())?,
            name: self.name.ok_or_else(corrupt)?,
            category: category.clone(),
            price: Money::from_minor(self.price),
            description: self.description.unwrap_or_default(),
            attributes: self.attributes.map(Attributes::from).unwrap_or_default(),
            created_at: self.created_at.map(from_cql).ok_or_else(corrupt)?,
            updated_at: self.updated_at.map(from_cql).ok_or_else(corrupt)?,
        })
    }
}

/// Where a page ends: the next one begins after this price and product.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListingCursor {
    price: Money,
    /// Empty before the first product of the price.
    product_id: String,
}

impl ListingCursor {
    fn first(min: Money, max: Money, descending: bool) -> Self {
        let price = if descending { Money::from_minor(max.as_minor().saturating_add(1)) } else { min };
        Self { price, product_id: String::new() }
    }

    fn encode(&self) -> Position {
        Position([&self.price.as_minor().to_be_bytes()[..], self.product_id.as_bytes()].concat())
    }

    /// `None` where no page can end there.
    fn decode(position: &Position) -> Option<Self> {
        let (price, id) = position.0.split_first_chunk::<8>()?;
        let id = ProductId::parse(std::str::from_utf8(id).ok()?).ok()?;
        Some(Self {
            price: Money::from_minor(i64::from_be_bytes(*price)),
            product_id: id.as_str().to_owned(),
        })
    }
}

/// The query of one page of a category.
struct CategoryScan<'a> {
    store: &'a CassandraStore,
    query: &'a CategoryQuery,
    freshness: Freshness,
    min: Money,
    max: Money,
    /// The partitions of each band of prices, in the direction of the query.
    bands: Vec<(i32, Vec<i32>)>,
}

impl CategoryScan<'_> {
    /// The next `count` products after the cursor; fewer only at the end.
    async fn products_after(&self, cursor: &ListingCursor, count: usize) -> Result<Vec<Product>> {
        let remaining = if self.query.descending {
            bands::price_bands(self.min, cursor.price)
        } else {
            bands::price_bands(cursor.price, self.max)
        };
        let bands: Vec<&Vec<i32>> = self
            .bands
            .iter()
            .filter(|(price_band, _)| remaining.contains(price_band))
            .map(|(_, bands)| bands)
            .collect();
        let mut products = Vec::new();
        // One band is mostly enough; where it is not, the number of bands read at once doubles.
        let (mut from, mut width) = (0, 1);
        while products.len() < count && from < bands.len() {
            let some = bands.iter().skip(from).take(width);
            let reads: Vec<_> = some.map(|bands| self.read_band(bands, cursor, count)).collect();
            products.extend(concurrently(reads).await?.into_iter().flatten());
            from += width;
            width = (width * 2).min(CONCURRENT_READS);
        }
        products.truncate(count);
        Ok(products)
    }

    /// The next `count` products of one band of prices.
    async fn read_band(&self, bands: &[i32], cursor: &ListingCursor, count: usize) -> Result<Vec<Product>> {
        let reads: Vec<_> = bands.iter().map(|band| self.read_partition(*band, cursor, count)).collect();
        let mut products: Vec<Product> = concurrently(reads).await?.into_iter().flatten().collect();
        if bands.len() > 1 {
            products.sort_by(|a, b| (a.price, &a.product_id).cmp(&(b.price, &b.product_id)));
            if self.query.descending {
                products.reverse();
            }
            products.truncate(count);
        }
        Ok(products)
    }

    async fn read_partition(&self, band: i32, cursor: &ListingCursor, count: usize) -> Result<Vec<Product>> {
        let listing = &self.store.products.listing;
        let (read, end) = if self.query.descending {
            (&listing.descending, self.min)
        } else {
            (&listing.ascending, self.max)
        };
        let category = &self.query.category;
        let values = (
            category.as_str(),
            band,
            cursor.price.as_minor(),
            cursor.product_id.as_str(),
            end.as_minor(),
            limit(count),
        );
        let rows: Vec<ListingRow> = self.store.cql.rows(read.at(self.freshness), values).await?;
        rows.into_iter().map(|row| row.into_product(category)).collect()
    }

    /// The product with its available units; `None` where the query wants products in stock only, and it is not.
    async fn with_availability(&self, product: Product, now: Timestamp) -> Result<Option<Listed>> {
        let available = match &self.query.geo_zone {
            Some(zone) => {
                let key = StockKey { product_id: product.product_id.clone(), geo_zone: zone.clone() };
                let stock = self.store.level_at(&key, self.freshness, now).await?;
                Some(stock.map_or(0, |stock| stock.level.available()))
            }
            None => None,
        };
        let is_missing = self.query.in_stock && available == Some(0);
        Ok((!is_missing).then_some(Listed { product: product.into(), available }))
    }
}

/// The results of the reads, in their order.
async fn concurrently<T>(reads: Vec<impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    stream::iter(reads).buffered(CONCURRENT_READS).try_collect().await
}

fn limit(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

impl CassandraStore {
    pub(super) async fn list_category(
        &self,
        query: &CategoryQuery,
        freshness: Freshness,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Listed>> {
        let (min, max) = (query.min_price.unwrap_or(Money::ZERO), query.max_price.unwrap_or(Money::MAX));
        let mut cursor = match &page.after {
            Some(position) => ListingCursor::decode(position).ok_or(Refusal::InvalidCursor)?,
            None => ListingCursor::first(min, max, query.descending),
        };
        let bands = self.bands_of_prices(query, min, max, freshness).await?;
        let scan = CategoryScan { store: self, query, freshness, min, max, bands };
        let mut items = Vec::new();
        let mut rows_read = 0;
        loop {
            let room = page.limit.saturating_sub(items.len()).min(ROWS_MAX);
            let mut products = scan.products_after(&cursor, room + 1).await?;
            let has_more = products.len() > room;
            products.truncate(room);
            rows_read += products.len();
            if let Some(last) = products.last() {
                cursor = ListingCursor { price: last.price, product_id: last.product_id.as_str().to_owned() };
            }
            let reads: Vec<_> =
                products.into_iter().map(|product| scan.with_availability(product, now)).collect();
            items.extend(concurrently(reads).await?.into_iter().flatten());
            if !has_more {
                return Ok(Page { items, next: None });
            }
            if items.len() >= page.limit || rows_read >= PAGE_ROWS_MAX {
                return Ok(Page { items, next: Some(cursor.encode()) });
            }
        }
    }

    /// The registered partitions of the queried prices, by band of prices and in the direction of the query.
    async fn bands_of_prices(
        &self,
        query: &CategoryQuery,
        min: Money,
        max: Money,
        freshness: Freshness,
    ) -> Result<Vec<(i32, Vec<i32>)>> {
        if min > max {
            return Ok(Vec::new());
        }
        let mut by_price: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        let queried = bands::price_bands(min, max);
        for band in self.bands_of_category(&query.category, freshness).await? {
            let price_band = bands::price_band(band);
            if queried.contains(&price_band) {
                by_price.entry(price_band).or_default().push(band);
            }
        }
        let mut bands: Vec<(i32, Vec<i32>)> = by_price.into_iter().collect();
        if query.descending {
            bands.reverse();
        }
        Ok(bands)
    }

    async fn bands_of_category(&self, category: &Category, freshness: Freshness) -> Result<Vec<i32>> {
        let statement = self.products.listing.bands.at(freshness);
        let rows: Vec<(i32,)> = self.cql.rows(statement, (category.as_str(),)).await?;
        Ok(rows.into_iter().map(|(band,)| band).collect())
    }

    pub(super) async fn list_categories(&self, page: PageRequest) -> Result<Page<Category>> {
        let mut last = match &page.after {
            Some(Position(bytes)) => {
                let name = std::str::from_utf8(bytes).ok().filter(|name| Category::parse(name).is_ok());
                name.ok_or(Refusal::InvalidCursor)?.to_owned()
            }
            None => String::new(),
        };
        let mut items = Vec::new();
        let mut rows_read = 0;
        loop {
            let room = page.limit.saturating_sub(items.len()).min(ROWS_MAX);
            let mut names = self.category_names(&last, room + 1).await?;
            let has_more = names.len() > room;
            names.truncate(room);
            rows_read += names.len();
            if let Some(name) = names.last() {
                last.clone_from(name);
            }
            let reads: Vec<_> = names.into_iter().map(|name| self.category_with_products(name)).collect();
            items.extend(concurrently(reads).await?.into_iter().flatten());
            if !has_more {
                return Ok(Page { items, next: None });
            }
            if items.len() >= page.limit || rows_read >= CATEGORIES_MAX {
                return Ok(Page { items, next: Some(Position(last.into_bytes())) });
            }
        }
    }

    /// Names of registered categories after one, in order, up to `count`.
    async fn category_names(&self, after: &str, count: usize) -> Result<Vec<String>> {
        let statement = &self.products.listing.categories;
        let reads = (0..PARTS).map(|part| self.cql.rows::<(String,)>(statement, (part, after, limit(count))));
        let found = try_join_all(reads).await?;
        let mut names: Vec<String> = found.into_iter().flatten().map(|(name,)| name).collect();
        names.sort_unstable();
        names.truncate(count);
        Ok(names)
    }

    async fn category_with_products(&self, name: String) -> Result<Option<Category>> {
        let category = Category::parse(&name)
            .map_err(|_| StoreError::Corrupt(format!("cannot read category {name:?} in categories")))?;
        for band in self.bands_of_category(&category, Freshness::Latest).await? {
            let values = (category.as_str(), band);
            if self.cql.first::<(String,)>(&self.products.listing.any, values).await?.is_some() {
                return Ok(Some(category));
            }
        }
        Ok(None)
    }

    /// Writes that the product's category has a partition for its price, unless it is the one of the `current` row. An
    /// error says that the product is certainly unchanged.
    pub(super) async fn register_partition(
        &self,
        stored: &StoredProduct,
        current: Option<&StoredProduct>,
    ) -> Result<()> {
        let is_registered = current.is_some_and(|current| {
            current.product.category == stored.product.category && current.band == stored.band
        });
        if stored.is_deleted || is_registered {
            return Ok(());
        }
        let (category, band) = (&stored.product.category, stored.band);
        self.register_band(category, band).await.map_err(StoreError::before_first_effect)
    }

    /// Whether a list of the category reads the band.
    pub(super) async fn is_band_listed(&self, category: &Category, band: i32) -> Result<bool> {
        Ok(self.bands_of_category(category, Freshness::Latest).await?.contains(&band))
    }

    /// Once in the life of a band one process writes it, and every other one reads it once: many processes that import products of
    /// the same categories do not write to the same partitions.
    async fn register_band(&self, category: &Category, band: i32) -> Result<()> {
        let listing = &self.products.listing;
        let registered = || listing.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (category.clone(), band);
        if registered().contains(&key) {
            return Ok(());
        }
        if !self.bands_of_category(category, Freshness::Latest).await?.contains(&band) {
            let name = category.as_str();
            self.cql.write(&listing.insert_category, (part_of(name), name)).await?;
            // Crash here: a category without products, which the lists skip; no process has to remove it. The band comes second, so
            // that a band that is registered always has its category.
            self.cql.write(&listing.insert_band, (name, band)).await?;
        }
        let mut registered = registered();
        if registered.len() >= REGISTERED_MAX {
            registered.clear();
        }
        registered.insert(key);
        Ok(())
    }

    /// Brings the listing up to date with the product: inserts its row and deletes the `previous` one. The write
    /// timestamp is the product's revision, so that a late write of an older change has no effect.
    pub(super) async fn update_listing(
        &self,
        stored: &StoredProduct,
        previous: Option<&ListingKey>,
    ) -> Result<()> {
        self.write_listing(stored, previous, stored.rev).await
    }

    /// The same with another write timestamp.
    pub(super) async fn write_listing(
        &self,
        stored: &StoredProduct,
        previous: Option<&ListingKey>,
        written_at: i64,
    ) -> Result<()> {
        let key = stored.listing_key();
        if !stored.is_deleted {
            let Product { product_id, name, description, attributes, created_at, updated_at, .. } =
                &stored.product;
            let values = (
                key.category.as_str(),
                key.band,
                key.price.as_minor(),
                product_id.as_str(),
                name,
                description,
                attributes.iter().collect::<BTreeMap<_, _>>(),
                to_cql(*created_at),
                to_cql(*updated_at),
                written_at,
            );
            self.cql.write(&self.products.listing.insert, values).await?;
        }
        // Crash here: the product is listed twice, as it was and as it is; `recover_product` deletes the previous row.
        // The other order would let a reader miss the product.
        let deleted = if stored.is_deleted { Some(&key) } else { None };
        for key in deleted.into_iter().chain(previous.filter(|previous| **previous != key)) {
            let product_id = stored.product.product_id.as_str();
            let values = (written_at, key.category.as_str(), key.band, key.price.as_minor(), product_id);
            self.cql.write(&self.products.listing.delete, values).await?;
        }
        Ok(())
    }
}

/// The product of a row.
pub(super) fn read_row(row: ListingRow, category: &Category) -> Result<Product> {
    row.into_product(category)
}

fn part_of(category: &str) -> i32 {
    i32::try_from(hash_of(category) % u64::from(PARTS.cast_unsigned())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_reads_back_and_other_bytes_are_refused() {
        let cursor = ListingCursor { price: Money::from_minor(500), product_id: "p-1".to_owned() };
        assert_eq!(ListingCursor::decode(&cursor.encode()), Some(cursor));
        for bytes in [vec![], vec![0xff; 3], vec![0; 8], vec![0xff; 400]] {
            assert_eq!(ListingCursor::decode(&Position(bytes)), None);
        }
    }

    #[test]
    fn bounds_of_a_listing_are_inclusive() {
        let (min, max) = (Money::from_minor(5), Money::from_minor(9));
        assert_eq!(ListingCursor::first(min, max, false).price, min);
        assert_eq!(ListingCursor::first(min, max, true).price, Money::from_minor(10));
    }
}
