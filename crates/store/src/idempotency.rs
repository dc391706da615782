//! Idempotency: a command with a [`RequestIdentity`] takes effect once, however often it is sent.
//!
//! The outcome is stored together with the effect of the command. A second request with the same key and the same fingerprint
//! gets the first outcome again (a replay); with another fingerprint it is refused ([`Refusal::KeyReused`](crate::Refusal)). A
//! refused or failed command leaves its key free. The key is checked before every other rule.

use mw_domain::{
    Cart, IdempotencyKey, Order, OrderId, ProductId, Reservation, Session, Timestamp, ZoneStock,
};

use crate::carts::Merged;
use crate::products::Imported;
use crate::sessions::LoggedIn;

/// A digest of a request: two requests are the same if and only if their digests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestIdentity {
    pub key: IdempotencyKey,
    pub fingerprint: Fingerprint,
    /// The key is free again from this instant on.
    pub keep_until: Timestamp,
}

/// The value of a command, and whether it is a replay of the first outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done<T> {
    pub value: T,
    pub replayed: bool,
}

impl<T> Done<T> {
    pub const fn first(value: T) -> Self {
        Self { value, replayed: false }
    }

    pub const fn replay(value: T) -> Self {
        Self { value, replayed: true }
    }
}

/// The value of the first success, stored under the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Cart(Cart),
    Merged(Merged),
    Session(Session),
    LoggedIn(LoggedIn),
    Stock(ZoneStock),
    Reservation(Reservation),
    /// A placed order by its id: the order as it was placed follows from the order as it is.
    Placed(OrderId),
    Order(Order),
    Imported {
        product_id: ProductId,
        created: bool,
    },
}

/// A request identity with its outcome, as it is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOutcome {
    pub identity: RequestIdentity,
    pub outcome: Outcome,
}

/// A value that is stored whole as an [`Outcome`]. This is the only way from an outcome to a value; only a placed order,
/// which is stored by its id, is read by the engines themselves.
pub trait StoredValue: Sized {
    fn to_outcome(&self) -> Outcome;

    /// `None` if the outcome is of another kind. One fingerprint is one request, so such an outcome belongs to another request.
    fn from_outcome(outcome: Outcome) -> Option<Self>;
}

macro_rules! stored_whole {
    ($($value:ty => $outcome:ident),* $(,)?) => {$(
        impl StoredValue for $value {
            fn to_outcome(&self) -> Outcome {
                Outcome::$outcome(self.clone())
            }

            fn from_outcome(outcome: Outcome) -> Option<Self> {
                match outcome {
                    Outcome::$outcome(value) => Some(value),
                    _ => None,
                }
            }
        }
    )*};
}

stored_whole! {
    Cart => Cart,
    Merged => Merged,
    Session => Session,
    LoggedIn => LoggedIn,
    ZoneStock => Stock,
    Reservation => Reservation,
    Order => Order,
}

impl StoredValue for Imported {
    fn to_outcome(&self) -> Outcome {
        Outcome::Imported { product_id: self.product_id.clone(), created: self.created }
    }

    fn from_outcome(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Imported { product_id, created } => Some(Self { product_id, created }),
            _ => None,
        }
    }
}
