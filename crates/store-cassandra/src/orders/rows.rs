//! Orders as CQL rows, by id and in the three lists, converted to and from the domain's orders and events.

use mw_domain::buckets::{DaySlice, GROUP_SHARDS_MAX};
use mw_domain::lanes::time_bucket;
use mw_domain::orders::EventKind;
use mw_domain::{
    GeoZone, Money, Order, OrderEvent, OrderId, OrderLine, OrderStatus, ProductId, Timestamp, UserId,
};
use mw_store::{Result, StoreError};
use scylla::value::{CqlDate, CqlTimestamp};
use scylla::{DeserializeRow, DeserializeValue, SerializeValue};
use uuid::Uuid;

use crate::driver::time::{from_cql, to_cql};

/// CQL dates count days from 1970-01-01, offset by 2^31.
const DAY_ZERO: i64 = 1 << 31;
/// A time bucket is 2^7 = 128 ms of the ids of one process: some dozens of orders of a busy one.
const SLOT_BITS: u32 = 7;

/// A line of an order: the type `order_item`.
#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
pub(super) struct Item {
    product_id: String,
    name: String,
    price: i64,
    pub(super) quantity: i32,
}

/// The immutable part of an order: the type `placed_order`.
#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
pub(super) struct Placed {
    user_id: String,
    pub(super) geo_zone: String,
    pub(super) items: Vec<Item>,
    pub(super) total: i64,
    delivery_address: Option<String>,
    payment_method: Option<String>,
    pub(super) created_at: CqlTimestamp,
    pay_by: CqlTimestamp,
}

/// An order at one version: the type `order_snapshot`.
#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
pub(super) struct Snapshot {
    pub(super) placed: Placed,
    pub(super) status: String,
    pub(super) updated_at: CqlTimestamp,
    pub(super) version: i64,
}

/// An order in a list. The id is a blob there: Cassandra sorts the type `uuid` by version first.
pub(super) type ListRow = (Vec<u8>, Option<Snapshot>);

pub(super) const LIST_COLUMNS: &str = "order_id, snapshot";

pub(super) const EVENT_COLUMNS: &str =
    "event_no, event_at, from_status, to_status, note, op_token, idempotency_key";

/// The columns of [`OrderRow`].
pub(super) fn order_columns() -> String {
    format!("order_id, placed, list_buckets, status, updated_at, version, fence, {EVENT_COLUMNS}")
}

/// A row of `order_by_id`: the row of event 1 also has the order and its list buckets, the others have an event only.
#[derive(Debug, DeserializeRow)]
pub(crate) struct OrderRow {
    pub(crate) order_id: Uuid,
    placed: Option<Placed>,
    list_buckets: Option<ListBuckets>,
    status: Option<String>,
    updated_at: Option<CqlTimestamp>,
    version: Option<i64>,
    fence: Option<Uuid>,
    pub(super) event_no: i64,
    event_at: Option<CqlTimestamp>,
    from_status: Option<String>,
    to_status: Option<String>,
    note: Option<String>,
    op_token: Option<Uuid>,
    idempotency_key: Option<String>,
}

/// An order as its row has it.
#[derive(Debug, Clone)]
pub(super) struct StoredOrder {
    pub(super) order: Order,
    pub(super) list_buckets: ListBuckets,
    /// Besides the version, what a status change is conditional on.
    pub(super) fence: Option<Uuid>,
}

/// The buckets of an order in the lists; decided once, when the order is placed: the type
/// `order_list_buckets`.
#[derive(Debug, Clone, PartialEq, Eq, SerializeValue, DeserializeValue)]
pub(super) struct ListBuckets {
    pub(super) bucket: String,
    pub(super) slice: String,
    pub(super) shard: i32,
}

/// The shards of a group are numbered from its number times this.
const GROUP_SHARDS: i32 = GROUP_SHARDS_MAX.cast_signed();

