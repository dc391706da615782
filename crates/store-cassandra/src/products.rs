//! The catalogue: products, and their listing by category.
//!
//! The row of a product decides: it changes by conditional writes, one after another. The listing follows with the
//! product's revision as write timestamp, so that of two writes to the listing the one of the newer revision wins,
//! whatever their order. An intent is open from before the conditional write until the listing is up to date.

mod bands;
pub(crate) mod cache;
mod import;
mod listing;
pub(crate) mod migration;
pub(crate) mod offers;
mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use mw_codec::intents::product::{self as codec, ProductIntent};
use mw_domain::products::ProductPatch;
use mw_domain::{Category, Product, ProductId, Timestamp};
use mw_store::export::Record;
use mw_store::products::{CategoryQuery, ImportProduct, Imported, Listed, Products, Put};
use mw_store::{Done, Freshness, Page, PageRequest, Refusal, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::certainty::CasResult;
use crate::driver::scan::{self, Scan};
use crate::driver::statements::{self, Access, Cql};
use crate::driver::time::to_cql;
use crate::export::Spool;
use crate::recovery::intents::Kind;
use crate::revision::{CasLoop, NextRevision, Revision};
use crate::schema::tables::Table;
use listing::ListingStatements;
pub(crate) use rows::StoredProduct;
use rows::{COLUMNS, ProductRow};

#[derive(Debug)]
pub(crate) struct Statements {
    read: PreparedStatement,
    stale_read: PreparedStatement,
    serial_read: PreparedStatement,
    serial_revision: PreparedStatement,
    update: PreparedStatement,
    fence: PreparedStatement,
    ledger_row: PreparedStatement,
    scan: PreparedStatement,
    listing: ListingStatements,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::ProductById;
        let read = format!("SELECT {COLUMNS} FROM {{}} WHERE product_id = ?");
        let update = "UPDATE {} SET name = ?, category = ?, price = ?, band = ?, description = ?, attributes = ?, \
                      created_at = ?, updated_at = ?, deleted = ?, rev = ?, recent_op_tokens = ? WHERE product_id = ? IF rev = ?";
        Ok(Self {
            read: cql.prepare(table, Access::Read, &read).await?,
            stale_read: cql.prepare(table, Access::StaleRead, &read).await?,
            serial_read: cql.prepare(table, Access::Serial, &read).await?,
            serial_revision: cql
                .prepare(table, Access::Serial, "SELECT rev, recent_op_tokens FROM {} WHERE product_id = ?")
                .await?,
            update: cql.prepare(table, Access::Cas, update).await?,
            fence: cql
                .prepare(
                    table,
                    Access::Cas,
                    "UPDATE {} SET rev = ?, recent_op_tokens = ? WHERE product_id = ? IF rev = ?",
                )
                .await?,
            ledger_row: cql
                .prepare(
                    Table::Stock,
                    Access::Serial,
                    "SELECT until, op_id, operation FROM {} WHERE product_id = ? AND geo_zone = ? AND until = ? AND op_id = ?",
                )
                .await?,
            scan: scan::prepare(cql, table, COLUMNS).await?,
            listing: ListingStatements::prepare(cql).await?,
        })
    }
}

/// A change of a product, as its revision decides it.
enum ProductChange {
    Put(Product),
    /// A product of an export, which is no change for the feed.
    Record(Product),
    /// The product as it was, and when it leaves the catalogue.
    Delete(Product, Timestamp),
}

/// A change that was applied.
struct Changed {
    product: Product,
    created: bool,
}

#[async_trait]
impl Products for CassandraStore {
    async fn put_product(&self, product: Product) -> Result<Put> {
        self.clock.check()?;
        let Changed { product, created } = self.put_under(&product, Uuid::new_v4()).await?;
        Ok(Put { product, created })
    }

    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product> {
        self.check_clock(now)?;
        let changed = self
            .change_product(product_id, Uuid::new_v4(), |before| {
                let mut product =
                    before.cloned().ok_or_else(|| Refusal::ProductNotFound(product_id.clone()))?;
                product.patch(patch.clone(), now);
                product.check()?;
                Ok(ProductChange::Put(product))
            })
            .await?;
        Ok(changed.product)
    }

