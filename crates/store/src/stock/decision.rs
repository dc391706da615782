//! The commands of the stock keeper and how each is decided, given the header and the ledger rows of one partition.
//!
//! Pure: no IO, no clock, no types of a driver. The engines that keep stock as a header with a ledger (Cassandra,
//! MongoDB) share these decisions; converting stored values is the engine's part. Commands of one batch are decided
//! one after the other, each on top of what the earlier ones changed; the engine writes all of it or nothing.

use std::collections::HashMap;
use std::time::Instant;

use mw_domain::stock::Delta;
use mw_domain::{GeoZone, Level, ProductId, Timestamp, ZoneStock};
use uuid::Uuid;

use super::ledger::{
    END_OF_TIME, LedgerRow, LedgerState, LevelAfter, RowKey, StockHeader, Transition, delta_between,
};
use super::{adjust_delta, set_delta};
use crate::{Refusal, StoreError};

/// A product in a zone: the partition of one keeper.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StockKey {
    pub product_id: ProductId,
    pub geo_zone: GeoZone,
}

#[derive(Debug, Clone)]
pub enum StockCommand {
    /// Reserves units. `started_at` is given where this process created the operation: no other process can have
    /// submitted it before that instant.
    Hold { until: Timestamp, op_id: Uuid, quantity: u32, started_at: Option<Instant> },
    /// Takes, releases, voids or returns a hold.
    Advance { until: Timestamp, op_id: Uuid, quantity: u32, transition: Transition },
    /// Sets the units on hand.
    Set { op_id: Uuid, on_hand: u64, expected: Option<u64> },
    /// Adds or removes units.
    Adjust { op_id: Uuid, delta: i64, note: String },
    /// Raises the lower bound of the next hold's end to the next open hold, which the keeper reads.
    RaiseEarliestHoldEnd,
    /// Changes nothing but the revision: a write of the operation that is in flight can never apply. The state of its
    /// row is final for that write.
    Fence { until: Timestamp, op_id: Uuid },
    /// Adds rows to the compacted sum and removes them, if they have not changed. `compacted_to`: no hold of a
    /// reservation that ends earlier has a row any more.
    Compact { rows: Vec<LedgerRow>, compacted_to: Option<Timestamp> },
    /// Gives a hold that does not expire the end of its reservation.
    SetHoldEnd { op_id: Uuid, until: Timestamp },
    /// Removes rows and reverses their effect on the stock level, if they have not changed.
    Clear { rows: Vec<LedgerRow> },
    /// Replaces the header that was read at a revision, in a partition without rows.
    Replace(Box<Replacement>),
}

/// A partition as another store exported it.
#[derive(Debug, Clone)]
pub struct Replacement {
    pub rev: Option<i64>,
    pub level: Level,
    pub compacted: i64,
    pub updated_at: Timestamp,
    pub rows: Vec<LedgerRow>,
}

#[derive(Debug, Clone)]
pub enum Decision {
    /// The operation is done, by this command or an earlier one; `state` is the state of its row now.
    Done {
        state: Option<LedgerState>,
        stock: ZoneStock,
    },
    /// Fewer units are available than the hold asks for.
    Short {
        available: u64,
    },
    /// Holds have expired that must be released before this command can be decided.
    ExpireHoldsFirst,
    Refused(Refusal),
}

impl Decision {
    /// Whether the decision holds whatever other processes did since the rows were read: the state of the row is one
    /// that the command would not change any more.
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Done { state, .. } => !matches!(state, None | Some(LedgerState::Held)),
            Self::Short { .. } | Self::ExpireHoldsFirst | Self::Refused(_) => false,
        }
    }

    /// The error of a decision that the command cannot have.
    pub fn unexpected(&self) -> StoreError {
        StoreError::Corrupt(format!("apply stock command: unexpected decision {self:?}"))
    }
}

