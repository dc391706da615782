//! The oracle: the whole contract in memory, written to be obviously right and not to be fast.
//!
//! Every operation is a scan over plain maps under one lock. It shares nothing with any engine but the rules of the
//! domain, so that an engine and the model agree only where both keep the promise.

mod carts;
mod once;
mod orders;
mod page;
mod products;
mod records;
mod sessions;
mod stock;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mw_domain::limits::CART_HISTORY_DAYS;
use mw_domain::{
    Cart, CartChange, CartId, GeoZone, IdempotencyKey, Level, Movement, Order, OrderEvent, OrderId, Owner,
    Product, ProductId, Reservation, ReservationId, Session, SessionId, Timestamp,
};

use crate::once::Remembered;
use crate::{Result, Upkeep};

/// A store that forgets everything when it is dropped.
#[derive(Debug, Default)]
pub struct Model {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    carts: BTreeMap<CartId, Cart>,
    changes: BTreeMap<ChangeKey, CartChange>,
    sessions: BTreeMap<SessionId, Session>,
    products: BTreeMap<ProductId, Product>,
    figures: BTreeMap<(ProductId, GeoZone), Figure>,
    reservations: BTreeMap<ReservationId, Reservation>,
    orders: BTreeMap<OrderId, StoredOrder>,
    remembered: BTreeMap<IdempotencyKey, Remembered>,
    imports: BTreeMap<String, u64>,
}

/// What tells two line changes apart: a cart's version changes one line at most once.
type ChangeKey = (Owner, CartId, u64, ProductId);

#[derive(Debug, Default)]
struct Figure {
    level: Level,
    updated_at: Timestamp,
    ledger: Vec<Movement>,
}

#[derive(Debug)]
struct StoredOrder {
    order: Order,
    /// Oldest first.
    events: Vec<OrderEvent>,
}

impl Model {
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait::async_trait]
impl Upkeep for Model {
    async fn ready(&self) -> Result<()> {
        Ok(())
    }

    async fn clean(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let state = &mut *self.state();
        let mut left = limit;
        remove_expired(&mut state.carts, &mut left, |cart| cart.is_expired(now));
        remove_expired(&mut state.changes, &mut left, |change| is_forgotten(change, now));
        remove_expired(&mut state.sessions, &mut left, |session| session.is_expired(now));
        remove_expired(&mut state.remembered, &mut left, |remembered| now >= remembered.once.keep_until);
        Ok(limit - left)
    }
}

fn remove_expired<K: Ord, V>(rows: &mut BTreeMap<K, V>, left: &mut usize, is_expired: impl Fn(&V) -> bool) {
    rows.retain(|_, row| {
        let remove = *left > 0 && is_expired(row);
        *left -= usize::from(remove);
        !remove
    });
}

/// Whether a line change is older than the history shows.
fn is_forgotten(change: &CartChange, now: Timestamp) -> bool {
    now >= change.at.plus_seconds(CART_HISTORY_DAYS * 86_400)
}
