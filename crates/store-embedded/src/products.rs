//! The catalogue: products by id, and an index of each category by price.
//!
//! Invariants: product and index row are written in one batch. A category exists while the index has a row of it.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use mw_codec::changes::ChangeRef;
use mw_domain::products::ProductPatch;
use mw_domain::{Category, Money, Product, ProductId, Timestamp};
use mw_store::products::{CategoryQuery, ImportProduct, Imported, Listed, Products, Put};
use mw_store::{Done, Freshness, Page, PageRequest, Position, Refusal, Result, StoreError};

use crate::EmbeddedStore;
use crate::cache::ReadCache;
use crate::idempotency;
use crate::keys;
use crate::reader::{KeyRange, List, Reader, SnapshotReader, page};
use crate::stock;
use crate::tables::Table;
use crate::tx::Tx;

#[async_trait]
impl Products for EmbeddedStore {
    async fn put_product(&self, product: Product) -> Result<Put> {
        self.options.partitions.write(Table::Products.name(), product.product_id.as_str());
        self.write(move |tx| put(tx, product)).await
    }

    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product> {
        self.options.partitions.write(Table::Products.name(), product_id.as_str());
        let product_id = product_id.clone();
        self.write(move |tx| {
            let mut product = read(tx, &product_id)?.ok_or(Refusal::ProductNotFound(product_id))?;
            let before = product.clone();
            product.patch(patch, now);
            product.check()?;
            save(tx, Some(&before), &product);
            tx.record_change(product.updated_at, ChangeRef::ProductPut(&product));
            Ok(product)
        })
        .await
    }

    async fn product(&self, product_id: &ProductId, _: Freshness) -> Result<Option<Arc<Product>>> {
        self.options.partitions.read(Table::Products.name(), product_id.as_str());
        self.cache.product(product_id.as_str().as_bytes())
    }

    async fn delete_product(&self, product_id: &ProductId, now: Timestamp) -> Result<()> {
        let product_id = product_id.clone();
        self.write(move |tx| {
            let product =
                read(tx, &product_id)?.ok_or_else(|| Refusal::ProductNotFound(product_id.clone()))?;
            remove(tx, &product);
            tx.record_change(now, ChangeRef::ProductDeleted(&product_id, now));
            Ok(())
        })
        .await
    }

    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
        self.write(move |tx| {
            let identity = command.identity.clone();
            idempotency::run(tx, identity, command.now, |tx| import(tx, command))
        })
        .await
    }

    async fn category(
        &self,
        query: &CategoryQuery,
        _: Freshness,
        now: Timestamp,
        request: PageRequest,
    ) -> Result<Page<Listed>> {
        self.options.partitions.read(Table::ProductsByCategory.name(), query.category.as_str());
        let levels = self.levels(now)?;
        let list = category_list(query);
        let mut stock_key = keys::Key::new();
        let mut available = |id: &[u8]| match &query.geo_zone {
            Some(zone) => {
                keys::write_stock(&mut stock_key, id, zone);
                levels.available(&stock_key).map(Some)
            }
            None => Ok(None),
        };
        // Depends on stock levels, which change more often than pages could be cached for.
        if query.in_stock {
            let snapshot = self.snapshot();
            return page(&snapshot, Table::ProductsByCategory, &list, &request, &mut |key, _| {
                let id = listed_id(&list, key)?;
                let available = available(id)?;
                if available == Some(0) {
                    return Ok(None);
                }
                Ok(Some(Listed { product: listed_product(&self.cache, &snapshot, id)?, available }))
            });
        }
        let cached = self.cache.page(list.page_key(&request)?, |snapshot| {
            page(snapshot, Table::ProductsByCategory, &list, &request, &mut |key, _| {
                Ok(Some(listed_product(&self.cache, snapshot, listed_id(&list, key)?)?))
            })
        })?;
        let Page { items, next } = &cached.page;
        let listed = |product: &Arc<Product>| {
            let available = available(product.product_id.as_str().as_bytes())?;
            Ok(Listed { product: Arc::clone(product), available })
        };
        let items: Result<Vec<Listed>> = items.iter().map(listed).collect();
        Ok(Page { items: items?, next: next.clone() })
    }

    async fn categories(&self, request: PageRequest) -> Result<Page<Category>> {
        let snapshot = self.snapshot();
        let mut range = match &request.after {
            None => KeyRange { from: Vec::new(), to: None },
            Some(Position(after)) => {
                let last = keys::read_category(after).map_err(|_| Refusal::InvalidCursor)?;
                after_category(&last)
            }
        };
        let mut items: Vec<Category> = Vec::new();
        while items.len() <= request.limit {
            let Some(category) = first_category(&snapshot, &range)? else {
                return Ok(Page { items, next: None });
            };
            range = after_category(&category);
            items.push(category);
        }
        items.truncate(request.limit);
        let next = items.last().map(|last| Position(keys::category(last)));
        Ok(Page { items, next })
    }
}