/// What the keeper's copy of the partition says about operations that may be new.
#[derive(Debug, Clone, Copy)]
pub struct ReadBasis {
    /// When the header was read that the keeper's copy follows from, without another process's change in between.
    pub read_at: Instant,
    /// Whether a write of these very commands was lost before, or may still arrive.
    pub is_retried: bool,
    /// Whether such a write may have been applied.
    pub in_doubt: bool,
}

impl StockCommand {
    /// The row of a hold that another process may have written since the operation began. It is written on the
    /// condition that the row is absent, which saves reading it first.
    pub fn row_to_insert(&self, basis: ReadBasis) -> Option<RowKey> {
        match self {
            Self::Hold { until, op_id, started_at: Some(started_at), .. }
                if *started_at <= basis.read_at && !basis.is_retried =>
            {
                Some((*until, *op_id))
            }
            _ => None,
        }
    }

    /// The rows that must be read to decide.
    pub fn rows_to_read(&self, basis: ReadBasis) -> Vec<RowKey> {
        match self {
            Self::RaiseEarliestHoldEnd | Self::Replace(_) => Vec::new(),
            // The operation is younger than the header: another process that wrote it would have changed the
            // revision.
            Self::Hold { started_at: Some(started_at), .. }
                if *started_at > basis.read_at && !basis.in_doubt =>
            {
                Vec::new()
            }
            Self::Hold { .. } if self.row_to_insert(basis).is_some() => Vec::new(),
            Self::Hold { until, op_id, .. }
            | Self::Advance { until, op_id, .. }
            | Self::Fence { until, op_id } => vec![(*until, *op_id)],
            Self::Set { op_id, .. } | Self::Adjust { op_id, .. } => vec![(END_OF_TIME, *op_id)],
            Self::Compact { rows, .. } | Self::Clear { rows } => rows.iter().map(LedgerRow::key).collect(),
            Self::SetHoldEnd { op_id, until } => vec![(END_OF_TIME, *op_id), (*until, *op_id)],
        }
    }

    /// Whether expired holds that still count as reserved change the decision.
    const fn depends_on_expired_holds(&self) -> bool {
        matches!(self, Self::Hold { .. } | Self::Set { .. } | Self::Adjust { .. })
    }
}

/// The partition as it will be after the commands decided so far.
#[derive(Debug, Clone)]
pub struct BatchPlan {
    stock_key: StockKey,
    pub header: StockHeader,
    /// Known rows; `None` where a row is known to be absent.
    pub rows: HashMap<RowKey, Option<LedgerRow>>,
    /// Rows to write; `None` for a row to remove.
    pub writes: HashMap<RowKey, Option<LedgerRow>>,
    pub is_changed: bool,
    /// A transition that was skipped, because the stock level would leave its bounds: the row is newer than the header, or the
    /// partition is damaged.
    pub out_of_bounds: Option<(Uuid, Delta)>,
    /// `compacted_to` and `earliest_hold_end` before the batch: what stays as it was is not written.
    pub bounds_before: (Option<Timestamp>, Option<Timestamp>),
    /// A lower bound of the ends of the open holds as they are stored, where a command needs it.
    next_hold_end: Option<Timestamp>,
}

impl BatchPlan {
    pub fn new(
        stock_key: StockKey,
        header: StockHeader,
        rows: HashMap<RowKey, Option<LedgerRow>>,
        next_hold_end: Option<Timestamp>,
    ) -> Self {
        let bounds_before = (header.compacted_to, header.earliest_hold_end);
        Self {
            stock_key,
            header,
            rows,
            writes: HashMap::new(),
            is_changed: false,
            out_of_bounds: None,
            bounds_before,
            next_hold_end,
        }
    }

