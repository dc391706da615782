//! What a live migration writes into a store and compares there. A change replaces or removes what one document of the source
//! stands for, with everything that is derived from it; writing it again changes nothing.
//!
//! The state of the migration is rows of bytes beside the shop's data, in an order of its own, so that every process that
//! opens the store finds how far the migration is.

use mw_domain::{
    Cart, CartId, GeoZone, Level, Movement, Order, OrderEvent, OrderId, Owner, Product, ProductId, Timestamp,
    ZoneStock,
};

use crate::Result;
use crate::export::ExportImport;
use crate::stock::Audit;

/// Finds a cart of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CartKey {
    pub owner: Owner,
    pub created_at: Timestamp,
    pub cart_id: CartId,
}

impl CartKey {
    pub fn of(cart: &Cart) -> Self {
        Self { owner: cart.owner.clone(), created_at: cart.created_at, cart_id: cart.cart_id }
    }
}

/// A write of the migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Product(Product),
    /// Its stock stays.
    RemoveProduct(ProductId),
    /// Replaces a level and the sum of its ledger, which then holds what is on hand; adds and removes open holds.
    Stock {
        stock: ZoneStock,
        held: Vec<Movement>,
        released: Vec<Movement>,
    },
    /// Removes a level with its ledger.
    RemoveStock {
        product_id: ProductId,
        geo_zone: GeoZone,
    },
    Cart(Cart),
    RemoveCart(CartKey),
    /// Events oldest first.
    Order {
        order: Order,
        events: Vec<OrderEvent>,
    },
    RemoveOrder(OrderId),
    /// A row of the migration's state; without a value it is removed.
    State {
        key: Vec<u8>,
        value: Option<Vec<u8>>,
    },
}

/// An order as each view of the store shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderViews {
    pub order: Order,
    pub events: Vec<OrderEvent>,
    /// The lists that lack it: `customer`, `zone and day`, `period`.
    pub missing_from: Vec<&'static str>,
}

/// A product as the store has it: the catalogue's row, and the level of each zone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProductViews {
    pub product: Option<Product>,
    pub levels: Vec<(GeoZone, Level)>,
}

/// A row of the migration's state: its key, and its value.
pub type StateRow = (Vec<u8>, Vec<u8>);

/// A store that a migration writes into. It serves no requests before the migration is done.
#[async_trait::async_trait]
pub trait MigrationTarget: ExportImport {
    /// Writes changes in their order. After an error some of them may be written; all may be written again.
    async fn apply(&self, changes: Vec<Change>) -> Result<()>;

    /// The values of state rows, one for each key.
    async fn state(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>>;

    /// Up to `limit` state rows with a prefix, after a key, in the order of their keys.
    async fn states(&self, prefix: Vec<u8>, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<StateRow>>;

    async fn orders_in_views(&self, ids: Vec<OrderId>) -> Result<Vec<Option<OrderViews>>>;

    async fn products_in_views(&self, ids: Vec<ProductId>) -> Result<Vec<ProductViews>>;

    async fn carts_by_key(&self, keys: Vec<CartKey>) -> Result<Vec<Option<Cart>>>;

    /// Describes up to `limit` rows of lists that name nothing, or something else than is stored.
    async fn stray_rows(&self, limit: usize) -> Result<Vec<String>>;

    /// Recomputes every stock level.
    async fn audit_stock(&self) -> Result<Audit>;

    /// Removes everything except for the state of the migration.
    async fn clear(&self) -> Result<()>;
}
