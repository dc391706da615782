//! Doing a thing once however often it is asked for.
//!
//! A command that carries [`Once`] is stored together with its effect, in the same write. Asked again with the same key
//! and the same fingerprint it answers the first success; with another fingerprint it is refused
//! ([`Refusal::KeyReused`](crate::Refusal)). A refused or failed command leaves its key free. The key is looked at before
//! anything else.

use mw_domain::{
    Cart, IdempotencyKey, Order, OrderId, ProductId, Reservation, Session, Timestamp, ZoneStock,
};

use crate::carts::Merged;
use crate::sessions::LoggedIn;

/// A digest of what was asked: two requests are the same if and only if their digests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Once {
    pub key: IdempotencyKey,
    pub fingerprint: Fingerprint,
    /// The key is free again from this moment on.
    pub keep_until: Timestamp,
}

/// An answer, and whether it is the first one given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done<T> {
    pub value: T,
    pub replayed: bool,
}

impl<T> Done<T> {
    pub const fn first(value: T) -> Self {
        Self { value, replayed: false }
    }

    pub const fn again(value: T) -> Self {
        Self { value, replayed: true }
    }
}

/// What a key remembers of the first success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Cart(Cart),
    Merged(Merged),
    Session(Session),
    LoggedIn(LoggedIn),
    Stock(ZoneStock),
    Reservation(Reservation),
    /// The order as it was placed: all of it that can change is known from that.
    Placed(OrderId),
    Order(Order),
    Imported {
        product_id: ProductId,
        created: bool,
    },
}

/// A key and what it remembers, as it is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub once: Once,
    pub outcome: Outcome,
}
