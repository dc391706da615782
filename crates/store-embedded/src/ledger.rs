//! Ledger compaction: movements of operations that can no longer be repeated are added to the sum of their ledger and removed.
//!
//! Invariants: sum and removed rows are one batch, so the sum of a ledger never changes and a crash leaves a ledger that is
//! compacted up to some movement. An operation is compacted only as a whole and only while it holds no units: open holds stay
//! movements of their own. A pass reads a snapshot; the command reads every row again, because an import may have replaced it.

use std::collections::HashMap;

use mw_domain::limits::IDEMPOTENCY_HOURS;
use mw_domain::stock::{Cause, Delta};
use mw_domain::{Movement, Timestamp};
use mw_store::{Result, StoreError};
use uuid::Uuid;

use crate::keys::{self, Key};
use crate::long_reads::break_if;
use crate::reader::{KeyRange, Reader};
use crate::tables::Table;
use crate::timers;
use crate::tx::Tx;

/// How long a movement stays as it is: longer than an idempotency key can name it, and a week for support to look back.
const MOVEMENT_SECONDS: i64 = 7 * 86_400;
const _: () = assert!(MOVEMENT_SECONDS > IDEMPOTENCY_HOURS * 3_600);
/// Operations of one ledger that a pass has in memory because they still hold units; further ones wait for the next pass.
const OPEN_OPERATIONS_MAX: usize = 100_000;
/// What opening the scan of a ledger counts in rows.
const SEEK_ROWS: usize = 4;

/// Movements that are compacted together: all of one operation.
pub(crate) type Group = Vec<Key>;

/// A pass over all ledgers, in the order of their keys. Only in memory: after a restart it begins again.
#[derive(Debug, Default)]
pub(crate) struct LedgerPass {
    /// The key at which the next slice begins; empty at the beginning of a pass.
    from: Key,
    /// The ledger of the open operations.
    ledger: Key,
    open: HashMap<Uuid, OpenOperation>,
}

#[derive(Debug, Default)]
struct OpenOperation {
    reserved: i64,
    rows: Group,
}

/// The result of a slice of a pass.
#[derive(Debug, Default)]
pub(crate) struct LedgerPlan {
    pub(crate) groups: Vec<Group>,
    pub(crate) rows: usize,
    /// Rows that could not be read; they stay.
    pub(crate) unreadable: usize,
}

enum Step {
    /// The rest of the ledger is too young.
    NextLedger,
    /// The slice is full, or the last ledger is read.
    Done,
}

impl LedgerPass {
    /// Reads the next `rows_max` rows and finds up to `removals_max` movements to compact.
    pub(crate) fn slice(
        &mut self,
        reader: &dyn Reader,
        now: Timestamp,
        rows_max: usize,
        removals_max: usize,
    ) -> Result<LedgerPlan> {
        let cutoff = now.minus_seconds(MOVEMENT_SECONDS);
        let mut plan = LedgerPlan::default();
        let mut visited = 0;
        while plan.rows < removals_max && visited < rows_max {
            let range = KeyRange { from: self.from.clone(), to: None };
            let (mut step, mut is_empty) = (Step::Done, true);
            visited += SEEK_ROWS;
            reader.scan(Table::Ledger, &range, false, &mut |key, value| {
                is_empty = false;
                visited += 1;
                if !self.visit(key, value, cutoff, &mut plan)? {
                    step = Step::NextLedger;
                    return Ok(break_if(true));
                }
                Ok(break_if(plan.rows >= removals_max || visited >= rows_max))
            })?;
            match step {
                Step::NextLedger => {
                    let Some(next) = keys::after_prefix(&self.ledger) else {
                        *self = Self::default();
                        return Ok(plan);
                    };
                    self.from = next;
                }
                Step::Done if is_empty || (plan.rows < removals_max && visited < rows_max) => {
                    *self = Self::default();
                    return Ok(plan);
                }
                Step::Done => {}
            }
        }
        Ok(plan)
    }

    /// Adds a row to its operation; returns whether older rows may follow in the same ledger.
    fn visit(&mut self, key: &[u8], value: &[u8], cutoff: Timestamp, plan: &mut LedgerPlan) -> Result<bool> {
        let (ledger, at, op) = keys::read_movement(key)?;
        if self.ledger != ledger {
            self.ledger = ledger.to_vec();
            self.open.clear();
        }
        self.from = keys::just_after(key.to_vec());
        if op.is_nil() && at == timers::BEGINNING {
            // The sum itself.
            return Ok(true);
        }
        if at > cutoff {
            return Ok(false);
        }
        let Ok(movement) = mw_codec::stock::decode_movement(value) else {
            plan.unreadable += 1;
            return Ok(true);
        };
        if self.open.len() >= OPEN_OPERATIONS_MAX && !self.open.contains_key(&op) {
            return Ok(true);
        }
        let operation = self.open.entry(op).or_default();
        operation.reserved = operation.reserved.saturating_add(movement.delta.reserved);
        operation.rows.push(key.to_vec());
        if operation.reserved == 0
            && let Some(settled) = self.open.remove(&op)
        {
            plan.rows += settled.rows.len();
            plan.groups.push(settled.rows);
        }
        Ok(true)
    }
}

/// Adds groups of movements to the sums of their ledgers and removes them; returns how many movements. A crash before the
/// commit leaves the movements, and the next pass finds them again.
pub(crate) fn compact(tx: &mut Tx, groups: &[Group]) -> Result<usize> {
    let mut removed = 0;
    for group in groups {
        removed += tx.attempt(|tx| compact_group(tx, group))?;
    }
    Ok(removed)
}

fn compact_group(tx: &mut Tx, group: &Group) -> Result<usize> {
    let Some(first) = group.first() else { return Ok(0) };
    let (product_id, geo_zone) = keys::read_stock(&keys::ledger_stock(first)?)?;
    let sum_key = keys::ledger_sum(&product_id, &geo_zone);
    let mut sum = match tx.get(Table::Ledger, &sum_key)? {
        Some(row) => mw_codec::stock::decode_movement(&row)?,
        None => empty_sum(),
    };
    let mut reserved = 0_i64;
    for key in group {
        // An import replaced the ledger since the pass read it.
        let Some(row) = tx.get(Table::Ledger, key)? else { return Ok(0) };
        let Movement { at, delta, .. } = mw_codec::stock::decode_movement(&row)?;
        reserved = reserved.saturating_add(delta.reserved);
        sum.at = sum.at.max(at);
        sum.delta.on_hand = sum.delta.on_hand.checked_add(delta.on_hand).ok_or_else(|| {
            StoreError::Corrupt(format!("compact ledger of {product_id} in {geo_zone}: its sum overflows"))
        })?;
    }
    if reserved != 0 {
        return Ok(0);
    }
    for key in group {
        tx.remove(Table::Ledger, key.clone());
    }
    tx.put(Table::Ledger, sum_key, mw_codec::stock::encode_movement(&sum));
    Ok(group.len())
}

/// The sum of a ledger that was never compacted.
const fn empty_sum() -> Movement {
    Movement {
        at: timers::BEGINNING,
        op: Uuid::nil(),
        cause: Cause::Set,
        delta: Delta { on_hand: 0, reserved: 0 },
        note: None,
    }
}
