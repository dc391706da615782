//! A category by price, and the categories that have products.
//!
//! Partitions of different bands of prices follow each other; those of one band, where a plan cut it, are merged. Which
//! partitions a category has is read first, so that no empty band is asked.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{Attributes, Category, Money, Product, ProductId, Timestamp};
use mw_store::products::{CategoryQuery, Listed};
use mw_store::{Freshness, Page, PageRequest, Position, Refusal, Result, StoreError};
use scylla::DeserializeRow;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;

use super::card::Card;
use super::place::{self, Place};
use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::intents::surely_not;
use crate::keeper::Place as StockPlace;
use crate::tables::Table;
use crate::time::{from_cql, to_cql};

/// All categories are in one partition: there are few, and they are listed by name.
const PART: i32 = 0;
/// Partitions of a category, or figures of a page, that are read at the same time.
const AT_ONCE: usize = 16;
/// Rows that are looked at in one go.
const ROWS_MAX: usize = 100;
/// Rows that one page of a category looks at; those that are out of stock count too.
const LOOKED_AT_MAX: usize = 1_000;
/// Categories that one page of them looks at; those without products count too.
const CATEGORIES_MAX: usize = 256;

/// A way to read, for those who may see what is a little old and for those who may not.
#[derive(Debug)]
struct Reading {
    full: PreparedStatement,
    showcase: PreparedStatement,
}

impl Reading {
    async fn prepare(cql: &Cql, table: Table, text: &str) -> Result<Self> {
        Ok(Self {
            full: cql.prepare(table, Access::Read, text).await?,
            showcase: cql.prepare(table, Access::Showcase, text).await?,
        })
    }

    const fn at(&self, freshness: Freshness) -> &PreparedStatement {
        match freshness {
            Freshness::Full => &self.full,
            Freshness::Showcase => &self.showcase,
        }
    }
}

#[derive(Debug)]
pub(super) struct Shelves {
    insert: PreparedStatement,
    remove: PreparedStatement,
    rising: Reading,
    falling: Reading,
    any: PreparedStatement,
    note_category: PreparedStatement,
    categories: PreparedStatement,
    note_band: PreparedStatement,
    bands: Reading,
}

impl Shelves {
    pub(super) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::ProductsByCategory;
        let insert = "INSERT INTO {} (category, band, price, product_id, name, description, attributes, created_at, \
                      updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let remove = "DELETE FROM {} USING TIMESTAMP ? WHERE category = ? AND band = ? AND price = ? AND product_id = ?";
        let columns = "price, product_id, name, description, attributes, created_at, updated_at";
        let rising = format!(
            "SELECT {columns} FROM {{}} WHERE category = ? AND band = ? AND (price, product_id) > (?, ?) \
             AND (price) <= (?) LIMIT ?"
        );
        let falling = format!(
            "SELECT {columns} FROM {{}} WHERE category = ? AND band = ? AND (price, product_id) < (?, ?) \
             AND (price) >= (?) ORDER BY price DESC, product_id DESC LIMIT ?"
        );
        let any = "SELECT product_id FROM {} WHERE category = ? AND band = ? LIMIT 1";
        let (names, bands) = (Table::Categories, Table::CategoryBands);
        let categories = "SELECT category FROM {} WHERE part = ? AND category > ? LIMIT ?";
        Ok(Self {
            insert: cql.prepare(table, Access::Write, insert).await?,
            remove: cql.prepare(table, Access::Write, remove).await?,
            rising: Reading::prepare(cql, table, &rising).await?,
            falling: Reading::prepare(cql, table, &falling).await?,
            any: cql.prepare(table, Access::Read, any).await?,
            note_category: cql
                .prepare(names, Access::Write, "INSERT INTO {} (part, category) VALUES (?, ?)")
                .await?,
            categories: cql.prepare(names, Access::Read, categories).await?,
            note_band: cql
                .prepare(bands, Access::Write, "INSERT INTO {} (category, band) VALUES (?, ?)")
                .await?,
            // As many as there can be numbers of bands.
            bands: Reading::prepare(cql, bands, "SELECT band FROM {} WHERE category = ? LIMIT 4096").await?,
        })
    }
}

