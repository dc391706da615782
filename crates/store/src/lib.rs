//! The storage contract: one trait per noun, errors that distinguish *certainly not applied* from *may have been
//! applied*, an in-memory model as the oracle of tests, and the contract suite that every engine passes.
//!
//! Every command carries the time and the new ids, so that an engine is deterministic and a command can be repeated.
//! An acknowledged write survives the crash of the process.

pub mod audit;
pub mod backup;
pub mod carts;
pub mod changes;
pub mod cluster;
pub mod contract;
pub mod delegation;
pub mod error;
pub mod export;
pub mod idempotency;
pub mod migration;
pub mod model;
pub mod orders;
pub mod page;
pub mod partitions;
pub mod products;
pub mod request;
pub mod sessions;
pub mod stock;

use std::path::PathBuf;
use std::sync::Arc;

pub use backup::BackupStatus;
pub use carts::Carts;
pub use changes::Changes;
pub use error::{Refusal, Result, StoreError};
pub use export::ExportImport;
pub use idempotency::{Done, Fingerprint, RequestIdentity, StoredValue};
pub use orders::Orders;
pub use page::{Page, PageRequest, Position};
pub use products::Products;
pub use prometheus::core::Collector;
pub use sessions::Sessions;
pub use stock::Stock;

use mw_domain::Timestamp;

/// How stale the result of a read may be. It decides the consistency level on a cluster; the embedded engine never lags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// May be stale, within the bound of the policy.
    StaleOk,
    /// The latest acknowledged value: for every read that a sale depends on.
    Latest,
}

/// What a store that is ready cannot serve.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readiness {
    /// The share of the keys that can be neither read nor written now, 0 to 1.
    pub lost_share: f64,
    /// Why, where it is not 0.
    pub reason: Option<String>,
}

/// Maintenance and readiness of an engine.
#[async_trait::async_trait]
pub trait Maintenance: Send + Sync {
    /// Whether storage can serve enough reads and writes now, and what it cannot serve; the error names the cause.
    async fn ready(&self) -> Result<Readiness>;

    /// How far the clock of this machine is ahead of the store's, negative where it is behind; 0 where they are one.
    fn clock_skew_ms(&self) -> i64 {
        0
    }

    /// Removes up to `limit` expired rows; returns how many. Reads never show an expired row, purged or not.
    async fn purge_expired(&self, now: Timestamp, limit: usize) -> Result<usize>;

    /// The engine's own series, for the registry behind `/metrics`.
    fn collectors(&self) -> Vec<Box<dyn Collector>> {
        Vec::new()
    }

    /// Starts a physical backup into a folder of this machine, of which the latest `keep` stay; refused while another one runs.
    async fn start_backup(&self, _to: PathBuf, _keep: usize) -> Result<()> {
        Err(StoreError::NotServing(
            "backups are taken of the embedded engine; export this one, or use the tools of its database"
                .to_owned(),
        ))
    }

    /// The last backup that was started since the store was opened.
    async fn backup_status(&self) -> Result<Option<BackupStatus>> {
        Ok(None)
    }
}

/// The whole storage contract.
pub trait Store: Carts + Sessions + Products + Stock + Orders + Changes + ExportImport + Maintenance {}

impl<T: Carts + Sessions + Products + Stock + Orders + Changes + ExportImport + Maintenance> Store for T {}

/// A store that is shared by all request handlers.
pub type SharedStore = Arc<dyn Store>;
