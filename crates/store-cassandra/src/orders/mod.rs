//! Orders: placing one over several partitions so that it is whole or not at all, its steps, its lists.

mod lists;
mod place;
mod rows;
mod status;

use std::sync::Arc;

use mw_domain::{GeoZone, Order, OrderEvent, OrderId, OrderStatus, Period, Timestamp, UserId};
use mw_store::orders::{PlaceOrder, Sales, SetStatus};
use mw_store::{Done, Orders, Page, PageRequest, Result};
use scylla::statement::prepared::PreparedStatement;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::registers::Registers;
use crate::scan;
use crate::tables::Table;
pub(crate) use rows::{OwnRow, read_scanned};
use rows::{Standing, Writes, slot_of};

/// An order has at most six events; more would not be an order.
const EVENTS_MAX: i32 = 100;
/// Rows of a slot that are read at a time.
const SLOT_PAGE: i32 = 500;

#[derive(Debug)]
pub(crate) struct Statements {
    read: PreparedStatement,
    read_status: PreparedStatement,
    events: PreparedStatement,
    marks: PreparedStatement,
    of_slot: PreparedStatement,
    step: Arc<PreparedStatement>,
    step_event: Arc<PreparedStatement>,
    steps: Registers<i64, OrderId>,
    scan: PreparedStatement,
    writes: Writes,
    lists: lists::Statements,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::OrderById;
        let one = "slot = ? AND order_id = ?";
        let read = format!("SELECT {} FROM {{}} WHERE {one} AND event_no = 1", rows::own_columns());
        let read_status = format!("SELECT status FROM {{}} WHERE {one} AND event_no = 1");
        let events = format!("SELECT {} FROM {{}} WHERE {one} LIMIT ?", rows::own_columns());
        let marks = format!("SELECT {} FROM {{}} WHERE {one} LIMIT ?", rows::EVENT_COLUMNS);
        let of_slot = format!("SELECT {} FROM {{}} WHERE slot = ?", rows::own_columns());
        let mut of_slot = cql.prepare(table, Access::Read, &of_slot).await?;
        of_slot.set_page_size(SLOT_PAGE);
        let step = "UPDATE {} SET status = ?, updated_at = ?, version = ? \
             WHERE slot = ? AND order_id = ? AND event_no = 1 IF version = ?";
        let step_event = "INSERT INTO {} (slot, order_id, event_no, event_at, from_status, to_status, note, mark) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        Ok(Self {
            read: cql.prepare(table, Access::Read, &read).await?,
            read_status: cql.prepare(table, Access::Read, &read_status).await?,
            events: cql.prepare(table, Access::Read, &events).await?,
            marks: cql.prepare(table, Access::Serial, &marks).await?,
            of_slot,
            step: Arc::new(cql.prepare(table, Access::Cas, step).await?),
            step_event: Arc::new(cql.prepare(table, Access::Cas, step_event).await?),
            steps: Registers::default(),
            scan: scan::prepare(cql, table, &rows::own_columns()).await?,
            writes: Writes::prepare(cql).await?,
            lists: lists::Statements::prepare(cql).await?,
        })
    }
}

impl CassandraStore {
    /// An order with where it stands in the lists.
    async fn placed(&self, order_id: OrderId) -> Result<Option<(Order, Standing)>> {
        let asked = (slot_of(order_id), order_id.uuid());
        let row: Option<OwnRow> = self.cql.first(&self.orders.read, asked).await?;
        row.map_or(Ok(None), OwnRow::read)
    }

    /// The walk over all orders.
    pub(crate) const fn order_scan(&self) -> &PreparedStatement {
        &self.orders.scan
    }

    /// The rows of an order: it and its events, the newest first.
    pub(crate) async fn order_rows(&self, order_id: OrderId) -> Result<Vec<OwnRow>> {
        let asked = (slot_of(order_id), order_id.uuid(), EVENTS_MAX);
        self.cql.rows(&self.orders.events, asked).await
    }

    pub(crate) async fn order_status(&self, order_id: OrderId) -> Result<Option<OrderStatus>> {
        let asked = (slot_of(order_id), order_id.uuid());
        let row: Option<(Option<String>,)> = self.cql.first(&self.orders.read_status, asked).await?;
        Ok(row.and_then(|(status,)| OrderStatus::parse(&status?)))
    }
}

#[async_trait::async_trait]
impl Orders for CassandraStore {
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        self.place(command).await
    }

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
        Ok(self.placed(order_id).await?.map(|(order, _)| order))
    }

    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
        let rows = self.order_rows(order_id).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        rows.into_iter().map(OwnRow::event).collect::<Result<_>>().map(Some)
    }

    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>> {
        self.step(command).await
    }

    async fn customer_orders(
        &self,
        user_id: &UserId,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        self.list_of_customer(user_id, period, page).await
    }

    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        self.list_by_day(geo_zone, period, page).await
    }

    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        self.sum_sales(geo_zone, period).await
    }

    async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
        self.cancel_late(now, note, limit).await
    }
}
