//! Closing the cart that an order is made of.

use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, OrderId, Timestamp};
use mw_store::Result;

use super::decisions::{Decided, Plan, Planned};
use super::lock_key;
use super::rows::{CartPartition, RowTtl, cart_key};
use crate::CassandraStore;

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
        let _lock = self.locks.partition(&lock_key(owner)).await;
        let plan = |partition: &CartPartition| {
            let open = partition.open_with_key(cart_key(ordered));
            let Some(before) = open.filter(|open| open.version == ordered.version) else {
                return Ok(Planned::Unchanged(CloseResult::Conflict));
            };
            let mut cart = before.clone();
            cart.become_order(order_id, now, lifetime);
            let plan = Plan { closed: vec![(cart, None)], ..Plan::default() };
            Ok(Planned::Change(Box::new(plan), CloseResult::Closed))
        };
        // Crash in here: the units are held, the cart is active; recovery of the order's intent calls this again. Crash after it: the
        // cart names the order, which is not placed; recovery of its intent gets `Closed` and places it.
        if let Decided::Done(CloseResult::Closed) = self.decide(owner, None, ttl, plan).await? {
            return Ok(CloseResult::Closed);
        }
        let partition = self.cart_partition(owner).await?;
        let closed = self.closed_cart(&partition, cart_key(ordered)).await?;
        let Some(closed) = closed.filter(|closed| closed.cart.order_id == Some(order_id)) else {
            return Ok(CloseResult::Conflict);
        };
        // By an earlier call, whose process may have died before it reported this.
        self.report_carts(std::iter::once(&closed.cart), None).await?;
        Ok(CloseResult::Closed)
    }
}
