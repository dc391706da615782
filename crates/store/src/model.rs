//! The model: the whole contract in memory, the oracle of tests. It is written to be obviously correct, not fast.
//!
//! Every operation scans plain maps under one lock. The model shares only the rules above the engines with them, so an
//! engine and the model agree only if both keep the contract.

mod carts;
mod changes;
mod export;
mod idempotency;
mod orders;
mod page;
mod products;
mod sessions;
mod stock;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mw_domain::limits::CART_HISTORY_DAYS;
use mw_domain::{
    Cart, CartChange, CartId, GeoZone, IdempotencyKey, Level, Movement, Order, OrderEvent, OrderId, Owner,
    Product, ProductId, Reservation, ReservationId, Session, SessionId, Timestamp,
};

use crate::changes::{FeedSettings, Topics};
use crate::idempotency::StoredOutcome;
use crate::{Maintenance, Result};
use changes::Feed;

/// A store in memory; dropping it drops its data.
#[derive(Debug)]
pub struct Model {
    state: Mutex<State>,
}

impl Default for Model {
    /// Every topic of the feed is written.
    fn default() -> Self {
        Self::with_feed(FeedSettings { topics: Topics::ALL, ..FeedSettings::default() })
    }
}

#[derive(Debug, Default)]
struct State {
    carts: BTreeMap<CartId, Cart>,
    changes: BTreeMap<ChangeKey, CartChange>,
    sessions: BTreeMap<SessionId, Session>,
    products: BTreeMap<ProductId, Product>,
    stock: BTreeMap<(ProductId, GeoZone), StockEntry>,
    reservations: BTreeMap<ReservationId, Reservation>,
    orders: BTreeMap<OrderId, StoredOrder>,
    stored_outcomes: BTreeMap<IdempotencyKey, StoredOutcome>,
    imports: BTreeMap<String, u64>,
    feed: Feed,
}

/// The identity of a line change: one version of a cart changes a line at most once.
type ChangeKey = (Owner, CartId, u64, ProductId);

#[derive(Debug, Default)]
struct StockEntry {
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

    /// A model that records changes as `feed` says.
    pub fn with_feed(feed: FeedSettings) -> Self {
        Self { state: Mutex::new(State { feed: Feed::new(feed), ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait::async_trait]
impl Maintenance for Model {
    async fn ready(&self) -> Result<crate::Readiness> {
        Ok(crate::Readiness::default())
    }

    async fn purge_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let state = &mut *self.state();
        let mut remaining = limit;
        remove_expired(&mut state.carts, &mut remaining, |cart| cart.is_expired(now));
        remove_expired(&mut state.changes, &mut remaining, |change| is_forgotten(change, now));
        remove_expired(&mut state.sessions, &mut remaining, |session| session.is_expired(now));
        remove_expired(&mut state.stored_outcomes, &mut remaining, |stored_outcome| {
            now >= stored_outcome.identity.keep_until
        });
        Ok(limit - remaining)
    }
}

fn remove_expired<K: Ord, V>(
    rows: &mut BTreeMap<K, V>,
    remaining: &mut usize,
    is_expired: impl Fn(&V) -> bool,
) {
    rows.retain(|_, row| {
        let remove = *remaining > 0 && is_expired(row);
        *remaining -= usize::from(remove);
        !remove
    });
}

/// Whether a line change is older than the history limit.
fn is_forgotten(change: &CartChange, now: Timestamp) -> bool {
    now >= change.at.plus_seconds(CART_HISTORY_DAYS * 86_400)
}
