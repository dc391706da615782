//! Lists of the catalogue: a category by price, and the categories.
//!
//! The index `category_price` sorts as the contract does where all prices are decimals or integers and all ids are text, as we
//! write them. Other programs write doubles (19.99 is a little less than 19.99) and `ObjectId`s (which sort after all
//! text). Where there are any, each kind is read by itself and the kinds are merged in memory, by money and the text of the id.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document, doc};
use mw_domain::{Category, Money, Product, Timestamp};
use mw_store::products::{CategoryQuery, Listed};
use mw_store::{Freshness, Page, PageRequest, Position, Refusal, Result, StoreError};

use crate::MongoStore;
use crate::documents::ids::to_bson_id;
use crate::documents::money::to_decimal;
use crate::documents::products;
use crate::policy::Call;
use crate::stock::entries_of;

/// How long the knowledge that all products are of our kind is used for reads that may be stale.
const UNIFORMITY_TTL: Duration = Duration::from_secs(5);
/// Products that one page reads to find some in stock.
const SCAN_MAX: usize = 1_000;
/// Products that one page reads at once to find some in stock.
const SCAN_BATCH: usize = 100;
/// Documents that one page may skip because they cannot be read.
const UNREADABLE_MAX: usize = 10_000;
/// Products of one price in doubles that are sorted in memory.
const SAME_PRICE_MAX: usize = 10_000;
/// A little more than the tolerance of a double that is taken as money.
const TOLERANCE: f64 = 0.000_001_5;

/// Whether the index sorts all products as the contract does, as of an instant.
#[derive(Debug, Default)]
pub(crate) struct Uniformity(Mutex<Option<(Instant, bool)>>);

/// The place of a product in its category: price in hundredths, then id.
type SortKey = (i64, String);

/// A product, its place and its document.
#[derive(Debug)]
struct Row {
    key: SortKey,
    product: Product,
    document: Document,
}

/// Products that the index sorts as the contract does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All products, where they are uniform.
    All,
    Exact {
        id: &'static str,
    },
    Double {
        id: &'static str,
    },
}

const KINDS: [Kind; 4] = [
    Kind::Exact { id: "string" },
    Kind::Exact { id: "objectId" },
    Kind::Double { id: "string" },
    Kind::Double { id: "objectId" },
];

pub(super) async fn category(
    store: &MongoStore,
    query: &CategoryQuery,
    freshness: Freshness,
    now: Timestamp,
    page: &PageRequest,
) -> Result<Page<Listed>> {
    let mut after = page.after.as_ref().map(read_position).transpose()?;
    let (mut items, mut scanned) = (Vec::new(), 0);
    let in_stock = query.in_stock && query.geo_zone.is_some();
    loop {
        let wanted = if in_stock { (page.limit + 1).max(SCAN_BATCH) } else { page.limit + 1 };
        let rows = rows(store, query, freshness, after.as_ref(), wanted).await?;
        let is_end = rows.len() < wanted;
        for row in rows {
            if items.len() >= page.limit {
                return Ok(Page { items, next: after.as_ref().map(write_position) });
            }
            scanned += 1;
            let available = available(store, query, freshness, now, &row).await?;
            after = Some(row.key);
            if !in_stock || available != Some(0) {
                items.push(Listed { product: row.product.into(), available });
            }
        }
        if is_end {
            return Ok(Page { items, next: None });
        }
        if scanned >= SCAN_MAX {
            return Ok(Page { items, next: after.as_ref().map(write_position) });
        }
    }
}

/// Units available in the zone of the query; expired holds count as available.
async fn available(
    store: &MongoStore,
    query: &CategoryQuery,
    freshness: Freshness,
    now: Timestamp,
    row: &Row,
) -> Result<Option<u64>> {
    let Some(zone) = &query.geo_zone else { return Ok(None) };
    let entries = entries_of(&row.document, store);
    let Some(entry) = entries.iter().find(|entry| entry.geo_zone == *zone) else { return Ok(Some(0)) };
    if entry.hold_end.is_none_or(|end| now < end) {
        return Ok(Some(entry.level().available()));
    }
    let stock = store.stock_at(&row.product.product_id, freshness, now).await?;
    let zone_stock = stock.into_iter().find(|stock| stock.geo_zone == *zone);
    Ok(Some(zone_stock.map_or(0, |stock| stock.level.available())))
}

