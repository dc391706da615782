//! What an operator saves and checks of a running shop: exports, backups, the stock audit; and the engine's own series.

use std::path::PathBuf;

use mw_domain::Timestamp;
use mw_store::export::Export;
use mw_store::stock::Audit;
use mw_store::{BackupStatus, Collector, Result};

use crate::Shop;

impl Shop {
    /// The shop as records, and when the export began.
    pub async fn export(&self) -> Result<(Box<dyn Export>, Timestamp)> {
        let now = self.now();
        Ok((self.store.export().await?, now))
    }

    /// Recomputes every stock level from its ledger and the open holds.
    pub async fn audit_stock(&self) -> Result<Audit> {
        self.store.audit(&|_| ()).await
    }

    /// Starts a physical backup into a folder of this machine, of which the latest `keep` stay.
    pub async fn start_backup(&self, to: PathBuf, keep: usize) -> Result<()> {
        self.store.start_backup(to, keep).await
    }

    /// The last backup that was started since the process runs.
    pub async fn backup_status(&self) -> Result<Option<BackupStatus>> {
        self.store.backup_status().await
    }

    /// The series of the engine, for the registry behind `/metrics`.
    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        self.store.collectors()
    }
}
