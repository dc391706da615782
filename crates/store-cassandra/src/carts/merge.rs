//! Merging a guest's cart into a user's: two partitions, so two decisions, with an intent around them.
//!
//! The first decision closes the guest's cart and leaves a [`MergeMarker`] with its lines in the guest's partition. The second is
//! the user's: it either adds the lines and leaves a marker with the outcome, or it leaves a marker of refusal because the user's
//! cart has not the expected version, after which the guest's cart is opened again. Both markers are written with the effect, so
//! every process that works on the same merge comes to the same outcome.

use mw_codec::idempotency::{decode_outcome, encode_outcome};
use mw_codec::intents::merge::{self as codec, MergeMarker, MergeSpec};
use mw_domain::{Cart, CartId, MergeMode, Owner};
use mw_store::carts::{Merged, check_version};
use mw_store::idempotency::StoredValue;
use mw_store::{Refusal, Result, StoreError};
use uuid::Uuid;

use super::decisions::{DECISION_ROUNDS_MAX, Decided, Plan, Planned};
use super::rows::{CartPartition, RowTtl, cart_key, owner_kind};
use super::{lock_key, subject, wrong_marker};
use crate::CassandraStore;
use crate::recovery::intents::{Intent, Kind};
use crate::revision::{CasLoop, finish_paxos, gave_up};

/// Times that a merge looks at the guest's cart again because another decision came first.
const MERGE_ROUNDS_MAX: usize = 16;
/// The marker of a refused merge in the user's partition.
const REFUSED: &[u8] = &[];

/// The end of a merge that has closed the guest's cart.
enum MergeEnd {
    Merged,
    /// The user's cart had not the expected version: the guest has the lines again.
    RolledBack,
}

impl CassandraStore {
    /// Merges under `op_id`; `is_shared` if another request or process may run the same operation. The merge takes over
    /// an intent that the caller has begun.
    pub(crate) async fn merge_under(
        &self,
        op_id: Uuid,
        is_shared: bool,
        spec: &MergeSpec,
        mut intent: Option<Intent>,
    ) -> Result<Merged> {
        let merged = {
            let _locks = self.locks.pair(&lock_key(&spec.user), &lock_key(&spec.guest)).await;
            self.close_and_decide(op_id, is_shared, spec, &mut intent).await
        };
        // Crash here: everything is done but the intent is there; the recovering process finds both markers and deletes
        // it.
        if let Some(intent) = intent {
            match &merged {
                Ok(_) | Err(StoreError::Refused(_)) => self.complete_soon(intent),
                Err(_) => self.intents.abandon(intent),
            }
        }
        merged
    }

    /// The first half, and then the second.
    async fn close_and_decide(
        &self,
        op_id: Uuid,
        is_shared: bool,
        spec: &MergeSpec,
        intent: &mut Option<Intent>,
    ) -> Result<Merged> {
        let now = spec.now;
        let mut rolled_back = None;
        for _ in 0..MERGE_ROUNDS_MAX {
            let (user, guest) = futures_util::try_join!(
                self.settled_partition(&spec.user),
                self.settled_partition(&spec.guest)
            )?;
            if is_shared && let Some(marker) = self.merge_marker(&spec.guest, op_id).await? {
                return self.decide_for_user(op_id, &marker).await.map_err(StoreError::after_first_effect);
            }
            check_version(user.active_at(now), spec.expected_version)?;
            if guest.active_at(now).is_none_or(|cart| cart.lines.is_empty()) {
                // A refused merge whose closed cart is no longer stored, or was imported since, has nothing to give back.
                let last = guest.view.header.last_merge.filter(|last| rolled_back != Some(*last));
                let Some(last) = last else {
                    return Ok(Merged { cart: user.active_at(now).cloned(), changes: Vec::new() });
                };
                match self.finish_last_merge(&spec.guest, last).await? {
                    // The user's partition may have been read before the lines of that merge arrived.
                    MergeEnd::Merged => {
                        let cart = self.read_active_cart(&spec.user, now).await?;
                        return Ok(Merged { cart, changes: Vec::new() });
                    }
                    MergeEnd::RolledBack => {
                        rolled_back = Some(last);
                        continue;
                    }
                }
            }
            // Crash here: nothing was written; at most the key is claimed, and a repeated request runs again.
            if intent.is_none() {
                let payload = codec::encode(&spec.guest);
                *intent = Some(self.intents.begin(&self.cql, Kind::Merge, op_id, payload).await?);
            }
            // Crash here: an intent without a marker; the recovering process drops it once no batch can be in flight.
            let target = user.active_at(now).map_or(spec.new_cart_id, |own| own.cart_id);
            if let Some(marker) = self.close_guest_cart(op_id, spec, target).await? {
                // Crash here: the guest's cart is closed, the user has no lines of it; the recovering process, a
                // repeated request, or the guest's next merge finds the marker and decides.
                return self.decide_for_user(op_id, &marker).await.map_err(StoreError::after_first_effect);
            }
        }
        // Nothing of this merge was done: a round that closes the guest's cart is the last one.
        Err(gave_up(MERGE_ROUNDS_MAX, &subject(&spec.guest)))
    }

