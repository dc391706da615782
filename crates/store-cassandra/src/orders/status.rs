//! Status changes of an order: a conditional write on the order's version decides, then the units and the lists
//! follow.
//!
//! The intent comes before the decision, so that a process which crashes after it leaves a change that recovery
//! finishes ([`CassandraStore::recover_status_change`]). The event of the change carries a token that the intent names:
//! that is how recovery knows whether this very change was applied. The token of a request with a key is the operation
//! id of the key, so a repeated request finds its event, whatever happened to the order since: the event is the stored
//! outcome of its key.

use std::sync::Arc;

use mw_codec::intents::status::{self as status_intent, StatusIntent};
use mw_domain::orders::Step;
use mw_domain::stock::Cause;
use mw_domain::{Order, OrderEvent, OrderId, OrderStatus, Timestamp};
use mw_store::idempotency::StoredValue;
use mw_store::orders::{SetStatus, check_version};
use mw_store::{Done, Refusal, Result, StoreError};
use scylla::value::MaybeUnset;
use uuid::Uuid;

use super::rows::{EventRow, ListBuckets, OrderRow, StoredOrder, time_bucket_of, version};
use super::{EVENTS_MAX, place::demands};
use crate::CassandraStore;
use crate::changes::OrderStep;
use crate::driver::certainty::CasResult;
use crate::driver::statements::Row;
use crate::driver::time::to_cql;
use crate::recovery::idempotency::Claim;
use crate::recovery::intents::Kind;
use crate::recovery::timers::{Budget, TimerQueue, fire_partition};
use crate::revision::{CasAttempt, CasFate, Revision, gave_up};
use crate::stock::holds::HoldOwner;
use crate::stock::ledger::Transition;

/// CAS rounds that a status change may lose to other changes of the order.
const ROUNDS: usize = 16;

/// An order after a request to change its status.
struct StatusChange {
    order: Order,
    /// An event of the order carries the token of the request. Otherwise the order had the status already.
    has_event: bool,
}

impl CassandraStore {
    pub(super) async fn change_status(&self, command: SetStatus) -> Result<Done<Order>> {
        let now = command.now;
        let Some(identity) = command.identity.clone() else {
            return Ok(Done::first(self.change_status_once(command, Uuid::new_v4(), false).await?.order));
        };
        let _lock = self.locks.idempotency_key(identity.key.as_str()).await;
        let (op_id, is_retry) = match self.claims.claim(&self.cql, &identity, Uuid::new_v4(), now).await? {
            Claim::Execute { op_id, is_retry } => (op_id, is_retry),
            Claim::Replay(outcome) => {
                let order = Order::from_outcome(*outcome).ok_or(Refusal::KeyReused)?;
                return Ok(Done::replay(order));
            }
        };
        // A crash from here on leaves a claim without an outcome: a second request makes the change, or finds its event.
        match self.change_status_once(command, op_id, is_retry).await {
            Ok(StatusChange { order, has_event }) => {
                if !has_event {
                    let outcome = order.to_outcome();
                    let stored = self.claims.store_outcome(&self.cql, &identity, op_id, now, &outcome);
                    stored.await.map_err(StoreError::after_first_effect)?;
                }
                Ok(Done { value: order, replayed: is_retry })
            }
            Err(StoreError::Refused(refusal)) => {
                // A crash here leaves the claim of a refused change: the next request decides again under its id.
                self.claims.release(&self.cql, &identity, op_id).await?;
                Err(StoreError::Refused(refusal))
            }
            // Any other failure keeps the claim: the next request with the key goes on under the same id.
            Err(error) => Err(error),
        }
    }

    /// Changes the status, with `op_token` in the event. A change that an earlier request with the same key made is
    /// found by the token, and is not refused for what happened since.
    async fn change_status_once(
        &self,
        command: SetStatus,
        op_token: Uuid,
        is_retry: bool,
    ) -> Result<StatusChange> {
        let id = command.order_id;
        let _lock = self.locks.partition(&("order", id)).await;
        for round in 0..ROUNDS {
            let found = self.find_order(id).await?;
            let is_visible = |stored: &&StoredOrder| {
                command.of_user.as_ref().is_none_or(|user| *user == stored.order.user_id)
            };
            let stored = found.as_ref().filter(is_visible).ok_or(Refusal::OrderNotFound(id))?;
            let order = &stored.order;
            // A round is also lost to a second request with the same key.
            if is_retry || round > 0 {
                let events = self.events_with_tokens(id).await?;
                if let Some(event) = events.into_iter().find(|event| event.op_token == Some(op_token)) {
                    let version = event.version();
                    return Ok(StatusChange {
                        order: order.clone().as_of(version, &event.read(id)?),
                        has_event: true,
                    });
                }
            }
            check_version(order, command.expected_version)?;
            let cause = match order.status.step(command.to)? {
                Step::Stay => return Ok(StatusChange { order: order.clone(), has_event: false }),
                Step::Move => None,
                Step::MoveUnits(cause) => Some(cause),
            };
            let change = (op_token, cause);
            let changed = self.attempt_status_change(stored, &command, change).await?;
            if let Some(order) = changed {
                return Ok(StatusChange { order, has_event: true });
            }
        }
        Err(gave_up(ROUNDS, &format!("order {id}")))
    }

