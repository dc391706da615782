//! The steps of an order. The conditional write on its version decides; the units and the lists follow, and an intent
//! makes sure that they do.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_codec::{Damaged, Reader, Writer};
use mw_domain::order::Step;
use mw_domain::stock::Cause;
use mw_domain::{Order, OrderId, OrderStatus, Timestamp};
use mw_store::once::Outcome;
use mw_store::orders::SetStatus;
use mw_store::{Done, Refusal, Result, StoreError};
use scylla::value::MaybeUnset;
use uuid::Uuid;

use super::rows::{EventRow, OwnRow, Standing, slot_of, version};
use super::{EVENTS_MAX, place::demands};
use crate::CassandraStore;
use crate::cql::Row;
use crate::due::{Left, Queue, end_due};
use crate::intents::Kind;
use crate::keeper::{Change, Place};
use crate::ledger::{END_OF_TIME, End};
use crate::once::Memory;
use crate::outcome::Verdict;
use crate::stock::AT_ONCE;

/// Rounds that a step may lose to others.
const ROUNDS: usize = 16;

/// What became of a step.
enum Fate {
    Taken,
    /// Another step took its place, so it can never come.
    Lost,
    /// It is not there, and may still be on its way.
    Open,
}

/// A step that one process is taking.
struct Taken {
    order_id: OrderId,
    /// The version after it.
    version: i64,
    cause: Option<Cause>,
}

impl CassandraStore {
    pub(super) async fn step(&self, command: SetStatus) -> Result<Done<Order>> {
        let once = command.once.clone();
        let now = command.now;
        let remembered: Memory<Order> = (
            |order| Outcome::Order(order.clone()),
            |outcome| match outcome {
                Outcome::Order(order) => Some(order),
                _ => None,
            },
        );
        self.keyed(once.as_ref(), Uuid::new_v4(), now, remembered, |_, maybe_done| {
            self.take_step(command, maybe_done)
        })
        .await
    }

    /// Takes a step. One that may have been taken before under the same key is not refused for its version.
    async fn take_step(&self, command: SetStatus, maybe_done: bool) -> Result<Order> {
        let id = command.order_id;
        let _turn = self.locks.one(&("order", id)).await;
        for _ in 0..ROUNDS {
            let found = self.placed(id).await?;
            let found =
                found.filter(|(order, _)| command.of_user.as_ref().is_none_or(|user| *user == order.user_id));
            let (order, standing) = found.ok_or(Refusal::OrderNotFound(id))?;
            let is_there = maybe_done && order.status == command.to;
            if !is_there && command.expected_version.is_some_and(|expected| expected != order.version) {
                return Err(Refusal::OrderVersion { current: order }.into());
            }
            let cause = match order.status.step(command.to)? {
                Step::Stay => return Ok(order),
                Step::Move => None,
                Step::MoveUnits(cause) => Some(cause),
            };
            let next = self.write_step(&order, &standing, &command, cause).await?;
            if let Some(next) = next {
                return Ok(next);
            }
        }
        Err(StoreError::Unavailable(format!("order {id} is being fought for")))
    }

    /// One attempt of a step; `None` where somebody else changed the order first.
    async fn write_step(
        &self,
        order: &Order,
        standing: &Standing,
        command: &SetStatus,
        cause: Option<Cause>,
    ) -> Result<Option<Order>> {
        let mut next = order.clone();
        let event = next.advance(command.to, command.note.clone(), command.now);
        let taken = Taken { order_id: order.order_id, version: version(&next), cause };
        let mark = Uuid::new_v4();
        let intent = self.intents.begin(&self.cql, Kind::Status, mark, encode(&taken)).await?;
        let (slot, id) = (slot_of(order.order_id), order.order_id.uuid());
        let step: Row = Box::new((
            next.status.as_str(),
            crate::time::to_cql(next.updated_at),
            version(&next),
            slot,
            id,
            version(order),
        ));
        let event: Row = Box::new((
            slot,
            id,
            version(&next),
            crate::time::to_cql(event.at),
            order.status.as_str(),
            event.to.as_str(),
            event.note.map_or(MaybeUnset::Unset, MaybeUnset::Set),
            mark,
        ));
        let orders = &self.orders;
        let write = vec![(Arc::clone(&orders.step), step), (Arc::clone(&orders.step_event), event)];
        let is_taken = match orders.steps.cas(&self.cql, slot, order.order_id, write).await {
            Ok(Verdict::Applied) => Ok(true),
            Ok(Verdict::NotApplied) => Ok(false),
            Ok(Verdict::Unknown) => match self.step_fate(order.order_id, version(&next), mark).await {
                Ok(Fate::Taken) => Ok(true),
                Ok(Fate::Lost) => Ok(false),
                Ok(Fate::Open) => {
                    Err(StoreError::Ambiguous(format!("a step of order {} was not answered", order.order_id)))
                }
                Err(error) => Err(StoreError::Ambiguous(error.to_string())),
            },
            Err(error) => Err(error),
        };
        match is_taken {
            Ok(true) => {}
            Ok(false) => {
                self.end_soon(intent);
                return Ok(None);
            }
            Err(error) => {
                self.intents.leave(intent);
                return Err(error);
            }
        }
        match self.follow(&next, standing, cause, command.now).await {
            Ok(()) => {
                self.end_soon(intent);
                Ok(Some(next))
            }
            Err(error) => {
                self.intents.leave(intent);
                Err(StoreError::Ambiguous(format!("the step is taken, the rest follows: {error}")))
            }
        }
    }

