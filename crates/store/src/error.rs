//! Why a call did not do what was asked.
//!
//! Use [`StoreError::Refused`] where the rules of the shop say no; `Unavailable` and `Overloaded` where nothing was done
//! and trying later may help; `Ambiguous` where the effect may or may not have happened, so that the caller repeats with
//! the same key or reads and decides; `Corrupt` where stored bytes make no sense. No path turns `Ambiguous` into another
//! kind or repeats such a call blindly.

use mw_domain::order::IllegalTransition;
use mw_domain::{Cart, Money, Order, OrderId, ProductId, ReservationStatus, Shortage, ZoneStock};

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The rules say no; nothing was done.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// Storage cannot do it now; surely nothing was done.
    #[error("storage is unavailable: {0}")]
    Unavailable(String),
    /// Too much is waiting already; surely nothing was done.
    #[error("storage has too much waiting")]
    Overloaded,
    /// It may have been done or not.
    #[error("outcome unknown: {0}")]
    Ambiguous(String),
    /// What is stored cannot be read.
    #[error("stored data is damaged: {0}")]
    Corrupt(String),
}

/// A rule of the shop that was not met. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the cursor is not one that this list gave out")]
    InvalidCursor,
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
    #[error("a cart holds at most 100 lines")]
    CartTooLarge,
    /// The figure is not the expected one. A zone without stock yet has 0, as of now.
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
}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl From<mw_domain::limits::InvalidField> for StoreError {
    fn from(invalid: mw_domain::limits::InvalidField) -> Self {
        Refusal::InvalidField { field: invalid.field, detail: invalid.detail }.into()
    }
}

impl From<mw_domain::cart::CartTooLarge> for StoreError {
    fn from(_: mw_domain::cart::CartTooLarge) -> Self {
        Refusal::CartTooLarge.into()
    }
}

impl From<IllegalTransition> for StoreError {
    fn from(illegal: IllegalTransition) -> Self {
        Refusal::IllegalTransition(illegal).into()
    }
}

impl StoreError {
    /// The rule that was not met, if that is what happened.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}