/// The next products of the category, in its order.
async fn rows(
    store: &MongoStore,
    query: &CategoryQuery,
    freshness: Freshness,
    after: Option<&SortKey>,
    wanted: usize,
) -> Result<Vec<Row>> {
    if is_uniform(store, freshness).await? {
        return rows_of_kind(store, query, freshness, after, wanted, Kind::All).await;
    }
    let mut rows = Vec::new();
    for kind in KINDS {
        rows.extend(rows_of_kind(store, query, freshness, after, wanted, kind).await?);
    }
    sort(&mut rows, query.descending);
    rows.truncate(wanted);
    Ok(rows)
}

fn sort(rows: &mut [Row], descending: bool) {
    rows.sort_by(|a, b| if descending { b.key.cmp(&a.key) } else { a.key.cmp(&b.key) });
}

async fn rows_of_kind(
    store: &MongoStore,
    query: &CategoryQuery,
    freshness: Freshness,
    after: Option<&SortKey>,
    wanted: usize,
    kind: Kind,
) -> Result<Vec<Row>> {
    let mut rows = read(store, query, freshness, kind.filter(query, after), wanted, wanted).await?;
    if let Kind::Double { .. } = kind
        && rows.len() >= wanted
        && let Some(last) = rows.last()
    {
        // Doubles of one amount may differ in their last bits: the order of their ids needs all of them.
        let same_price = Money::from_minor(last.key.0);
        let narrowed =
            CategoryQuery { min_price: Some(same_price), max_price: Some(same_price), ..query.clone() };
        let filter = kind.filter(&narrowed, after);
        let known: HashSet<SortKey> = rows.iter().map(|row| row.key.clone()).collect();
        let more = read(store, query, freshness, filter, SAME_PRICE_MAX, wanted).await?;
        rows.extend(more.into_iter().filter(|row| !known.contains(&row.key)));
    }
    if kind != Kind::All {
        sort(&mut rows, query.descending);
        rows.truncate(wanted);
    }
    Ok(rows)
}

/// The readable products of a query, up to `wanted`.
async fn read(
    store: &MongoStore,
    query: &CategoryQuery,
    freshness: Freshness,
    filter: Document,
    wanted: usize,
    batch: usize,
) -> Result<Vec<Row>> {
    let direction = if query.descending { -1 } else { 1 };
    let find = store
        .collections
        .products
        .find(filter)
        .sort(doc! { "price": direction, "_id": direction })
        .batch_size(u32::try_from(batch).unwrap_or(u32::MAX))
        .selection_criteria(store.reads.criteria_for(Call::Catalogue, freshness));
    let rows = store.read(async {
        let mut cursor = find.await?;
        let (mut rows, mut unreadable) = (Vec::new(), 0);
        while rows.len() < wanted && unreadable < UNREADABLE_MAX && cursor.advance().await? {
            let document: Document = cursor.deserialize_current()?;
            match store.readable(products::read(&document)) {
                Some(product) => {
                    let key = (product.price.as_minor(), product.product_id.to_string());
                    rows.push(Row { key, product, document });
                }
                None => unreadable += 1,
            }
        }
        Ok((rows, unreadable))
    });
    let (rows, unreadable) = rows.await?;
    if unreadable >= UNREADABLE_MAX {
        let detail = format!("list a category: {UNREADABLE_MAX} documents in a row cannot be read");
        return Err(StoreError::Unavailable(detail));
    }
    Ok(rows)
}

impl Kind {
    /// Finds products of this kind in the category and the bounds of the query, after a place.
    fn filter(self, query: &CategoryQuery, after: Option<&SortKey>) -> Document {
        let mut filter = doc! { "category": query.category.as_str() };
        let mut price = Document::new();
        if let Some(min) = query.min_price {
            price.insert("$gte", self.low(min));
        }
        if let Some(max) = query.max_price {
            price.insert("$lte", self.high(max));
        }
        match self {
            Self::All => {}
            Self::Exact { id } => {
                price.insert("$type", vec!["decimal", "int", "long"]);
                filter.insert("_id", doc! { "$type": id });
            }
            Self::Double { id } => {
                price.insert("$type", "double");
                filter.insert("_id", doc! { "$type": id });
            }
        }
        if !price.is_empty() {
            filter.insert("price", price);
        }
        if let Some((minor, id)) = after {
            filter.insert("$or", self.following(Money::from_minor(*minor), id, query.descending));
        }
        filter
    }

