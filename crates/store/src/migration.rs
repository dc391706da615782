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
    /// Whether the list of its category lacks the product.
    pub is_unlisted: bool,
    pub levels: Vec<(GeoZone, Level)>,
}

/// A row of the migration's state: its key, and its value.
pub type StateRow = (Vec<u8>, Vec<u8>);

/// Messages between the process that runs a migration and the commands of operators, on whichever machine. A message
/// disappears by itself after some minutes.
#[async_trait::async_trait]
pub trait Mailbox: Send + Sync {
    /// Whether a process runs the migration, or did until it failed.
    async fn has_reader(&self) -> Result<bool>;

    async fn put(&self, key: Vec<u8>, value: Vec<u8>) -> Result<()>;

    async fn take_away(&self, key: Vec<u8>) -> Result<()>;

    /// Up to `limit` messages with a prefix, in the order of their keys.
    async fn list(&self, prefix: Vec<u8>, limit: usize) -> Result<Vec<StateRow>>;
}

/// A store that a migration writes into. It serves no requests before the migration is done.
#[async_trait::async_trait]
pub trait MigrationTarget: ExportImport {
    /// Makes this process the one that may apply changes; `false` where another living process is.
    async fn begin_run(&self) -> Result<bool> {
        Ok(true)
    }

    /// Lets another process apply changes.
    async fn end_run(&self) {}

    /// How commands reach the process that runs the migration; `None` where one process alone opens the store.
    fn mailbox(&self) -> Option<&dyn Mailbox> {
        None
    }

    /// Writes changes in their order, all or none: what is left of them after an error or a crash is written before the
    /// process that may apply reads the state again.
    async fn apply(&self, changes: Vec<Change>) -> Result<()>;

    /// The values of state rows, one for each key.
    async fn state(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>>;

    /// Up to `limit` state rows with a prefix, after a key, in the order of their keys.
    async fn states(&self, prefix: Vec<u8>, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<StateRow>>;

    /// Removes the state rows with a prefix.
    async fn remove_states(&self, prefix: Vec<u8>) -> Result<()>;

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
