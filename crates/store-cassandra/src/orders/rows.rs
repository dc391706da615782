//! Orders as rows: by id, and in the three lists.

use mw_domain::bucket::{MonthPiece, shard};
use mw_domain::order::EventKind;
use mw_domain::{
    GeoZone, Money, Order, OrderEvent, OrderId, OrderLine, OrderStatus, ProductId, Timestamp, UserId,
};
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlDate, CqlTimestamp, MaybeUnset};
use scylla::{DeserializeRow, DeserializeValue, SerializeValue};
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::due::Queue;
use crate::gather::Gather;
use crate::tables::Table;
use crate::time::{from_cql, to_cql};

/// Cassandra counts days from the middle of its range.
const DAY_ZERO: i64 = 1 << 31;

#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
pub(super) struct Item {
    product_id: String,
    name: String,
    price: i64,
    pub(super) quantity: i32,
}

/// An order as the lists have it; its id is bytes there.
#[derive(Debug, DeserializeRow)]
pub(super) struct OrderRow {
    order_id: Vec<u8>,
    user_id: Option<String>,
    geo_zone: Option<String>,
    status: Option<String>,
    items: Option<Vec<Item>>,
    total: Option<i64>,
    delivery_address: Option<String>,
    payment_method: Option<String>,
    created_at: Option<CqlTimestamp>,
    updated_at: Option<CqlTimestamp>,
    version: Option<i64>,
    pay_by: Option<CqlTimestamp>,
}

pub(super) const COLUMNS: &str = "order_id, user_id, geo_zone, status, items, total, delivery_address, \
     payment_method, created_at, updated_at, version, pay_by";

/// An order with where it stands in the lists.
pub(super) type PlacedRow = (
    Uuid,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<Vec<Item>>,
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<CqlTimestamp>,
    Option<CqlTimestamp>,
    Option<i64>,
    Option<CqlTimestamp>,
    Option<String>,
    Option<i32>,
    Option<i32>,
);

/// Where an order stands in the lists; decided once, when it is placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) bucket: String,
    pub(super) zone_shard: i32,
    pub(super) day_shard: i32,
}

#[derive(Debug, DeserializeRow)]
pub(super) struct EventRow {
    event_no: i64,
    event_at: Option<CqlTimestamp>,
    from_status: Option<String>,
    to_status: Option<String>,
    note: Option<String>,
    pub(super) mark: Option<Uuid>,
}

fn corrupt(id: Uuid) -> StoreError {
    StoreError::Corrupt(format!("order {id}"))
}

fn read_status(id: Uuid, name: &str) -> Result<OrderStatus> {
    OrderStatus::parse(name).ok_or_else(|| corrupt(id))
}

impl OrderRow {
    /// The order; `None` where only a later part of it has arrived.
    pub(super) fn read(self) -> Result<Option<Order>> {
        let id = Uuid::from_slice(&self.order_id)
            .map_err(|_| StoreError::Corrupt(format!("the order id {:?}", self.order_id)))?;
        let (Some(user), Some(zone), Some(items), Some(total), Some(created_at), Some(pay_by)) =
            (self.user_id, self.geo_zone, self.items, self.total, self.created_at, self.pay_by)
        else {
            return Ok(None);
        };
        let (Some(status), Some(updated_at), Some(version)) = (self.status, self.updated_at, self.version)
        else {
            return Err(corrupt(id));
        };
        let lines = items.into_iter().map(|item| {
            Ok(OrderLine {
                product_id: ProductId::parse(&item.product_id).map_err(|_| corrupt(id))?,
                name: item.name,
                price: Money::from_minor(item.price),
                quantity: u32::try_from(item.quantity).map_err(|_| corrupt(id))?,
            })
        });
        Ok(Some(Order {
            order_id: OrderId::new(id),
            user_id: UserId::parse(&user).map_err(|_| corrupt(id))?,
            status: read_status(id, &status)?,
            geo_zone: GeoZone::parse(&zone).map_err(|_| corrupt(id))?,
            lines: lines.collect::<Result<_>>()?,
            total: Money::from_minor(total),
            delivery_address: self.delivery_address,
            payment_method: self.payment_method,
            created_at: from_cql(created_at),
            updated_at: from_cql(updated_at),
            version: u64::try_from(version).map_err(|_| corrupt(id))?,
            pay_by: from_cql(pay_by),
        }))
    }
}

