//! Ledger compaction: rows of operations that can no longer be repeated are added to the header's `compacted` sum and
//! removed.
//!
//! One conditional write does both, so the sum of the ledger never changes and a crash leaves a ledger that is
//! compacted up to some row. The queue of partitions is in memory only: a partition that a crashed process had queued
//! is queued again by the next command on it.
//!
//! Compacted rows are tombstones until `gc_grace` is over. Holds of reservations are in the order of their end, so the
//! header remembers up to where they are compacted (`compacted_to`), and a run begins there.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::limits::IDEMPOTENCY_HOURS;
use mw_domain::{ReservationId, ReservationStatus, Timestamp};
use mw_store::{Freshness, Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::to_cql;
use crate::recovery::intents::TTL_SECONDS as INTENT_TTL_SECONDS;
use crate::schema::tables::Table;
use crate::stock::CONCURRENT_LINES;
use crate::stock::decision::{Decision, StockCommand, StockKey};
use crate::stock::ledger::{END_OF_TIME, LedgerRow, LedgerState};
use crate::stock::rows::{StoredRow, read_rows};

/// How long the row of an ended hold is kept, counted from the hold's end where it has one. Requests and recovery repeat
/// a hold within seconds; a later request with the same key is answered from the order or the reservation.
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
    /// Rows between two ends.
    rows: PreparedStatement,
    /// Whether a hold ends later.
    later: PreparedStatement,
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
             WHERE product_id = ? AND geo_zone = ? AND until >= ? AND until <= ?";
        let later =
            "SELECT op_id FROM {} WHERE product_id = ? AND geo_zone = ? AND until > ? AND until < ? LIMIT 1";
        Ok(Self {
            rows: cql.prepare(Table::Stock, Access::Read, rows).await?,
            later: cql.prepare(Table::Stock, Access::Read, later).await?,
            queue: Mutex::default(),
        })
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

/// When a row may be compacted: no request and no recovery can repeat its operation from then on.
fn due_at(row: &LedgerRow) -> Timestamp {
    match row.state {
        LedgerState::Set | LedgerState::Adjusted | LedgerState::Returned => {
            row.at.plus_seconds(MOVEMENT_SECONDS)
        }
        // A void row without units belongs to a refused change by the back office; holds have units.
        LedgerState::Void if row.quantity == 0 => row.at.plus_seconds(MOVEMENT_SECONDS),
        LedgerState::Held | LedgerState::Taken | LedgerState::Released | LedgerState::Void => {
            // Until its end the reservation can be confirmed, released or reserved again.
            let ended_at = if row.until == END_OF_TIME { row.at } else { row.at.max(row.until) };
            ended_at.plus_seconds(HOLD_SECONDS)
        }
    }
}

/// What compaction did to a part of a ledger.
#[derive(Debug, Default)]
struct Run {
    compacted: usize,
    /// Whether a row is left that is due soon. The few rows that are kept for days wait for the next change of the
    /// partition.
    has_young_rows: bool,
    /// The first end of a row that is left.
    first_left: Option<Timestamp>,
}

impl Run {
    fn leave(&mut self, row: &LedgerRow, now: Timestamp) {
        self.has_young_rows |= due_at(row) <= now.plus_seconds(HOLD_SECONDS);
        self.first_left = Some(self.first_left.map_or(row.until, |first| first.min(row.until)));
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
        // The product may not have been sold since its holds expired.
        self.raise_passed_hold_end(stock_key, now).await?;
        let Some(header) = self.header(stock_key, Freshness::Latest).await? else { return Ok(0) };
        let from = header.compacted_to.unwrap_or(Timestamp::EPOCH);
        let to = now.plus_seconds(-HOLD_SECONDS);
        let holds = self.compact_between(stock_key, (from, to), now).await?;
        if holds.compacted > 0 {
            let compacted_to = Some(holds.first_left.unwrap_or(to));
            let command = StockCommand::Compact { rows: Vec::new(), compacted_to };
            // A crash before this write leaves the bound too low: the next run passes the same tombstones again.
            self.keepers.submit(&self.cql, stock_key, command, now).await?;
        }
        let others = self.compact_between(stock_key, (END_OF_TIME, END_OF_TIME), now).await?;
        let (product_id, geo_zone) = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str());
        let values = (product_id, geo_zone, to_cql(to), to_cql(END_OF_TIME));
        let later: Option<(Uuid,)> = self.cql.first(&self.compaction.later, values).await?;
        if later.is_some() || holds.has_young_rows || others.has_young_rows {
            self.compaction.enqueue(stock_key, now);
        }
        Ok(holds.compacted + others.compacted)
    }

    /// Compacts the rows whose `until` is between two ends.
    async fn compact_between(
        &self,
        stock_key: &StockKey,
        (from_end, to_end): (Timestamp, Timestamp),
        now: Timestamp,
    ) -> Result<Run> {
        let mut run = Run::default();
        let mut from = PagingState::start();
        loop {
            let (product_id, geo_zone) = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str());
            let values = (product_id, geo_zone, to_cql(from_end), to_cql(to_end));
            let (rows, next) = self.cql.page::<StoredRow>(&self.compaction.rows, values, from).await?;
            let mut due = Vec::new();
            for row in read_rows(rows)? {
                if row.state.is_compactable() && due_at(&row) <= now {
                    due.push(row);
                } else {
                    run.leave(&row, now);
                }
            }
            let mut settled = Vec::with_capacity(due.len());
            for (row, is_settled) in self.with_settled(due).await? {
                if is_settled { settled.push(row) } else { run.leave(&row, now) }
            }
            for rows in settled.chunks(BATCH_MAX) {
                let command = StockCommand::Compact { rows: rows.to_vec(), compacted_to: None };
                // A crash after this write leaves the rest uncompacted, for the next run.
                let decision = self.keepers.submit(&self.cql, stock_key, command, now).await?;
                if let Decision::Done { .. } = decision {
                    run.compacted += rows.len();
                }
            }
            let Some(next) = next else { return Ok(run) };
            from = next;
        }
    }

    /// Whether each row is one that no unfinished operation depends on. A confirmed reservation writes its status after
    /// its last hold: until then the taken hold is what decides about the others.
    async fn with_settled(&self, rows: Vec<LedgerRow>) -> Result<Vec<(LedgerRow, bool)>> {
        let checks = rows.into_iter().map(|row| async move {
            let is_settled = if row.state == LedgerState::Taken && row.until != END_OF_TIME {
                let reservation = self.stored_reservation(ReservationId::new(row.op_id)).await?;
                reservation.is_none_or(|reservation| reservation.status != ReservationStatus::Held)
            } else {
                true
            };
            Ok::<_, StoreError>((row, is_settled))
        });
        stream::iter(checks.collect::<Vec<_>>()).buffered(CONCURRENT_LINES).try_collect().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_kept_for_an_hour_after_its_end() {
        const HOUR: i64 = 3_600;
        let at = Timestamp::EPOCH;
        let due = |state, until| {
            due_at(&LedgerRow { until, op_id: Uuid::nil(), state, quantity: 1, at, note: None, result: None })
        };
        let long = at.plus_seconds(3 * HOUR);
        for state in [LedgerState::Taken, LedgerState::Released, LedgerState::Void] {
            assert_eq!(due(state, long), long.plus_seconds(HOUR), "{state:?} before its end");
            assert_eq!(due(state, END_OF_TIME), at.plus_seconds(HOUR), "{state:?} without an end");
        }
        assert!(due(LedgerState::Adjusted, END_OF_TIME) > at.plus_seconds(10 * 24 * HOUR));
        assert!(due(LedgerState::Returned, END_OF_TIME) > at.plus_seconds(10 * 24 * HOUR));
    }
}
