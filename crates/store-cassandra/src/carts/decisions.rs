//! Decisions about an owner's cart: claim the header, read, replace the header. `protocol.rs` says why this is right.

use std::time::Duration;

use mw_domain::{Cart, Owner};
use mw_store::{Result, StoreError};
use uuid::Uuid;

use super::closed::{buckets_after, fill_outbox};
use super::protocol::{claimed, decided, revoked};
use super::rows::{CartBatch, CartPartition, RowTtl, cart_key, owner_kind};
use super::subject;
use crate::CassandraStore;
use crate::driver::time::to_cql;
use crate::revision::{CasLoop, gave_up};

/// Pauses before a claim of another process is revoked. A decision takes less, unless its process has crashed.
const CLAIM_PAUSES_MS: [u64; 7] = [2, 4, 8, 16, 32, 64, 128];
/// Claims that one read waits for.
const CLAIMS_MAX: usize = 16;

/// Rounds of a decision: each is lost to another decision, or to a request that has revoked its claim.
pub(super) const DECISION_ROUNDS_MAX: usize = 32;

/// What a decision changes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The active cart after it.
    pub(super) after: Option<Cart>,
    /// Carts that are closed by it, or stored as closed ones, with the merge that closed them.
    pub(super) closed: Vec<(Cart, Option<Uuid>)>,
    /// Carts that are no longer closed.
    pub(super) reopened: Vec<Cart>,
    pub(super) marker: Option<(Uuid, Vec<u8>)>,
    /// The cart whose index row for the report of idle carts may be new, before and after.
    pub(super) indexed: Option<(Option<Cart>, Cart)>,
}

/// What follows from a partition.
pub(super) enum Planned<T> {
    Unchanged(T),
    Change(Box<Plan>, T),
}

pub(super) enum Decided<T> {
    Done(T),
    /// The operation was decided before: the outcome in its marker.
    Before(Vec<u8>),
}