pub(super) fn read_placed(row: PlacedRow) -> Result<Option<(Order, Standing)>> {
    let (
        order_id,
        user_id,
        geo_zone,
        status,
        items,
        total,
        delivery_address,
        payment_method,
        created_at,
        updated_at,
        version,
        pay_by,
        bucket,
        zone_shard,
        day_shard,
    ) = row;
    let row = OrderRow {
        order_id: order_id.as_bytes().to_vec(),
        user_id,
        geo_zone,
        status,
        items,
        total,
        delivery_address,
        payment_method,
        created_at,
        updated_at,
        version,
        pay_by,
    };
    let Some(order) = row.read()? else { return Ok(None) };
    let (Some(bucket), Some(zone_shard), Some(day_shard)) = (bucket, zone_shard, day_shard) else {
        return Err(corrupt(order_id));
    };
    Ok(Some((order, Standing { bucket, zone_shard, day_shard })))
}

impl EventRow {
    pub(super) const fn number(&self) -> i64 {
        self.event_no
    }

    pub(super) fn read(self, id: OrderId) -> Result<OrderEvent> {
        let (Some(at), Some(to)) = (self.event_at, self.to_status) else {
            return Err(corrupt(id.uuid()));
        };
        let from = self.from_status.map(|from| read_status(id.uuid(), &from)).transpose()?;
        Ok(OrderEvent {
            at: from_cql(at),
            kind: if from.is_some() { EventKind::Status } else { EventKind::Created },
            from,
            to: read_status(id.uuid(), &to)?,
            note: self.note,
        })
    }
}

/// An order and one of its events, as a walk over the table shows them.
#[derive(Debug, DeserializeRow)]
pub(crate) struct ScannedOrder {
    pub(crate) order_id: Uuid,
    user_id: Option<String>,
    geo_zone: Option<String>,
    status: Option<String>,
    items: Option<Vec<Item>>,
    total: Option<i64>,
    delivery_address: Option<String>,
    payment_method: Option<String>,
    created_at: Option<CqlTimestamp>,
    updated_at: Option<CqlTimestamp>,
    version: Option<i64>,
    pay_by: Option<CqlTimestamp>,
    event_no: Option<i64>,
    event_at: Option<CqlTimestamp>,
    from_status: Option<String>,
    to_status: Option<String>,
    note: Option<String>,
}

pub(super) const EVENT_COLUMNS: &str = "event_no, event_at, from_status, to_status, note";

/// The rows of one order, newest event first, as the order with its events oldest first.
pub(crate) fn read_scanned(group: Vec<ScannedOrder>) -> Result<Option<(Order, Vec<OrderEvent>)>> {
    let mut order = None;
    let mut events = Vec::with_capacity(group.len());
    for row in group {
        let id = OrderId::new(row.order_id);
        if let Some(event_no) = row.event_no {
            let event = EventRow {
                event_no,
                event_at: row.event_at,
                from_status: row.from_status,
                to_status: row.to_status,
                note: row.note,
                mark: None,
            };
            events.push(event.read(id)?);
        }
        if order.is_none() {
            let row = OrderRow {
                order_id: row.order_id.as_bytes().to_vec(),
                user_id: row.user_id,
                geo_zone: row.geo_zone,
                status: row.status,
                items: row.items,
                total: row.total,
                delivery_address: row.delivery_address,
                payment_method: row.payment_method,
                created_at: row.created_at,
                updated_at: row.updated_at,
                version: row.version,
                pay_by: row.pay_by,
            };
            order = row.read()?;
        }
    }
    events.reverse();
    Ok(order.map(|order| (order, events)))
}

fn items(order: &Order) -> Vec<Item> {
    let item = |line: &OrderLine| Item {
        product_id: line.product_id.as_str().to_owned(),
        name: line.name.clone(),
        price: line.price.as_minor(),
        quantity: i32::try_from(line.quantity).unwrap_or(i32::MAX),
    };
    order.lines.iter().map(item).collect()
}

pub(super) fn version(order: &Order) -> i64 {
    i64::try_from(order.version).unwrap_or(i64::MAX)
}

pub(super) fn day_of(at: Timestamp) -> CqlDate {
    CqlDate(u32::try_from(DAY_ZERO + i64::from(at.date().as_days())).unwrap_or(u32::MAX))
}

fn optional(text: Option<&String>) -> MaybeUnset<String> {
    text.cloned().map_or(MaybeUnset::Unset, MaybeUnset::Set)
}

type ByZoneDay = (
    String,
    CqlDate,
    i32,
    CqlTimestamp,
    Vec<u8>,
    String,
    &'static str,
    Vec<Item>,
    i64,
    MaybeUnset<String>,
    MaybeUnset<String>,
    CqlTimestamp,
    i64,
    CqlTimestamp,
    i64,
);
type ByDay = (
    CqlDate,
    i32,
    CqlTimestamp,
    Vec<u8>,
    String,
    String,
    &'static str,
    Vec<Item>,
    i64,
    MaybeUnset<String>,
    MaybeUnset<String>,
    CqlTimestamp,
    i64,
    CqlTimestamp,
    i64,
);

