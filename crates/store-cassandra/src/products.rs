//! The catalogue: cards, and their place in the listing of their category.
//!
//! The card decides: it changes by conditional writes, one after another. The listing follows it with the card's revision
//! as write timestamp, so that whatever arrives late loses, and whoever finds a change half done lists the card again.

mod card;
mod import;
mod listing;
mod place;

use std::collections::BTreeMap;
use std::time::Instant;

use async_trait::async_trait;
use mw_domain::product::ProductPatch;
use mw_domain::{Category, Product, ProductId, Timestamp};
use mw_store::products::{self, CategoryQuery, ImportProduct, Imported, Listed, Products, Put};
use mw_store::records::Record;
use mw_store::{Done, Freshness, Page, PageRequest, Refusal, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{self, Access, Cql};
use crate::guard::{self, Guard, Rounds, half_done};
use crate::intents::Kind;
use crate::records::Spool;
use crate::scan::{self, Scan};
use crate::tables::Table;
use crate::time::to_cql;
use card::{COLUMNS, Card, Row};
use listing::Shelves;
use place::Begun;

#[derive(Debug)]
pub(crate) struct Statements {
    read: PreparedStatement,
    showcase: PreparedStatement,
    serial: PreparedStatement,
    look: PreparedStatement,
    change: PreparedStatement,
    moved: PreparedStatement,
    scan: PreparedStatement,
    shelves: Shelves,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::ProductById;
        let read = format!("SELECT {COLUMNS} FROM {{}} WHERE product_id = ?");
        let change = "UPDATE {} SET name = ?, category = ?, price = ?, band = ?, description = ?, attributes = ?, \
                      created_at = ?, updated_at = ?, deleted = ?, rev = ?, marks = ? WHERE product_id = ? IF rev = ?";
        Ok(Self {
            read: cql.prepare(table, Access::Read, &read).await?,
            showcase: cql.prepare(table, Access::Showcase, &read).await?,
            serial: cql.prepare(table, Access::Serial, &read).await?,
            look: cql
                .prepare(table, Access::Serial, "SELECT rev, marks FROM {} WHERE product_id = ?")
                .await?,
            change: cql.prepare(table, Access::Cas, change).await?,
            moved: cql
                .prepare(
                    Table::Stock,
                    Access::Serial,
                    "SELECT until, op_id, operation FROM {} WHERE product_id = ? AND geo_zone = ? AND until = ? AND op_id = ?",
                )
                .await?,
            scan: scan::prepare(cql, table, COLUMNS).await?,
            shelves: Shelves::prepare(cql).await?,
        })
    }
}

/// What becomes of a card.
enum Next {
    Put(Product),
    Delete(Product),
}

/// A change that was made.
struct Changed {
    product: Product,
    created: bool,
}

#[async_trait]
impl Products for CassandraStore {
    async fn put_product(&self, product: Product) -> Result<Put> {
        let Changed { product, created } = self.put_card(&product, Uuid::new_v4()).await?;
        Ok(Put { product, created })
    }

    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product> {
        let changed = self
            .change_card(product_id, Uuid::new_v4(), |before| {
                let mut product =
                    before.cloned().ok_or_else(|| Refusal::ProductNotFound(product_id.clone()))?;
                product.patch(patch.clone(), now);
                product.check()?;
                Ok(Next::Put(product))
            })
            .await?;
        Ok(changed.product)
    }

    async fn product(&self, product_id: &ProductId, freshness: Freshness) -> Result<Option<products::Card>> {
        let read = async |statement| {
            let card = self.card(statement, product_id).await?;
            Ok(card.filter(|(card, _)| !card.is_deleted).map(|(card, _)| card.product.into()))
        };
        match freshness {
            Freshness::Showcase => {
                self.window.card(product_id, Instant::now(), read(&self.products.showcase)).await
            }
            Freshness::Full => read(&self.products.read).await,
        }
    }

    async fn delete_product(&self, product_id: &ProductId) -> Result<()> {
        self.change_card(product_id, Uuid::new_v4(), |before| {
            let product = before.cloned().ok_or_else(|| Refusal::ProductNotFound(product_id.clone()))?;
            Ok(Next::Delete(product))
        })
        .await
        .map(drop)
    }

    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
        self.import_card(command).await
    }

    async fn category(
        &self,
        query: &CategoryQuery,
        freshness: Freshness,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Listed>> {
        self.list_category(query, freshness, now, page).await
    }

    async fn categories(&self, page: PageRequest) -> Result<Page<Category>> {
        self.list_categories(page).await
    }
}

impl CassandraStore {
    async fn card(
        &self,
        statement: &PreparedStatement,
        product_id: &ProductId,
    ) -> Result<Option<(Card, Guard)>> {
        let row: Option<Row> = self.cql.first(statement, (product_id.as_str(),)).await?;
        row.map(Row::read).transpose()
    }

