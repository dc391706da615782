//! The audit of stock: every figure against its ledger, and every hold against who has it.

use std::collections::HashMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::stock::Delta;
use mw_domain::{GeoZone, Level, OrderId, OrderStatus, ProductId, ReservationId, ReservationStatus};
use mw_store::stock::{Audit, Drift};
use mw_store::{Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::keeper::{Operation, Place};
use crate::ledger::{END_OF_TIME, State};
use crate::tables::Table;

const PAGE: i32 = 1_000;
/// Holders asked for at the same time.
const AT_ONCE: usize = 32;

/// A row of a partition with the figures that all its rows share.
type AuditRow = (
    String,
    String,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<CqlTimestamp>,
    Option<Uuid>,
    Option<Operation>,
);

#[derive(Debug)]
pub(crate) struct Statements {
    all: PreparedStatement,
    one: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let columns =
            "SELECT product_id, geo_zone, on_hand, reserved, folded, until, op_id, operation FROM {}";
        let one = format!("{columns} WHERE product_id = ? AND geo_zone = ?");
        let mut all = cql.prepare(Table::Stock, Access::Read, columns).await?;
        let mut one = cql.prepare(Table::Stock, Access::Read, &one).await?;
        all.set_page_size(PAGE);
        one.set_page_size(PAGE);
        Ok(Self { all, one })
    }
}

/// One figure while its rows are being summed.
struct Sum {
    place: Place,
    recorded: Level,
    ledger: Delta,
    held: u64,
    movements: u64,
}

impl Sum {
    fn is_explained(&self) -> bool {
        self.ledger.on_hand == self.recorded.on_hand.cast_signed()
            && self.ledger.reserved == self.recorded.reserved.cast_signed()
            && self.held == self.recorded.reserved
    }
}

/// Whether whoever holds units still has a right to them; one answer for all rows of one order.
type Holders = HashMap<Uuid, bool>;

impl CassandraStore {
    pub(crate) async fn audit_stock(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        let mut audit = Audit::default();
        let mut current: Option<Sum> = None;
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.cql.page::<AuditRow>(&self.audit.all, (), from).await?;
            let holders = self.holders_of(&rows).await?;
            for row in rows {
                let is_same = current.as_ref().is_some_and(|sum| is_of(&row, &sum.place));
                if !is_same && let Some(done) = current.take() {
                    self.close_figure(done, &mut audit).await?;
                    progress(audit.figures);
                }
                add(&mut current, row, &holders)?;
            }
            let Some(next) = next else { break };
            from = next;
        }
        if let Some(done) = current {
            self.close_figure(done, &mut audit).await?;
            progress(audit.figures);
        }
        Ok(audit)
    }

    /// Counts a figure. One that does not add up is read again by itself: the shop may have sold in between two pages.
    async fn close_figure(&self, mut sum: Sum, audit: &mut Audit) -> Result<()> {
        if !sum.is_explained() {
            sum = self.sum_of(sum).await?;
        }
        audit.figures += 1;
        audit.movements += sum.movements;
        if !sum.is_explained() {
            audit.drifts.push(Drift {
                product_id: sum.place.product_id,
                geo_zone: sum.place.geo_zone,
                recorded: sum.recorded,
                ledger: sum.ledger,
                held: sum.held,
            });
        }
        Ok(())
    }

    async fn sum_of(&self, before: Sum) -> Result<Sum> {
        let mut current = None;
        let mut from = PagingState::start();
        loop {
            let values = (before.place.product_id.as_str(), before.place.geo_zone.as_str());
            let (rows, next) = self.cql.page::<AuditRow>(&self.audit.one, values, from).await?;
            let holders = self.holders_of(&rows).await?;
            for row in rows {
                add(&mut current, row, &holders)?;
            }
            let Some(next) = next else { break };
            from = next;
        }
        Ok(current.unwrap_or(before))
    }

    /// Who holds units by these rows, and whether they have a right to them.
    async fn holders_of(&self, rows: &[AuditRow]) -> Result<Holders> {
        let mut held = HashMap::new();
        for (.., until, op_id, operation) in rows {
            let (Some(until), Some(op_id), Some(operation)) = (*until, *op_id, operation.clone()) else {
                continue;
            };
            let row = operation.row(until, op_id)?;
            if row.state == State::Held {
                held.insert(op_id, row.until == END_OF_TIME);
            }
        }
        let asked = held.into_iter().map(|(op_id, is_order)| async move {
            Ok::<_, StoreError>((op_id, self.has_right(op_id, is_order).await?))
        });
        stream::iter(asked.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn has_right(&self, op_id: Uuid, is_order: bool) -> Result<bool> {
        Ok(if is_order {
            self.order_status(OrderId::new(op_id)).await? == Some(OrderStatus::Created)
        } else {
            let reservation = self.stored_reservation(ReservationId::new(op_id)).await?;
            reservation.is_some_and(|reservation| reservation.status == ReservationStatus::Held)
        })
    }
}

/// Adds a row to the sum of its figure.
fn add(sum: &mut Option<Sum>, row: AuditRow, holders: &Holders) -> Result<()> {
    let (product, zone, on_hand, reserved, folded, until, op_id, operation) = row;
    let corrupt = || StoreError::Corrupt(format!("the stock of {product} in {zone}"));
    let units = |figure: Option<i64>| u64::try_from(figure.unwrap_or_default()).map_err(|_| corrupt());
    if sum.is_none() {
        let product_id = ProductId::parse(&product).map_err(|_| corrupt())?;
        let geo_zone = GeoZone::parse(&zone).map_err(|_| corrupt())?;
        *sum = Some(Sum {
            place: Place { product_id, geo_zone },
            recorded: Level { on_hand: units(on_hand)?, reserved: units(reserved)? },
            ledger: Delta { on_hand: folded.unwrap_or_default(), reserved: 0 },
            held: 0,
            movements: u64::from(folded.unwrap_or_default() != 0),
        });
    }
    // A partition without rows is shown as one row of figures alone.
    let (Some(sum), Some(until), Some(op_id), Some(operation)) = (sum, until, op_id, operation) else {
        return Ok(());
    };
    let row = operation.row(until, op_id)?;
    let effect = row.state.effect(row.quantity);
    sum.movements += 1;
    sum.ledger.on_hand += effect.on_hand;
    sum.ledger.reserved += effect.reserved;
    if row.state == State::Held && holders.get(&op_id).is_some_and(|has_right| *has_right) {
        sum.held += u64::try_from(row.quantity).map_err(|_| corrupt())?;
    }
    Ok(())
}

fn is_of(row: &AuditRow, place: &Place) -> bool {
    row.0 == place.product_id.as_str() && row.1 == place.geo_zone.as_str()
}
