//! The layer between the API and storage: every command and every read of a served shop goes through [`Shop`].
//!
//! It alone stamps commands: with the time (one clock reading a command), with new ids, and with the lifetimes of the
//! configuration. The API above it translates HTTP; the storage contract below it is told everything and reads no
//! clock. A command is one call of the store, so a crash in this layer leaves nothing that it would have to finish.
//!
//! One file a noun; `expiry.rs` is the work in the background, `seed.rs` fills an empty shop.

mod backup;
mod carts;
mod changes;
mod clock;
mod clock_guard;
mod expiry;
mod idempotency;
mod ids;
pub mod operations;
mod orders;
mod products;
mod reports;
mod reservations;
mod seed;
mod sessions;
mod stock;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use mw_domain::carts::CartLifetime;
use mw_domain::sessions::SessionLifetime;
use mw_domain::{Currency, Timestamp};
use mw_store::{Result, SharedStore};

use ids::Ids;

pub use clock::{Clock, SystemClock};
pub use idempotency::KeyedRequest;
pub use orders::OrderDraft;
pub use products::ProductDraft;
pub use seed::Seeded;
pub use sessions::SessionDraft;

/// What an operator configures about the shop itself.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub currency: Currency,
    pub carts: CartLifetime,
    pub sessions: SessionLifetime,
    pub payment_window_ms: i64,
    /// Of a reservation whose request names no time to live.
    pub reservation_ttl_seconds: u32,
}

/// The shop: storage, clock, ids and settings. Cheap to clone.
#[derive(Clone)]
pub struct Shop {
    store: SharedStore,
    settings: Settings,
    ids: Arc<Ids>,
    clock: Arc<dyn Clock>,
    /// How far the wall clock has jumped ahead of the time of background work.
    clock_jump_ms: Arc<AtomicI64>,
}

impl Shop {
    pub fn new(store: SharedStore, clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let ids = Arc::new(Ids::new(Arc::clone(&clock)));
        Self { store, settings, ids, clock, clock_jump_ms: Arc::default() }
    }

    /// The currency of every amount of this shop.
    pub fn currency(&self) -> Currency {
        self.settings.currency
    }

    /// Whether storage can serve reads and writes now; the error says what is wrong.
    pub async fn ready(&self) -> Result<mw_store::Readiness> {
        self.store.ready().await
    }

    /// How far the clock of this machine is ahead of the store's.
    pub fn clock_skew_ms(&self) -> i64 {
        self.store.clock_skew_ms()
    }

    /// How many seconds the wall clock has jumped while the process runs; 0 while it agrees with the monotonic clock.
    pub fn clock_jump_seconds(&self) -> i64 {
        self.clock_jump_ms.load(Ordering::Relaxed) / 1_000
    }

    /// Read once per command: all that a command stamps has the same time.
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl std::fmt::Debug for Shop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shop").field("settings", &self.settings).finish_non_exhaustive()
    }
}
