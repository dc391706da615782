//! The state machine of a ledger row, and what a row adds to the stock level.
//!
//! A row only moves forward: held, taken, then returned or released. A process that is late finds its transition
//! already made, and making a transition twice changes nothing. Like [`super::decision`] this file is pure.

use mw_domain::stock::Delta;
use mw_domain::{Level, Timestamp};
use uuid::Uuid;

use crate::StoreError;

/// The `until` of rows that do not expire: holds of orders, and changes by the back office.
pub const END_OF_TIME: Timestamp = Timestamp::MAX;

/// The state of a ledger row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerState {
    /// Units are reserved.
    Held,
    /// Reserved units left the warehouse.
    Taken,
    /// The reservation of the units ended.
    Released,
    /// Units that had left came back.
    Returned,
    /// Nothing is held for this operation and nothing ever will be.
    Void,
    /// The back office set the units on hand.
    Set,
    /// The back office added or removed units.
    Adjusted,
}

impl LedgerState {
    pub const ALL: [Self; 7] =
        [Self::Held, Self::Taken, Self::Released, Self::Returned, Self::Void, Self::Set, Self::Adjusted];

    pub const fn as_str(self) -> &'static str {
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

    pub fn parse(name: &str) -> Result<Self, StoreError> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == name);
        found.ok_or_else(|| StoreError::Corrupt(format!("read stock ledger: unknown state {name:?}")))
    }

    /// What a row of this state adds to the stock level.
    pub const fn effect(self, quantity: i64) -> Delta {
        match self {
            Self::Held => Delta { on_hand: 0, reserved: quantity },
            Self::Taken => Delta { on_hand: -quantity, reserved: 0 },
            Self::Released | Self::Returned | Self::Void => Delta { on_hand: 0, reserved: 0 },
            Self::Set | Self::Adjusted => Delta { on_hand: quantity, reserved: 0 },
        }
    }

    /// Whether the row may be compacted once no request can repeat its operation. An open hold never is: its units
    /// are part of `reserved`, and the compacted sum has units on hand only.
    pub const fn is_compactable(self) -> bool {
        !matches!(self, Self::Held)
    }
}

/// What is done to a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    Take,
    Release,
    /// Releases the hold. Where there is none, writes a void row, so that a late hold of the same operation fails.
    ReleaseOrVoid,
    /// Writes a void row where there is no hold; leaves an existing hold as it is.
    VoidIfAbsent,
    Return,
}

impl Transition {
    /// The state of a row after the transition; `None` where the row stays as it is.
    pub const fn target(self, from: Option<LedgerState>) -> Option<LedgerState> {
        match (self, from) {
            (Self::Take, Some(LedgerState::Held)) => Some(LedgerState::Taken),
            (Self::Release | Self::ReleaseOrVoid, Some(LedgerState::Held)) => Some(LedgerState::Released),
            (Self::ReleaseOrVoid | Self::VoidIfAbsent, None) => Some(LedgerState::Void),
            // Only a paid order is returned, so a missing row was taken before it was compacted.
            (Self::Return, Some(LedgerState::Held | LedgerState::Taken) | None) => {
                Some(LedgerState::Returned)
            }
            _ => None,
        }
    }
}

/// How the stock level changes when a row goes from one state to another.
pub const fn delta_between(from: Option<LedgerState>, to: LedgerState, quantity: i64) -> Delta {
    let before = match from {
        Some(state) => state.effect(quantity),
        None => match to {
            LedgerState::Returned => LedgerState::Taken.effect(quantity),
            _ => Delta { on_hand: 0, reserved: 0 },
        },
    };
    let after = to.effect(quantity);
    Delta { on_hand: after.on_hand - before.on_hand, reserved: after.reserved - before.reserved }
}

/// The stock level right after a change by the back office.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelAfter {
    pub level: Level,
    pub updated_at: Timestamp,
}

/// The header of a stock partition: the stock level, and the revision that every change is conditional on.
#[derive(Debug, Clone, Default)]
pub struct StockHeader {
    /// `None` where the partition does not exist yet.
    pub rev: Option<i64>,
    pub level: Level,
    /// Units on hand that compacted rows add up to.
    pub compacted: i64,
    /// A lower bound: no hold of a reservation that has a row ends earlier.
    pub compacted_to: Option<Timestamp>,
    /// A lower bound: no open hold ends earlier.
    pub earliest_hold_end: Option<Timestamp>,
    pub updated_at: Timestamp,
    /// Tokens of the last writes, newest first.
    pub recent_op_tokens: Vec<Uuid>,
}

impl StockHeader {
    /// Whether there is a stock level. A partition that only void rows and fences made has none.
    pub fn has_level(&self) -> bool {
        self.updated_at != Timestamp::EPOCH
    }
}

/// A row of the ledger: one operation on the partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRow {
    pub until: Timestamp,
    pub op_id: Uuid,
    pub state: LedgerState,
    pub quantity: i64,
    pub at: Timestamp,
    pub note: Option<String>,
    /// Of a change by the back office: every duplicate of its request returns the same level.
    pub result: Option<LevelAfter>,
}

/// The clustering key of a ledger row.
pub type RowKey = (Timestamp, Uuid);

impl LedgerRow {
    pub const fn key(&self) -> RowKey {
        (self.until, self.op_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [Option<LedgerState>; 6] = [
        None,
        Some(LedgerState::Held),
        Some(LedgerState::Taken),
        Some(LedgerState::Released),
        Some(LedgerState::Returned),
        Some(LedgerState::Void),
    ];
    const TRANSITIONS: [Transition; 5] = [
        Transition::Take,
        Transition::Release,
        Transition::ReleaseOrVoid,
        Transition::VoidIfAbsent,
        Transition::Return,
    ];

    #[test]
    fn a_row_never_goes_back() {
        for from in STATES {
            for transition in TRANSITIONS {
                let after = transition.target(from).or(from);
                assert_eq!(transition.target(after), None, "{from:?} {transition:?} made twice");
                if matches!(from, Some(LedgerState::Released | LedgerState::Returned | LedgerState::Void)) {
                    assert_eq!(transition.target(from), None, "{from:?} is final");
                }
            }
        }
    }

    #[test]
    fn a_late_take_after_a_return_moves_nothing() {
        let returned = Transition::Return.target(Some(LedgerState::Held)).unwrap();
        let delta = delta_between(Some(LedgerState::Held), returned, 3);
        assert_eq!(delta, Delta { on_hand: 0, reserved: -3 });
        assert_eq!(Transition::Take.target(Some(returned)), None);
    }

    #[test]
    fn a_hold_that_is_taken_and_returned_adds_up_to_zero() {
        let mut sum = Delta::default();
        let mut from = None;
        for to in [LedgerState::Held, LedgerState::Taken, LedgerState::Returned] {
            let delta = delta_between(from, to, 7);
            sum = Delta { on_hand: sum.on_hand + delta.on_hand, reserved: sum.reserved + delta.reserved };
            from = Some(to);
        }
        assert_eq!(sum, Delta::default());
        assert_eq!(delta_between(None, LedgerState::Returned, 7), Delta { on_hand: 7, reserved: 0 });
    }

    #[test]
    fn states_read_back() {
        for state in LedgerState::ALL {
            assert_eq!(LedgerState::parse(state.as_str()), Ok(state));
        }
        assert!(LedgerState::parse("lost").is_err());
    }
}
