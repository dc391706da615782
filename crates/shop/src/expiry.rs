//! Background expiry: holds whose time is over, orders that were not paid in time, rows that have expired.
//!
//! A round does a bounded amount of work, and another one follows at once while there is more. A failed round is logged
//! and repeated at the next tick. Every process of a cluster runs this; the store makes each step at most once, so a
//! crash in the middle of a round leaves the rest to the next tick or to another process.

use std::time::Duration;

use mw_store::Result;

use crate::Shop;

/// Holds expire within 5 s and unpaid orders are cancelled within 10 s of their time; one second leaves room for both.
const TICK: Duration = Duration::from_secs(1);
/// Reads hide expired rows already, so purging them can wait.
const TICKS_PER_PURGE: u32 = 30;
const BATCH: usize = 500;
/// Rounds in a row before the next tick, so that one kind of work never starves another.
const ROUNDS_MAX: usize = 20;

const UNPAID_NOTE: &str = "not paid within the payment window";

impl Shop {
    /// Runs until the future is dropped.
    pub async fn expire_forever(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut count = 0_u32;
        loop {
            ticks.tick().await;
            count = count.wrapping_add(1);
            if let Err(error) = self.expire(count.is_multiple_of(TICKS_PER_PURGE)).await {
                tracing::warn!(%error, "expire holds and unpaid orders: trying again in {TICK:?}");
            }
        }
    }

    /// Expires holds and cancels unpaid orders; with `purge` it also removes expired rows.
    async fn expire(&self, purge: bool) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let now = self.now();
            // All three run before the first error is returned: one kind that fails does not stop the others.
            let expired = self.store.expire_reservations(now, BATCH).await;
            let cancelled = self.store.cancel_unpaid(now, UNPAID_NOTE, BATCH).await;
            let purged = if purge { self.store.purge_expired(now, BATCH).await } else { Ok(0) };
            if expired? < BATCH && cancelled? < BATCH && purged? < BATCH {
                break;
            }
        }
        Ok(())
    }
}