    /// Closes the guest's cart and leaves the marker of the merge; `None` if there is no cart with lines any more.
    async fn close_guest_cart(
        &self,
        op_id: Uuid,
        spec: &MergeSpec,
        target: CartId,
    ) -> Result<Option<MergeMarker>> {
        let ttl = RowTtl::of_change(&spec.guest, &spec.lifetime, spec.now);
        let plan = |guest: &CartPartition| {
            let Some(before) = guest.active_at(spec.now).filter(|cart| !cart.lines.is_empty()) else {
                return Ok(Planned::Unchanged(None));
            };
            let marker = MergeMarker { spec: spec.clone(), guest_cart: before.clone(), target };
            let mut closed = before.clone();
            closed.merged_into = Some(target);
            closed.abandon(spec.now, &spec.lifetime);
            let plan = Plan {
                closed: vec![(closed, Some(op_id))],
                marker: Some((op_id, codec::encode_marker(&marker))),
                ..Plan::default()
            };
            Ok(Planned::Change(Box::new(plan), Some(marker)))
        };
        match self.decide(&spec.guest, Some(op_id), ttl, plan).await? {
            Decided::Done(marker) => Ok(marker),
            Decided::Before(bytes) => Ok(Some(codec::decode_marker(&bytes)?)),
        }
    }

    /// The second half: the user's partition decides, once.
    async fn decide_for_user(&self, op_id: Uuid, marker: &MergeMarker) -> Result<Merged> {
        let MergeSpec { user: owner, mode, new_cart_id, expected_version, lifetime, now, .. } = &marker.spec;
        let ttl = RowTtl::of_change(owner, lifetime, *now);
        let plan = |user: &CartPartition| {
            let before = user.active_at(*now);
            if check_version(before, *expected_version).is_err() {
                let plan = Plan {
                    after: user.open.clone(),
                    marker: Some((op_id, REFUSED.to_vec())),
                    ..Plan::default()
                };
                return Ok(Planned::Change(Box::new(plan), None));
            }
            let mut cart =
                before.cloned().unwrap_or_else(|| user.view.new_cart(*new_cart_id, owner.clone(), *now));
            let changes = cart.merge_from(&mut marker.guest_cart.clone(), *mode, *now, lifetime);
            let indexed = (!changes.is_empty()).then(|| (before.cloned(), cart.clone()));
            let merged = Merged { cart: Some(cart.clone()), changes };
            let outcome = encode_outcome(&merged.to_outcome());
            let plan = Plan { after: Some(cart), marker: Some((op_id, outcome)), indexed, ..Plan::default() };
            Ok(Planned::Change(Box::new(plan), Some(merged)))
        };
        match self.decide(owner, Some(op_id), ttl, plan).await? {
            // Crash here: the user has the lines, their history is missing; the recovering process finds the outcome in the
            // user's marker and goes on with `finish_merged`.
            Decided::Done(Some(merged)) => {
                self.finish_merged(op_id, marker, &merged).await?;
                Ok(merged)
            }
            // Crash here: refused, the guest's cart is still closed; the next process that finds the merge opens it.
            Decided::Done(None) => self.follow_decision(op_id, marker, REFUSED).await,
            Decided::Before(decision) => self.follow_decision(op_id, marker, &decision).await,
        }
    }

    /// Does what remains to do after the decision of the user's partition, and returns its outcome.
    async fn follow_decision(&self, op_id: Uuid, marker: &MergeMarker, decision: &[u8]) -> Result<Merged> {
        if decision == REFUSED {
            self.reopen_guest_cart(op_id, marker).await?;
            let current = self.read_active_cart(&marker.spec.user, marker.spec.now).await?;
            return Err(Refusal::CartVersion { current }.into());
        }
        let merged = Merged::from_outcome(decode_outcome(decision)?).ok_or_else(|| wrong_marker(op_id))?;
        self.finish_merged(op_id, marker, &merged).await?;
        Ok(merged)
    }

    /// Writes what follows from the lines being in the user's cart: their history, and the cart that the guest's names.
    async fn finish_merged(&self, op_id: Uuid, marker: &MergeMarker, merged: &Merged) -> Result<()> {
        let Some(cart) = &merged.cart else { return Ok(()) };
        self.append_changes(&marker.spec.user, cart.merge_history(&merged.changes)).await?;
        // Crash here: the guest's cart may name a cart that was never opened; the recovering process comes here again.
        if cart.cart_id != marker.target {
            self.rewrite_guest_cart(op_id, marker, |closed, guest| {
                let mut moved = closed.clone();
                moved.merged_into = Some(cart.cart_id);
                Plan { after: guest.open.clone(), closed: vec![(moved, Some(op_id))], ..Plan::default() }
            })
            .await?;
        }
        // Crash here: the merge is done and not in the feed; the recovering process comes here again.
        let mut closed = marker.guest_cart.clone();
        closed.merged_into = Some(cart.cart_id);
        closed.abandon(marker.spec.now, &marker.spec.lifetime);
        self.report_carts(std::iter::once(&closed), Some(cart)).await
    }

