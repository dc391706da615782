//! Background expiry: holds whose time is over, orders that were not paid in time, rows that have expired.
//!
//! A round does a bounded amount of work, and another one follows at once while there is more. A failed round is logged
//! and repeated at the next tick. Every process of a cluster runs this; the store makes each step at most once, so a
//! crash in the middle of a round leaves the rest to the next tick or to another process.

use std::time::Duration;

use std::sync::atomic::Ordering;

use mw_domain::Timestamp;
use mw_store::Result;

use crate::Shop;
use crate::clock_guard::{ClockGuard, Trusted};

/// Holds expire within 5 s and unpaid orders are cancelled within 10 s of their time; one second leaves room for both.
const TICK: Duration = Duration::from_secs(1);
/// Reads hide expired rows already, so purging them can wait.
const TICKS_PER_PURGE: u32 = 10;
/// While the clock is not trusted, the alarm is repeated this often.
const TICKS_PER_ALARM: u32 = 60;
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
        let mut guard = ClockGuard::default();
        loop {
            ticks.tick().await;
            count = count.wrapping_add(1);
            let purge = count.is_multiple_of(TICKS_PER_PURGE);
            if let Err(error) = self.expire(&mut guard, purge, count).await {
                tracing::warn!(%error, "expire holds and unpaid orders: trying again in {TICK:?}");
            }
        }
    }

    /// The time of background work, which a jump of the wall clock does not move.
    fn trusted_now(&self, guard: &mut ClockGuard, ticks: u32) -> Timestamp {
        let Trusted { now, jump_ms } = guard.trust(self.now(), self.clock.monotonic());
        let before_ms = self.clock_jump_ms.swap(jump_ms, Ordering::Relaxed);
        let jump_seconds = jump_ms / 1_000;
        if jump_ms != 0 && (before_ms == 0 || ticks.is_multiple_of(TICKS_PER_ALARM)) {
            tracing::error!(
                jump_seconds,
                "compare clocks: the wall clock jumped; expiring by the monotonic clock; check the time, then restart mw to accept it"
            );
        } else if jump_ms == 0 && before_ms != 0 {
            tracing::info!("compare clocks: the wall clock is trusted again");
        }
        now
    }

    /// Expires holds and cancels unpaid orders; with `purge` it also removes expired rows.
    async fn expire(&self, guard: &mut ClockGuard, purge: bool, ticks: u32) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let now = self.trusted_now(guard, ticks);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;
    use std::sync::{Arc, Mutex};

    use mw_domain::carts::CartLifetime;
    use mw_domain::sessions::SessionLifetime;
    use mw_domain::{CartId, Currency, Owner, ProductId, UserId};
    use mw_store::carts::SetLine;
    use mw_store::model::Model;
    use mw_store::{Carts as _, PageRequest};
    use uuid::Uuid;

    use super::*;
    use crate::{Clock, Settings};

    #[derive(Default)]
    struct TestClock {
        wall_ms: AtomicI64,
        monotonic: Mutex<Duration>,
    }

    impl Clock for TestClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(self.wall_ms.load(Ordering::SeqCst))
        }

        fn monotonic(&self) -> Duration {
            *self.monotonic.lock().unwrap()
        }
    }

    #[tokio::test]
    async fn a_clock_that_jumps_forward_deletes_no_cart_in_the_background() {
        let lifetime = CartLifetime { user_ms: 3_600_000, guest_ms: 3_600_000 };
        let settings = Settings {
            currency: Currency::parse("RUB").unwrap(),
            carts: lifetime,
            sessions: SessionLifetime { ttl_ms: 3_600_000 },
            payment_window_ms: 60_000,
            reservation_ttl_seconds: 60,
        };
        let (store, clock) = (Arc::new(Model::new()), Arc::new(TestClock::default()));
        let shop = Shop::new(Arc::clone(&store) as _, Arc::clone(&clock) as _, settings);
        let owner = Owner::User(UserId::parse("u").unwrap());
        let line = SetLine {
            owner: owner.clone(),
            product_id: ProductId::parse("p").unwrap(),
            quantity: 1,
            new_cart_id: CartId::new(Uuid::from_u128(1)),
            expected_version: None,
            lifetime,
            now: shop.now(),
        };
        store.set_line(line).await.unwrap();
        let mut guard = ClockGuard::default();
        shop.expire(&mut guard, true, 1).await.unwrap();

        // A resumed machine: a year has passed on the wall clock, a second on the monotonic one.
        clock.wall_ms.store(31_536_000_000, Ordering::SeqCst);
        *clock.monotonic.lock().unwrap() = Duration::from_secs(1);
        shop.expire(&mut guard, true, 2).await.unwrap();
        assert_eq!(shop.clock_jump_seconds(), 31_535_999);
        let back = Timestamp::from_millis(2_000);
        let carts = store.carts(&owner, back, PageRequest::first(5)).await.unwrap().items;
        assert_eq!(carts.len(), 1, "the cart is there when the clock is right again");

        clock.wall_ms.store(2_000, Ordering::SeqCst);
        shop.expire(&mut guard, true, 3).await.unwrap();
        assert_eq!(shop.clock_jump_seconds(), 0);
    }
}