    /// Decides one command on top of the earlier ones.
    pub fn decide(&mut self, command: &StockCommand, now: Timestamp) -> Decision {
        let may_be_expired = self.header.earliest_hold_end.is_some_and(|earliest| now >= earliest);
        if may_be_expired && command.depends_on_expired_holds() {
            return Decision::ExpireHoldsFirst;
        }
        match command {
            StockCommand::Hold { until, op_id, quantity, .. } => self.hold((*until, *op_id), *quantity, now),
            StockCommand::Advance { until, op_id, quantity, transition } => {
                self.advance((*until, *op_id), *quantity, *transition, now)
            }
            StockCommand::Set { op_id, on_hand, expected } => self.set(*op_id, *on_hand, *expected, now),
            StockCommand::Adjust { op_id, delta, note } => self.adjust(*op_id, *delta, note, now),
            StockCommand::RaiseEarliestHoldEnd => self.raise_earliest_hold_end(now),
            StockCommand::Fence { until, op_id } => {
                self.is_changed = true;
                let state = self.row((*until, *op_id)).map(|row| row.state);
                self.done(state, now)
            }
            StockCommand::Compact { rows, compacted_to } => self.compact(rows, *compacted_to, now),
            StockCommand::Clear { rows } => self.clear(rows, now),
            StockCommand::SetHoldEnd { op_id, until } => self.set_hold_end(*op_id, *until, now),
            StockCommand::Replace(other) => self.replace(other, now),
        }
    }

    fn hold(&mut self, key: RowKey, quantity: u32, now: Timestamp) -> Decision {
        if let Some(state) = self.row(key).map(|row| row.state) {
            return self.done(Some(state), now);
        }
        let units = i64::from(quantity);
        let Ok(level) = self.header.level.moved(LedgerState::Held.effect(units)) else {
            return Decision::Short { available: self.header.level.available() };
        };
        let (until, op_id) = key;
        self.header.level = level;
        self.lower_earliest_hold_end(until);
        self.touch(now);
        let state = LedgerState::Held;
        self.put(LedgerRow { until, op_id, state, quantity: units, at: now, note: None, result: None });
        self.done(Some(LedgerState::Held), now)
    }

    fn advance(&mut self, key: RowKey, quantity: u32, transition: Transition, now: Timestamp) -> Decision {
        let (until, op_id) = key;
        let row = self.row(key).map(|row| (row.state, row.quantity, row.note.clone()));
        let from = row.as_ref().map(|(state, ..)| *state);
        let Some(to) = transition.target(from) else {
            return self.done_before(key, now);
        };
        let (units, note) = row.map_or((i64::from(quantity), None), |(_, units, note)| (units, note));
        let delta = delta_between(from, to, units);
        let Ok(level) = self.header.level.moved(delta) else {
            self.out_of_bounds = Some((op_id, delta));
            return self.done(from, now);
        };
        self.header.level = level;
        if to != LedgerState::Void {
            self.touch(now);
        }
        self.put(LedgerRow { until, op_id, state: to, quantity: units, at: now, note, result: None });
        self.done(Some(to), now)
    }

    fn set(&mut self, op_id: Uuid, on_hand: u64, expected: Option<u64>, now: Timestamp) -> Decision {
        if let Some(decision) = self.earlier_decision(op_id, now) {
            return decision;
        }
        match set_delta(&self.stock(now), on_hand, expected) {
            Ok(delta) => self.move_on_hand(op_id, LedgerState::Set, delta.on_hand, None, now),
            Err(refusal) => Decision::Refused(*refusal),
        }
    }

    fn adjust(&mut self, op_id: Uuid, delta: i64, note: &str, now: Timestamp) -> Decision {
        if let Some(decision) = self.earlier_decision(op_id, now) {
            return decision;
        }
        match adjust_delta(&self.stock(now), delta) {
            Ok(_) => self.move_on_hand(op_id, LedgerState::Adjusted, delta, Some(note.to_owned()), now),
            Err(refusal) => Decision::Refused(*refusal),
        }
    }

    /// The decision on an operation of the back office that was decided before: done, or refused for good.
    fn earlier_decision(&self, op_id: Uuid, now: Timestamp) -> Option<Decision> {
        let key = (END_OF_TIME, op_id);
        Some(if self.row(key)?.state == LedgerState::Void {
            Decision::Refused(Refusal::StockBelowReserved { current: self.stock(now) })
        } else {
            self.done_before(key, now)
        })
    }

