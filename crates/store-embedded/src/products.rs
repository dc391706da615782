//! The catalogue: a card by id, and an index of each category by price. Categories are what the index begins with.

use std::ops::ControlFlow;

use async_trait::async_trait;
use mw_domain::product::ProductPatch;
use mw_domain::{Category, Money, Product, ProductId, Timestamp};
use mw_store::products::{Card, CategoryQuery, ImportProduct, Imported, Listed, Products, Put};
use mw_store::{Done, Freshness, Page, PageRequest, Position, Refusal, Result, StoreError};

use crate::EmbeddedStore;
use crate::keys;
use crate::once;
use crate::shelf::Shelf;
use crate::stock;
use crate::tables::Table;
use crate::tx::Tx;
use crate::view::{List, Look, Span, View, page};

#[async_trait]
impl Products for EmbeddedStore {
    async fn put_product(&self, product: Product) -> Result<Put> {
        self.write(product.updated_at, move |tx| put(tx, product)).await
    }

    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product> {
        let product_id = product_id.clone();
        self.write(now, move |tx| {
            let mut product = read(tx, &product_id)?.ok_or(Refusal::ProductNotFound(product_id))?;
            let before = product.clone();
            product.patch(patch, now);
            product.check()?;
            save(tx, Some(&before), &product);
            Ok(product)
        })
        .await
    }

    async fn product(&self, product_id: &ProductId, _: Freshness) -> Result<Option<Card>> {
        self.shelf.card(product_id.as_str().as_bytes())
    }

    async fn delete_product(&self, product_id: &ProductId) -> Result<()> {
        let product_id = product_id.clone();
        self.write(Timestamp::EPOCH, move |tx| {
            let product =
                read(tx, &product_id)?.ok_or_else(|| Refusal::ProductNotFound(product_id.clone()))?;
            tx.remove(Table::ProductsByCategory, index_key(&product));
            tx.remove(Table::Products, keys::product(&product_id));
            Ok(())
        })
        .await
    }

    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
        self.write(command.now, move |tx| {
            let once = command.once.clone();
            once::run(tx, once, command.now, |tx| import(tx, command))
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
        let figures = self.figures(now)?;
        let list = category_list(query);
        let mut stock_key = keys::Key::new();
        let mut available = |id: &[u8]| match &query.geo_zone {
            Some(zone) => {
                keys::write_stock(&mut stock_key, id, zone);
                figures.available(&stock_key).map(Some)
            }
            None => Ok(None),
        };
        if query.in_stock {
            let view = self.view();
            return page(&view, Table::ProductsByCategory, &list, &request, &mut |key, _| {
                let id = listed_id(&list, key)?;
                let available = available(id)?;
                if available == Some(0) {
                    return Ok(None);
                }
                Ok(Some(Listed { product: listed_card(&self.shelf, &view, id)?, available }))
            });
        }
        let cards = self.shelf.page(list.page_key(&request)?, |view| {
            page(view, Table::ProductsByCategory, &list, &request, &mut |key, _| {
                Ok(Some(listed_card(&self.shelf, view, listed_id(&list, key)?)?))
            })
        })?;
        let Page { items, next } = &cards.page;
        let listed = |card: &Card| {
            let available = available(card.product_id.as_str().as_bytes())?;
            Ok(Listed { product: card.clone(), available })
        };
        let items: Result<Vec<Listed>> = items.iter().map(listed).collect();
        Ok(Page { items: items?, next: next.clone() })
    }

    async fn categories(&self, request: PageRequest) -> Result<Page<Category>> {
        let view = self.view();
        let mut span = match &request.after {
            None => Span { from: Vec::new(), to: None },
            Some(Position(after)) => {
                let last = keys::read_category(after).map_err(|_| Refusal::InvalidCursor)?;
                after_category(&last)
            }
        };
        let mut items: Vec<Category> = Vec::new();
        while items.len() <= request.limit {
            let Some(category) = first_category(&view, &span)? else {
                return Ok(Page { items, next: None });
            };
            span = after_category(&category);
            items.push(category);
        }
        items.truncate(request.limit);
        let next = items.last().map(|last| Position(keys::category(last)));
        Ok(Page { items, next })
    }
}

/// The id in a row of a category.
fn listed_id<'a>(list: &List, key: &'a [u8]) -> Result<&'a [u8]> {
    Ok(key.get(list.prefix.len() + 8..).ok_or(mw_codec::Damaged("category key"))?)
}