/// What writes orders. The rows of a day are written together, those of an order and a customer each by itself.
pub(super) struct Writes {
    first: PreparedStatement,
    by_id: PreparedStatement,
    event: PreparedStatement,
    by_customer: PreparedStatement,
    by_zone_day: Gather<(String, u32, i32), ByZoneDay>,
    by_day: Gather<(u32, i32), ByDay>,
}

impl std::fmt::Debug for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writes").finish_non_exhaustive()
    }
}

impl Writes {
    pub(super) async fn prepare(cql: &Cql) -> Result<Self> {
        let first = "INSERT INTO {} (order_id, event_no, user_id, geo_zone, status, items, total, \
             delivery_address, payment_method, created_at, updated_at, version, pay_by, bucket, zone_shard, \
             day_shard, event_at, to_status) \
             VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'created') USING TIMESTAMP 1";
        let by_id = "INSERT INTO {} (order_id, user_id, geo_zone, status, items, total, delivery_address, \
             payment_method, created_at, updated_at, version, pay_by, bucket, zone_shard, day_shard) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let event = "INSERT INTO {} (order_id, event_no, event_at, from_status, to_status, note) \
             VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP 1";
        let by_customer = "INSERT INTO {} (user_id, bucket, created_at, order_id, geo_zone, status, items, total, \
             delivery_address, payment_method, updated_at, version, pay_by) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let by_zone_day = "INSERT INTO {} (geo_zone, day, shard, created_at, order_id, user_id, status, items, \
             total, delivery_address, payment_method, updated_at, version, pay_by) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let by_day = "INSERT INTO {} (day, shard, created_at, order_id, user_id, geo_zone, status, items, \
             total, delivery_address, payment_method, updated_at, version, pay_by) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let prepare = |table, text| cql.prepare(table, Access::Write, text);
        Ok(Self {
            first: prepare(Table::OrderById, first).await?,
            by_id: prepare(Table::OrderById, by_id).await?,
            event: prepare(Table::OrderById, event).await?,
            by_customer: prepare(Table::OrdersByCustomer, by_customer).await?,
            by_zone_day: Gather::new(prepare(Table::OrdersByZoneDay, by_zone_day).await?),
            by_day: Gather::new(prepare(Table::OrdersByDay, by_day).await?),
        })
    }
}

impl CassandraStore {
    /// Where a new order will stand in the lists.
    pub(super) fn standing(&self, order: &Order) -> Standing {
        let at = order.created_at;
        let plan = |table, key: &str| self.plans.at(table, key, at);
        let shard_by =
            |table, key: &str| i32::try_from(shard(order.order_id, plan(table, key).cut)).unwrap_or_default();
        Standing {
            bucket: MonthPiece::of(at, plan(Table::OrdersByCustomer, order.user_id.as_str())).name,
            zone_shard: shard_by(Table::OrdersByZoneDay, order.geo_zone.as_str()),
            day_shard: shard_by(Table::OrdersByDay, ""),
        }
    }

    /// Writes a placed order into all its views, in any order and however often.
    pub(super) async fn write_placed(
        &self,
        order: &Order,
        standing: &Standing,
        now: Timestamp,
    ) -> Result<()> {
        let row = (
            order.order_id.uuid(),
            order.user_id.as_str(),
            order.geo_zone.as_str(),
            order.status.as_str(),
            items(order),
            order.total.as_minor(),
            optional(order.delivery_address.as_ref()),
            optional(order.payment_method.as_ref()),
            to_cql(order.created_at),
            to_cql(order.updated_at),
            version(order),
            to_cql(order.pay_by),
            standing.bucket.as_str(),
            standing.zone_shard,
            standing.day_shard,
            to_cql(order.created_at),
        );
        let id = order.order_id.uuid();
        // Lists and queue first: a reader of the order by its id must find it there too.
        tokio::try_join!(
            self.write_lists(order, standing),
            self.due.add(&self.cql, Queue::Payment, order.pay_by, id, now),
        )?;
        self.cql.write(&self.orders.writes.first, row).await
    }

    /// Brings an order's rows in the lists up to its version.
    pub(super) async fn write_lists(&self, order: &Order, standing: &Standing) -> Result<()> {
        tokio::try_join!(
            self.write_by_customer(order, standing),
            self.write_by_zone_day(order, standing),
            self.write_by_day(order, standing),
        )?;
        Ok(())
    }

