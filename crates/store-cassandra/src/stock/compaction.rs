//! Ledger compaction: rows of operations that can no longer be repeated are added to the header's `compacted` sum and
//! removed.
//!
//! One conditional write does both, so the sum of the ledger never changes and a crash leaves a ledger that is
//! compacted up to some row. The queue of partitions is in memory only: a partition that a crashed process had queued
//! is queued again by the next command on it.
//!
//! Compacted rows are tombstones until `gc_grace` is over. Holds of reservations are in the order of their end, so the
//! header remembers up to where they are compacted (`compacted_to`), and a run begins there. All other rows have the same end
//! and are in the order of their operations' ids, which for orders is that of time: a process remembers the first row that it
//! left, and begins there. Now and then it begins at the first row of all, for those that were written behind it.

use std::collections::{HashMap, HashSet, VecDeque};
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

/// Partitions of which a process remembers where the next run begins.
const STARTS_MAX: usize = 10_000;
/// Runs of a partition from one that begins at its first row to the next.
const RUNS_BETWEEN_SWEEPS: u32 = 64;

#[derive(Debug)]
pub(crate) struct LedgerCompaction {
    /// Rows between two ends.
    rows: PreparedStatement,
    /// Rows without an end, from an operation on.
    rows_without_end: PreparedStatement,
    /// Whether a hold ends later.
    later: PreparedStatement,
    queue: Mutex<CompactionQueue>,
    starts: Mutex<HashMap<StockKey, Start>>,
}

/// Where the next run begins among the rows without an end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Start {
    op_id: Uuid,
    runs: u32,
}

impl Start {
    /// After a run that left `first_left`, or no row at all and ended at `last`.
    const fn after(self, first_left: Option<Uuid>, last: Option<Uuid>) -> Self {
        if self.runs + 1 == RUNS_BETWEEN_SWEEPS {
            return Self { op_id: Uuid::nil(), runs: 0 };
        }
        let op_id = match (first_left, last) {
            (Some(op_id), _) | (None, Some(op_id)) => op_id,
            (None, None) => self.op_id,
        };
        Self { op_id, runs: self.runs + 1 }
    }
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
        let rows_without_end = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND until = ? AND op_id >= ?";
        let later =
            "SELECT op_id FROM {} WHERE product_id = ? AND geo_zone = ? AND until > ? AND until < ? LIMIT 1";
        Ok(Self {
            rows: cql.prepare(Table::Stock, Access::Read, rows).await?,
            rows_without_end: cql.prepare(Table::Stock, Access::Read, rows_without_end).await?,
            later: cql.prepare(Table::Stock, Access::Read, later).await?,
            queue: Mutex::default(),
            starts: Mutex::default(),
        })
    }

    /// Queues a partition whose ledger has grown.
    pub(crate) fn enqueue(&self, stock_key: &StockKey, now: Timestamp) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.queued.len() < QUEUE_MAX && queue.queued.insert(stock_key.clone()) {
            queue.waiting.push_back((now, stock_key.clone()));
        }
    }

    fn start(&self, stock_key: &StockKey) -> Start {
        let starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        starts.get(stock_key).copied().unwrap_or_default()
    }

    fn set_start(&self, stock_key: &StockKey, start: Start) {
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        if starts.len() >= STARTS_MAX {
            starts.clear();
        }
        starts.insert(stock_key.clone(), start);
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

/// A part of a ledger.
#[derive(Debug, Clone, Copy)]
enum Rows {
    /// Holds of reservations that end between two moments.
    EndingBetween(Timestamp, Timestamp),
    /// Holds of orders and changes by the back office, from an operation on.
    WithoutEnd { from: Uuid },
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
    /// Of the operations whose ids are in the order of time: the first one whose row is left, and the last one.
    first_op_left: Option<Uuid>,
    last_op: Option<Uuid>,
}

/// Ids of version 7 are in the order of time, after all others, where Cassandra sorts them.
fn is_ordered(op_id: &Uuid) -> bool {
    op_id.get_version_num() == 7
}

impl Run {
    fn leave(&mut self, row: &LedgerRow, now: Timestamp) {
        self.has_young_rows |= due_at(row) <= now.plus_seconds(HOLD_SECONDS);
        self.first_left = Some(self.first_left.map_or(row.until, |first| first.min(row.until)));
        let op_id = Some(row.op_id).filter(is_ordered);
        self.first_op_left = self.first_op_left.or(op_id);
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
        let holds = self.compact_rows(stock_key, Rows::EndingBetween(from, to), now).await?;
        if holds.compacted > 0 {
            let compacted_to = Some(holds.first_left.unwrap_or(to));
            let command = StockCommand::Compact { rows: Vec::new(), compacted_to };
            // A crash before this write leaves the bound too low: the next run passes the same tombstones again.
            self.keepers.submit(&self.cql, stock_key, command, now).await?;
        }
        let start = self.compaction.start(stock_key);
        let others = self.compact_rows(stock_key, Rows::WithoutEnd { from: start.op_id }, now).await?;
        self.compaction.set_start(stock_key, start.after(others.first_op_left, others.last_op));
        let (product_id, geo_zone) = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str());
        let values = (product_id, geo_zone, to_cql(to), to_cql(END_OF_TIME));
        let later: Option<(Uuid,)> = self.cql.first(&self.compaction.later, values).await?;
        if later.is_some() || holds.has_young_rows || others.has_young_rows {
            self.compaction.enqueue(stock_key, now);
        }
        Ok(holds.compacted + others.compacted)
    }

    /// A page of the rows of one part of a ledger, and where the next one begins.
    async fn ledger_page(
        &self,
        stock_key: &StockKey,
        rows: Rows,
        from: PagingState,
    ) -> Result<(Vec<LedgerRow>, Option<PagingState>)> {
        let (product_id, geo_zone) = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str());
        let (rows, next) = match rows {
            Rows::EndingBetween(first, last) => {
                let values = (product_id, geo_zone, to_cql(first), to_cql(last));
                self.cql.page::<StoredRow>(&self.compaction.rows, values, from).await?
            }
            Rows::WithoutEnd { from: op_id } => {
                let values = (product_id, geo_zone, to_cql(END_OF_TIME), op_id);
                self.cql.page::<StoredRow>(&self.compaction.rows_without_end, values, from).await?
            }
        };
        Ok((read_rows(rows)?, next))
    }

    /// Compacts one part of a ledger.
    async fn compact_rows(&self, stock_key: &StockKey, part: Rows, now: Timestamp) -> Result<Run> {
        let mut run = Run::default();
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.ledger_page(stock_key, part, from).await?;
            let mut due = Vec::new();
            for row in rows {
                run.last_op = Some(row.op_id).filter(is_ordered).or(run.last_op);
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
    fn a_run_begins_at_the_first_row_that_the_last_one_left_and_now_and_then_at_the_first_of_all() {
        let [first, second, third] = [1, 2, 3].map(Uuid::from_u128);
        let mut start = Start::default().after(Some(first), Some(third));
        assert_eq!(start.op_id, first, "a row that is left is read again");
        start = start.after(None, Some(second));
        assert_eq!(start.op_id, second, "all rows were compacted: their tombstones are behind");
        start = start.after(None, None);
        assert_eq!(start.op_id, second, "nothing new");
        for _ in start.runs..RUNS_BETWEEN_SWEEPS {
            start = start.after(None, Some(third));
        }
        assert_eq!(start, Start::default());
    }

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
