//! Ledger compaction: settled rows of a product in a zone are added to one running sum and deleted.
//!
//! A settled row is needed for nothing but the sum: its order or reservation is closed, and what comes back of an order
//! without a row is a movement of its own. A transaction does both, so every reader sees the same sum before and after, and a
//! crash leaves the rows or the sum. The counts that tell what is due are in memory: rows that a dead process has written wait
//! for the next compaction of their product.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, PoisonError};

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use mw_store::Result;
use mw_store::stock::decision::StockKey;
use mw_store::stock::ledger::LedgerState;
use uuid::Uuid;

use crate::MongoStore;
use crate::driver::transaction::Stop;
use crate::stock::ledger::{COMPACTED, EXTERNAL, read_row, row_id, rows_of};

/// Rows that a process writes of a product in a zone before it compacts them.
const ROWS_BEFORE: u32 = 1_000;
/// Rows of one transaction.
const ROWS_AT_ONCE: i64 = 1_000;
/// Products and zones whose rows are counted; beyond them counting begins again.
const COUNTED_MAX: usize = 100_000;

/// The rows that this process has written since the last compaction.
#[derive(Debug, Default)]
pub(crate) struct WrittenRows(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    written: HashMap<StockKey, u32>,
    due: Vec<StockKey>,
}

impl WrittenRows {
    pub(super) fn add(&self, key: &StockKey, rows: usize) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.written.len() >= COUNTED_MAX {
            counts.written.clear();
        }
        let written = counts.written.entry(key.clone()).or_default();
        *written = written.saturating_add(u32::try_from(rows).unwrap_or(u32::MAX));
        if *written >= ROWS_BEFORE {
            counts.written.remove(key);
            counts.due.push(key.clone());
        }
    }

    fn take_due(&self) -> Vec<StockKey> {
        mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).due)
    }
}

impl MongoStore {
    /// Compacts what has become due, beside the sales that go on.
    pub(super) fn compact_what_is_due(&self) {
        for key in self.written_rows.take_due() {
            let store = self.me.clone();
            tokio::spawn(async move {
                let Some(store) = store.upgrade() else { return };
                if let Err(error) = store.compact(&key).await {
                    tracing::debug!(%error, product_id = %key.product_id, "compact a stock ledger: its rows stay");
                }
            });
        }
    }

    async fn compact(&self, key: &StockKey) -> Result<()> {
        loop {
            let mut attempts = self.transaction();
            let compacted = loop {
                let mut session = attempts.begin().await?;
                let compacted = attempts.run(self.compact_in(&mut session, key)).await;
                if let Some(compacted) = attempts.end(session, compacted).await? {
                    break compacted;
                }
            };
            if i64::try_from(compacted).unwrap_or(i64::MAX) < ROWS_AT_ONCE {
                return Ok(());
            }
        }
    }

    /// Returns how many rows were added to the sum.
    async fn compact_in(&self, session: &mut ClientSession, key: &StockKey) -> Result<usize, Stop> {
        let ledger = &self.sales.ledger;
        let settled = doc! { "$nin": [LedgerState::Held.as_str(), COMPACTED] };
        let query = ledger.find(doc! { "_id": rows_of(key), "state": settled }).limit(ROWS_AT_ONCE);
        let mut cursor = query.session(&mut *session).await?;
        let (mut ids, mut units, mut external, mut newest) = (Vec::<Bson>::new(), 0_i64, 0_i64, None);
        while let Some(document) = cursor.next(session).await {
            let document: Document = document?;
            let row = read_row(&document)?;
            units += row.state.effect(row.quantity).on_hand;
            external += i64::from(document.get_str("state").is_ok_and(|state| state == EXTERNAL));
            newest = newest.max(document.get_datetime("at").ok().copied());
            ids.extend(document.get("_id").cloned());
        }
        let count = ids.len();
        let Some(newest) = newest else { return Ok(0) };
        ledger.delete_many(doc! { "_id": { "$in": ids } }).session(&mut *session).await?;
        let sum = doc! {
            "$inc": {
                "quantity": units,
                "movements": i64::try_from(count).unwrap_or(i64::MAX),
                "external": external,
            },
            "$set": { "state": COMPACTED },
            "$max": { "at": newest },
        };
        // No operation has this id.
        let filter = doc! { "_id": row_id(key, Uuid::max()) };
        ledger.update_one(filter, sum).upsert(true).session(session).await?;
        Ok(count)
    }
}
