//! Errors of the store, by certainty.
//!
//! Use [`StoreError::Refused`] if a rule of the shop forbids the command; `Unavailable` and `Overloaded` if nothing was
//! applied and a retry may succeed; `NotServing` if nothing was applied and an operator must act first; `Ambiguous` if the command may have been applied, so that the caller repeats it with
//! the same key, or reads and decides; `Corrupt` if stored bytes cannot be decoded. No code turns `Ambiguous` into
//! another kind or retries such a call without a key.

use mw_domain::orders::IllegalTransition;
use mw_domain::{Cart, Money, Order, OrderId, ProductId, ReservationStatus, Shortage, ZoneStock};

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A rule of the shop forbids the command; nothing was applied.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// Storage cannot serve the call now; certainly nothing was applied.
    #[error("storage is unavailable: {0}")]
    Unavailable(String),
    /// This process does not serve the call until an operator acts, and its text, which clients see, says what is wrong;
    /// certainly nothing was applied.
    #[error("{0}")]
    NotServing(String),
    /// A queue is full; certainly nothing was applied.
    #[error("storage has too much waiting")]
    Overloaded,
    /// The command may have been applied or not.
    #[error("outcome unknown: {0}")]
    Ambiguous(String),
    /// Stored bytes cannot be decoded.
    #[error("stored data is damaged: {0}")]
    Corrupt(String),
}

/// The rule of the shop that a command breaks. Nothing was applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the cursor is not one that this list gave out")]
    InvalidCursor,
    #[error("changes after the cursor are no longer kept")]
    CursorExpired,
    #[error("{field}: {detail}")]
    InvalidField { field: String, detail: String },
    #[error("no product {0}")]
    ProductNotFound(ProductId),
    #[error("no order {0}")]
    OrderNotFound(OrderId),
    #[error("no such reservation")]
    ReservationNotFound,
    #[error("no such session")]
    SessionNotFound,
    #[error("there are not enough units in the zone")]
    OutOfStock(Vec<Shortage>),
    #[error("the total is now {current}")]
    PriceChanged { current: Money },
    #[error("there is no cart with lines in it")]
    CartEmpty,
    #[error("{}", mw_domain::carts::CartTooLarge)]
    CartTooLarge,
    /// The units on hand are not the expected number. A zone without stock has 0, as of now.
    #[error("the stock is not what was expected")]
    StockChanged { current: ZoneStock },
    #[error("fewer units would be on hand than are reserved")]
    StockBelowReserved { current: ZoneStock },
    #[error(transparent)]
    IllegalTransition(IllegalTransition),
    #[error("the reservation is closed")]
    ReservationClosed { status: ReservationStatus },
    #[error("the session is bound to another user or exists already")]
    SessionBound,
    /// `None`: there is no active cart, its version is 0.
    #[error("the cart has changed")]
    CartVersion { current: Option<Cart> },
    #[error("the order has changed")]
    OrderVersion { current: Order },
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// No partition of this table and key has what the command is about.
    #[error("{0}")]
    PartitionNotFound(String),
    /// No table of this name is repaired.
    #[error("{0}")]
    RepairNotFound(String),
}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl From<Box<Refusal>> for StoreError {
    fn from(refusal: Box<Refusal>) -> Self {
        Self::Refused(refusal)
    }
}

impl From<mw_domain::limits::InvalidField> for StoreError {
    fn from(invalid: mw_domain::limits::InvalidField) -> Self {
        Refusal::InvalidField { field: invalid.field, detail: invalid.detail }.into()
    }
}

impl From<mw_domain::carts::CartTooLarge> for StoreError {
    fn from(_: mw_domain::carts::CartTooLarge) -> Self {
        Refusal::CartTooLarge.into()
    }
}

impl From<IllegalTransition> for StoreError {
    fn from(illegal: IllegalTransition) -> Self {
        Refusal::IllegalTransition(illegal).into()
    }
}

impl StoreError {
    /// The refusal, if the error is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The error of an operation of several steps that failed before its first effect: nothing was applied, so an ambiguous
    /// preparation (an intent, a row that no reader follows yet) is a plain `Unavailable`.
    #[must_use]
    pub fn before_first_effect(self) -> Self {
        match self {
            Self::Ambiguous(detail) => Self::Unavailable(detail),
            other => other,
        }
    }

    /// The error of an operation of several steps that failed after its first effect: the rest may be applied or not, so
    /// "certainly not applied" no longer holds. `Refused` and `Corrupt` are unchanged.
    #[must_use]
    pub fn after_first_effect(self) -> Self {
        match self {
            Self::Unavailable(detail) | Self::NotServing(detail) => Self::Ambiguous(detail),
            Self::Overloaded => Self::Ambiguous(Self::Overloaded.to_string()),
            other @ (Self::Refused(_) | Self::Ambiguous(_) | Self::Corrupt(_)) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> [StoreError; 6] {
        [
            Refusal::CartEmpty.into(),
            StoreError::Unavailable("u".to_owned()),
            StoreError::NotServing("n".to_owned()),
            StoreError::Overloaded,
            StoreError::Ambiguous("a".to_owned()),
            StoreError::Corrupt("c".to_owned()),
        ]
    }

    #[test]
    fn failure_before_the_first_effect_is_never_ambiguous() {
        let [refused, unavailable, not_serving, overloaded, _, corrupt] = every_kind();
        let resolved = StoreError::Unavailable("a".to_owned());
        let expected = [refused, unavailable, not_serving, overloaded, resolved, corrupt];
        assert_eq!(every_kind().map(StoreError::before_first_effect), expected);
    }

    #[test]
    fn failure_after_the_first_effect_is_never_certainly_not_applied() {
        let [refused, _, _, overloaded, ambiguous, corrupt] = every_kind();
        let expected = [
            refused,
            StoreError::Ambiguous("u".to_owned()),
            StoreError::Ambiguous("n".to_owned()),
            StoreError::Ambiguous(overloaded.to_string()),
            ambiguous,
            corrupt,
        ];
        assert_eq!(every_kind().map(StoreError::after_first_effect), expected);
    }
}