    /// Writes the card whole; a replaced card keeps its `created_at`.
    async fn put_card(&self, product: &Product, token: Uuid) -> Result<Changed> {
        product.check()?;
        self.change_card(&product.product_id, token, |before| {
            let mut product = product.clone();
            if let Some(before) = before {
                product.created_at = before.created_at;
                product.updated_at = product.updated_at.max(before.updated_at);
            }
            Ok(Next::Put(product))
        })
        .await
    }

    /// Every card that is in the catalogue.
    pub(crate) async fn export_products(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, Row> = Scan::new(&self.cql, &self.products.scan);
        while let Some(row) = rows.next().await? {
            let (card, _) = row.read()?;
            if !card.is_deleted {
                into.push(&Record::Product(card.product))?;
            }
        }
        Ok(())
    }

    /// Writes an exported card exactly as it is.
    pub(crate) async fn keep_product(&self, product: &Product) -> Result<()> {
        self.change_card(&product.product_id, Uuid::new_v4(), |_| Ok(Next::Put(product.clone())))
            .await
            .map(drop)
    }

    /// Changes the card and its place in the listing, and shows it. `decide` is told the card that is in the catalogue now.
    async fn change_card(
        &self,
        product_id: &ProductId,
        token: Uuid,
        decide: impl Fn(Option<&Product>) -> Result<Next> + Send + Sync,
    ) -> Result<Changed> {
        let _turn = self.locks.one(&("product", product_id.as_str())).await;
        let mut rounds = Rounds::of("a product");
        loop {
            let (before, guard) = self.card(&self.products.read, product_id).await?.unzip();
            let guard = guard.unwrap_or_default();
            if let Some(card) = before.as_ref().filter(|_| guard.remembers(token)) {
                return self.changed_before(card).await;
            }
            let change = guard.next_as(token);
            let listed = before.as_ref().filter(|card| !card.is_deleted);
            let created = listed.is_none();
            let (product, is_deleted) = match decide(listed.map(|card| &card.product))? {
                Next::Put(product) => (product, false),
                Next::Delete(product) => (product, true),
            };
            let plan =
                self.plans.at(Table::ProductsByCategory, product.category.as_str(), product.updated_at);
            let card = Card::new(product, is_deleted, plan.cut, &change);
            let left = before.as_ref().map(Card::place);
            let begun = Begun { product_id: product_id.clone(), left, rev: card.rev };
            let intent = self.intents.begin(&self.cql, Kind::Product, Uuid::new_v4(), begun.encode()).await?;
            let showing = self.window.change(product_id, Instant::now());
            match self.replace(&mut rounds, &card, &change, listed).await {
                Ok(true) => {
                    showing.done((!is_deleted).then_some(&card.product));
                    if let Err(error) = self.list_card(&card, begun.left.as_ref()).await {
                        self.intents.leave(intent);
                        return Err(half_done(error));
                    }
                    self.intents.end(&self.cql, intent).await;
                    return Ok(Changed { product: card.product, created });
                }
                Ok(false) => self.intents.end(&self.cql, intent).await,
                Err(error @ StoreError::Ambiguous(_)) => {
                    self.intents.leave(intent);
                    return Err(error);
                }
                Err(error) => {
                    self.intents.end(&self.cql, intent).await;
                    return Err(error);
                }
            }
        }
    }

    /// Somebody else made the same change; it may not be listed yet.
    async fn changed_before(&self, card: &Card) -> Result<Changed> {
        drop(self.window.change(&card.product.product_id, Instant::now()));
        self.list_card(card, None).await.map_err(half_done)?;
        let product = card.product.clone();
        Ok(Changed { created: product.created_at == product.updated_at, product })
    }

    /// Writes the card if nobody else has changed it meanwhile.
    async fn replace(
        &self,
        rounds: &mut Rounds,
        card: &Card,
        change: &guard::Next,
        listed: Option<&Card>,
    ) -> Result<bool> {
        self.announce(card, listed).await?;
        let Product { product_id, name, category, price, description, attributes, created_at, updated_at } =
            card.product.clone();
        let attributes: BTreeMap<String, String> =
            attributes.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let key = product_id.as_str().to_owned();
        let values = (
            name,
            category.as_str().to_owned(),
            price.as_minor(),
            card.band,
            description,
            attributes,
            to_cql(created_at),
            to_cql(updated_at),
            card.is_deleted,
            change.rev,
            change.marks.clone(),
            key,
            change.expected,
        );
        let batch: [(&PreparedStatement, cql::Row); 1] = [(&self.products.change, Box::new(values))];
        rounds.settle(&self.cql, change, &batch, &self.products.look, (product_id.as_str(),)).await
    }

    /// Lists a card that a change left unlisted, or listed where it no longer is. A change that another has overtaken is
    /// listed as well: what it left stands in the listing no more.
    pub(crate) async fn finish_product(&self, op_id: Uuid, payload: &[u8]) -> Result<()> {
        let begun = Begun::decode(payload)?;
        match self.card(&self.products.serial, &begun.product_id).await? {
            Some((card, _)) if card.rev >= begun.rev => self.list_card(&card, begun.left.as_ref()).await,
            _ => self.intents.wait_for(op_id),
        }
    }
}
