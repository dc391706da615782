//! What can be asked of a keeper, and how it decides: pure, over the figures and the rows it has looked up.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use mw_domain::limits::{InvalidField, ON_HAND_MAX};
use mw_domain::stock::Delta;
use mw_domain::{GeoZone, Level, ProductId, Timestamp, ZoneStock};
use mw_store::Refusal;
use uuid::Uuid;

use crate::ledger::{END_OF_TIME, End, Figures, LedgerRow, State, forward, step};

/// A product in a zone: what one keeper keeps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) product_id: ProductId,
    pub(crate) geo_zone: GeoZone,
}

#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// Promises units. `born` where this process has made the operation: nobody can have asked for it before that instant.
    Hold { until: Timestamp, op_id: Uuid, quantity: u32, born: Option<Instant> },
    /// Goes on with a hold.
    End { until: Timestamp, op_id: Uuid, quantity: u32, end: End },
    /// Sets the units on hand.
    Set { op_id: Uuid, on_hand: u64, expected: Option<u64> },
    /// Adds or removes units.
    Adjust { op_id: Uuid, delta: i64, note: String },
    /// Moves the bound of the next hold's end up to what was read at `rev`.
    Bound { to: Option<Timestamp>, rev: i64 },
    /// Adds rows to the folded sum and removes them, if they are still what they were.
    Fold { rows: Vec<LedgerRow> },
    /// Gives a hold that stands at the end of time the end that its reservation has.
    Move { op_id: Uuid, until: Timestamp },
    /// Removes rows with what they did to the figures, if they are still what they were.
    Clear { rows: Vec<LedgerRow> },
    /// Puts other figures and rows in place of those read at `rev`, where no row is left.
    Replace(Box<Replacement>),
}

/// A partition as another store had it.
#[derive(Debug, Clone)]
pub(crate) struct Replacement {
    pub(crate) rev: Option<i64>,
    pub(crate) level: Level,
    pub(crate) folded: i64,
    pub(crate) updated_at: Timestamp,
    pub(crate) rows: Vec<LedgerRow>,
}

#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// It is done, or was before; this is what the operation's row says now.
    Done {
        state: Option<State>,
        stock: ZoneStock,
    },
    /// There are only so many units.
    Short {
        available: u64,
    },
    /// Holds have ended that must be settled before this can be decided.
    SettleFirst,
    Refused(Refusal),
}

pub(crate) type RowKey = (Timestamp, Uuid);

/// What is known of operations that may be new.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Past {
    /// When the figures were asked for that all later ones follow from, without another process's change in between.
    pub(crate) since: Instant,
    /// Whether a write of these very changes failed before, or may still come.
    pub(crate) is_retried: bool,
    /// Whether one of them may have been written, and by this process.
    pub(crate) in_doubt: bool,
}

impl Change {
    /// A hold that somebody may have written since it was made; it is written on the condition that nobody has.
    pub(crate) fn guarded(&self, past: Past) -> Option<RowKey> {
        match self {
            Self::Hold { until, op_id, born: Some(born), .. } if *born <= past.since && !past.is_retried => {
                Some((*until, *op_id))
            }
            _ => None,
        }
    }

    /// The rows that must be looked up to decide.
    pub(crate) fn rows(&self, past: Past) -> Vec<RowKey> {
        match self {
            Self::Bound { .. } | Self::Replace(_) => Vec::new(),
            // Whoever else had written it would have changed the figures since.
            Self::Hold { born: Some(born), .. } if *born > past.since && !past.in_doubt => Vec::new(),
            Self::Hold { .. } if self.guarded(past).is_some() => Vec::new(),
            Self::Hold { until, op_id, .. } | Self::End { until, op_id, .. } => vec![(*until, *op_id)],
            Self::Set { op_id, .. } | Self::Adjust { op_id, .. } => vec![(END_OF_TIME, *op_id)],
            Self::Fold { rows } | Self::Clear { rows } => {
                rows.iter().map(|row| (row.until, row.op_id)).collect()
            }
            Self::Move { op_id, until } => vec![(END_OF_TIME, *op_id), (*until, *op_id)],
        }
    }

    /// Whether holds whose time is over change the answer.
    const fn minds_ended_holds(&self) -> bool {
        matches!(self, Self::Hold { .. } | Self::Set { .. } | Self::Adjust { .. })
    }
}

