//! The contract of the catalogue: products, categories by price, and import of a product together with its stock.

use std::sync::Arc;

use mw_domain::products::ProductPatch;
use mw_domain::{Category, GeoZone, Money, Product, ProductId, Timestamp};
use uuid::Uuid;

use crate::{Done, Freshness, Page, PageRequest, RequestIdentity, Result};

/// A written product; `created` distinguishes a new product from a replaced one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    pub product: Product,
    pub created: bool,
}

/// A product with the stock to set in some zones, applied atomically.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportProduct {
    pub product: Product,
    pub stock: Vec<(GeoZone, u64)>,
    /// The id of the movements in the ledger.
    pub op: Uuid,
    pub now: Timestamp,
    pub identity: Option<RequestIdentity>,
}

/// The result of an import line; stored under its idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    pub product_id: ProductId,
    pub created: bool,
}

#[derive(Debug, Clone)]
pub struct CategoryQuery {
    pub category: Category,
    /// Inclusive.
    pub min_price: Option<Money>,
    /// Inclusive.
    pub max_price: Option<Money>,
    /// The exact reverse of price, then id.
    pub descending: bool,
    pub geo_zone: Option<GeoZone>,
    /// Only products that are available in the zone; ignored without a zone.
    pub in_stock: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Shared with the engine's cache, if it has one.
    pub product: Arc<Product>,
    /// Units available in the zone of the query; `None` if the query has no zone.
    pub available: Option<u64>,
}

#[async_trait::async_trait]
pub trait Products: Send + Sync {
    /// Writes every field of the product; a replaced product keeps its `created_at`.
    async fn put_product(&self, product: Product) -> Result<Put>;

    /// Refuses: `ProductNotFound`, `InvalidField`.
    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product>;

    /// The product as the engine's cache shares it: the same `Arc` for as long as it is cached.
    async fn product(&self, product_id: &ProductId, freshness: Freshness) -> Result<Option<Arc<Product>>>;

    /// Removes the product from the catalogue; its stock levels stay. Refuses: `ProductNotFound`.
    async fn delete_product(&self, product_id: &ProductId, now: Timestamp) -> Result<()>;

    /// Refuses: `StockBelowReserved`.
    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>>;

    /// The category by price, then id.
    async fn category(
        &self,
        query: &CategoryQuery,
        freshness: Freshness,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Listed>>;

    /// The categories that have products, by name.
    async fn categories(&self, page: PageRequest) -> Result<Page<Category>>;
}
