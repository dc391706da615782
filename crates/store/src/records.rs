//! Everything that is stored, as records: for backup, restore, and moving between engines.
//!
//! Records of one kind may refer to those of another, so an import of them all ends in a whole store whatever the
//! order. Importing a record that is there already replaces it.

use mw_domain::stock::Movement;
use mw_domain::{Cart, CartChange, Order, OrderEvent, Owner, Product, Reservation, Session, ZoneStock};

use crate::once::Remembered;
use crate::{Page, PageRequest, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Product(Product),
    /// The figures with the ledger that explains them.
    Stock {
        stock: ZoneStock,
        ledger: Vec<Movement>,
    },
    Cart(Cart),
    CartChange {
        owner: Owner,
        change: CartChange,
    },
    Session(Session),
    Reservation(Reservation),
    /// Events oldest first.
    Order {
        order: Order,
        events: Vec<OrderEvent>,
    },
    Remembered(Remembered),
}

/// Where an import stands; stored in the same write as the records, so that it can go on after any interruption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Names the import: the same for the same file.
    pub import: String,
    /// Records of it that are in the store.
    pub done: u64,
}

/// Reads a store from the state it had when the export began.
#[async_trait::async_trait]
pub trait Export: Send + Sync {
    /// About how many records there are in all, for a progress bar.
    fn estimate(&self) -> u64;

    async fn page(&self, page: PageRequest) -> Result<Page<Record>>;
}

#[async_trait::async_trait]
pub trait Records: Send + Sync {
    /// A consistent view of everything, unmoved by later writes.
    async fn export(&self) -> Result<Box<dyn Export>>;

    /// Writes records and the checkpoint together.
    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()>;

    /// How far an import got; 0 where it has not begun.
    async fn import_progress(&self, import: &str) -> Result<u64>;

    /// Whether nothing at all is stored.
    async fn is_empty(&self) -> Result<bool>;
}