/// A card that is listed in a view. One that was taken out of the catalogue since is as the view has it.
fn listed_card(shelf: &Shelf, view: &View, id: &[u8]) -> Result<Card> {
    if let Some(card) = shelf.card(id)? {
        return Ok(card);
    }
    let row = view.get(Table::Products, id)?.ok_or_else(|| {
        let id = String::from_utf8_lossy(id);
        StoreError::Corrupt(format!("a category lists product {id}, which is not there"))
    })?;
    Ok(mw_codec::products::decode(&row)?.into())
}

fn first_category(look: &dyn Look, span: &Span) -> Result<Option<Category>> {
    let mut found = None;
    look.scan(Table::ProductsByCategory, span, false, &mut |key, _| {
        found = Some(keys::read_category(key)?);
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

fn after_category(category: &Category) -> Span {
    let to = keys::after_prefix(&keys::category(category)).unwrap_or_default();
    Span { from: to, to: None }
}

fn category_list(query: &CategoryQuery) -> List {
    let prefix = keys::category(&query.category);
    let whole = Span::prefix(prefix.clone());
    let from = query.min_price.map_or(whole.from, |min| keys::category_from(&query.category, min));
    let to = match query.max_price {
        Some(max) => {
            Some(keys::category_from(&query.category, Money::from_minor(max.as_minor().saturating_add(1))))
        }
        None => whole.to,
    };
    List {
        prefix,
        span: Span { from, to },
        reverse: query.descending,
        is_position: keys::is_category_position,
    }
}

pub(crate) fn read(look: &dyn Look, product_id: &ProductId) -> Result<Option<Product>> {
    let row = look.get(Table::Products, product_id.as_str().as_bytes())?;
    Ok(row.map(|row| mw_codec::products::decode(&row)).transpose()?)
}

/// Name and price of a product.
pub(crate) fn read_tag(look: &dyn Look, product_id: &ProductId) -> Result<Option<(String, Money)>> {
    let row = look.get(Table::Products, product_id.as_str().as_bytes())?;
    Ok(row.map(|row| mw_codec::products::decode_tag(&row)).transpose()?)
}

pub(crate) fn exists(look: &dyn Look, product_id: &ProductId) -> Result<bool> {
    Ok(look.get(Table::Products, product_id.as_str().as_bytes())?.is_some())
}

fn index_key(product: &Product) -> Vec<u8> {
    keys::in_category(&product.category, product.price, &product.product_id)
}

fn put(tx: &mut Tx, mut product: Product) -> Result<Put> {
    product.check()?;
    let before = read(tx, &product.product_id)?;
    if let Some(before) = &before {
        product.created_at = before.created_at;
        product.updated_at = product.updated_at.max(before.updated_at);
    }
    save(tx, before.as_ref(), &product);
    Ok(Put { product, created: before.is_none() })
}

pub(crate) fn save(tx: &mut Tx, before: Option<&Product>, product: &Product) {
    let place = index_key(product);
    match before.map(index_key) {
        Some(old_place) if old_place == place => {}
        old_place => {
            if let Some(old_place) = old_place {
                tx.remove(Table::ProductsByCategory, old_place);
            }
            tx.put(Table::ProductsByCategory, place, Vec::new());
        }
    }
    tx.put(Table::Products, keys::product(&product.product_id), mw_codec::products::encode(product));
}

fn import(tx: &mut Tx, command: ImportProduct) -> Result<Imported> {
    let ImportProduct { product, stock: zones, op, now, .. } = command;
    stock::settle_due(tx, now)?;
    let product_id = product.product_id.clone();
    let created = put(tx, product)?.created;
    for (zone, on_hand) in zones {
        stock::set(tx, &product_id, &zone, on_hand, op, now)?;
    }
    Ok(Imported { product_id, created })
}