/// The partition as it will be after what has been decided so far.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) figures: Figures,
    /// Rows that are known, `None` where it is known that there is none.
    pub(crate) rows: HashMap<RowKey, Option<LedgerRow>>,
    /// Rows to write, and rows to remove.
    pub(crate) written: HashMap<RowKey, Option<LedgerRow>>,
    pub(crate) is_changed: bool,
    /// The holds that this keeper added, by the revision that they came with.
    pub(crate) added: Added,
}

/// Ends of holds that were added since the figures were read, by revision; nobody else has changed anything since.
#[derive(Debug, Clone, Default)]
pub(crate) struct Added {
    since: i64,
    ends: VecDeque<(i64, Timestamp)>,
}

/// Revisions remembered.
const ADDED_MAX: usize = 256;

impl Added {
    pub(crate) fn since(rev: Option<i64>) -> Self {
        Self { since: rev.unwrap_or_default(), ends: VecDeque::new() }
    }

    fn add(&mut self, rev: i64, end: Timestamp) {
        match self.ends.back_mut() {
            Some((last, earliest)) if *last == rev => *earliest = end.min(*earliest),
            _ => self.ends.push_back((rev, end)),
        }
        if self.ends.len() > ADDED_MAX
            && let Some((rev, _)) = self.ends.pop_front()
        {
            self.since = rev;
        }
    }

    /// The earliest end added after `rev`; `Err` where that is not known any more.
    fn after(&self, rev: i64) -> Result<Option<Timestamp>, ()> {
        if rev < self.since {
            return Err(());
        }
        Ok(self.ends.iter().filter(|(at, _)| *at > rev).map(|(_, end)| *end).min())
    }
}

impl Draft {
    pub(crate) fn new(figures: Figures, rows: HashMap<RowKey, Option<LedgerRow>>, added: Added) -> Self {
        Self { figures, rows, written: HashMap::new(), is_changed: false, added }
    }

    pub(crate) fn decide(&mut self, place: &Place, change: &Change, now: Timestamp) -> Answer {
        if change.minds_ended_holds() && self.figures.holds_from.is_some_and(|from| now >= from) {
            return Answer::SettleFirst;
        }
        match change {
            Change::Hold { until, op_id, quantity, .. } => self.hold(place, (*until, *op_id), *quantity, now),
            Change::End { until, op_id, quantity, end } => {
                let key = (*until, *op_id);
                let row = self.row(key).map(|row| (row.state, row.quantity, row.note.clone()));
                let from = row.as_ref().map(|(state, ..)| *state);
                let Some(to) = forward(from, *end) else {
                    return self.done(place, from, now);
                };
                let (units, note) =
                    row.map_or((i64::from(*quantity), None), |(_, units, note)| (units, note));
                let delta = step(from, to, units);
                let Ok(level) = self.figures.level.moved(delta) else {
                    tracing::error!(?place, %op_id, ?delta, "figures that no ledger explains");
                    return self.done(place, from, now);
                };
                self.figures.level = level;
                if to != State::Void {
                    self.touched(now);
                }
                self.put(LedgerRow {
                    until: *until,
                    op_id: *op_id,
                    state: to,
                    quantity: units,
                    at: now,
                    note,
                });
                self.done(place, Some(to), now)
            }
            Change::Set { op_id, on_hand, expected } => self.set(place, *op_id, *on_hand, *expected, now),
            Change::Adjust { op_id, delta, note } => self.adjust(place, *op_id, *delta, note, now),
            Change::Bound { to, rev } => {
                if let Ok(added) = self.added.after(*rev) {
                    let bound = match (*to, added) {
                        (Some(to), Some(added)) => Some(to.min(added)),
                        (to, added) => to.or(added),
                    };
                    self.is_changed |= bound != self.figures.holds_from;
                    self.figures.holds_from = bound;
                }
                self.done(place, None, now)
            }
            Change::Fold { rows } => {
                for row in rows {
                    let key = (row.until, row.op_id);
                    if self.row(key) == Some(row) && row.state.is_settled() {
                        self.figures.folded += row.state.effect(row.quantity).on_hand;
                        self.remove(key);
                    }
                }
                self.done(place, None, now)
            }
            Change::Clear { rows } => {
                for row in rows {
                    let key = (row.until, row.op_id);
                    if self.row(key) != Some(row) {
                        continue;
                    }
                    if row.state.is_settled() {
                        self.figures.folded += row.state.effect(row.quantity).on_hand;
                    } else {
                        let Delta { on_hand, reserved } = row.state.effect(row.quantity);
                        let back = Delta { on_hand: -on_hand, reserved: -reserved };
                        // Figures that no ledger explains are about to be replaced.
                        self.figures.level = self.figures.level.moved(back).unwrap_or(self.figures.level);
                    }
                    self.remove(key);
                }
                self.done(place, None, now)
            }
            Change::Move { op_id, until } => {
                let row = self.row((END_OF_TIME, *op_id)).filter(|row| row.state == State::Held).cloned();
                if let Some(row) = row {
                    self.remove((END_OF_TIME, *op_id));
                    self.bound_by(*until);
                    self.put(LedgerRow { until: *until, ..row });
                }
                self.done(place, None, now)
            }
            Change::Replace(other) => {
                if self.figures.rev != other.rev || self.is_changed {
                    return self.done(place, None, now);
                }
                self.figures.level = other.level;
                self.figures.folded = other.folded;
                self.figures.updated_at = other.updated_at;
                self.figures.holds_from = None;
                self.is_changed = true;
                for row in &other.rows {
                    if row.state == State::Held {
                        self.bound_by(row.until);
                    }
                    self.put(row.clone());
                }
                self.done(place, Some(State::Set), now)
            }
        }
    }