    /// One attempt of a status change; `None` where another change of the order came first.
    async fn attempt_status_change(
        &self,
        stored: &StoredOrder,
        command: &SetStatus,
        (op_token, cause): (Uuid, Option<Cause>),
    ) -> Result<Option<Order>> {
        let StoredOrder { order, list_buckets, .. } = stored;
        let mut next = order.clone();
        let event = next.advance(command.to, command.note.clone(), command.now);
        let order_id = order.order_id;
        let payload =
            status_intent::encode(&StatusIntent { order_id, version: version(&next), op_token, cause });
        // Not the token: a later attempt of the request has an intent of its own, which must outlive this one.
        let intent_id = Uuid::new_v4();
        let intent = self.intents.begin(&self.cql, Kind::Status, intent_id, payload).await?;
        // A crash here leaves only the intent. Recovery finds no event with its token, makes sure that the write can no
        // longer arrive, and drops the intent.
        let key = command.identity.as_ref().map(|identity| identity.key.as_str());
        match self.cas_status(stored, &next, event, (op_token, key)).await {
            Ok(true) => {}
            Ok(false) => {
                self.complete_soon(intent);
                return Ok(None);
            }
            Err(error) => {
                // Recovery of this process reads whether the change was applied, and finishes it if so.
                self.intents.abandon(intent);
                return Err(error);
            }
        }
        // The change is made. A crash here leaves the units and the lists behind; recovery finds the event and moves
        // them.
        let applied = self.apply_status_change(&next, list_buckets, cause, command.now).await;
        // A crash here leaves the step without its row in the feed; recovery finds the event and writes the row.
        let (version, moves_units) = (next.version, cause.is_some());
        let step = OrderStep { version, moves_units, previous_at: Some(order.updated_at) };
        let reported = match applied {
            Ok(()) => self.report_step(&next, step, command.now).await,
            failed => failed,
        };
        match reported {
            Ok(()) => {
                // A crash before the intent is removed leaves it to recovery, which finds everything done.
                self.complete_soon(intent);
                Ok(Some(next))
            }
            Err(error) => {
                self.intents.abandon(intent);
                let id = order.order_id;
                Err(StoreError::Ambiguous(format!(
                    "change status of order {id}: changed, stock and lists follow by recovery: {error}"
                )))
            }
        }
    }

    /// Writes the new status and its event on the condition of the old version and fence; `false` where one of them has
    /// changed.
    async fn cas_status(
        &self,
        StoredOrder { order, fence, .. }: &StoredOrder,
        next: &Order,
        event: OrderEvent,
        (op_token, key): (Uuid, Option<&str>),
    ) -> Result<bool> {
        let (time_bucket, id) = (time_bucket_of(order.order_id), order.order_id.uuid());
        let status: Row = Box::new((
            next.status.as_str(),
            to_cql(next.updated_at),
            version(next),
            time_bucket,
            id,
            version(order),
            *fence,
        ));
        let event: Row = Box::new((
            time_bucket,
            id,
            version(next),
            to_cql(event.at),
            order.status.as_str(),
            event.to.as_str(),
            event.note.map_or(MaybeUnset::Unset, MaybeUnset::Set),
            op_token,
            key.map_or(MaybeUnset::Unset, |key| MaybeUnset::Set(key.to_owned())),
        ));
        let orders = &self.orders;
        let write = vec![(Arc::clone(&orders.set_status), status), (Arc::clone(&orders.insert_event), event)];
        match orders.status_changes.cas(&self.cql, time_bucket, order.order_id, write).await? {
            CasResult::Applied => Ok(true),
            CasResult::NotApplied => Ok(false),
            CasResult::Unknown => {
                let attempt = CasAttempt { expected: Some(version(order)), op_token };
                let ambiguous =
                    |cause: &str| StoreError::Ambiguous(format!("change status of order {id}: {cause}"));
                match self.status_change_fate(order.order_id, attempt).await {
                    Ok(CasFate::Applied) => Ok(true),
                    Ok(CasFate::Superseded) => Ok(false),
                    Ok(CasFate::Pending | CasFate::Unknown) => {
                        Err(ambiguous("the write may still be in flight"))
                    }
                    Err(error) => Err(ambiguous(&error.to_string())),
                }
            }
        }
    }

    /// The fate of a status change whose result was lost. The version of an order is its revision, and its events
    /// carry the tokens.
    async fn status_change_fate(&self, order_id: OrderId, attempt: CasAttempt) -> Result<CasFate> {
        let rows = self.events_with_tokens(order_id).await?;
        let version = rows.iter().map(EventRow::number).max();
        // Another attempt of the same request has the same token at another version.
        let next_version = attempt.expected.map(|expected| expected + 1);
        let of_attempt = rows.iter().filter(|row| Some(row.number()) == next_version);
        let op_tokens = of_attempt.filter_map(|row| row.op_token).collect();
        Ok(attempt.fate(&Revision::new(version, Some(op_tokens))))
    }

