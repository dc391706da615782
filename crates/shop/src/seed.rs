//! Filling an empty shop with records, such as a sample catalogue.
//!
//! The records go in as an import with a checkpoint, a batch a write. A crash between two batches leaves the checkpoint
//! of the last one, and the next start goes on from there.

use mw_domain::Timestamp;
use mw_store::Result;
use mw_store::export::{Checkpoint, Record};

use crate::Shop;

/// Records written together.
const BATCH: usize = 500;

/// What [`Shop::seed`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seeded {
    Filled,
    /// An earlier call has filled the store.
    Already,
    /// The store holds something else and stays as it is.
    NotEmpty,
}

impl Shop {
    /// Fills an empty store with the records made for the current time. `import` names the records: a call with the same
    /// name finishes what an interrupted one began.
    pub async fn seed(&self, import: &str, records: impl FnOnce(Timestamp) -> Vec<Record>) -> Result<Seeded> {
        let done = self.store.import_progress(import).await?;
        if done == 0 && !self.store.is_empty().await? {
            return Ok(Seeded::NotEmpty);
        }
        let records = records(self.now());
        let mut done = usize::try_from(done).unwrap_or(usize::MAX);
        if done >= records.len() {
            return Ok(Seeded::Already);
        }
        for batch in records.get(done..).unwrap_or_default().chunks(BATCH) {
            done += batch.len();
            let checkpoint = Checkpoint { import: import.to_owned(), done: done as u64 };
            self.store.import(batch.to_vec(), checkpoint).await?;
        }
        Ok(Seeded::Filled)
    }
}