/// The product id in a row of the category index.
fn listed_id<'a>(list: &List, key: &'a [u8]) -> Result<&'a [u8]> {
    Ok(key.get(list.prefix.len() + 8..).ok_or(mw_codec::Damaged("category key"))?)
}

/// A product that a snapshot lists. One that was deleted since is read from the snapshot.
fn listed_product(cache: &ReadCache, snapshot: &SnapshotReader, id: &[u8]) -> Result<Arc<Product>> {
    if let Some(product) = cache.product(id)? {
        return Ok(product);
    }
    let row = snapshot.get(Table::Products, id)?.ok_or_else(|| {
        let id = String::from_utf8_lossy(id);
        StoreError::Corrupt(format!("read product {id}: a category lists it, but it is not stored"))
    })?;
    Ok(mw_codec::products::decode(&row)?.into())
}

/// The category of the first index row of a range.
fn first_category(reader: &dyn Reader, range: &KeyRange) -> Result<Option<Category>> {
    let mut found = None;
    reader.scan(Table::ProductsByCategory, range, false, &mut |key, _| {
        found = Some(keys::read_category(key)?);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// All index rows after a category: the next category is found without reading the rest of this one.
fn after_category(category: &Category) -> KeyRange {
    let to = keys::after_prefix(&keys::category(category)).unwrap_or_default();
    KeyRange { from: to, to: None }
}

/// The index rows of a category within the requested prices.
fn category_list(query: &CategoryQuery) -> List {
    let prefix = keys::category(&query.category);
    let whole = KeyRange::prefix(prefix.clone());
    let from = query.min_price.map_or(whole.from, |min| keys::category_from(&query.category, min));
    let to = match query.max_price {
        Some(max) => {
            Some(keys::category_from(&query.category, Money::from_minor(max.as_minor().saturating_add(1))))
        }
        None => whole.to,
    };
    List {
        prefix,
        range: KeyRange { from, to },
        reverse: query.descending,
        is_position: keys::is_category_position,
    }
}

pub(crate) fn read(reader: &dyn Reader, product_id: &ProductId) -> Result<Option<Product>> {
    let row = reader.get(Table::Products, product_id.as_str().as_bytes())?;
    Ok(row.map(|row| mw_codec::products::decode(&row)).transpose()?)
}

/// Name and price of a product.
pub(crate) fn read_tag(reader: &dyn Reader, product_id: &ProductId) -> Result<Option<(String, Money)>> {
    let row = reader.get(Table::Products, product_id.as_str().as_bytes())?;
    Ok(row.map(|row| mw_codec::products::decode_tag(&row)).transpose()?)
}

pub(crate) fn exists(reader: &dyn Reader, product_id: &ProductId) -> Result<bool> {
    Ok(reader.get(Table::Products, product_id.as_str().as_bytes())?.is_some())
}

fn index_key(product: &Product) -> Vec<u8> {
    keys::in_category(&product.category, product.price, &product.product_id)
}

/// Creates or replaces a product; a replaced one keeps its creation time.
fn put(tx: &mut Tx, mut product: Product) -> Result<Put> {
    product.check()?;
    let before = read(tx, &product.product_id)?;
    if let Some(before) = &before {
        product.created_at = before.created_at;
        product.updated_at = product.updated_at.max(before.updated_at);
    }
    save(tx, before.as_ref(), &product);
    tx.record_change(product.updated_at, ChangeRef::ProductPut(&product));
    Ok(Put { product, created: before.is_none() })
}

/// Writes a product. Its index row changes only with its category or price.
pub(crate) fn save(tx: &mut Tx, before: Option<&Product>, product: &Product) {
    let new_key = index_key(product);
    let old_key = before.map(index_key);
    if old_key.as_ref() != Some(&new_key) {
        if let Some(old_key) = old_key {
            tx.remove(Table::ProductsByCategory, old_key);
        }
        tx.put(Table::ProductsByCategory, new_key, Vec::new());
    }
    tx.put(Table::Products, keys::product(&product.product_id), mw_codec::products::encode(product));
}

pub(crate) fn remove(tx: &mut Tx, product: &Product) {
    tx.remove(Table::ProductsByCategory, index_key(product));
    tx.remove(Table::Products, keys::product(&product.product_id));
}

/// Puts a product and sets its stock. All of it is one batch: a crash before the commit leaves the old product and stock, and the
/// repeated request imports them; a crash after it leaves the stored outcome for the repeat.
fn import(tx: &mut Tx, command: ImportProduct) -> Result<Imported> {
    let ImportProduct { product, stock: zones, op, now, .. } = command;
    let product_id = product.product_id.clone();
    // Final even if the import is refused below.
    for (zone, on_hand) in &zones {
        stock::expire_until(tx, &product_id, zone, now, |level| level.reserved <= *on_hand)?;
    }
    let created = put(tx, product)?.created;
    for (zone, on_hand) in zones {
        stock::set(tx, &product_id, &zone, on_hand, op, now)?;
    }
    Ok(Imported { product_id, created })
}
