//! Changes of one line: a plain write where the version does not matter, a decision where it does.

use mw_domain::carts::CartLifetime;
use mw_domain::limits::CART_HISTORY_DAYS;
use mw_domain::{Cart, CartChange, CartId, Owner, ProductId, Timestamp};
use mw_store::carts::check_version;
use mw_store::{Result, StoreError};

use super::decisions::{Decided, Plan, Planned};
use super::protocol::{BlindStep, BlindWrite, LineCell, next_step, stamp_above};
use super::rows::{CartPartition, OPEN_PART, RowTtl, cart_key, owner_kind};
use super::subject;
use crate::CassandraStore;
use crate::driver::statements::Row;
use crate::driver::time::{to_cql, ttl_seconds};

/// Times that a blind write is done again because its cart was closed or decided about meanwhile.
const BLIND_ROUNDS_MAX: usize = 8;

/// A line that is set, or removed with quantity 0.
#[derive(Debug)]
pub(super) struct LineChange {
    pub(super) owner: Owner,
    pub(super) product_id: ProductId,
    pub(super) quantity: u32,
    /// The id of the cart that is opened if there is none. A removal opens none.
    pub(super) new_cart_id: Option<CartId>,
    pub(super) expected_version: Option<u64>,
    pub(super) lifetime: CartLifetime,
    pub(super) now: Timestamp,
}

/// A blind write that was sent, and its history row.
struct SentWrite {
    blind: BlindWrite,
    history: CartChange,
    after: Cart,
}

impl LineChange {
    /// The cart after the change; `None` if nothing changes.
    fn apply(&self, partition: &CartPartition) -> Result<Option<Cart>> {
        let before = partition.active_at(self.now);
        check_version(before, self.expected_version)?;
        let mut cart = match (before, self.new_cart_id) {
            (Some(cart), _) => cart.clone(),
            (None, Some(cart_id)) => partition.view.new_cart(cart_id, self.owner.clone(), self.now),
            (None, None) => return Ok(None),
        };
        if self.quantity == 0 {
            let is_removed = cart.remove_line(&self.product_id, self.now, &self.lifetime);
            return Ok(is_removed.then_some(cart));
        }
        cart.set_line(self.product_id.clone(), self.quantity, self.now, &self.lifetime)?;
        Ok(Some(cart))
    }
}

impl CassandraStore {
    /// Returns the active cart after the change. The caller holds the lock of the owner's partition.
    pub(super) async fn change_line(&self, change: &LineChange) -> Result<Option<Cart>> {
        let ttl = RowTtl::of_change(&change.owner, &change.lifetime, change.now);
        let mut sent: Option<SentWrite> = None;
        for _ in 0..BLIND_ROUNDS_MAX {
            let is_sent = sent.is_some();
            let after_effect = |error: StoreError| if is_sent { error.after_first_effect() } else { error };
            let partition = self.settled_partition(&change.owner).await.map_err(after_effect)?;
            if let Some(sent) = &sent {
                match next_step(&partition.view, &sent.blind) {
                    BlindStep::Done => {
                        let cart = response(&partition, sent);
                        // Crash here: the line counts, was not acknowledged, and is in the feed with the next change of the cart.
                        self.report_carts(std::iter::empty(), Some(&cart)).await?;
                        return Ok(Some(cart));
                    }
                    BlindStep::Redo => {}
                    BlindStep::Wait | BlindStep::Unknown => {
                        return Err(StoreError::Ambiguous(format!(
                            "change {}: more decisions since than are kept",
                            subject(&change.owner)
                        )));
                    }
                }
            }
            let Some(after) = change.apply(&partition)? else {
                return Ok(partition.active_at(change.now).cloned());
            };
            let before = partition.active_at(change.now).filter(|cart| {
                change.expected_version.is_none()
                    && partition.takes_blind_write(cart, &change.product_id, ttl)
            });
            let Some(before) = before else {
                let decided = self.decide_line(change, ttl).await.map_err(after_effect);
                self.forget_history(&change.owner, sent.as_ref()).await;
                return decided;
            };
            // Crash here: nothing was written, no process has to finish anything.
            self.index_day(Some(before), &after, ttl).await.map_err(after_effect)?;
            // Crash here: an index row without the change; the report of idle carts skips it, its TTL removes it.
            let superseded = sent.take();
            sent = Some(self.write_line(&partition, change, after, superseded.as_ref(), ttl).await?);
            // Crash here: the line and its history row are written. They count, unless the cart was decided about at this very
            // moment: no process does the write again then, and its history row stays.
        }
        let subject = subject(&change.owner);
        Err(StoreError::Ambiguous(format!(
            "change {subject}: decided about {BLIND_ROUNDS_MAX} times (contention)"
        )))
    }