impl CassandraStore {
    /// The owner's partition while no decision is under way. Waits for one, and revokes its claim if it takes too long: before its
    /// second LWT a decision has no effect.
    pub(super) async fn settled_partition(&self, owner: &Owner) -> Result<CartPartition> {
        for _ in 0..CLAIMS_MAX {
            let mut partition = self.cart_partition(owner).await?;
            let claim = partition.view.header.claim;
            for pause_ms in CLAIM_PAUSES_MS {
                if partition.view.header.claim.is_none() {
                    return Ok(partition);
                }
                if partition.view.header.claim != claim {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                partition = self.cart_partition(owner).await?;
            }
            if claim.is_some() && partition.view.header.claim == claim {
                self.revoke(&partition).await?;
            }
        }
        Err(gave_up(CLAIMS_MAX, &subject(owner)))
    }

    /// Revokes the claim that the partition shows. It does not matter whether another process was faster.
    async fn revoke(&self, partition: &CartPartition) -> Result<()> {
        let header = revoked(&partition.view.header);
        let batch = CartBatch::new(&self.carts, partition, &header, partition.rest_ttl());
        let revoked = batch.apply(&self.cql, &mut CasLoop::of(subject(&partition.owner))).await;
        match revoked {
            // Ambiguous as well: the next read shows whether the claim is still there.
            Ok(_) | Err(StoreError::Ambiguous(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Claims the header and reads the partition again; `None` if another process was faster. Without an open cart no blind write
    /// can change anything, and the condition of the second LWT is enough.
    pub(super) async fn claim_partition(
        &self,
        seen: CartPartition,
        ttl: RowTtl,
        cas_loop: &mut CasLoop,
    ) -> Result<Option<CartPartition>> {
        if seen.view.header.open.is_none() {
            return Ok(Some(seen));
        }
        let claim = Uuid::new_v4();
        let header = claimed(&seen.view.header, claim);
        let batch = CartBatch::new(&self.carts, &seen, &header, seen.header_ttl(ttl));
        // A claim has no effect of its own: whatever becomes of it, nothing was decided.
        if !batch.apply(&self.cql, cas_loop).await.map_err(StoreError::before_first_effect)? {
            return Ok(None);
        }
        // Crash here: a claim without a decision; the next reader or writer of the partition revokes it.
        let partition = self.cart_partition(&seen.owner).await?;
        Ok(Some(partition).filter(|partition| partition.view.header.claim == Some(claim)))
    }

    /// Gives back a claim that led to no change.
    pub(super) async fn release_claim(&self, partition: &CartPartition) {
        if partition.view.header.claim.is_some()
            && let Err(error) = self.revoke(partition).await
        {
            tracing::debug!(%error, "release the claim of a cart: the next request revokes it");
        }
    }

    /// Decides once: `plan` says what follows from the partition. It is called before the claim, so that a refusal needs no LWT, and
    /// after it. `op_id` is there if another request or process may decide the same operation.
    pub(super) async fn decide<T: Send>(
        &self,
        owner: &Owner,
        op_id: Option<Uuid>,
        ttl: RowTtl,
        plan: impl Fn(&CartPartition) -> Result<Planned<T>> + Send + Sync,
    ) -> Result<Decided<T>> {
        let mut cas_loop = CasLoop::of(subject(owner));
        for _ in 0..DECISION_ROUNDS_MAX {
            let seen = self.settled_partition(owner).await?;
            if let Some(outcome) = self.decided_before(owner, op_id).await? {
                return Ok(Decided::Before(outcome));
            }
            if let Planned::Unchanged(value) = plan(&seen)? {
                return Ok(Decided::Done(value));
            }
            let Some(partition) = self.claim_partition(seen, ttl, &mut cas_loop).await? else { continue };
            let before = self.decided_before(owner, op_id).await?;
            let planned = match (before, plan(&partition)) {
                (Some(outcome), _) => Ok(Decided::Before(outcome)),
                (None, Err(error)) => Err(error),
                (None, Ok(Planned::Unchanged(value))) => Ok(Decided::Done(value)),
                (None, Ok(Planned::Change(plan, value))) => {
                    if self.apply_plan(&partition, &plan, ttl, &mut cas_loop).await? {
                        return Ok(Decided::Done(value));
                    }
                    continue;
                }
            };
            self.release_claim(&partition).await;
            return planned;
        }
        // Every round has certainly not applied.
        Err(gave_up(DECISION_ROUNDS_MAX, &subject(owner)))
    }

    async fn decided_before(&self, owner: &Owner, op_id: Option<Uuid>) -> Result<Option<Vec<u8>>> {
        match op_id {
            Some(op_id) => self.read_marker(owner, op_id).await,
            None => Ok(None),
        }
    }

    /// The second LWT of a decision. `false`: another change came first, or the claim was revoked.
    pub(super) async fn apply_plan(
        &self,
        partition: &CartPartition,
        plan: &Plan,
        ttl: RowTtl,
        cas_loop: &mut CasLoop,
    ) -> Result<bool> {
        if let Some((before, after)) = &plan.indexed {
            // Crash here: the claim is revoked by the next request.
            self.index_day(before.as_ref(), after, ttl).await?;
        }
        // Crash here: an index row without the change; the report of idle carts skips it, its TTL removes it.
        let mut header = decided(&partition.view, plan.after.as_ref(), self.clock.micros());
        for (cart, merge_id) in &plan.closed {
            header.last_version = header.last_version.max(cart.version);
            // Only of the cart that was open: a merge may also rewrite one that it closed earlier, before the last merge.
            if partition.open_with_key(cart_key(cart)).is_some() {
                header.last_merge = *merge_id;
            }
        }
        if plan.after.is_some() {
            header.last_merge = None;
        }
        let ttl_seconds = partition.header_ttl(ttl);
        header.closed_buckets = buckets_after(&partition.view.header, ttl.now);
        fill_outbox(&mut header, plan, self.clock.micros());
        // Crash in here: rows of carts that the header has as well; the next decision writes them again.
        self.write_outbox(partition, ttl_seconds).await.map_err(StoreError::before_first_effect)?;
        let mut batch = CartBatch::new(&self.carts, partition, &header, ttl_seconds);
        if let Some((op_id, outcome)) = &plan.marker {
            batch.put_marker(*op_id, outcome.clone());
        }
        if !batch.apply(&self.cql, cas_loop).await? {
            return Ok(false);
        }
        // Crash here: cells that count no more stay until their TTL.
        self.sweep_lines(partition).await;
        // Crash here: a decision that was not acknowledged and is not in the feed. Recovery reports that of an order or a merge; the
        // next change of the owner's carts names the others.
        self.report_decision(partition, plan).await?;
        Ok(true)
    }

    /// Deletes the cells that a decision has read: one range tombstone at the highest of their write timestamps.
    async fn sweep_lines(&self, partition: &CartPartition) {
        let Some(open) = &partition.view.header.open else { return };
        if partition.view.cells.is_empty() {
            return;
        }
        let owner = &partition.owner;
        let key = (
            partition.view.newest_stamp(),
            owner_kind(owner),
            owner.id(),
            to_cql(open.cart.created_at),
            &open.cart.cart_id.as_bytes()[..],
        );
        if let Err(error) = self.cql.write(&self.carts.delete_lines, key).await {
            tracing::debug!(%error, "delete the cells of a decided cart: they stay until their TTL");
        }
    }
}