    /// Opens the guest's cart again; where the guest has opened another, that one gets the lines.
    async fn reopen_guest_cart(&self, op_id: Uuid, marker: &MergeMarker) -> Result<()> {
        let MergeSpec { lifetime, now, .. } = &marker.spec;
        self.rewrite_guest_cart(op_id, marker, |closed, guest| {
            let Some(open) = &guest.open else {
                // A version never repeats, so the cart that was closed comes back with a new one.
                let version = guest.view.header.last_version + 1;
                let again = Cart { version, ..marker.guest_cart.clone() };
                return Plan { after: Some(again.clone()), reopened: vec![again], ..Plan::default() };
            };
            let (mut open, mut closed) = (open.clone(), closed.clone());
            open.merge_from(&mut marker.guest_cart.clone(), MergeMode::User, *now, lifetime);
            closed.merged_into = Some(open.cart_id);
            Plan { after: Some(open), closed: vec![(closed, None)], ..Plan::default() }
        })
        .await
    }

    /// Changes the guest's cart that this merge closed. A second call does no harm: a cart that was opened again has no closed row
    /// with the `merge_id` and is left alone, one that was moved is written again with the same values.
    async fn rewrite_guest_cart(
        &self,
        op_id: Uuid,
        marker: &MergeMarker,
        rewrite: impl Fn(&Cart, &CartPartition) -> Plan + Send + Sync,
    ) -> Result<()> {
        let MergeSpec { guest: owner, lifetime, now, .. } = &marker.spec;
        let ttl = RowTtl::of_change(owner, lifetime, *now);
        let mut cas_loop = CasLoop::of(subject(owner));
        for _ in 0..DECISION_ROUNDS_MAX {
            let seen = self.settled_partition(owner).await?;
            let Some(guest) = self.claim_partition(seen, ttl, &mut cas_loop).await? else { continue };
            let closed = self.closed_cart(&guest, cart_key(&marker.guest_cart)).await?;
            let closed_here = closed.filter(|closed| closed.merge_id == Some(op_id));
            let Some(closed) = closed_here else {
                self.release_claim(&guest).await;
                return Ok(());
            };
            let plan = rewrite(&closed.cart, &guest);
            // Crash here: the guest's cart is as the first half left it; the recovering process comes here again.
            if self.apply_plan(&guest, &plan, ttl, &mut cas_loop).await? {
                // Crash here: only the intent remains, or nothing; the recovering process finds no work and deletes it.
                return Ok(());
            }
        }
        Err(gave_up(DECISION_ROUNDS_MAX, &subject(owner)))
    }

    /// The marker that a merge left in the guest's partition; `None` if it has not closed a cart.
    async fn merge_marker(&self, guest: &Owner, op_id: Uuid) -> Result<Option<MergeMarker>> {
        let bytes = self.read_marker(guest, op_id).await?;
        Ok(bytes.map(|bytes| codec::decode_marker(&bytes)).transpose()?)
    }

    /// Finishes the merge that closed the guest's newest cart, if a process left it half done.
    async fn finish_last_merge(&self, guest: &Owner, op_id: Uuid) -> Result<MergeEnd> {
        // A marker expires long after its merge is finished.
        let Some(marker) = self.merge_marker(guest, op_id).await? else { return Ok(MergeEnd::Merged) };
        match self.read_marker(&marker.spec.user, op_id).await? {
            Some(decision) if decision != REFUSED => Ok(MergeEnd::Merged),
            _ => self.finish_closed_merge(op_id, &marker).await,
        }
    }

    async fn finish_closed_merge(&self, op_id: Uuid, marker: &MergeMarker) -> Result<MergeEnd> {
        match self.decide_for_user(op_id, marker).await {
            Ok(_) => Ok(MergeEnd::Merged),
            Err(StoreError::Refused(_)) => Ok(MergeEnd::RolledBack),
            Err(error) => Err(error),
        }
    }

    /// Recovers an orphaned or abandoned merge. Every step is idempotent, so a crash in here leaves a merge that the
    /// next process recovers in the same way.
    pub(crate) async fn recover_merge(&self, op_id: Uuid, payload: &[u8]) -> Result<()> {
        let guest = codec::decode(payload)?;
        if self.recover_closed_merge(&guest, op_id).await? {
            Ok(())
        } else {
            self.intents.keep_while_in_flight(op_id)
        }
    }

    /// Finishes a merge that has closed the guest's cart; `false` if it has not.
    pub(crate) async fn recover_closed_merge(&self, guest: &Owner, op_id: Uuid) -> Result<bool> {
        // The batch that closes the cart may be in a Paxos round that its coordinator left: complete it before reading.
        finish_paxos(&self.cql, &self.carts.serial_revision, (owner_kind(guest), guest.id())).await?;
        let Some(marker) = self.merge_marker(guest, op_id).await? else { return Ok(false) };
        self.finish_closed_merge(op_id, &marker).await?;
        Ok(true)
    }
}