#[derive(Debug, DeserializeRow)]
struct Row {
    price: i64,
    product_id: String,
    name: Option<String>,
    description: Option<String>,
    attributes: Option<BTreeMap<String, String>>,
    created_at: Option<CqlTimestamp>,
    updated_at: Option<CqlTimestamp>,
}

impl Row {
    fn product(self, category: &Category) -> Result<Product> {
        let damaged = || StoreError::Corrupt(format!("product {} in category {category}", self.product_id));
        Ok(Product {
            product_id: ProductId::parse(&self.product_id).map_err(|_| damaged())?,
            name: self.name.ok_or_else(damaged)?,
            category: category.clone(),
            price: Money::from_minor(self.price),
            description: self.description.unwrap_or_default(),
            attributes: self.attributes.map(Attributes::from).unwrap_or_default(),
            created_at: self.created_at.map(from_cql).ok_or_else(damaged)?,
            updated_at: self.updated_at.map(from_cql).ok_or_else(damaged)?,
        })
    }
}

/// Where a listing stands: what comes next is beyond it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    price: Money,
    /// Empty before the first product of the price.
    product_id: String,
}

impl Edge {
    fn first(min: Money, max: Money, descending: bool) -> Self {
        let price = if descending { Money::from_minor(max.as_minor().saturating_add(1)) } else { min };
        Self { price, product_id: String::new() }
    }

    fn position(&self) -> Position {
        Position([&self.price.as_minor().to_be_bytes()[..], self.product_id.as_bytes()].concat())
    }

    /// `None` where a listing cannot have ended there.
    fn read(position: &Position) -> Option<Self> {
        let (price, id) = position.0.split_first_chunk::<8>()?;
        let id = ProductId::parse(std::str::from_utf8(id).ok()?).ok()?;
        Some(Self {
            price: Money::from_minor(i64::from_be_bytes(*price)),
            product_id: id.as_str().to_owned(),
        })
    }
}

/// A category as it was asked for.
struct Shelf<'a> {
    store: &'a CassandraStore,
    query: &'a CategoryQuery,
    freshness: Freshness,
    min: Money,
    max: Money,
    /// The partitions of each band of prices, in the asked direction.
    bands: Vec<(i32, Vec<i32>)>,
}