    /// Changes the units on hand by an operation of the back office.
    fn move_on_hand(
        &mut self,
        op_id: Uuid,
        state: LedgerState,
        delta: i64,
        note: Option<String>,
        now: Timestamp,
    ) -> Decision {
        let Ok(level) = self.header.level.moved(Delta { on_hand: delta, reserved: 0 }) else {
            return Decision::Refused(Refusal::StockBelowReserved { current: self.stock(now) });
        };
        self.header.level = level;
        self.touch(now);
        let result = Some(LevelAfter { level, updated_at: self.header.updated_at });
        self.put(LedgerRow { until: END_OF_TIME, op_id, state, quantity: delta, at: now, note, result });
        self.done(Some(state), now)
    }

    /// Holds of this batch are not stored yet and keep the bound low.
    fn raise_earliest_hold_end(&mut self, now: Timestamp) -> Decision {
        let is_open = |row: &&LedgerRow| row.state == LedgerState::Held && row.until != END_OF_TIME;
        let added = self.writes.values().flatten().filter(is_open).map(|row| row.until).min();
        let bound = match (self.next_hold_end, added) {
            (Some(next), Some(added)) => Some(next.min(added)),
            (next, added) => next.or(added),
        };
        self.is_changed |= bound != self.header.earliest_hold_end;
        self.header.earliest_hold_end = bound;
        self.done(None, now)
    }

    fn compact(&mut self, rows: &[LedgerRow], compacted_to: Option<Timestamp>, now: Timestamp) -> Decision {
        for row in rows {
            if self.row(row.key()) == Some(row) && row.state.is_compactable() {
                self.header.compacted += row.state.effect(row.quantity).on_hand;
                self.remove(row.key());
            }
        }
        if compacted_to > self.header.compacted_to {
            self.header.compacted_to = compacted_to;
            self.is_changed = true;
        }
        self.done(None, now)
    }

    fn clear(&mut self, rows: &[LedgerRow], now: Timestamp) -> Decision {
        for row in rows {
            if self.row(row.key()) != Some(row) {
                continue;
            }
            if row.state.is_compactable() {
                self.header.compacted += row.state.effect(row.quantity).on_hand;
            } else {
                let Delta { on_hand, reserved } = row.state.effect(row.quantity);
                let reversed = Delta { on_hand: -on_hand, reserved: -reserved };
                // A level that its ledger does not explain is about to be replaced by the import.
                self.header.level = self.header.level.moved(reversed).unwrap_or(self.header.level);
            }
            self.remove(row.key());
        }
        self.done(None, now)
    }

    fn set_hold_end(&mut self, op_id: Uuid, until: Timestamp, now: Timestamp) -> Decision {
        let endless = self.row((END_OF_TIME, op_id)).filter(|row| row.state == LedgerState::Held).cloned();
        if let Some(row) = endless {
            self.remove(row.key());
            self.lower_earliest_hold_end(until);
            self.put(LedgerRow { until, ..row });
        }
        self.done(None, now)
    }

    /// Replaces the whole partition, unless it changed since the revision that the replacement was read at.
    fn replace(&mut self, other: &Replacement, now: Timestamp) -> Decision {
        if self.header.rev != other.rev || self.is_changed {
            return self.done(None, now);
        }
        self.header.level = other.level;
        self.header.compacted = other.compacted;
        self.header.updated_at = other.updated_at;
        self.header.earliest_hold_end = None;
        self.header.compacted_to = None;
        self.is_changed = true;
        for row in &other.rows {
            if row.state == LedgerState::Held {
                self.lower_earliest_hold_end(row.until);
            }
            self.put(row.clone());
        }
        self.done(Some(LedgerState::Set), now)
    }

