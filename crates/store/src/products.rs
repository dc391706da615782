//! The promise of the catalogue: cards, categories by price, and import of a card together with its stock.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use mw_domain::product::ProductPatch;
use mw_domain::{Category, GeoZone, Money, Product, ProductId, Timestamp};
use uuid::Uuid;

use crate::{Done, Freshness, Once, Page, PageRequest, Result};

/// A card as it is read: shared by all who read it, with the form in which it is shown.
#[derive(Clone)]
pub struct Card(Arc<Shared>);

struct Shared {
    product: Product,
    shown: OnceLock<Box<[u8]>>,
}

impl Card {
    /// About what takes memory besides its text.
    const BYTES: usize = 736;

    /// The form that the first caller made of it. All callers have to show a product in the same way.
    pub fn shown(&self, show: impl FnOnce(&Product) -> Vec<u8>) -> &[u8] {
        self.0.shown.get_or_init(|| show(&self.0.product).into())
    }

    /// About how much memory it takes as fields and, with the names of its members, as it is shown.
    pub fn bytes(&self) -> u64 {
        let text = self.name.len() + self.description.len() + self.attributes.text_len();
        (Self::BYTES + 3 * self.product_id.as_str().len() + 2 * text) as u64
    }

    /// The card by itself, copied only where others have it too.
    pub fn into_product(self) -> Product {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.product.clone(), |own| own.product)
    }
}

impl From<Product> for Card {
    fn from(product: Product) -> Self {
        Self(Arc::new(Shared { product, shown: OnceLock::new() }))
    }
}

impl Deref for Card {
    type Target = Product;

    fn deref(&self) -> &Product {
        &self.0.product
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.product.fmt(f)
    }
}

impl PartialEq for Card {
    fn eq(&self, other: &Self) -> bool {
        self.0.product == other.0.product
    }
}

impl Eq for Card {}

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
    pub product: Card,
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

    async fn product(&self, product_id: &ProductId, freshness: Freshness) -> Result<Option<Card>>;

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