    /// The events of an order as the last conditional write left them, newest first.
    async fn events_with_tokens(&self, order_id: OrderId) -> Result<Vec<EventRow>> {
        let key = (time_bucket_of(order_id), order_id.uuid(), EVENTS_MAX);
        self.cql.rows(&self.orders.event_tokens, key).await
    }

    /// Carries a status change to the units and to the lists.
    async fn apply_status_change(
        &self,
        order: &Order,
        list_buckets: &ListBuckets,
        cause: Option<Cause>,
        now: Timestamp,
    ) -> Result<()> {
        if let Some(transition) = cause.and_then(transition_of) {
            let lines = demands(order);
            // A crash between two lines leaves some holds behind; recovery advances the rest.
            self.advance_lines(HoldOwner::order(order), lines.iter(), transition, now).await?;
        }
        // A crash here, or between two lists, leaves lists with the old status; recovery writes all three again.
        self.write_lists(order, list_buckets).await
    }

    /// Finishes a status change that was made by a process that crashed or gave up, and only if it was this change. A
    /// crash of the recovering process leaves the intent; the next process starts again here.
    pub(crate) async fn recover_status_change(&self, intent_id: Uuid, payload: &[u8]) -> Result<()> {
        let StatusIntent { order_id, version, op_token, cause } = status_intent::decode(payload)?;
        let attempt = CasAttempt { expected: Some(version - 1), op_token };
        match self.status_change_fate(order_id, attempt).await? {
            CasFate::Applied => {}
            CasFate::Superseded => return Ok(()),
            CasFate::Pending if self.fence_status_change(order_id, version - 1).await? => return Ok(()),
            // Another change, or this very one, was applied meanwhile.
            CasFate::Pending => {
                return Err(StoreError::Ambiguous(format!(
                    "recover a status change of order {order_id}: it has changed, recovery tries again"
                )));
            }
            CasFate::Unknown => return self.intents.keep_while_in_flight(intent_id),
        }
        // The order may have changed again since. Its newest version goes into the lists; the units move by the cause
        // of this change, and a ledger row that is further on stays as it is.
        let Some(StoredOrder { order, list_buckets, .. }) = self.find_order(order_id).await? else {
            return Ok(());
        };
        self.apply_status_change(&order, &list_buckets, cause, order.updated_at).await?;
        self.report_recovered(&order, version.cast_unsigned()).await
    }

    /// Makes sure that no status change which was begun at this version can apply any more, however late it arrives; `false`
    /// where the order has left the version. A crash after it leaves an order that is unchanged for every reader.
    async fn fence_status_change(&self, order_id: OrderId, version: i64) -> Result<bool> {
        let values = (Uuid::new_v4(), time_bucket_of(order_id), order_id.uuid(), version);
        match self.cql.cas(&self.orders.fence, values).await? {
            CasResult::Applied => Ok(true),
            CasResult::NotApplied => Ok(false),
            CasResult::Unknown => Err(StoreError::Ambiguous(format!("fence order {order_id}: no result"))),
        }
    }

    /// Cancels orders whose payment timer has fired; returns how many.
    pub(super) async fn cancel_overdue(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
        let budget = &Budget::new(limit);
        let overdue = move |row: OrderRow| {
            let order = row.read()?.map(|stored| stored.order);
            let is_overdue = |order: &Order| order.status == OrderStatus::Created && now >= order.pay_by;
            Ok(order.filter(is_overdue).map(|order| order.order_id))
        };
        let cancel = move |order_id| self.cancel_overdue_order(order_id, note, now);
        // The timer is removed after its whole partition was walked. A crash before that leaves the timer: it fires
        // again, here or in another process, and finds the orders cancelled.
        let reader = (&*self.cql, self.timers.unreadable());
        let walk = |time_bucket| {
            fire_partition(reader, (&self.orders.by_time_bucket, time_bucket), budget, overdue, cancel)
        };
        let time_bucket = |id| time_bucket_of(OrderId::new(id));
        self.timers.fire_due(&self.cql, TimerQueue::Payment, (now, limit), time_bucket, walk).await
    }

    async fn cancel_overdue_order(&self, order_id: OrderId, note: &str, now: Timestamp) -> Result<bool> {
        let command = SetStatus {
            order_id,
            of_user: None,
            to: OrderStatus::Cancelled,
            note: Some(note.to_owned()),
            expected_version: Some(1),
            now,
            identity: None,
        };
        match self.change_status_once(command, Uuid::new_v4(), false).await {
            Ok(_) => Ok(true),
            // The order was paid or cancelled at this moment.
            Err(StoreError::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

const fn transition_of(cause: Cause) -> Option<Transition> {
    match cause {
        Cause::Take => Some(Transition::Take),
        Cause::Release => Some(Transition::Release),
        Cause::Return => Some(Transition::Return),
        Cause::Hold | Cause::Set | Cause::Adjust => None,
    }
}
