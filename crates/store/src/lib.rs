//! What storage promises: one trait a noun, the errors that tell *surely not done* from *may have been done*, an
//! in-memory model that is the oracle of tests, and the contract suite that every engine passes.
//!
//! Callers bring the time and the new ids with every command, so that an engine is deterministic and a command can be
//! repeated. Whatever an engine acknowledged survives the death of the process.

pub mod carts;
pub mod contract;
pub mod error;
pub mod model;
pub mod once;
pub mod orders;
pub mod page;
pub mod products;
pub mod records;
pub mod sessions;
pub mod stock;

use std::sync::Arc;

pub use carts::Carts;
pub use error::{Refusal, Result, StoreError};
pub use once::{Done, Fingerprint, Once};
pub use orders::Orders;
pub use page::{Page, PageRequest, Position};
pub use products::Products;
pub use records::Records;
pub use sessions::Sessions;
pub use stock::Stock;

use mw_domain::Timestamp;

/// How old an answer may be. The embedded engine never lags; on a cluster it decides the consistency of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// What a shopper browses: may lag by the policy's allowance.
    Showcase,
    /// What money is taken for.
    Full,
}

/// What an engine does for itself and tells of itself.
#[async_trait::async_trait]
pub trait Upkeep: Send + Sync {
    /// Whether storage can serve reads and writes now; the error says what is wrong.
    async fn ready(&self) -> Result<()>;

    /// Removes up to `limit` rows that have expired; answers how many. Reads never show them in any case.
    async fn clean(&self, now: Timestamp, limit: usize) -> Result<usize>;
}

/// Everything an engine of the shop can do.
pub trait Store: Carts + Sessions + Products + Stock + Orders + Records + Upkeep {}

impl<T: Carts + Sessions + Products + Stock + Orders + Records + Upkeep> Store for T {}

/// A store that is shared by whoever serves requests.
pub type SharedStore = Arc<dyn Store>;
