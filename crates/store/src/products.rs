//! The promise of the catalogue: cards, categories by price, and import of a card together with its stock.

use mw_domain::product::ProductPatch;
use mw_domain::{Category, GeoZone, Money, Product, ProductId, Timestamp};
use uuid::Uuid;

use crate::{Done, Freshness, Once, Page, PageRequest, Result};

/// A card that was written; `created` tells a new one from a replaced one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    pub product: Product,
    pub created: bool,
}

/// A card with the stock to set in some zones: all of it or nothing.
#[derive(Debug, Clone)]
pub struct ImportProduct {
    pub product: Product,
    pub stock: Vec<(GeoZone, u64)>,
    /// The id of the movements in the ledger.
    pub op: Uuid,
    pub now: Timestamp,
    pub once: Option<Once>,
}

/// What an import line did; remembered by its key.
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
    /// Only what is available in the zone; without a zone it has no effect.
    pub in_stock: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub product: Product,
    /// Units available in the asked zone; `None` where no zone was asked for.
    pub available: Option<u64>,
}

#[async_trait::async_trait]
pub trait Products: Send + Sync {
    /// Writes the card whole; a replaced card keeps its `created_at`.
    async fn put_product(&self, product: Product) -> Result<Put>;

    /// Refuses: `ProductNotFound`, `InvalidField`.
    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product>;

    async fn product(&self, product_id: &ProductId, freshness: Freshness) -> Result<Option<Product>>;

    /// The card leaves the catalogue; its stock figures stay. Refuses: `ProductNotFound`.
    async fn delete_product(&self, product_id: &ProductId) -> Result<()>;

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
