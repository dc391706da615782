//! The passing of time: holds that end, orders that nobody paid, rows that nobody may read any more.
//!
//! Each round does a bounded amount of work and goes on at once while there is more. A failing round is logged and
//! tried again at the next tick: nothing here is lost by being late.

use std::time::Duration;

use mw_store::Result;

use crate::Shop;

/// Holds are settled within 5 s and unpaid orders cancelled within 10 s of their time; a second leaves room for both.
const TICK: Duration = Duration::from_secs(1);
/// Expired rows are invisible already; removing them can wait.
const TICKS_PER_CLEANING: u32 = 30;
const BATCH: usize = 500;
/// Rounds in a row before the next tick, so that one kind of work never starves another.
const ROUNDS_MAX: usize = 20;

const UNPAID_NOTE: &str = "not paid within the payment window";

impl Shop {
    /// Runs until the future that awaits it is dropped.
    pub async fn expire_forever(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut count = 0_u32;
        loop {
            ticks.tick().await;
            count = count.wrapping_add(1);
            if let Err(error) = self.expire(count.is_multiple_of(TICKS_PER_CLEANING)).await {
                tracing::warn!(%error, "settle what has expired");
            }
        }
    }

    /// Settles expired holds and cancels unpaid orders; with `clean` also removes expired rows.
    pub async fn expire(&self, clean: bool) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let now = self.now();
            // What cannot be settled is no reason to leave the rest.
            let settled = self.store.settle_expired(now, BATCH).await;
            let cancelled = self.store.cancel_unpaid(now, UNPAID_NOTE, BATCH).await;
            let cleaned = if clean { self.store.clean(now, BATCH).await } else { Ok(0) };
            if settled? < BATCH && cancelled? < BATCH && cleaned? < BATCH {
                break;
            }
        }
        Ok(())
    }
}