    /// What became of a step whose answer was lost.
    async fn step_fate(&self, id: OrderId, version: i64, mark: Uuid) -> Result<Fate> {
        let asked = (slot_of(id), id.uuid(), EVENTS_MAX);
        let rows: Vec<EventRow> = self.cql.rows(&self.orders.marks, asked).await?;
        Ok(if rows.iter().any(|row| row.mark == Some(mark)) {
            Fate::Taken
        } else if rows.iter().any(|row| row.number() >= version) {
            Fate::Lost
        } else {
            Fate::Open
        })
    }

    /// What follows a step: the units, and the rows of the lists.
    async fn follow(
        &self,
        order: &Order,
        standing: &Standing,
        cause: Option<Cause>,
        now: Timestamp,
    ) -> Result<()> {
        let end = cause.and_then(end_of);
        if let Some(end) = end {
            let moves = demands(order).into_iter().map(|line| {
                let place = Place { product_id: line.product_id, geo_zone: order.geo_zone.clone() };
                let op_id = order.order_id.uuid();
                let change = Change::End { until: END_OF_TIME, op_id, quantity: line.quantity, end };
                async move { self.keepers.ask(&self.cql, &place, change, now).await.map(drop) }
            });
            let moves: Vec<_> = moves.collect();
            stream::iter(moves).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        }
        self.write_lists(order, standing).await
    }

    /// Finishes a step that somebody took, and only if it was this one.
    pub(crate) async fn recover_step(&self, mark: Uuid, payload: &[u8]) -> Result<()> {
        let taken = decode(payload)?;
        match self.step_fate(taken.order_id, taken.version, mark).await? {
            Fate::Taken => {}
            Fate::Open => return self.intents.wait_for(mark),
            Fate::Lost => return Ok(()),
        }
        let Some((order, standing)) = self.placed(taken.order_id).await? else { return Ok(()) };
        self.follow(&order, &standing, taken.cause, order.updated_at).await
    }

    pub(super) async fn cancel_late(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
        let left = &Left::new(limit);
        let late = move |row: OwnRow| {
            let order = row.read()?.map(|(order, _)| order);
            let is_late = |order: &Order| order.status == OrderStatus::Created && now >= order.pay_by;
            Ok(order.filter(is_late).map(|order| order.order_id))
        };
        let cancel = move |order_id| self.cancel(order_id, note, now);
        let walk = |slot| end_due(&self.cql, (&self.orders.of_slot, slot), left, late, cancel);
        let slot = |id| slot_of(OrderId::new(id));
        self.due.work_off(&self.cql, Queue::Payment, (now, limit), slot, walk).await
    }

    async fn cancel(&self, order_id: OrderId, note: &str, now: Timestamp) -> Result<bool> {
        let command = SetStatus {
            order_id,
            of_user: None,
            to: OrderStatus::Cancelled,
            note: Some(note.to_owned()),
            expected_version: Some(1),
            now,
            once: None,
        };
        match self.take_step(command, false).await {
            Ok(_) => Ok(true),
            // Somebody paid or cancelled it at this moment.
            Err(StoreError::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

const fn end_of(cause: Cause) -> Option<End> {
    match cause {
        Cause::Take => Some(End::Take),
        Cause::Release => Some(End::Release),
        Cause::Return => Some(End::Return),
        Cause::Hold | Cause::Set | Cause::Adjust => None,
    }
}

fn encode(taken: &Taken) -> Vec<u8> {
    let mut writer = Writer::new(32);
    writer.bytes(taken.order_id.as_bytes());
    writer.signed(taken.version);
    writer.byte(match taken.cause {
        Some(Cause::Take) => 1,
        Some(Cause::Release) => 2,
        Some(Cause::Return) => 3,
        _ => 0,
    });
    writer.done()
}

fn decode(bytes: &[u8]) -> Result<Taken, Damaged> {
    let mut reader = Reader::new(bytes, "the intent of a step")?;
    let order_id = OrderId::from_bytes(reader.array()?);
    let version = reader.signed()?;
    let cause = match reader.byte()? {
        0 => None,
        1 => Some(Cause::Take),
        2 => Some(Cause::Release),
        3 => Some(Cause::Return),
        _ => return Err(reader.damaged()),
    };
    reader.end()?;
    Ok(Taken { order_id, version, cause })
}