impl ListBuckets {
    /// How the slice of the order is listed: with the group of its shards.
    pub(super) fn slice_and_group(&self) -> String {
        format!("{}/{}", self.slice, self.shard / GROUP_SHARDS)
    }
}

/// The slice and the first shard of a group that are listed together; `None` for any other text.
pub(super) fn read_slice_and_group(listed: &str, starts_at: Timestamp) -> Option<(DaySlice, i32)> {
    let (name, group) = listed.rsplit_once('/')?;
    let first_shard = group.parse::<i32>().ok()?.checked_mul(GROUP_SHARDS)?;
    Some((DaySlice::named(name, starts_at)?, first_shard))
}

/// The event of a row, and the token of the status change that wrote it.
#[derive(Debug, DeserializeRow)]
pub(super) struct EventRow {
    event_no: i64,
    event_at: Option<CqlTimestamp>,
    from_status: Option<String>,
    to_status: Option<String>,
    note: Option<String>,
    pub(super) op_token: Option<Uuid>,
    idempotency_key: Option<String>,
}

/// A status change by a request with a key, which stores no outcome: the event is the outcome.
#[derive(Debug)]
pub(crate) struct KeyedChange {
    pub(crate) key: String,
    pub(crate) op_id: Uuid,
    /// The order after the change.
    pub(crate) changed: Order,
}

fn corrupt(id: Uuid) -> StoreError {
    StoreError::Corrupt(format!("read order {id}: missing or invalid column"))
}

fn read_status(id: Uuid, name: &str) -> Result<OrderStatus> {
    OrderStatus::parse(name).ok_or_else(|| corrupt(id))
}

impl Snapshot {
    pub(super) fn of(order: &Order) -> Self {
        let item = |line: &OrderLine| Item {
            product_id: line.product_id.as_str().to_owned(),
            name: line.name.clone(),
            price: line.price.as_minor(),
            quantity: i32::try_from(line.quantity).unwrap_or(i32::MAX),
        };
        Self {
            placed: Placed {
                user_id: order.user_id.as_str().to_owned(),
                geo_zone: order.geo_zone.as_str().to_owned(),
                items: order.lines.iter().map(item).collect(),
                total: order.total.as_minor(),
                delivery_address: order.delivery_address.clone(),
                payment_method: order.payment_method.clone(),
                created_at: to_cql(order.created_at),
                pay_by: to_cql(order.pay_by),
            },
            status: order.status.as_str().to_owned(),
            updated_at: to_cql(order.updated_at),
            version: version(order),
        }
    }

    fn read(self, id: Uuid) -> Result<Order> {
        let Placed { user_id, geo_zone, items, total, .. } = self.placed;
        let lines = items.into_iter().map(|item| {
            Ok(OrderLine {
                product_id: ProductId::parse(&item.product_id).map_err(|_| corrupt(id))?,
                name: item.name,
                price: Money::from_minor(item.price),
                quantity: u32::try_from(item.quantity).map_err(|_| corrupt(id))?,
            })
        });
        Ok(Order {
            order_id: OrderId::new(id),
            user_id: UserId::parse(&user_id).map_err(|_| corrupt(id))?,
            status: read_status(id, &self.status)?,
            geo_zone: GeoZone::parse(&geo_zone).map_err(|_| corrupt(id))?,
            lines: lines.collect::<Result<_>>()?,
            total: Money::from_minor(total),
            delivery_address: self.placed.delivery_address,
            payment_method: self.placed.payment_method,
            created_at: from_cql(self.placed.created_at),
            updated_at: from_cql(self.updated_at),
            version: u64::try_from(self.version).map_err(|_| corrupt(id))?,
            pay_by: from_cql(self.placed.pay_by),
        })
    }
}

pub(super) fn read_listed((id, snapshot): ListRow) -> Result<Order> {
    let corrupt_list = || StoreError::Corrupt(format!("read order list: invalid row of order {id:02x?}"));
    let order_id = Uuid::from_slice(&id).map_err(|_| corrupt_list())?;
    snapshot.ok_or_else(corrupt_list)?.read(order_id)
}

