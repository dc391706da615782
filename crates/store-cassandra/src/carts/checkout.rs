//! Closing the cart that an order is made of.

use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, OrderId, Timestamp};
use mw_store::Result;

use super::rows::{CartBatch, RowTtl, cart_key};
use super::{lock_key, subject};
use crate::CassandraStore;
use crate::revision::CasLoop;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseResult {
    /// The cart is closed for this order, by this call or an earlier one.
    Closed,
    /// Another change came first: the cart has another version or is closed for something else.
    Conflict,
}

impl CassandraStore {
    /// Closes the cart for the order if it is still the active cart with the version that the order was made of.
    /// Calling it again for the same order gives the same result.
    pub(crate) async fn close_for_order(
        &self,
        ordered: &Cart,
        order_id: OrderId,
        now: Timestamp,
        lifetime: &CartLifetime,
    ) -> Result<CloseResult> {
        let owner = &ordered.owner;
        let ttl = RowTtl::of_change(owner, lifetime, now);
        let mut cas_loop = CasLoop::of(subject(owner));
        let _lock = self.locks.partition(&lock_key(owner)).await;
        loop {
            let partition = self.cart_partition(owner).await?;
            let active = partition
                .active_with_key(cart_key(ordered))
                .filter(|active| active.cart.version == ordered.version);
            let Some(before) = active else {
                let stored = self.stored_cart(owner, cart_key(ordered)).await?;
                let is_closed = stored.is_some_and(|stored| stored.cart.order_id == Some(order_id));
                return Ok(if is_closed { CloseResult::Closed } else { CloseResult::Conflict });
            };
            let mut cart = before.cart.clone();
            cart.become_order(order_id, now, lifetime);
            let mut batch = CartBatch::new(&self.carts, &partition, None, ttl);
            batch.put_cart(Some(before), &cart, None);
            // Crash here: the units are held, the cart is active; recovery of the order's intent calls this again.
            if batch.apply(&self.cql, &mut cas_loop).await? {
                // Crash here: the cart names the order, which is not placed; recovery of its intent gets `Closed` and
                // places it.
                return Ok(CloseResult::Closed);
            }
        }
    }
}
