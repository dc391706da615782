//! The catalogue. A product is a document, in which its stock stands too; the catalogue and the stock keeper change
//! different fields of it. A product that is created or deleted takes its stock along, in one transaction.
//!
//! Where the shard key is not `_id`, no index forbids two documents of one `_id`: there a product is created in a
//! transaction that also writes its document in `product_ids`.

mod changes;
mod listing;

use std::sync::Arc;

use async_trait::async_trait;
use mongodb::bson::{Document, doc};
use mw_domain::products::ProductPatch;
use mw_domain::{Category, Product, ProductId, Timestamp};
use mw_store::products::{CategoryQuery, ImportProduct, Imported, Listed, Products, Put};
use mw_store::{Done, Freshness, Page, PageRequest, Result};

pub(crate) use listing::Uniformity;

use crate::MongoStore;
use crate::documents::ids::to_bson_id;
use crate::documents::products;
use crate::policy::Written;
use crate::shards::targeting::Operation;

fn by_id(product_id: &ProductId) -> Document {
    doc! { "_id": to_bson_id(product_id.as_str()) }
}

impl MongoStore {
    /// Notes a write of products, also one that failed: it may have been applied.
    fn wrote_products<T>(&self, written: Result<T>) -> Result<T> {
        self.reads.wrote(Written::Products);
        // An import sets it, and a product that is created or deleted takes it along.
        self.reads.wrote(Written::Stock);
        written
    }
}

#[async_trait]
impl Products for MongoStore {
    async fn put_product(&self, product: Product) -> Result<Put> {
        self.wrote_products(changes::put(self, product).await)
    }

    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product> {
        self.wrote_products(changes::patch(self, product_id, &patch, now).await)
    }

    async fn product(&self, product_id: &ProductId, freshness: Freshness) -> Result<Option<Arc<Product>>> {
        self.counts.count(Operation::ProductById);
        self.counts.product(product_id.as_str());
        let find = self
            .collections
            .products
            .find_one(by_id(product_id))
            .projection(doc! { "stocks": 0, "stock": 0 })
            .selection_criteria(self.reads.criteria(freshness));
        let document = self.read(find).await?;
        Ok(document.and_then(|document| self.readable(products::read(&document))).map(Arc::new))
    }

    async fn delete_product(&self, product_id: &ProductId, now: Timestamp) -> Result<()> {
        self.wrote_products(changes::delete(self, product_id, now).await)
    }

    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
        self.wrote_products(changes::import(self, &command).await)
    }

    async fn category(
        &self,
        query: &CategoryQuery,
        freshness: Freshness,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Listed>> {
        self.counts.count(Operation::ProductsOfCategory);
        self.counts.category(query.category.as_str());
        listing::category(self, query, freshness, now, &page).await
    }

    async fn categories(&self, page: PageRequest) -> Result<Page<Category>> {
        self.counts.count(Operation::Categories);
        listing::categories(self, &page).await
    }
}