    async fn product(&self, product_id: &ProductId, freshness: Freshness) -> Result<Option<Arc<Product>>> {
        let read = async |statement| {
            let (stored, _) = self.stored_product(statement, product_id).await?;
            Ok(stored.filter(|stored| !stored.is_deleted).map(|stored| stored.product.into()))
        };
        match freshness {
            Freshness::StaleOk => {
                self.product_cache.product(product_id, Instant::now(), read(&self.products.stale_read)).await
            }
            Freshness::Latest => read(&self.products.read).await,
        }
    }

    async fn delete_product(&self, product_id: &ProductId, now: Timestamp) -> Result<()> {
        self.check_clock(now)?;
        self.change_product(product_id, Uuid::new_v4(), |before| {
            let product = before.cloned().ok_or_else(|| Refusal::ProductNotFound(product_id.clone()))?;
            Ok(ProductChange::Delete(product, now))
        })
        .await
        .map(drop)
    }

    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
        if command.stock.is_empty() {
            self.check_clock(command.now)?;
        } else {
            self.check_sale(command.now)?;
        }
        self.import(command).await
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
    async fn stored_product(
        &self,
        statement: &PreparedStatement,
        product_id: &ProductId,
    ) -> Result<(Option<StoredProduct>, Revision)> {
        let row: Option<ProductRow> = self.cql.first(statement, (product_id.as_str(),)).await?;
        row.map_or_else(|| Ok((None, Revision::default())), ProductRow::into_stored)
    }

    /// Writes the product whole under `op_token`; a replaced product keeps its `created_at`.
    async fn put_under(&self, product: &Product, op_token: Uuid) -> Result<Changed> {
        product.check()?;
        self.change_product(&product.product_id, op_token, |before| {
            let mut product = product.clone();
            if let Some(before) = before {
                product.created_at = before.created_at;
                product.updated_at = product.updated_at.max(before.updated_at);
            }
            Ok(ProductChange::Put(product))
        })
        .await
    }

    pub(crate) async fn export_products(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, ProductRow> = Scan::new(&self.cql, &self.products.scan);
        while let Some(row) = rows.next().await? {
            if let (Some(stored), _) = row.into_stored()?
                && !stored.is_deleted
            {
                into.push(&Record::Product(stored.product))?;
            }
        }
        Ok(())
    }

    /// Writes an exported product exactly as it is.
    pub(crate) async fn import_product_record(&self, product: &Product) -> Result<()> {
        self.change_product(&product.product_id, Uuid::new_v4(), |_| {
            Ok(ProductChange::Record(product.clone()))
        })
        .await
        .map(drop)
    }

    /// Changes a product and its listing. `decide` gets the product that is in the catalogue now. A change with an
    /// `op_token` that the product has seen is not made again.
    async fn change_product(
        &self,
        product_id: &ProductId,
        op_token: Uuid,
        decide: impl Fn(Option<&Product>) -> Result<ProductChange> + Send + Sync,
    ) -> Result<Changed> {
        let _lock = self.locks.partition(&("product", product_id.as_str())).await;
        let mut cas_loop = CasLoop::of(format!("product {product_id}"));
        loop {
            let (before, revision) = self.stored_product(&self.products.read, product_id).await?;
            if let Some(stored) = before.as_ref().filter(|_| revision.remembers(op_token)) {
                return self.finish_change(stored).await;
            }
            let next = revision.next_with_token(op_token);
            let current = before.as_ref().filter(|stored| !stored.is_deleted);
            let (product, is_deleted, is_record) = match decide(current.map(|stored| &stored.product))? {
                ProductChange::Put(product) => (product, false, false),
                ProductChange::Record(product) => (product, false, true),
                ProductChange::Delete(product, at) => {
                    (Product { updated_at: product.updated_at.max(at), ..product }, true, false)
                }
            };
            let plan =
                self.bucketing.at(Table::ProductsByCategory, product.category.as_str(), product.updated_at);
            let stored = StoredProduct::new(product, is_deleted, plan.buckets, &next);
            let previous = before.as_ref().map(StoredProduct::listing_key);
            let payload = ProductIntent { product_id: product_id.clone(), previous, rev: stored.rev };
            // Crash here: nothing was written, no process has to finish anything.
            let intent =
                self.intents.begin(&self.cql, Kind::Product, Uuid::new_v4(), codec::encode(&payload)).await?;
            // Crash here: an intent for a revision that the product has not; recovery takes that revision, so that no write
            // in flight can apply, and drops the intent.
            let pending = self.product_cache.begin_change(product_id, Instant::now());
            match self.write_product(&mut cas_loop, &stored, &next, current).await {
                Ok(true) => {
                    pending.applied((!is_deleted).then_some(&stored.product));
                    // Crash here: the product is changed, its listing is not; `recover_product` lists it.
                    let mut finished = self.update_listing(&stored, payload.previous.as_ref()).await;
                    if finished.is_ok() && !is_record {
                        // Crash here: the change is not in the feed; `recover_product` reports it.
                        finished = self.report_product(&stored, before.as_ref()).await;
                    }
                    if let Err(error) = finished {
                        self.intents.abandon(intent);
                        return Err(error.after_first_effect());
                    }
                    // Crash here: only the intent remains; `recover_product` writes the same listing again.
                    self.complete_soon(intent);
                    return Ok(Changed { product: stored.product, created: current.is_none() });
                }
                Ok(false) => self.intents.complete(&self.cql, intent).await,
                Err(error @ StoreError::Ambiguous(_)) => {
                    self.intents.abandon(intent);
                    return Err(error);
                }
                Err(error) => {
                    self.intents.complete(&self.cql, intent).await;
                    return Err(error);
                }
            }
        }
    }