    fn hold(&mut self, place: &Place, key: RowKey, quantity: u32, now: Timestamp) -> Answer {
        if let Some(state) = self.row(key).map(|row| row.state) {
            return self.done(place, Some(state), now);
        }
        let units = i64::from(quantity);
        let Ok(level) = self.figures.level.moved(State::Held.effect(units)) else {
            return Answer::Short { available: self.figures.level.available() };
        };
        let (until, op_id) = key;
        self.figures.level = level;
        self.bound_by(until);
        self.touched(now);
        self.put(LedgerRow { until, op_id, state: State::Held, quantity: units, at: now, note: None });
        self.done(place, Some(State::Held), now)
    }

    fn set(
        &mut self,
        place: &Place,
        op_id: Uuid,
        on_hand: u64,
        expected: Option<u64>,
        now: Timestamp,
    ) -> Answer {
        if let Some(answer) = self.moved_before(place, op_id, now) {
            return answer;
        }
        let current = self.figures.level;
        if expected.is_some_and(|expected| expected != current.on_hand) {
            return Answer::Refused(Refusal::StockChanged { current: self.stock(place, now) });
        }
        let delta = on_hand.cast_signed() - current.on_hand.cast_signed();
        let Ok(level) = current.moved(Delta { on_hand: delta, reserved: 0 }) else {
            return Answer::Refused(Refusal::StockBelowReserved { current: self.stock(place, now) });
        };
        self.back_office(
            place,
            level,
            LedgerRow { until: END_OF_TIME, op_id, state: State::Set, quantity: delta, at: now, note: None },
        )
    }

    fn adjust(&mut self, place: &Place, op_id: Uuid, delta: i64, note: &str, now: Timestamp) -> Answer {
        if let Some(answer) = self.moved_before(place, op_id, now) {
            return answer;
        }
        let Ok(level) = self.figures.level.moved(Delta { on_hand: delta, reserved: 0 }) else {
            return Answer::Refused(Refusal::StockBelowReserved { current: self.stock(place, now) });
        };
        if delta > 0 && level.on_hand > ON_HAND_MAX {
            let detail = format!("at most {ON_HAND_MAX} units may be on hand");
            let InvalidField { field, detail } = InvalidField::new("delta", detail);
            return Answer::Refused(Refusal::InvalidField { field, detail });
        }
        self.back_office(
            place,
            level,
            LedgerRow {
                until: END_OF_TIME,
                op_id,
                state: State::Adjusted,
                quantity: delta,
                at: now,
                note: Some(note.to_owned()),
            },
        )
    }

    /// The answer to what the back office has asked for before: it was done, or refused for good.
    fn moved_before(&self, place: &Place, op_id: Uuid, now: Timestamp) -> Option<Answer> {
        let state = self.row((END_OF_TIME, op_id))?.state;
        Some(if state == State::Void {
            Answer::Refused(Refusal::StockBelowReserved { current: self.stock(place, now) })
        } else {
            self.done(place, Some(state), now)
        })
    }

