//! Ledger compaction: rows of operations that can no longer be repeated are added to the header's `compacted` sum and
//! removed.
//!
//! One conditional write does both, so the sum of the ledger never changes and a crash leaves a ledger that is
//! compacted up to some row. The queue of partitions is in memory only: a partition that a crashed process had queued
//! is queued again by the next command on it.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use mw_domain::Timestamp;
use mw_domain::limits::IDEMPOTENCY_HOURS;
use mw_store::Result;
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;

use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::to_cql;
use crate::recovery::intents::TTL_SECONDS as INTENT_TTL_SECONDS;
use crate::schema::tables::Table;
use crate::stock::decision::{Decision, StockCommand, StockKey};
use crate::stock::ledger::{LedgerRow, LedgerState};
use crate::stock::rows::{StoredRow, read_row};

/// How long the row of an ended hold is kept. Requests and recovery repeat a hold within seconds; a later request
/// with the same key is answered from the order or the reservation.
const HOLD_SECONDS: i64 = 3_600;
/// How long a row is kept whose operation would count twice without it: longer than a key or an intent can repeat it.
const MOVEMENT_SECONDS: i64 = 11 * 86_400;
const _: () =
    assert!(MOVEMENT_SECONDS > INTENT_TTL_SECONDS as i64 && MOVEMENT_SECONDS > IDEMPOTENCY_HOURS * 3_600);
/// Rows compacted in one write.
const BATCH_MAX: usize = 256;
/// Partitions queued for compaction; further ones are queued after their next change.
const QUEUE_MAX: usize = 100_000;

#[derive(Debug)]
pub(crate) struct LedgerCompaction {
    rows: PreparedStatement,
    queue: Mutex<CompactionQueue>,
}

/// Partitions whose ledger has grown, longest waiting first.
#[derive(Debug, Default)]
struct CompactionQueue {
    waiting: VecDeque<(Timestamp, StockKey)>,
    queued: HashSet<StockKey>,
}

impl LedgerCompaction {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let rows = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND until >= ?";
        Ok(Self { rows: cql.prepare(Table::Stock, Access::Read, rows).await?, queue: Mutex::default() })
    }

    /// Queues a partition whose ledger has grown.
    pub(crate) fn enqueue(&self, stock_key: &StockKey, now: Timestamp) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.queued.len() < QUEUE_MAX && queue.queued.insert(stock_key.clone()) {
            queue.waiting.push_back((now, stock_key.clone()));
        }
    }

    /// The partition that has waited longest, if it was queued no later than `before`.
    fn dequeue(&self, before: Timestamp) -> Option<StockKey> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, _) = queue.waiting.front()?;
        if *since > before {
            return None;
        }
        let (_, stock_key) = queue.waiting.pop_front()?;
        queue.queued.remove(&stock_key);
        Some(stock_key)
    }
}

/// For how many seconds a request or recovery may repeat the operation of a row.
const fn repeatable_seconds(row: &LedgerRow) -> i64 {
    match row.state {
        LedgerState::Set | LedgerState::Adjusted | LedgerState::Returned => MOVEMENT_SECONDS,
        // A void row without units belongs to a refused change by the back office; holds have units.
        LedgerState::Void if row.quantity == 0 => MOVEMENT_SECONDS,
        LedgerState::Held | LedgerState::Taken | LedgerState::Released | LedgerState::Void => HOLD_SECONDS,
    }
}

impl CassandraStore {
    /// Compacts queued ledgers; returns how many rows were compacted.
    pub(crate) async fn compact_ledgers(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let mut compacted = 0;
        // Partitions count against the limit too: many have nothing to compact.
        for _ in 0..limit {
            if compacted >= limit {
                break;
            }
            let Some(stock_key) = self.compaction.dequeue(now.plus_seconds(-HOLD_SECONDS)) else { break };
            // A crash here leaves the ledger as it is; the next command on the partition queues it again.
            compacted += self.compact_ledger(&stock_key, now).await?;
        }
        Ok(compacted)
    }

    /// Compacts the rows of one ledger that can no longer be repeated; returns how many.
    async fn compact_ledger(&self, stock_key: &StockKey, now: Timestamp) -> Result<usize> {
        let mut count = 0;
        let mut has_young_rows = false;
        let mut from = PagingState::start();
        loop {
            let (product_id, geo_zone) = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str());
            let values = (product_id, geo_zone, to_cql(Timestamp::EPOCH));
            let (rows, next) = self.cql.page::<StoredRow>(&self.compaction.rows, values, from).await?;
            let mut old = Vec::new();
            for row in rows {
                let row = read_row(row)?;
                let seconds = repeatable_seconds(&row);
                if row.state.is_compactable() && row.at.plus_seconds(seconds) <= now {
                    old.push(row);
                } else {
                    // The few rows that are kept for days wait for the next change of the partition.
                    has_young_rows |= seconds == HOLD_SECONDS;
                }
            }
            for rows in old.chunks(BATCH_MAX) {
                let command = StockCommand::Compact { rows: rows.to_vec() };
                // A crash after this write leaves the rest uncompacted, for the next run.
                let decision = self.keepers.submit(&self.cql, stock_key, command, now).await?;
                if let Decision::Done { .. } = decision {
                    count += rows.len();
                }
            }
            let Some(next) = next else { break };
            from = next;
        }
        if has_young_rows {
            self.compaction.enqueue(stock_key, now);
        }
        Ok(count)
    }
}
