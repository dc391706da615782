//! The arithmetic of a stock partition: the states of a row of its ledger, and what a row does to the figures.
//!
//! A row goes forward only: held, taken, then returned or released. So whoever is late finds its step done, and doing a
//! step again changes nothing.

use mw_domain::stock::Delta;
use mw_domain::{Level, Timestamp};
use mw_store::StoreError;
use uuid::Uuid;

/// Where rows stand that do not end by themselves.
pub(crate) const END_OF_TIME: Timestamp = Timestamp::MAX;

/// What a row of the ledger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Units are promised.
    Held,
    /// Promised units left.
    Taken,
    /// The promise ended.
    Released,
    /// Units that had left came back.
    Returned,
    /// Nothing is held for this operation and nothing ever will be.
    Void,
    /// The back office set the figure.
    Set,
    /// The back office added or removed units.
    Adjusted,
}

impl State {
    const ALL: [Self; 7] =
        [Self::Held, Self::Taken, Self::Released, Self::Returned, Self::Void, Self::Set, Self::Adjusted];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Taken => "taken",
            Self::Released => "released",
            Self::Returned => "returned",
            Self::Void => "void",
            Self::Set => "set",
            Self::Adjusted => "adjusted",
        }
    }

    pub(crate) fn named(name: &str) -> Result<Self, StoreError> {
        let found = Self::ALL.into_iter().find(|state| state.name() == name);
        found.ok_or_else(|| StoreError::Corrupt(format!("a stock row is {name:?}")))
    }

    /// What a row of this state does to the figures.
    pub(crate) const fn effect(self, quantity: i64) -> Delta {
        match self {
            Self::Held => Delta { on_hand: 0, reserved: quantity },
            Self::Taken => Delta { on_hand: -quantity, reserved: 0 },
            Self::Released | Self::Returned | Self::Void => Delta { on_hand: 0, reserved: 0 },
            Self::Set | Self::Adjusted => Delta { on_hand: quantity, reserved: 0 },
        }
    }

    /// Whether the row may be folded away once nobody can ask for it any more.
    pub(crate) const fn is_settled(self) -> bool {
        !matches!(self, Self::Held)
    }
}

/// How a hold goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Take,
    Release,
    /// Also shuts the door to a hold that has not come yet.
    Prevent,
    /// Shuts the door to a hold that has not come yet, and leaves one that has.
    Forbid,
    Return,
}

/// The state that `end` brings a row to; `None` where the row stays as it is.
pub(crate) const fn forward(row: Option<State>, end: End) -> Option<State> {
    match (end, row) {
        (End::Take, Some(State::Held)) => Some(State::Taken),
        (End::Release | End::Prevent, Some(State::Held)) => Some(State::Released),
        (End::Prevent | End::Forbid, None) => Some(State::Void),
        // A row that was folded away had been taken, or nobody would return it.
        (End::Return, Some(State::Held | State::Taken) | None) => Some(State::Returned),
        _ => None,
    }
}

/// What changes the figures when a row goes from one state to another.
pub(crate) const fn step(from: Option<State>, to: State, quantity: i64) -> Delta {
    let before = match from {
        Some(state) => state.effect(quantity),
        None => match to {
            State::Returned => State::Taken.effect(quantity),
            _ => Delta { on_hand: 0, reserved: 0 },
        },
    };
    let after = to.effect(quantity);
    Delta { on_hand: after.on_hand - before.on_hand, reserved: after.reserved - before.reserved }
}

/// The figures of a partition with what guards them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    /// `None` where the zone has none of the product yet.
    pub(crate) rev: Option<i64>,
    pub(crate) level: Level,
    pub(crate) folded: i64,
    /// No hold ends before this.
    pub(crate) holds_from: Option<Timestamp>,
    pub(crate) updated_at: Timestamp,
    /// The last writers, newest first.
    pub(crate) marks: Vec<Uuid>,
}

/// A row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LedgerRow {
    pub(crate) until: Timestamp,
    pub(crate) op_id: Uuid,
    pub(crate) state: State,
    pub(crate) quantity: i64,
    pub(crate) at: Timestamp,
    pub(crate) note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [Option<State>; 6] = [
        None,
        Some(State::Held),
        Some(State::Taken),
        Some(State::Released),
        Some(State::Returned),
        Some(State::Void),
    ];

    #[test]
    fn a_row_never_goes_back() {
        for row in STATES {
            for first in [End::Take, End::Release, End::Prevent, End::Forbid, End::Return] {
                let after = forward(row, first).or(row);
                let again = forward(after, first);
                assert_eq!(again, None, "{row:?} {first:?} done again");
                if matches!(row, Some(State::Released | State::Returned | State::Void)) {
                    assert_eq!(forward(row, first), None, "{row:?} is final");
                }
            }
        }
    }

    #[test]
    fn a_late_take_after_a_return_moves_nothing() {
        let returned = forward(Some(State::Held), End::Return).unwrap();
        assert_eq!(step(Some(State::Held), returned, 3), Delta { on_hand: 0, reserved: -3 });
        assert_eq!(forward(Some(returned), End::Take), None);
    }

    #[test]
    fn the_whole_way_of_a_hold_adds_up_to_nothing() {
        let mut sum = Delta::default();
        let mut row = None;
        for to in [State::Held, State::Taken, State::Returned] {
            let delta = step(row, to, 7);
            sum = Delta { on_hand: sum.on_hand + delta.on_hand, reserved: sum.reserved + delta.reserved };
            row = Some(to);
        }
        assert_eq!(sum, Delta::default());
        assert_eq!(step(None, State::Returned, 7), Delta { on_hand: 7, reserved: 0 });
    }

    #[test]
    fn states_read_back() {
        for state in State::ALL {
            assert_eq!(State::named(state.name()), Ok(state));
        }
        assert!(State::named("lost").is_err());
    }
}
