//! What spans the nouns: the shop's settings, its clock and ids, placing orders, logging in, and the passing of time.
//!
//! A [`Shop`] turns what a caller wants into commands of the storage contract, which ask for the time, the new ids and
//! the lifetimes. It has no state of its own beyond them.

pub mod clock;
pub mod expire;
pub mod ids;
pub mod merge;
pub mod place;
pub mod reserve;

use std::sync::Arc;

use mw_domain::cart::CartLifetime;
use mw_domain::limits::IDEMPOTENCY_HOURS;
use mw_domain::session::SessionLifetime;
use mw_domain::{Currency, IdempotencyKey, Timestamp};
use mw_store::{Fingerprint, Once, SharedStore};

pub use clock::{Clock, SystemClock};
pub use ids::Ids;

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub currency: Currency,
    pub carts: CartLifetime,
    pub sessions: SessionLifetime,
    pub payment_window_ms: i64,
    /// How long a reservation holds where the caller does not say.
    pub reservation_ttl_seconds: u32,
}

/// The shop: storage, time, ids and settings in one place, cheap to clone.
#[derive(Clone)]
pub struct Shop {
    pub store: SharedStore,
    pub settings: Settings,
    pub ids: Arc<Ids>,
    clock: Arc<dyn Clock>,
}

impl Shop {
    pub fn new(store: SharedStore, clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let ids = Arc::new(Ids::new(Arc::clone(&clock)));
        Self { store, settings, ids, clock }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A keyed request, remembered for as long as keys live.
    pub fn once(&self, key: IdempotencyKey, fingerprint: Fingerprint) -> Once {
        Once { key, fingerprint, keep_until: self.now().plus_seconds(IDEMPOTENCY_HOURS * 3_600) }
    }
}

impl std::fmt::Debug for Shop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shop").field("settings", &self.settings).finish_non_exhaustive()
    }
}