    /// Writes the cell of the line and its history row as one mutation, and removes the history row of the write before.
    async fn write_line(
        &self,
        partition: &CartPartition,
        change: &LineChange,
        after: Cart,
        superseded: Option<&SentWrite>,
        ttl: RowTtl,
    ) -> Result<SentWrite> {
        let stamp = stamp_above(partition.view.newest_stamp(), self.clock.micros(), self.carts.lane);
        let cell = LineCell {
            stamp,
            quantity: change.quantity,
            updated_at: change.now,
            expires_at: change.lifetime.expiry(&change.owner, change.now),
        };
        let mut view = partition.view.clone();
        view.cells.insert(change.product_id.clone(), cell.clone());
        // The version that the cart has if no other change is concurrent.
        let after = Cart { version: view.cart().map_or(after.version, |cart| cart.version), ..after };
        let history = after.line_history(&change.product_id);
        let (created_at, cart_id) = cart_key(&after);
        let (kind, id) = (owner_kind(&change.owner), change.owner.id().to_owned());
        let line = (cell.quantity.cast_signed(), to_cql(cell.updated_at), to_cql(cell.expires_at));
        let update = (
            stamp,
            ttl.seconds,
            line,
            kind,
            id.clone(),
            OPEN_PART,
            to_cql(created_at),
            cart_id.as_bytes().to_vec(),
            change.product_id.as_str().to_owned(),
        );
        let mut rows: Vec<(_, Row)> = vec![
            (&self.carts.update_line, Box::new(update)),
            (&self.carts.insert_change, history_row(&change.owner, &history, stamp)),
        ];
        if let Some(SentWrite { history, .. }) = superseded {
            rows.push((&self.carts.delete_change, history_key(&change.owner, history, stamp)));
        }
        let written = self.cql.write_batch(&rows).await;
        written.map_err(|error| if superseded.is_some() { error.after_first_effect() } else { error })?;
        let blind = BlindWrite { cart: (created_at, cart_id), product_id: change.product_id.clone(), stamp };
        Ok(SentWrite { blind, history, after })
    }

    async fn decide_line(&self, change: &LineChange, ttl: RowTtl) -> Result<Option<Cart>> {
        let plan = |partition: &CartPartition| {
            let before = partition.active_at(change.now).cloned();
            let Some(after) = change.apply(partition)? else {
                return Ok(Planned::Unchanged((false, before)));
            };
            let plan = Plan {
                after: Some(after.clone()),
                indexed: Some((before, after.clone())),
                ..Plan::default()
            };
            Ok(Planned::Change(Box::new(plan), (true, Some(after))))
        };
        let decided = self.decide(&change.owner, None, ttl, plan).await?;
        let Decided::Done((is_changed, cart)) = decided else { return Ok(None) };
        if let Some(cart) = cart.as_ref().filter(|_| is_changed) {
            // Crash here: the line is changed, its history row is missing. No process adds it: a line has no intent.
            let history = self.append_changes(&change.owner, [cart.line_history(&change.product_id)]).await;
            history.map_err(StoreError::after_first_effect)?;
        }
        Ok(cart)
    }

    /// Removes the history row of a blind write that did not count.
    async fn forget_history(&self, owner: &Owner, sent: Option<&SentWrite>) {
        let Some(sent) = sent else { return };
        let stamp = stamp_above(sent.blind.stamp, self.clock.micros(), self.carts.lane);
        let rows: [(_, Row); 1] = [(&self.carts.delete_change, history_key(owner, &sent.history, stamp))];
        if let Err(error) = self.cql.write_batch(&rows).await {
            tracing::debug!(%error, "remove the history row of a line change that was done again");
        }
    }

    /// Appends to an owner's history. Writing a change again overwrites its row with the same values.
    pub(super) async fn append_changes(
        &self,
        owner: &Owner,
        changes: impl IntoIterator<Item = CartChange>,
    ) -> Result<()> {
        let stamp = self.clock.micros();
        let rows: Vec<_> = changes
            .into_iter()
            .map(|change| (&self.carts.insert_change, history_row(owner, &change, stamp)))
            .collect();
        self.cql.write_batch(&rows).await
    }
}

/// The cart after a blind write that counts: as it was read back, or as it was written if it has been closed since.
fn response(partition: &CartPartition, sent: &SentWrite) -> Cart {
    let open = partition.open_with_key(sent.blind.cart);
    open.unwrap_or(&sent.after).clone()
}

fn history_row(owner: &Owner, change: &CartChange, stamp: i64) -> Row {
    Box::new((
        owner_kind(owner),
        owner.id().to_owned(),
        to_cql(change.at),
        change.version.cast_signed(),
        change.product_id.as_str().to_owned(),
        change.cart_id.as_bytes().to_vec(),
        change.quantity.cast_signed(),
        stamp,
        ttl_seconds(change.at, change.at.plus_seconds(CART_HISTORY_DAYS * 86_400)),
    ))
}

fn history_key(owner: &Owner, change: &CartChange, stamp: i64) -> Row {
    Box::new((
        stamp,
        owner_kind(owner),
        owner.id().to_owned(),
        to_cql(change.at),
        change.version.cast_signed(),
        change.product_id.as_str().to_owned(),
        change.cart_id.as_bytes().to_vec(),
    ))
}
