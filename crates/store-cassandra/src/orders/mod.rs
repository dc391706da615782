//! Orders: placing one over several partitions so that it is whole or not at all, its steps, its lists.

mod lists;
mod place;
mod rows;
mod status;

use mw_domain::{GeoZone, Order, OrderEvent, OrderId, OrderStatus, Period, Timestamp, UserId};
use mw_store::orders::{PlaceOrder, Sales, SetStatus};
use mw_store::{Done, Orders, Page, PageRequest, Result};
use scylla::statement::prepared::PreparedStatement;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::scan;
use crate::tables::Table;
use rows::{EventRow, PlacedRow, Standing, Writes};
pub(crate) use rows::{ScannedOrder, read_scanned};

/// An order has at most six events; more would not be an order.
const EVENTS_MAX: i32 = 100;

#[derive(Debug)]
pub(crate) struct Statements {
    read: PreparedStatement,
    read_status: PreparedStatement,
    events: PreparedStatement,
    events_serial: PreparedStatement,
    step: PreparedStatement,
    step_event: PreparedStatement,
    scan: PreparedStatement,
    writes: Writes,
    lists: lists::Statements,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::OrderById;
        let read = format!(
            "SELECT {}, bucket, zone_shard, day_shard FROM {{}} WHERE order_id = ? LIMIT 1",
            rows::COLUMNS
        );
        let events = "SELECT event_no, event_at, from_status, to_status, note, mark FROM {} \
             WHERE order_id = ? LIMIT ?";
        let step = "UPDATE {} SET status = ?, updated_at = ?, version = ? WHERE order_id = ? IF version = ?";
        let step_event = "INSERT INTO {} (order_id, event_no, event_at, from_status, to_status, note, mark) \
             VALUES (?, ?, ?, ?, ?, ?, ?)";
        Ok(Self {
            read: cql.prepare(table, Access::Read, &read).await?,
            read_status: cql
                .prepare(table, Access::Read, "SELECT status FROM {} WHERE order_id = ? LIMIT 1")
                .await?,
            events: cql.prepare(table, Access::Read, events).await?,
            events_serial: cql.prepare(table, Access::Serial, events).await?,
            step: cql.prepare(table, Access::Cas, step).await?,
            step_event: cql.prepare(table, Access::Cas, step_event).await?,
            scan: scan::prepare(cql, table, &format!("{}, {}", rows::COLUMNS, rows::EVENT_COLUMNS)).await?,
            writes: Writes::prepare(cql).await?,
            lists: lists::Statements::prepare(cql).await?,
        })
    }
}

impl CassandraStore {
    /// An order with where it stands in the lists.
    async fn placed(&self, order_id: OrderId) -> Result<Option<(Order, Standing)>> {
        let row: Option<PlacedRow> = self.cql.first(&self.orders.read, (order_id.uuid(),)).await?;
        row.map_or(Ok(None), rows::read_placed)
    }

    /// The walk over all orders.
    pub(crate) const fn order_scan(&self) -> &PreparedStatement {
        &self.orders.scan
    }

    pub(crate) async fn order_status(&self, order_id: OrderId) -> Result<Option<OrderStatus>> {
        let row: Option<(Option<String>,)> =
            self.cql.first(&self.orders.read_status, (order_id.uuid(),)).await?;
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
        let asked = (order_id.uuid(), EVENTS_MAX);
        let rows: Vec<EventRow> = self.cql.rows(&self.orders.events, asked).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        rows.into_iter().map(|row| row.read(order_id)).collect::<Result<_>>().map(Some)
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
