//! Carts in the change feed. A row names an active cart, which is read when the row is, and has a closed cart whole.
//!
//! A cart that is closed is reported before any later cart of its owner: the row of a cart that is opened has the closed carts of the
//! header's outbox, since the process that closed them may have died, or be slow, before it wrote their row.

use mw_codec::carts::header::ClosedCart;
use mw_codec::changes::subjects::Subject;
use mw_domain::{Cart, Owner};
use mw_store::Result;
use mw_store::changes::Topic;

use super::decisions::Plan;
use super::rows::{CartKey, CartPartition, cart_key};
use crate::CassandraStore;

impl CassandraStore {
    /// Reports what a decision has changed. Merges report the guest's cart themselves: until the user's partition has decided, it may be
    /// opened again.
    pub(super) async fn report_decision(&self, before: &CartPartition, plan: &Plan) -> Result<()> {
        let is_opened = before.view.header.open.is_none() && plan.after.is_some();
        let outbox = before.view.header.outbox.iter().filter(|_| is_opened);
        let earlier = outbox.filter_map(|row| row.closed.as_ref()).map(|closed| &closed.cart);
        let closed = plan.closed.iter().filter(|(_, merge_id)| merge_id.is_none()).map(|(cart, _)| cart);
        self.report_carts(earlier.chain(closed), plan.after.as_ref()).await
    }

    /// Reports closed carts and an active one.
    pub(super) async fn report_carts<'a>(
        &self,
        closed: impl Iterator<Item = &'a Cart> + Send,
        active: Option<&Cart>,
    ) -> Result<()> {
        if !self.feed.writes(Topic::Carts) {
            return Ok(());
        }
        let closed = closed.map(|cart| Subject::CartClosed(Box::new(cart.clone())));
        let active = active.map(|cart| {
            let (created_at, cart_id) = cart_key(cart);
            Subject::Cart { owner: cart.owner.clone(), created_at, cart_id }
        });
        let subjects = closed.chain(active).collect();
        self.feed.write(&self.cql, subjects).await
    }

    /// The cart that a row of the feed names. `None` if it was closed, which has a row of its own, and if the owner has a later cart.
    pub(crate) async fn reported_cart(&self, owner: &Owner, key: CartKey) -> Result<Option<Cart>> {
        let partition = self.settled_partition(owner).await?;
        if let Some(open) = partition.open_with_key(key) {
            return Ok(Some(open.clone()));
        }
        // Closed last, by a process that may have died before it wrote the row. A merge is reported by recovery.
        let outbox = partition.view.header.outbox.into_iter().filter(|_| partition.open.is_none());
        let mut closed = outbox.filter(|row| row.cart == key).filter_map(|row| row.closed);
        Ok(closed.find(|closed| closed.merge_id.is_none()).map(|ClosedCart { cart, .. }| cart))
    }
}