impl Shelf<'_> {
    /// The next `count` products after `edge`; fewer only at the end.
    async fn next(&self, edge: &Edge, count: usize) -> Result<Vec<Product>> {
        let left = if self.query.descending {
            place::prices_between(self.min, edge.price)
        } else {
            place::prices_between(edge.price, self.max)
        };
        let bands: Vec<&Vec<i32>> =
            self.bands.iter().filter(|(prices, _)| left.contains(prices)).map(|(_, bands)| bands).collect();
        let mut products = Vec::new();
        // One band is mostly enough; where it is not, ever more of them are asked at once.
        let (mut from, mut width) = (0, 1);
        while products.len() < count && from < bands.len() {
            let some = bands.iter().skip(from).take(width);
            let reads: Vec<_> = some.map(|bands| self.band(bands, edge, count)).collect();
            products.extend(in_turn(reads).await?.into_iter().flatten());
            from += width;
            width = (width * 2).min(AT_ONCE);
        }
        products.truncate(count);
        Ok(products)
    }

    /// The next `count` products of one band of prices.
    async fn band(&self, bands: &[i32], edge: &Edge, count: usize) -> Result<Vec<Product>> {
        let reads: Vec<_> = bands.iter().map(|band| self.partition(*band, edge, count)).collect();
        let mut products: Vec<Product> = in_turn(reads).await?.into_iter().flatten().collect();
        if bands.len() > 1 {
            products.sort_by(|a, b| (a.price, &a.product_id).cmp(&(b.price, &b.product_id)));
            if self.query.descending {
                products.reverse();
            }
            products.truncate(count);
        }
        Ok(products)
    }

    async fn partition(&self, band: i32, edge: &Edge, count: usize) -> Result<Vec<Product>> {
        let shelves = &self.store.products.shelves;
        let (reading, end) =
            if self.query.descending { (&shelves.falling, self.min) } else { (&shelves.rising, self.max) };
        let category = &self.query.category;
        let values = (
            category.as_str(),
            band,
            edge.price.as_minor(),
            edge.product_id.as_str(),
            end.as_minor(),
            limit(count),
        );
        let rows: Vec<Row> = self.store.cql.rows(reading.at(self.freshness), values).await?;
        rows.into_iter().map(|row| row.product(category)).collect()
    }

    /// The product as it is listed; `None` where only what is in stock was asked for and it is not.
    async fn listed(&self, product: Product, now: Timestamp) -> Result<Option<Listed>> {
        let available = match &self.query.geo_zone {
            Some(zone) => {
                let place = StockPlace { product_id: product.product_id.clone(), geo_zone: zone.clone() };
                let stock = self.store.level_at(&place, self.freshness, now).await?;
                Some(stock.map_or(0, |stock| stock.level.available()))
            }
            None => None,
        };
        let is_missing = self.query.in_stock && available == Some(0);
        Ok((!is_missing).then_some(Listed { product: product.into(), available }))
    }
}