    /// Keeps the lower bound true for a hold that ends at `until`.
    fn lower_earliest_hold_end(&mut self, until: Timestamp) {
        if until != END_OF_TIME {
            let bound = self.header.earliest_hold_end.map_or(until, |earliest| earliest.min(until));
            self.header.earliest_hold_end = Some(bound);
        }
    }

    fn row(&self, key: RowKey) -> Option<&LedgerRow> {
        self.rows.get(&key).and_then(Option::as_ref)
    }

    fn put(&mut self, row: LedgerRow) {
        if self.header.compacted_to.is_some_and(|to| row.until < to) {
            self.header.compacted_to = Some(row.until);
        }
        self.write(row.key(), Some(row));
    }

    fn remove(&mut self, key: RowKey) {
        self.write(key, None);
    }

    fn write(&mut self, key: RowKey, row: Option<LedgerRow>) {
        self.rows.insert(key, row.clone());
        self.writes.insert(key, row);
        self.is_changed = true;
    }

    fn touch(&mut self, now: Timestamp) {
        self.header.updated_at = self.header.updated_at.max(now);
    }

    fn done(&self, state: Option<LedgerState>, now: Timestamp) -> Decision {
        Decision::Done { state, stock: self.stock(now) }
    }

    /// The decision on an operation whose row stays as it is: its own result, where the row has one.
    fn done_before(&self, key: RowKey, now: Timestamp) -> Decision {
        let row = self.row(key);
        let state = row.map(|row| row.state);
        let stock = self.stock(now);
        match row.and_then(|row| row.result) {
            Some(LevelAfter { level, updated_at }) => {
                Decision::Done { state, stock: ZoneStock { level, updated_at, ..stock } }
            }
            None => Decision::Done { state, stock },
        }
    }