    async fn write_by_customer(&self, order: &Order, standing: &Standing) -> Result<()> {
        let plan = self.plans.at(Table::OrdersByCustomer, order.user_id.as_str(), order.created_at);
        let piece = MonthPiece::of(order.created_at, plan);
        let key = order.user_id.as_str();
        self.plans
            .announce(&self.cql, Table::OrdersByCustomer, key, piece.starts_at, &standing.bucket)
            .await?;
        let row = (
            key,
            standing.bucket.as_str(),
            to_cql(order.created_at),
            &order.order_id.as_bytes()[..],
            order.geo_zone.as_str(),
            order.status.as_str(),
            items(order),
            order.total.as_minor(),
            optional(order.delivery_address.as_ref()),
            optional(order.payment_method.as_ref()),
            to_cql(order.updated_at),
            version(order),
            to_cql(order.pay_by),
            version(order),
        );
        self.cql.write(&self.orders.writes.by_customer, row).await
    }

    async fn announce_day(&self, table: Table, key: &str, order: &Order) -> Result<()> {
        let cut = self.plans.at(table, key, order.created_at).cut;
        let midnight = order.created_at.date().midnight();
        self.plans.announce(&self.cql, table, key, midnight, &format!("{cut:02}")).await
    }

    async fn write_by_zone_day(&self, order: &Order, standing: &Standing) -> Result<()> {
        let zone = order.geo_zone.as_str();
        self.announce_day(Table::OrdersByZoneDay, zone, order).await?;
        let day = day_of(order.created_at);
        let row = (
            zone.to_owned(),
            day,
            standing.zone_shard,
            to_cql(order.created_at),
            order.order_id.as_bytes().to_vec(),
            order.user_id.as_str().to_owned(),
            order.status.as_str(),
            items(order),
            order.total.as_minor(),
            optional(order.delivery_address.as_ref()),
            optional(order.payment_method.as_ref()),
            to_cql(order.updated_at),
            version(order),
            to_cql(order.pay_by),
            version(order),
        );
        let partition = (zone.to_owned(), day.0, standing.zone_shard);
        self.orders.writes.by_zone_day.write(&self.cql, partition, row).await
    }

    async fn write_by_day(&self, order: &Order, standing: &Standing) -> Result<()> {
        self.announce_day(Table::OrdersByDay, "", order).await?;
        let day = day_of(order.created_at);
        let row = (
            day,
            standing.day_shard,
            to_cql(order.created_at),
            order.order_id.as_bytes().to_vec(),
            order.user_id.as_str().to_owned(),
            order.geo_zone.as_str().to_owned(),
            order.status.as_str(),
            items(order),
            order.total.as_minor(),
            optional(order.delivery_address.as_ref()),
            optional(order.payment_method.as_ref()),
            to_cql(order.updated_at),
            version(order),
            to_cql(order.pay_by),
            version(order),
        );
        self.orders.writes.by_day.write(&self.cql, (day.0, standing.day_shard), row).await
    }

    /// Takes in an order of another store, with its events oldest first.
    pub(crate) async fn keep_order(&self, order: &Order, events: &[OrderEvent]) -> Result<()> {
        let standing = match self.placed(order.order_id).await? {
            Some((_, standing)) => standing,
            None => self.standing(order),
        };
        for (number, event) in (1_i64..).zip(events) {
            let row = (
                order.order_id.uuid(),
                number,
                to_cql(event.at),
                event.from.map_or(MaybeUnset::Unset, |from| MaybeUnset::Set(from.as_str())),
                event.to.as_str(),
                optional(event.note.as_ref()),
            );
            self.cql.write(&self.orders.writes.event, row).await?;
        }
        self.write_lists(order, &standing).await?;
        if order.status == OrderStatus::Created {
            let id = order.order_id.uuid();
            self.due.add_late(&self.cql, Queue::Payment, order.pay_by, id).await?;
        }
        let row = (
            order.order_id.uuid(),
            order.user_id.as_str(),
            order.geo_zone.as_str(),
            order.status.as_str(),
            items(order),
            order.total.as_minor(),
            optional(order.delivery_address.as_ref()),
            optional(order.payment_method.as_ref()),
            to_cql(order.created_at),
            to_cql(order.updated_at),
            version(order),
            to_cql(order.pay_by),
            standing.bucket.as_str(),
            standing.zone_shard,
            standing.day_shard,
            version(order),
        );
        self.cql.write(&self.orders.writes.by_id, row).await
    }
}
