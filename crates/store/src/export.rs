//! Export and import of the whole store as records: for backup, restore, and migration between engines.
//!
//! Records of one kind may refer to records of another, so an import is complete only with all of them, in any order.
//! An imported record replaces a stored one.

use mw_domain::stock::Movement;
use mw_domain::{Cart, CartChange, Order, OrderEvent, Owner, Product, Reservation, Session, ZoneStock};

use crate::idempotency::StoredOutcome;
use crate::{Page, PageRequest, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Product(Product),
    /// A stock level with its ledger.
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
    StoredOutcome(StoredOutcome),
}

/// The progress of an import, stored in the same write as the records, so that the import can resume after a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name of the import, the same for the same file.
    pub import: String,
    /// Records of the import that are stored.
    pub done: u64,
}

/// Reads a snapshot of the store as of the start of the export.
#[async_trait::async_trait]
pub trait Export: Send + Sync {
    /// An estimate of the number of records, for a progress bar.
    fn estimate(&self) -> u64;

    async fn page(&self, page: PageRequest) -> Result<Page<Record>>;
}

#[async_trait::async_trait]
pub trait ExportImport: Send + Sync {
    /// A consistent snapshot of the store, unaffected by later writes.
    async fn export(&self) -> Result<Box<dyn Export>>;

    /// Writes records and the checkpoint together.
    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()>;

    /// The stored progress of an import; 0 if it has not begun.
    async fn import_progress(&self, import: &str) -> Result<u64>;

    /// Whether the store has no rows.
    async fn is_empty(&self) -> Result<bool>;
}
