//! Orders: by id, in lists, placed over several partitions completely or not at all.
//!
//! The order's own row decides what a reader sees by id; the lists hold a snapshot of the order at a version and may
//! be behind by one status change for a moment. Placing (`place.rs`) and status changes (`status.rs`) write an intent
//! first, so that recovery finishes what a crashed process began.

mod draft;
mod lists;
pub(crate) mod migration;
mod place;
mod rows;
mod status;
mod writes;

use std::sync::Arc;

use mw_domain::{GeoZone, Order, OrderEvent, OrderId, OrderStatus, Period, Timestamp, UserId};
use mw_store::orders::{PlaceOrder, Sales, SetStatus};
use mw_store::{Done, Orders, Page, PageRequest, Result};
use scylla::statement::prepared::PreparedStatement;

use crate::CassandraStore;
use crate::driver::coalesce::cas::BatchedCas;
use crate::driver::scan;
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;
pub(crate) use rows::{OrderRow, ScannedOrder, read_scanned};
use rows::{StoredOrder, time_bucket_of};
use writes::Writes;

/// Events read of one order. An order has at most six.
const EVENTS_MAX: i32 = 100;
/// Rows of a time bucket read at a time.
const BUCKET_PAGE: i32 = 500;

#[derive(Debug)]
pub(crate) struct Statements {
    read: PreparedStatement,
    read_status: PreparedStatement,
    events: PreparedStatement,
    event_tokens: PreparedStatement,
    by_time_bucket: PreparedStatement,
    set_status: Arc<PreparedStatement>,
    fence: PreparedStatement,
    insert_event: Arc<PreparedStatement>,
    status_changes: BatchedCas<i64, OrderId>,
    scan: PreparedStatement,
    writes: Writes,
    lists: lists::Statements,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::OrderById;
        let one = "time_bucket = ? AND order_id = ?";
        let read = format!("SELECT {} FROM {{}} WHERE {one} AND event_no = 1", rows::order_columns());
        let read_status = format!("SELECT status FROM {{}} WHERE {one} AND event_no = 1");
        let events = format!("SELECT {} FROM {{}} WHERE {one} LIMIT ?", rows::order_columns());
        let event_tokens = format!("SELECT {} FROM {{}} WHERE {one} LIMIT ?", rows::EVENT_COLUMNS);
        let by_time_bucket = format!("SELECT {} FROM {{}} WHERE time_bucket = ?", rows::order_columns());
        let mut by_time_bucket = cql.prepare(table, Access::Read, &by_time_bucket).await?;
        by_time_bucket.set_page_size(BUCKET_PAGE);
        let set_status = "UPDATE {} SET status = ?, updated_at = ?, version = ? \
             WHERE time_bucket = ? AND order_id = ? AND event_no = 1 IF version = ? AND fence = ?";
        let fence =
            "UPDATE {} SET fence = ? WHERE time_bucket = ? AND order_id = ? AND event_no = 1 IF version = ?";
        let insert_event = "INSERT INTO {} (time_bucket, order_id, event_no, event_at, from_status, to_status, note, op_token, \
             idempotency_key) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
        Ok(Self {
            read: cql.prepare(table, Access::Read, &read).await?,
            read_status: cql.prepare(table, Access::Read, &read_status).await?,
            events: cql.prepare(table, Access::Read, &events).await?,
            event_tokens: cql.prepare(table, Access::Serial, &event_tokens).await?,
            by_time_bucket,
            set_status: Arc::new(cql.prepare(table, Access::Cas, set_status).await?),
            fence: cql.prepare(table, Access::Cas, fence).await?,
            insert_event: Arc::new(cql.prepare(table, Access::Cas, insert_event).await?),
            status_changes: BatchedCas::default(),
            scan: scan::prepare(cql, table, &rows::order_columns()).await?,
            writes: Writes::prepare(cql).await?,
            lists: lists::Statements::prepare(cql).await?,
        })
    }
}

impl CassandraStore {
    /// An order with its buckets in the lists.
    async fn find_order(&self, order_id: OrderId) -> Result<Option<StoredOrder>> {
        let values = (time_bucket_of(order_id), order_id.uuid());
        let row: Option<OrderRow> = self.cql.first(&self.orders.read, values).await?;
        row.map_or(Ok(None), OrderRow::read)
    }

    /// The scan of all orders.
    pub(crate) const fn order_scan(&self) -> &PreparedStatement {
        &self.orders.scan
    }

    /// The rows of an order with its events, newest first.
    pub(crate) async fn order_rows(&self, order_id: OrderId) -> Result<Vec<OrderRow>> {
        let values = (time_bucket_of(order_id), order_id.uuid(), EVENTS_MAX);
        self.cql.rows(&self.orders.events, values).await
    }

    pub(crate) async fn order_status(&self, order_id: OrderId) -> Result<Option<OrderStatus>> {
        let values = (time_bucket_of(order_id), order_id.uuid());
        let row: Option<(Option<String>,)> = self.cql.first(&self.orders.read_status, values).await?;
        Ok(row.and_then(|(status,)| OrderStatus::parse(&status?)))
    }
}

#[async_trait::async_trait]
impl Orders for CassandraStore {
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        self.check_sale(command.now)?;
        self.place(command).await
    }

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
        Ok(self.find_order(order_id).await?.map(|stored| stored.order))
    }

    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
        let rows = self.order_rows(order_id).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        rows.into_iter().map(OrderRow::event).collect::<Result<_>>().map(Some)
    }

    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>> {
        self.check_sale(command.now)?;
        self.change_status(command).await
    }

    async fn user_orders(&self, user_id: &UserId, period: Period, page: PageRequest) -> Result<Page<Order>> {
        self.list_by_user(user_id, period, page).await
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
        if !self.may_expire(now) {
            return Ok(0);
        }
        self.cancel_overdue(now, note, limit).await
    }
}
