//! What an order does to the cart it is made of.

use mw_domain::cart::CartLifetime;
use mw_domain::{Cart, OrderId, Timestamp};
use mw_store::Result;

use super::rows::{Change, Kept, place};
use super::turn;
use crate::CassandraStore;
use crate::guard::Rounds;

/// What became of a cart that an order wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// It is the order's, by this call or an earlier one.
    Done,
    /// Somebody else changed or closed it.
    Lost,
}

impl CassandraStore {
    /// Closes the cart for the order if it still is the open cart with the version that the order was made of.
    pub(crate) async fn close_for_order(
        &self,
        ordered: &Cart,
        order_id: OrderId,
        now: Timestamp,
        lifetime: &CartLifetime,
    ) -> Result<Closed> {
        let owner = &ordered.owner;
        let kept = Kept::of(owner, lifetime, now);
        let mut rounds = Rounds::of("a cart");
        let _turn = self.locks.one(&turn(owner)).await;
        loop {
            let found = self.partition(owner).await?;
            let open = found.open_at(place(ordered)).filter(|open| open.cart.version == ordered.version);
            let Some(before) = open else {
                let stored = self.cart_at(owner, place(ordered)).await?;
                let is_done = stored.is_some_and(|stored| stored.cart.order_id == Some(order_id));
                return Ok(if is_done { Closed::Done } else { Closed::Lost });
            };
            let mut cart = before.cart.clone();
            cart.become_order(order_id, now, lifetime);
            let mut change = Change::new(&self.carts, &found, None, kept);
            change.cart(Some(before), &cart, None);
            if change.settle(&self.cql, &mut rounds).await? {
                return Ok(Closed::Done);
            }
        }
    }
}