    /// What comes after a place: other prices, and other ids of the same price.
    fn following(self, price: Money, id: &str, descending: bool) -> Vec<Document> {
        let (low, high) = (self.low(price), self.high(price));
        let same_price = doc! { "$gte": low.clone(), "$lte": high.clone() };
        let (beyond, order) =
            if descending { (doc! { "$lt": low }, "$lt") } else { (doc! { "$gt": high }, "$gt") };
        let same_price = match self {
            Self::All => doc! { "price": same_price, "_id": { order: to_bson_id(id) } },
            // The ids of another kind are compared as text.
            Self::Exact { .. } | Self::Double { .. } => {
                let later = doc! { order: [{ "$toString": "$_id" }, { "$literal": id }] };
                doc! { "price": same_price, "$expr": later }
            }
        };
        vec![doc! { "price": beyond }, same_price]
    }

    /// No product of this kind that costs `price` is below.
    fn low(self, price: Money) -> Bson {
        match self {
            Self::All | Self::Exact { .. } => to_decimal(price),
            Self::Double { .. } => Bson::Double(to_double(price) - TOLERANCE),
        }
    }

    /// No product of this kind that costs `price` is above.
    fn high(self, price: Money) -> Bson {
        match self {
            Self::All | Self::Exact { .. } => to_decimal(price),
            Self::Double { .. } => Bson::Double(to_double(price) + TOLERANCE),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an amount is below 2^53")]
fn to_double(price: Money) -> f64 {
    price.as_minor() as f64 / 100.0
}

/// Whether no other program has written a double as a price or an `ObjectId` as an id. Each is a lookup in an index.
async fn is_uniform(store: &MongoStore, freshness: Freshness) -> Result<bool> {
    let known = *store.uniformity.0.lock().unwrap_or_else(PoisonError::into_inner);
    match known {
        Some((at, uniform)) if freshness == Freshness::StaleOk && at.elapsed() < UNIFORMITY_TTL => {
            return Ok(uniform);
        }
        _ => {}
    }
    let exists = async |filter: Document| {
        let find = store.collections.products.find_one(filter).projection(doc! { "_id": 1 });
        Ok::<bool, StoreError>(store.read(find).await?.is_some())
    };
    let uniform = !exists(doc! { "_id": { "$type": "objectId" } }).await?
        && !exists(doc! { "category": { "$gte": "" }, "price": { "$type": "double" } }).await?;
    *store.uniformity.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), uniform));
    Ok(uniform)
}

fn write_position((minor, id): &SortKey) -> Position {
    Position([&minor.to_be_bytes()[..], id.as_bytes()].concat())
}

fn read_position(position: &Position) -> Result<SortKey> {
    let (minor, id) = position.0.split_first_chunk().ok_or(Refusal::InvalidCursor)?;
    let id = std::str::from_utf8(id).map_err(|_| Refusal::InvalidCursor)?;
    Ok((i64::from_be_bytes(*minor), id.to_owned()))
}

/// By name. The server reads one key of the index per category.
pub(super) async fn categories(store: &MongoStore, page: &PageRequest) -> Result<Page<Category>> {
    let mut wanted = doc! { "$gte": "" };
    if let Some(after) = &page.after {
        let after = std::str::from_utf8(&after.0).map_err(|_| Refusal::InvalidCursor)?;
        if after.is_empty() {
            return Err(Refusal::InvalidCursor.into());
        }
        wanted = doc! { "$gt": after };
    }
    let pipeline = vec![
        doc! { "$match": { "category": wanted } },
        doc! { "$group": { "_id": "$category" } },
        doc! { "$sort": { "_id": 1 } },
        doc! { "$limit": i64::try_from(page.limit + 1).unwrap_or(i64::MAX) },
    ];
    let aggregate = store
        .collections
        .products
        .aggregate(pipeline)
        .selection_criteria(store.reads.criteria_of(Call::Catalogue));
    let documents = store.read_pipeline(aggregate).await?;
    let is_more = documents.len() > page.limit;
    let names = documents.iter().take(page.limit).filter_map(|document| document.get_str("_id").ok());
    let names: Vec<&str> = names.collect();
    let next = names.last().filter(|_| is_more).map(|name| Position(name.as_bytes().to_vec()));
    Ok(Page { items: names.into_iter().filter_map(|name| Category::parse(name).ok()).collect(), next })
}