    fn back_office(&mut self, place: &Place, level: Level, row: LedgerRow) -> Answer {
        let (state, now) = (row.state, row.at);
        self.figures.level = level;
        self.touched(now);
        self.put(row);
        self.done(place, Some(state), now)
    }

    /// A hold ends at `until`.
    fn bound_by(&mut self, until: Timestamp) {
        if until != END_OF_TIME {
            let bound = self.figures.holds_from.map_or(until, |from| from.min(until));
            self.figures.holds_from = Some(bound);
            self.added.add(self.figures.rev.unwrap_or_default() + 1, until);
        }
    }

    fn remove(&mut self, key: RowKey) {
        self.rows.insert(key, None);
        self.written.insert(key, None);
        self.is_changed = true;
    }

    fn row(&self, key: RowKey) -> Option<&LedgerRow> {
        self.rows.get(&key).and_then(Option::as_ref)
    }

    fn put(&mut self, row: LedgerRow) {
        let key = (row.until, row.op_id);
        self.rows.insert(key, Some(row.clone()));
        self.written.insert(key, Some(row));
        self.is_changed = true;
    }

    fn touched(&mut self, now: Timestamp) {
        self.figures.updated_at = self.figures.updated_at.max(now);
    }

    fn done(&self, place: &Place, state: Option<State>, now: Timestamp) -> Answer {
        Answer::Done { state, stock: self.stock(place, now) }
    }