/// What the reads answer, in their order; some of them are under way at the same time.
async fn in_turn<T>(reads: Vec<impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    stream::iter(reads).buffered(AT_ONCE).try_collect().await
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
        let mut edge = match &page.after {
            Some(position) => Edge::read(position).ok_or(Refusal::InvalidCursor)?,
            None => Edge::first(min, max, query.descending),
        };
        let bands = self.bands(query, min, max, freshness).await?;
        let asked = Shelf { store: self, query, freshness, min, max, bands };
        let mut items = Vec::new();
        let mut looked_at = 0;
        loop {
            let room = page.limit.saturating_sub(items.len()).min(ROWS_MAX);
            let mut products = asked.next(&edge, room + 1).await?;
            let has_more = products.len() > room;
            products.truncate(room);
            looked_at += products.len();
            if let Some(last) = products.last() {
                edge = Edge { price: last.price, product_id: last.product_id.as_str().to_owned() };
            }
            let reads: Vec<_> = products.into_iter().map(|product| asked.listed(product, now)).collect();
            items.extend(in_turn(reads).await?.into_iter().flatten());
            if !has_more {
                return Ok(Page { items, next: None });
            }
            if items.len() >= page.limit || looked_at >= LOOKED_AT_MAX {
                return Ok(Page { items, next: Some(edge.position()) });
            }
        }
    }

    /// The partitions of the asked prices that ever had a product, by band of prices and in the asked direction.
    async fn bands(
        &self,
        query: &CategoryQuery,
        min: Money,
        max: Money,
        freshness: Freshness,
    ) -> Result<Vec<(i32, Vec<i32>)>> {
        if min > max {
            return Ok(Vec::new());
        }
        let mut by_prices: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        let asked = place::prices_between(min, max);
        for band in self.bands_of(&query.category, freshness).await? {
            let prices = place::prices_of(band);
            if asked.contains(&prices) {
                by_prices.entry(prices).or_default().push(band);
            }
        }
        let mut bands: Vec<(i32, Vec<i32>)> = by_prices.into_iter().collect();
        if query.descending {
            bands.reverse();
        }
        Ok(bands)
    }

    async fn bands_of(&self, category: &Category, freshness: Freshness) -> Result<Vec<i32>> {
        let statement = self.products.shelves.bands.at(freshness);
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
        let mut looked_at = 0;
        loop {
            let room = page.limit.saturating_sub(items.len()).min(ROWS_MAX);
            let values = (PART, last.as_str(), limit(room + 1));
            let mut rows: Vec<(String,)> = self.cql.rows(&self.products.shelves.categories, values).await?;
            let has_more = rows.len() > room;
            rows.truncate(room);
            looked_at += rows.len();
            if let Some((name,)) = rows.last() {
                last.clone_from(name);
            }
            let reads: Vec<_> = rows.into_iter().map(|(name,)| self.category_with_products(name)).collect();
            items.extend(in_turn(reads).await?.into_iter().flatten());
            if !has_more {
                return Ok(Page { items, next: None });
            }
            if items.len() >= page.limit || looked_at >= CATEGORIES_MAX {
                return Ok(Page { items, next: Some(Position(last.into_bytes())) });
            }
        }
    }

    async fn category_with_products(&self, name: String) -> Result<Option<Category>> {
        let category =
            Category::parse(&name).map_err(|_| StoreError::Corrupt(format!("category {name:?}")))?;
        for band in self.bands_of(&category, Freshness::Full).await? {
            let values = (category.as_str(), band);
            if self.cql.first::<(String,)>(&self.products.shelves.any, values).await?.is_some() {
                return Ok(Some(category));
            }
        }
        Ok(None)
    }

    /// Makes known that the card's category has products in its band, unless that is known of the place it is `listed` at.
    /// `Err` says that the card is surely as it was.
    pub(super) async fn announce(&self, card: &Card, listed: Option<&Card>) -> Result<()> {
        let place = card.place();
        let is_known = listed.is_some_and(|listed| listed.place().is_same_partition(&place));
        if card.is_deleted || is_known {
            return Ok(());
        }
        let shelves = &self.products.shelves;
        let name = place.category.as_str();
        futures_util::try_join!(
            self.cql.write(&shelves.note_category, (PART, name)),
            self.cql.write(&shelves.note_band, (name, place.band)),
        )
        .map_err(surely_not)?;
        Ok(())
    }

    /// Brings the listing to what the card says: it stands where it is now, and no longer where it was.
    pub(super) async fn list_card(&self, card: &Card, left: Option<&Place>) -> Result<()> {
        let place = card.place();
        if !card.is_deleted {
            let Product { product_id, name, description, attributes, created_at, updated_at, .. } =
                &card.product;
            let values = (
                place.category.as_str(),
                place.band,
                place.price.as_minor(),
                product_id.as_str(),
                name,
                description,
                attributes.iter().collect::<BTreeMap<_, _>>(),
                to_cql(*created_at),
                to_cql(*updated_at),
                card.rev,
            );
            self.cql.write(&self.products.shelves.insert, values).await?;
        }
        // After it stands in its new place, so that no reader misses it.
        let gone = if card.is_deleted { Some(&place) } else { None };
        for place in gone.into_iter().chain(left.filter(|left| **left != place)) {
            let id = card.product.product_id.as_str();
            let values = (card.rev, place.category.as_str(), place.band, place.price.as_minor(), id);
            self.cql.write(&self.products.shelves.remove, values).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_and_others_are_refused() {
        let edge = Edge { price: Money::from_minor(500), product_id: "p-1".to_owned() };
        assert_eq!(Edge::read(&edge.position()), Some(edge));
        for bytes in [vec![], vec![0xff; 3], vec![0; 8], vec![0xff; 400]] {
            assert_eq!(Edge::read(&Position(bytes)), None);
        }
    }

    #[test]
    fn the_bounds_of_a_listing_are_inclusive() {
        let (min, max) = (Money::from_minor(5), Money::from_minor(9));
        assert_eq!(Edge::first(min, max, false).price, min);
        assert_eq!(Edge::first(min, max, true).price, Money::from_minor(10));
    }
}