    fn stock(&self, now: Timestamp) -> ZoneStock {
        let exists = self.header.rev.is_some() || self.is_changed;
        ZoneStock {
            product_id: self.stock_key.product_id.clone(),
            geo_zone: self.stock_key.geo_zone.clone(),
            level: self.header.level,
            updated_at: if exists { self.header.updated_at } else { now },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn op(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn plan(on_hand: u64) -> BatchPlan {
        let stock_key =
            StockKey { product_id: ProductId::parse("p").unwrap(), geo_zone: GeoZone::parse("z").unwrap() };
        let header = StockHeader {
            rev: Some(1),
            level: Level { on_hand, reserved: 0 },
            compacted: on_hand.cast_signed(),
            ..StockHeader::default()
        };
        BatchPlan::new(stock_key, header, HashMap::new(), None)
    }

    fn hold(number: u128, quantity: u32, until: Timestamp) -> StockCommand {
        StockCommand::Hold { until, op_id: op(number), quantity, started_at: Some(Instant::now()) }
    }

    fn advance(number: u128, quantity: u32, transition: Transition) -> StockCommand {
        StockCommand::Advance { until: END_OF_TIME, op_id: op(number), quantity, transition }
    }

    #[test]
    fn a_hold_is_read_or_inserted_unless_no_other_process_can_have_written_it() {
        let before = Instant::now();
        let hold = hold(1, 1, END_OF_TIME);
        let later = Instant::now() + std::time::Duration::from_secs(1);
        let key = (END_OF_TIME, op(1));
        let basis = |read_at, is_retried, in_doubt| ReadBasis { read_at, is_retried, in_doubt };
        let needs = |basis| (hold.rows_to_read(basis), hold.row_to_insert(basis));
        assert_eq!(needs(basis(before, false, false)), (vec![], None), "younger than the header");
        assert_eq!(needs(basis(before, true, false)), (vec![], None));
        assert_eq!(needs(basis(before, true, true)), (vec![key], None), "it may be its own write");
        assert_eq!(needs(basis(later, false, false)), (vec![], Some(key)), "older than the header");
        assert_eq!(needs(basis(later, true, false)), (vec![key], None), "the condition did not hold");
        let old = StockCommand::Hold { until: END_OF_TIME, op_id: op(1), quantity: 1, started_at: None };
        assert_eq!(old.rows_to_read(basis(before, false, false)), [key]);
    }

    #[test]
    fn transition_of_a_row_that_is_newer_than_the_header_is_reported() {
        let mut plan = plan(5);
        let (until, op_id, state) = (END_OF_TIME, op(1), LedgerState::Held);
        let held = LedgerRow { until, op_id, state, quantity: 2, at: at(1), note: None, result: None };
        plan.rows.insert(held.key(), Some(held));
        plan.decide(&advance(1, 2, Transition::Release), at(2));
        assert!(!plan.is_changed);
        assert_eq!(plan.out_of_bounds, Some((op_id, Delta { on_hand: 0, reserved: -2 })));
    }

    #[test]
    fn holds_of_a_batch_that_fit_are_granted_in_order() {
        let mut plan = plan(5);
        let granted: Vec<bool> = [(1, 2), (2, 4), (3, 3), (4, 1)]
            .into_iter()
            .map(|(number, quantity)| {
                let decision = plan.decide(&hold(number, quantity, END_OF_TIME), at(1));
                matches!(decision, Decision::Done { state: Some(LedgerState::Held), .. })
            })
            .collect();
        assert_eq!(granted, [true, false, true, false]);
        assert_eq!(plan.header.level, Level { on_hand: 5, reserved: 5 });
        assert_eq!(plan.writes.len(), 2);
    }

    #[test]
    fn a_void_operation_can_never_hold() {
        let mut plan = plan(5);
        plan.decide(&advance(1, 2, Transition::ReleaseOrVoid), at(1));
        let late = plan.decide(&hold(1, 2, END_OF_TIME), at(2));
        assert!(matches!(late, Decision::Done { state: Some(LedgerState::Void), .. }), "{late:?}");
        assert_eq!(plan.header.level.reserved, 0);
    }

    #[test]
    fn a_void_operation_never_sets_the_units_on_hand() {
        let mut plan = plan(5);
        let void = |number| advance(number, 0, Transition::VoidIfAbsent);
        let set = |number, on_hand| StockCommand::Set { op_id: op(number), on_hand, expected: None };
        plan.decide(&void(1), at(1));
        let refused = plan.decide(&set(1, 9), at(2));
        assert!(matches!(refused, Decision::Refused(Refusal::StockBelowReserved { .. })), "{refused:?}");
        plan.decide(&set(2, 7), at(3));
        let late = plan.decide(&void(2), at(4));
        assert!(matches!(late, Decision::Done { state: Some(LedgerState::Set), .. }), "{late:?}");
        assert_eq!(plan.header.level, Level { on_hand: 7, reserved: 0 });
    }

    #[test]
    fn expired_holds_are_released_before_anything_else_is_decided() {
        let mut plan = plan(5);
        plan.decide(&hold(1, 5, at(10)), at(1));
        let late = plan.decide(&hold(2, 1, at(99)), at(10));
        assert!(matches!(late, Decision::ExpireHoldsFirst), "{late:?}");
        let early = plan.decide(&hold(2, 1, at(99)), at(9));
        assert!(matches!(early, Decision::Short { available: 0 }), "{early:?}");
    }

    #[test]
    fn the_earliest_hold_end_is_raised_to_the_next_hold_and_not_past_newer_ones() {
        let mut plan = plan(5);
        plan.header.earliest_hold_end = Some(at(10));
        plan.next_hold_end = Some(at(50));
        plan.decide(&StockCommand::RaiseEarliestHoldEnd, at(12));
        assert_eq!(plan.header.earliest_hold_end, Some(at(50)));
        plan.decide(&hold(1, 1, at(40)), at(12));
        plan.decide(&StockCommand::RaiseEarliestHoldEnd, at(13));
        assert_eq!(plan.header.earliest_hold_end, Some(at(40)), "the hold is of the same batch");
    }

    #[test]
    fn duplicates_of_an_adjustment_return_the_level_right_after_it() {
        let mut plan = plan(5);
        let adjust = StockCommand::Adjust { op_id: op(1), delta: 4, note: "counted".to_owned() };
        let stock = |decision: Decision| match decision {
            Decision::Done { stock, .. } => stock,
            other => panic!("{other:?}"),
        };
        let first = stock(plan.decide(&adjust, at(1)));
        plan.decide(&hold(2, 3, END_OF_TIME), at(2));
        assert_eq!(stock(plan.decide(&adjust, at(3))), first);
        assert_eq!(stock(plan.decide(&advance(1, 0, Transition::VoidIfAbsent), at(3))), first);
    }

    #[test]
    fn a_fence_changes_the_revision_and_nothing_else() {
        let mut plan = plan(5);
        plan.decide(&hold(1, 2, at(99)), at(1));
        let (level, writes) = (plan.header.level, plan.writes.len());
        plan.is_changed = false;
        let fenced = plan.decide(&StockCommand::Fence { until: at(99), op_id: op(1) }, at(2));
        assert!(matches!(fenced, Decision::Done { state: Some(LedgerState::Held), .. }), "{fenced:?}");
        assert!(plan.is_changed);
        assert_eq!((plan.header.level, plan.writes.len()), (level, writes));
    }

    #[test]
    fn a_decision_on_a_row_that_may_still_change_is_not_final() {
        let stock = plan(5).stock(at(1));
        let done = |state| Decision::Done { state, stock: stock.clone() };
        for state in [None, Some(LedgerState::Held)] {
            assert!(!done(state).is_final(), "{state:?}");
        }
        for state in [LedgerState::Taken, LedgerState::Released, LedgerState::Void, LedgerState::Set] {
            assert!(done(Some(state)).is_final(), "{state:?}");
        }
        assert!(!Decision::Short { available: 0 }.is_final());
    }

    #[test]
    fn a_late_row_lowers_the_bound_of_compacted_holds() {
        let mut plan = plan(5);
        plan.decide(&StockCommand::Compact { rows: Vec::new(), compacted_to: Some(at(60)) }, at(90));
        plan.decide(&StockCommand::Compact { rows: Vec::new(), compacted_to: Some(at(50)) }, at(90));
        assert_eq!(plan.header.compacted_to, Some(at(60)), "it only rises");
        plan.decide(&hold(1, 1, at(40)), at(30));
        assert_eq!(plan.header.compacted_to, Some(at(40)));
    }

    #[test]
    fn compaction_keeps_the_sum() {
        let mut plan = plan(10);
        plan.decide(&hold(1, 4, END_OF_TIME), at(1));
        plan.decide(&advance(1, 4, Transition::Take), at(2));
        let row = plan.rows.get(&(END_OF_TIME, op(1))).cloned().flatten().unwrap();
        let compact = StockCommand::Compact { rows: vec![row], compacted_to: None };
        plan.decide(&compact, at(3));
        assert_eq!((plan.header.level.on_hand, plan.header.compacted), (6, 6));
        plan.decide(&compact, at(4));
        assert_eq!(plan.header.compacted, 6, "a row is compacted once");
    }

    #[test]
    fn clearing_releases_open_holds_and_keeps_the_sum() {
        let mut plan = plan(10);
        for (number, quantity) in [(1, 4), (2, 3)] {
            plan.decide(&hold(number, quantity, END_OF_TIME), at(1));
        }
        plan.decide(&advance(1, 4, Transition::Take), at(2));
        let rows: Vec<LedgerRow> = plan.rows.values().flatten().cloned().collect();
        let clear = StockCommand::Clear { rows };
        plan.decide(&clear, at(3));
        let whole = (Level { on_hand: 6, reserved: 0 }, 6);
        assert_eq!((plan.header.level, plan.header.compacted), whole);
        assert!(plan.rows.values().all(Option::is_none));
        plan.decide(&clear, at(4));
        assert_eq!((plan.header.level, plan.header.compacted), whole, "a row is cleared once");
    }
}