    fn stock(&self, place: &Place, now: Timestamp) -> ZoneStock {
        let is_there = self.figures.rev.is_some() || self.is_changed;
        ZoneStock {
            product_id: place.product_id.clone(),
            geo_zone: place.geo_zone.clone(),
            level: self.figures.level,
            updated_at: if is_there { self.figures.updated_at } else { now },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place { product_id: ProductId::parse("p").unwrap(), geo_zone: GeoZone::parse("z").unwrap() }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn op(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn draft(on_hand: u64) -> Draft {
        let figures = Figures {
            rev: Some(1),
            level: Level { on_hand, reserved: 0 },
            folded: on_hand.cast_signed(),
            ..Figures::default()
        };
        Draft::new(figures, HashMap::new(), Added::since(Some(1)))
    }

    fn hold(number: u128, quantity: u32, until: Timestamp) -> Change {
        Change::Hold { until, op_id: op(number), quantity, born: Some(Instant::now()) }
    }

    #[test]
    fn a_hold_is_taken_for_new_only_where_nobody_can_have_written_it() {
        let before = Instant::now();
        let hold = hold(1, 1, END_OF_TIME);
        let later = Instant::now() + std::time::Duration::from_secs(1);
        let key = (END_OF_TIME, op(1));
        let past = |since, is_retried, in_doubt| Past { since, is_retried, in_doubt };
        let asked = |past| (hold.rows(past), hold.guarded(past));
        assert_eq!(asked(past(before, false, false)), (vec![], None), "made after the figures");
        assert_eq!(asked(past(before, true, false)), (vec![], None));
        assert_eq!(asked(past(before, true, true)), (vec![key], None), "it may be its own write");
        assert_eq!(asked(past(later, false, false)), (vec![], Some(key)), "made before the figures");
        assert_eq!(asked(past(later, true, false)), (vec![key], None), "the condition did not hold");
        let old = Change::Hold { until: END_OF_TIME, op_id: op(1), quantity: 1, born: None };
        assert_eq!(old.rows(past(before, false, false)), [key]);
    }

    #[test]
    fn of_those_who_wait_whoever_fits_is_served_in_turn() {
        let mut draft = draft(5);
        let answers: Vec<bool> = [(1, 2), (2, 4), (3, 3), (4, 1)]
            .into_iter()
            .map(|(number, quantity)| {
                let answer = draft.decide(&place(), &hold(number, quantity, END_OF_TIME), at(1));
                matches!(answer, Answer::Done { state: Some(State::Held), .. })
            })
            .collect();
        assert_eq!(answers, [true, false, true, false]);
        assert_eq!(draft.figures.level, Level { on_hand: 5, reserved: 5 });
        assert_eq!(draft.written.len(), 2);
    }

    #[test]
    fn a_prevented_operation_can_never_hold() {
        let mut draft = draft(5);
        let prevent = Change::End { until: END_OF_TIME, op_id: op(1), quantity: 2, end: End::Prevent };
        draft.decide(&place(), &prevent, at(1));
        let answer = draft.decide(&place(), &hold(1, 2, END_OF_TIME), at(2));
        assert!(matches!(answer, Answer::Done { state: Some(State::Void), .. }), "{answer:?}");
        assert_eq!(draft.figures.level.reserved, 0);
    }

    #[test]
    fn a_figure_whose_setting_was_forbidden_is_never_set_by_it() {
        let mut draft = draft(5);
        let forbid =
            |number| Change::End { until: END_OF_TIME, op_id: op(number), quantity: 0, end: End::Forbid };
        let set = |number, on_hand| Change::Set { op_id: op(number), on_hand, expected: None };
        draft.decide(&place(), &forbid(1), at(1));
        let answer = draft.decide(&place(), &set(1, 9), at(2));
        assert!(matches!(answer, Answer::Refused(Refusal::StockBelowReserved { .. })), "{answer:?}");
        draft.decide(&place(), &set(2, 7), at(3));
        let late = draft.decide(&place(), &forbid(2), at(4));
        assert!(matches!(late, Answer::Done { state: Some(State::Set), .. }), "{late:?}");
        assert_eq!(draft.figures.level, Level { on_hand: 7, reserved: 0 });
    }

    #[test]
    fn ended_holds_are_settled_before_anything_else_is_decided() {
        let mut draft = draft(5);
        draft.decide(&place(), &hold(1, 5, at(10)), at(1));
        let late = draft.decide(&place(), &hold(2, 1, at(99)), at(10));
        assert!(matches!(late, Answer::SettleFirst), "{late:?}");
        let early = draft.decide(&place(), &hold(2, 1, at(99)), at(9));
        assert!(matches!(early, Answer::Short { available: 0 }), "{early:?}");
    }

    #[test]
    fn a_bound_moves_up_to_the_next_hold_however_much_was_added_meanwhile() {
        let mut draft = draft(5);
        draft.decide(&place(), &hold(1, 1, at(10)), at(1));
        let read_before = Change::Bound { to: None, rev: 1 };
        draft.decide(&place(), &read_before, at(2));
        assert_eq!(draft.figures.holds_from, Some(at(10)), "the hold came after the look");
        let read_after = Change::Bound { to: Some(at(50)), rev: 2 };
        draft.decide(&place(), &read_after, at(12));
        assert_eq!(draft.figures.holds_from, Some(at(50)));
        let unknown = Change::Bound { to: None, rev: 0 };
        draft.decide(&place(), &unknown, at(12));
        assert_eq!(draft.figures.holds_from, Some(at(50)), "a look before the keeper's time says nothing");
    }

    #[test]
    fn folding_keeps_the_sum() {
        let mut draft = draft(10);
        draft.decide(&place(), &hold(1, 4, END_OF_TIME), at(1));
        let take = Change::End { until: END_OF_TIME, op_id: op(1), quantity: 4, end: End::Take };
        draft.decide(&place(), &take, at(2));
        let row = draft.rows.get(&(END_OF_TIME, op(1))).cloned().flatten().unwrap();
        let fold = Change::Fold { rows: vec![row] };
        draft.decide(&place(), &fold, at(3));
        assert_eq!((draft.figures.level.on_hand, draft.figures.folded), (6, 6));
        draft.decide(&place(), &fold, at(4));
        assert_eq!(draft.figures.folded, 6, "a row is folded once");
    }

    #[test]
    fn clearing_takes_back_what_is_held_and_keeps_the_sum() {
        let mut draft = draft(10);
        for (number, quantity) in [(1, 4), (2, 3)] {
            draft.decide(&place(), &hold(number, quantity, END_OF_TIME), at(1));
        }
        let take = Change::End { until: END_OF_TIME, op_id: op(1), quantity: 4, end: End::Take };
        draft.decide(&place(), &take, at(2));
        let rows: Vec<LedgerRow> = draft.rows.values().flatten().cloned().collect();
        let clear = Change::Clear { rows };
        draft.decide(&place(), &clear, at(3));
        let whole = (Level { on_hand: 6, reserved: 0 }, 6);
        assert_eq!((draft.figures.level, draft.figures.folded), whole);
        assert!(draft.rows.values().all(Option::is_none));
        draft.decide(&place(), &clear, at(4));
        assert_eq!((draft.figures.level, draft.figures.folded), whole, "a row is cleared once");
    }
}