    /// Finishes a change that another request or process has applied, since it may not be listed yet.
    async fn finish_change(&self, stored: &StoredProduct) -> Result<Changed> {
        drop(self.product_cache.begin_change(&stored.product.product_id, Instant::now()));
        // Crash here: the intent of the process that applied the change is open, and recovery lists the product.
        self.update_listing(stored, None).await.map_err(StoreError::after_first_effect)?;
        self.report_product(stored, None).await?;
        let product = stored.product.clone();
        Ok(Changed { created: product.created_at == product.updated_at, product })
    }

    /// Writes the row of a product on the condition of its revision. `false`: another change came first.
    async fn write_product(
        &self,
        cas_loop: &mut CasLoop,
        stored: &StoredProduct,
        next: &NextRevision,
        current: Option<&StoredProduct>,
    ) -> Result<bool> {
        self.register_partition(stored, current).await?;
        // Crash here: a registered partition that may be empty, which readers skip; recovery drops the intent.
        let Product { product_id, name, category, price, description, attributes, created_at, updated_at } =
            stored.product.clone();
        let attributes: BTreeMap<String, String> =
            attributes.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let values = (
            name,
            category.as_str().to_owned(),
            price.as_minor(),
            stored.band,
            description,
            attributes,
            to_cql(created_at),
            to_cql(updated_at),
            stored.is_deleted,
            next.rev,
            next.recent_op_tokens.clone(),
            product_id.as_str().to_owned(),
            next.expected,
        );
        let batch: [(&PreparedStatement, statements::Row); 1] = [(&self.products.update, Box::new(values))];
        let key = (product_id.as_str(),);
        cas_loop.apply(&self.cql, next, &batch, &self.products.serial_revision, key).await
    }

    /// Recovers an orphaned or abandoned change: brings the listing up to date with the product. If a later change has
    /// been applied since, its product is listed, and the row that the earlier change left behind is deleted.
    pub(crate) async fn recover_product(&self, payload: &[u8]) -> Result<()> {
        let intent = codec::decode(payload)?;
        // A serial read completes a write that its coordinator left in a Paxos round.
        let (stored, revision) = self.stored_product(&self.products.serial_read, &intent.product_id).await?;
        if !revision.has_reached(intent.rev) {
            // Crash here: the product has a revision without a change, and the intent is still there; the next process
            // lists the product as it is.
            return self.fence_product(&intent.product_id, &revision).await;
        }
        // Crash here: the intent is still there, and the next process recovers in the same way.
        match stored {
            Some(stored) => {
                self.update_listing(&stored, intent.previous.as_ref()).await?;
                self.report_product(&stored, None).await
            }
            None => Ok(()),
        }
    }

    /// Takes the next revision of a product without a change: a write on the revision that is in flight can never apply.
    async fn fence_product(&self, product_id: &ProductId, revision: &Revision) -> Result<()> {
        let next = revision.next();
        let values = (next.rev, next.recent_op_tokens, product_id.as_str(), next.expected);
        match self.cql.cas(&self.products.fence, values).await? {
            CasResult::Applied => Ok(()),
            CasResult::NotApplied | CasResult::Unknown => Err(StoreError::Ambiguous(format!(
                "fence product {product_id}: it has changed, recovery tries again"
            ))),
        }
    }
}
