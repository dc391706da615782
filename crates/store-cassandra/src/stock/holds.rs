//! The holds of one order or reservation: a ledger row in the partition of each of its products, under one operation
//! id.
//!
//! Each row is written by the keeper of its partition, so the rows of one owner change one after another. A crash in
//! between leaves some of them behind; every command here can be submitted again and changes only what is behind.

use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{Demand, GeoZone, Order, Reservation, Shortage, Timestamp};
use mw_store::Result;
use uuid::Uuid;

use crate::CassandraStore;
use crate::stock::CONCURRENT_LINES;
use crate::stock::decision::{Decision, StockCommand, StockKey};
use crate::stock::ledger::{END_OF_TIME, LedgerState, Transition};
use crate::stock::shortages::shortage;

/// The operation that units are held for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldOwner<'a> {
    op_id: Uuid,
    geo_zone: &'a GeoZone,
    until: Timestamp,
}

impl<'a> HoldOwner<'a> {
    /// The hold of an order does not expire: the payment timer cancels the order, which releases it.
    pub(crate) const fn order(order: &'a Order) -> Self {
        Self { op_id: order.order_id.uuid(), geo_zone: &order.geo_zone, until: END_OF_TIME }
    }

    pub(crate) const fn reservation(reservation: &'a Reservation) -> Self {
        Self {
            op_id: reservation.reservation_id.uuid(),
            geo_zone: &reservation.geo_zone,
            until: reservation.expires_at,
        }
    }

    pub(crate) fn stock_key(&self, line: &Demand) -> StockKey {
        StockKey { product_id: line.product_id.clone(), geo_zone: self.geo_zone.clone() }
    }
}

/// What became of the hold of one line.
#[derive(Debug)]
pub(crate) enum LineHold {
    Held,
    /// There are too few units now. A process that submits the same hold later may find enough.
    Short(Shortage),
    /// The operation was voided: the line can never be held.
    Void(Shortage),
}

impl CassandraStore {
    pub(crate) async fn hold_line(
        &self,
        owner: HoldOwner<'_>,
        line: &Demand,
        started_at: Option<Instant>,
        now: Timestamp,
    ) -> Result<LineHold> {
        let HoldOwner { op_id, until, .. } = owner;
        let hold = StockCommand::Hold { until, op_id, quantity: line.quantity, started_at };
        match self.submit(&owner.stock_key(line), hold, now).await? {
            Decision::Short { available } => Ok(LineHold::Short(shortage(line, available))),
            Decision::Done { state: Some(LedgerState::Void), stock } => {
                Ok(LineHold::Void(shortage(line, stock.level.available())))
            }
            Decision::Done { .. } => Ok(LineHold::Held),
            other => Err(other.unexpected()),
        }
    }

    /// Holds one line, or voids it; returns the shortage of a void line. Once it is void it can never be held, so every
    /// process that holds the same lines comes to the same end.
    pub(crate) async fn hold_or_void(
        &self,
        owner: HoldOwner<'_>,
        line: &Demand,
        started_at: Option<Instant>,
        now: Timestamp,
    ) -> Result<Option<Shortage>> {
        match self.hold_line(owner, line, started_at, now).await? {
            LineHold::Held => Ok(None),
            LineHold::Void(shortage) => Ok(Some(shortage)),
            LineHold::Short(shortage) => {
                // Another process may run the same operation at the same time and may have found units since. The void
                // row decides for both. A crash before it leaves the line undecided: recovery tries to hold it again.
                let decision = self.advance_line(owner, line, Transition::VoidIfAbsent, now).await?;
                let is_void = matches!(decision, Decision::Done { state: Some(LedgerState::Void), .. });
                Ok(is_void.then_some(shortage))
            }
        }
    }

    /// Advances the hold of one line; returns the decision with the state of its ledger row.
    pub(crate) async fn advance_line(
        &self,
        owner: HoldOwner<'_>,
        line: &Demand,
        transition: Transition,
        now: Timestamp,
    ) -> Result<Decision> {
        let HoldOwner { op_id, until, .. } = owner;
        let advance = StockCommand::Advance { until, op_id, quantity: line.quantity, transition };
        self.keepers.submit(&self.cql, &owner.stock_key(line), advance, now).await
    }

    /// Advances the holds of several lines. An error leaves some of them behind; the caller says which process
    /// advances the rest.
    pub(crate) async fn advance_lines<'l>(
        &self,
        owner: HoldOwner<'_>,
        lines: impl Iterator<Item = &'l Demand>,
        transition: Transition,
        now: Timestamp,
    ) -> Result<()> {
        let advances: Vec<_> = lines
            .map(|line| async move { self.advance_line(owner, line, transition, now).await.map(drop) })
            .collect();
        stream::iter(advances).buffer_unordered(CONCURRENT_LINES).try_collect::<()>().await
    }
}