impl OrderRow {
    /// The order, in the row of event 1, and the event of the row.
    pub(super) fn into_parts(self) -> Result<(Option<StoredOrder>, EventRow)> {
        let id = self.order_id;
        let mut event = EventRow {
            event_no: self.event_no,
            event_at: self.event_at,
            from_status: self.from_status,
            to_status: self.to_status,
            note: self.note,
            op_token: self.op_token,
            idempotency_key: self.idempotency_key,
        };
        let Some(placed) = self.placed else { return Ok((None, event)) };
        let (Some(list_buckets), Some(status), Some(updated_at), Some(version)) =
            (self.list_buckets, self.status, self.updated_at, self.version)
        else {
            return Err(corrupt(id));
        };
        event.fill_placement(placed.created_at);
        let order = Snapshot { placed, status, updated_at, version }.read(id)?;
        Ok((Some(StoredOrder { order, list_buckets, fence: self.fence }), event))
    }

    pub(super) fn read(self) -> Result<Option<StoredOrder>> {
        Ok(self.into_parts()?.0)
    }

    pub(super) fn event(self) -> Result<OrderEvent> {
        let id = OrderId::new(self.order_id);
        self.into_parts()?.1.read(id)
    }
}

impl EventRow {
    /// The event columns of event 1 are empty unless the order was imported: it is the placement.
    fn fill_placement(&mut self, created_at: CqlTimestamp) {
        if self.to_status.is_none() {
            self.event_at = Some(created_at);
            self.to_status = Some(OrderStatus::Created.as_str().to_owned());
        }
    }

    pub(super) const fn number(&self) -> i64 {
        self.event_no
    }

    /// The version of the order that the event led to.
    pub(super) fn version(&self) -> u64 {
        u64::try_from(self.event_no).unwrap_or_default()
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

/// An order with its events, oldest first, and the changes by requests with a key.
#[derive(Debug)]
pub(crate) struct ScannedOrder {
    pub(crate) order: Order,
    pub(crate) events: Vec<OrderEvent>,
    pub(crate) keyed_changes: Vec<KeyedChange>,
}

/// Reads the rows of one order, newest event first.
pub(crate) fn read_scanned(group: Vec<OrderRow>) -> Result<Option<ScannedOrder>> {
    let mut order = None;
    let mut events = Vec::with_capacity(group.len());
    let mut keyed = Vec::new();
    for row in group {
        let id = OrderId::new(row.order_id);
        let (found, event) = row.into_parts()?;
        order = found.or(order);
        let (number, key) = (event.version(), event.idempotency_key.clone().zip(event.op_token));
        let event = event.read(id)?;
        keyed.extend(key.map(|(key, op_id)| (key, op_id, number, event.clone())));
        events.push(event);
    }
    events.reverse();
    Ok(order.map(|StoredOrder { order, .. }| {
        let change = |(key, op_id, version, event): (String, Uuid, u64, OrderEvent)| KeyedChange {
            key,
            op_id,
            changed: order.clone().as_of(version, &event),
        };
        let keyed_changes = keyed.into_iter().map(change).collect();
        ScannedOrder { order, events, keyed_changes }
    }))
}

pub(super) fn version(order: &Order) -> i64 {
    i64::try_from(order.version).unwrap_or(i64::MAX)
}

pub(super) fn day_of(at: Timestamp) -> CqlDate {
    CqlDate(u32::try_from(DAY_ZERO + i64::from(at.date().as_days())).unwrap_or(u32::MAX))
}

/// The partition of an order, taken from its id: orders of one process and slot share one, and the process coalesces
/// their writes.
pub(super) fn time_bucket_of(id: OrderId) -> i64 {
    time_bucket(id.uuid(), SLOT_BITS)
}
