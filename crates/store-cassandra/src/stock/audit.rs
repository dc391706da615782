//! The stock audit: every stock level against its ledger, and every open hold against its order or reservation.
//!
//! The audit reads only. It scans the table while the shop sells, so a partition that does not add up is read once
//! more by itself before it is reported.

use std::collections::HashMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::stock::Delta;
use mw_domain::{Level, OrderId, OrderStatus, ReservationId, ReservationStatus, Timestamp};
use mw_store::stock::{Audit, Drift};
use mw_store::{Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::from_cql;
use crate::schema::tables::Table;
use crate::stock::decision::StockKey;
use crate::stock::ledger::{END_OF_TIME, LedgerState};
use crate::stock::rows::{Operation, corrupt_partition, read_level, read_stock_key};

const PAGE: i32 = 1_000;
/// Orders and reservations read at the same time.
const CONCURRENT_OWNERS: usize = 32;

/// A row of a partition: the header first, with the level, then the ledger rows, with an operation.
type AuditRow = (
    String,
    String,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<CqlTimestamp>,
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
        let columns = "SELECT product_id, geo_zone, on_hand, reserved, compacted, updated_at, until, op_id, operation FROM {}";
        let one = format!("{columns} WHERE product_id = ? AND geo_zone = ?");
        let mut all = cql.prepare(Table::Stock, Access::Read, columns).await?;
        let mut one = cql.prepare(Table::Stock, Access::Read, &one).await?;
        all.set_page_size(PAGE);
        one.set_page_size(PAGE);
        Ok(Self { all, one })
    }
}

/// The sums of one partition while its rows are read.
struct PartitionSum {
    stock_key: StockKey,
    /// Void rows and fences alone make no level.
    has_level: bool,
    recorded: Level,
    ledger: Delta,
    /// Units of holds whose order or reservation is open.
    held: u64,
    movements: u64,
}

impl PartitionSum {
    fn is_explained(&self) -> bool {
        self.ledger.on_hand == self.recorded.on_hand.cast_signed()
            && self.ledger.reserved == self.recorded.reserved.cast_signed()
            && self.held == self.recorded.reserved
    }

    fn drift(self) -> Drift {
        Drift {
            product_id: self.stock_key.product_id,
            geo_zone: self.stock_key.geo_zone,
            recorded: self.recorded,
            ledger: self.ledger,
            held: self.held,
        }
    }
}

/// Whether the order or reservation of a hold is open, by operation.
type HoldOwners = HashMap<Uuid, bool>;

impl CassandraStore {
    pub(crate) async fn audit_stock(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        let mut audit = Audit::default();
        let mut current: Option<PartitionSum> = None;
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.cql.page::<AuditRow>(&self.audit.all, (), from).await?;
            let owners = self.hold_owners(&rows).await?;
            for row in rows {
                let is_same = current.as_ref().is_some_and(|sum| is_of(&row, &sum.stock_key));
                if !is_same && let Some(done) = current.take() {
                    self.report_partition(done, &mut audit).await?;
                    progress(audit.levels);
                }
                add(&mut current, row, &owners)?;
            }
            let Some(next) = next else { break };
            from = next;
        }
        if let Some(done) = current {
            self.report_partition(done, &mut audit).await?;
            progress(audit.levels);
        }
        Ok(audit)
    }

    /// Counts a partition. One that does not add up is read again by itself: a sale may have come between two pages.
    async fn report_partition(&self, mut sum: PartitionSum, audit: &mut Audit) -> Result<()> {
        if !sum.is_explained() {
            sum = self.reread_partition(&sum.stock_key).await?.unwrap_or(sum);
        }
        if !sum.has_level && sum.is_explained() {
            return Ok(());
        }
        audit.levels += 1;
        audit.movements += sum.movements;
        if !sum.is_explained() {
            audit.drifts.push(sum.drift());
        }
        Ok(())
    }

    /// Those of the partitions that still do not add up.
    pub(crate) async fn audit_again(&self, drifts: Vec<Drift>) -> Result<Vec<Drift>> {
        let mut left = Vec::new();
        for Drift { product_id, geo_zone, .. } in drifts {
            let sum = self.reread_partition(&StockKey { product_id, geo_zone }).await?;
            left.extend(sum.filter(|sum| !sum.is_explained()).map(PartitionSum::drift));
        }
        Ok(left)
    }

    async fn reread_partition(&self, stock_key: &StockKey) -> Result<Option<PartitionSum>> {
        let mut current = None;
        let mut from = PagingState::start();
        loop {
            let values = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str());
            let (rows, next) = self.cql.page::<AuditRow>(&self.audit.one, values, from).await?;
            let owners = self.hold_owners(&rows).await?;
            for row in rows {
                add(&mut current, row, &owners)?;
            }
            let Some(next) = next else { break };
            from = next;
        }
        Ok(current)
    }

    /// Reads the orders and reservations of the open holds among these rows.
    async fn hold_owners(&self, rows: &[AuditRow]) -> Result<HoldOwners> {
        let mut held = HashMap::new();
        for (.., until, op_id, operation) in rows {
            let (Some(until), Some(op_id), Some(operation)) = (*until, *op_id, operation.clone()) else {
                continue;
            };
            let row = operation.row(until, op_id)?;
            if row.state == LedgerState::Held {
                held.insert(op_id, row.until == END_OF_TIME);
            }
        }
        let reads = held.into_iter().map(|(op_id, is_order)| async move {
            Ok::<_, StoreError>((op_id, self.is_owner_open(op_id, is_order).await?))
        });
        stream::iter(reads.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_OWNERS).try_collect().await
    }

    async fn is_owner_open(&self, op_id: Uuid, is_order: bool) -> Result<bool> {
        Ok(if is_order {
            self.order_status(OrderId::new(op_id)).await? == Some(OrderStatus::Created)
        } else {
            let reservation = self.stored_reservation(ReservationId::new(op_id)).await?;
            reservation.is_some_and(|reservation| reservation.status == ReservationStatus::Held)
        })
    }
}

/// Adds a row to the sum of its partition.
fn add(sum: &mut Option<PartitionSum>, row: AuditRow, owners: &HoldOwners) -> Result<()> {
    let (product, zone, on_hand, reserved, compacted, updated_at, until, op_id, operation) = row;
    let corrupt = || corrupt_partition(&product, &zone);
    if sum.is_none() {
        *sum = Some(PartitionSum {
            stock_key: read_stock_key(&product, &zone)?,
            recorded: read_level(on_hand, reserved).ok_or_else(corrupt)?,
            ledger: Delta { on_hand: compacted.unwrap_or_default(), reserved: 0 },
            has_level: updated_at.is_some_and(|at| from_cql(at) != Timestamp::EPOCH),
            held: 0,
            movements: u64::from(compacted.unwrap_or_default() != 0),
        });
    }
    // The header has no operation.
    let (Some(sum), Some(until), Some(op_id), Some(operation)) = (sum, until, op_id, operation) else {
        return Ok(());
    };
    let row = operation.row(until, op_id)?;
    let effect = row.state.effect(row.quantity);
    sum.movements += 1;
    sum.ledger.on_hand += effect.on_hand;
    sum.ledger.reserved += effect.reserved;
    if row.state == LedgerState::Held && owners.get(&op_id).is_some_and(|is_open| *is_open) {
        sum.held += u64::try_from(row.quantity).map_err(|_| corrupt())?;
    }
    Ok(())
}

fn is_of(row: &AuditRow, stock_key: &StockKey) -> bool {
    row.0 == stock_key.product_id.as_str() && row.1 == stock_key.geo_zone.as_str()
}
