//! Orders as rows: by id, and in the three lists.

use mw_domain::bucket::{MonthPiece, shard};
use mw_domain::order::EventKind;
use mw_domain::{
    GeoZone, Money, Order, OrderEvent, OrderId, OrderLine, OrderStatus, ProductId, Timestamp, UserId,
};
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlDate, CqlTimestamp, MaybeUnset};
use scylla::{DeserializeRow, DeserializeValue, SerializeRow, SerializeValue};
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::due::Queue;
use crate::gather::Gather;
use crate::tables::Table;
use crate::time::{from_cql, to_cql};

/// Cassandra counts days from the middle of its range.
const DAY_ZERO: i64 = 1 << 31;
/// What is left of an id's 128 bits are 64 milliseconds of a version 7 UUID.
const SLOT_BITS: u32 = 128 - 48 + 6;

#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
pub(super) struct Item {
    product_id: String,
    name: String,
    price: i64,
    pub(super) quantity: i32,
}

/// What never changes of an order.
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

/// An order at a version.
#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
pub(super) struct Snapshot {
    pub(super) placed: Placed,
    pub(super) status: String,
    updated_at: CqlTimestamp,
    version: i64,
}

/// An order in a list; its id is bytes there.
pub(super) type ListRow = (Vec<u8>, Option<Snapshot>);

pub(super) const LIST_COLUMNS: &str = "order_id, snapshot";

pub(super) const EVENT_COLUMNS: &str = "event_no, event_at, from_status, to_status, note, mark";

/// The columns of [`OwnRow`].
pub(super) fn own_columns() -> String {
    format!("order_id, placed, standing, status, updated_at, version, {EVENT_COLUMNS}")
}

/// A row of an order's own table: the first is the order with where it stands and its first event, the others have an event
/// each.
#[derive(Debug, DeserializeRow)]
pub(crate) struct OwnRow {
    pub(crate) order_id: Uuid,
    placed: Option<Placed>,
    standing: Option<Standing>,
    status: Option<String>,
    updated_at: Option<CqlTimestamp>,
    version: Option<i64>,
    event_no: i64,
    event_at: Option<CqlTimestamp>,
    from_status: Option<String>,
    to_status: Option<String>,
    note: Option<String>,
    mark: Option<Uuid>,
}

/// Where an order stands in the lists; decided once, when it is placed.
#[derive(Debug, Clone, PartialEq, Eq, SerializeValue, DeserializeValue)]
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

impl Snapshot {
    fn of(order: &Order) -> Self {
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
    let corrupt_list = || StoreError::Corrupt(format!("a list has an order {id:?}"));
    let order_id = Uuid::from_slice(&id).map_err(|_| corrupt_list())?;
    snapshot.ok_or_else(corrupt_list)?.read(order_id)
}

impl OwnRow {
    /// The order with where it stands, in the first row, and an event.
    fn split(self) -> Result<(Option<(Order, Standing)>, EventRow)> {
        let id = self.order_id;
        let mut event = EventRow {
            event_no: self.event_no,
            event_at: self.event_at,
            from_status: self.from_status,
            to_status: self.to_status,
            note: self.note,
            mark: self.mark,
        };
        let Some(placed) = self.placed else { return Ok((None, event)) };
        let (Some(standing), Some(status), Some(updated_at), Some(version)) =
            (self.standing, self.status, self.updated_at, self.version)
        else {
            return Err(corrupt(id));
        };
        event.is_placing(placed.created_at);
        let order = Snapshot { placed, status, updated_at, version }.read(id)?;
        Ok((Some((order, standing)), event))
    }

    pub(super) fn read(self) -> Result<Option<(Order, Standing)>> {
        Ok(self.split()?.0)
    }

    pub(super) fn event(self) -> Result<OrderEvent> {
        let id = OrderId::new(self.order_id);
        self.split()?.1.read(id)
    }
}

impl EventRow {
    /// The first event says nothing where it is the placing itself.
    fn is_placing(&mut self, created_at: CqlTimestamp) {
        if self.to_status.is_none() {
            self.event_at = Some(created_at);
            self.to_status = Some(OrderStatus::Created.as_str().to_owned());
        }
    }

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

/// The rows of one order, newest event first, as the order with its events oldest first.
pub(crate) fn read_scanned(group: Vec<OwnRow>) -> Result<Option<(Order, Vec<OrderEvent>)>> {
    let mut order = None;
    let mut events = Vec::with_capacity(group.len());
    for row in group {
        let id = OrderId::new(row.order_id);
        let (found, event) = row.split()?;
        order = found.or(order);
        events.push(event.read(id)?);
    }
    events.reverse();
    Ok(order.map(|(order, _)| (order, events)))
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

/// The partition of an order, made of its id: the first bits of a version 7 UUID are its time, so orders of one moment are
/// written together.
pub(super) fn slot_of(id: OrderId) -> i64 {
    i64::try_from(id.uuid().as_u128() >> SLOT_BITS).unwrap_or_default()
}

type OwnInsert = (i64, Uuid, Placed, Standing, String, CqlTimestamp, i64, i64);

/// An order of a day: in a zone's list the zone leads.
#[derive(Debug, SerializeRow)]
struct OfZoneDay {
    geo_zone: String,
    #[scylla(flatten)]
    of_day: OfDay,
}

#[derive(Debug, SerializeRow)]
struct OfDay {
    day: CqlDate,
    shard: i32,
    created_at: CqlTimestamp,
    order_id: Vec<u8>,
    snapshot: Snapshot,
    #[scylla(rename = "[timestamp]")]
    written_at: i64,
}

impl OfDay {
    fn new(order: &Order, shard: i32) -> Self {
        Self {
            day: day_of(order.created_at),
            shard,
            created_at: to_cql(order.created_at),
            order_id: order.order_id.as_bytes().to_vec(),
            snapshot: Snapshot::of(order),
            written_at: version(order),
        }
    }
}

/// What writes orders. The rows of a moment and of a day are written together, those of a customer each by itself.
#[derive(Debug)]
pub(super) struct Writes {
    own: Gather<i64, OwnInsert>,
    event: PreparedStatement,
    by_customer: PreparedStatement,
    by_zone_day: Gather<(String, u32, i32), OfZoneDay>,
    by_day: Gather<(u32, i32), OfDay>,
}

impl Writes {
    pub(super) async fn prepare(cql: &Cql) -> Result<Self> {
        // The version is the write timestamp, so the newest state wins in any order of arrival.
        let own = "INSERT INTO {} (slot, order_id, event_no, placed, standing, status, updated_at, version) \
             VALUES (?, ?, 1, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let event = "INSERT INTO {} (slot, order_id, event_no, event_at, from_status, to_status, note) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP 1";
        let of_customer = "INSERT INTO {} (user_id, bucket, created_at, order_id, snapshot) \
             VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let of_zone_day = "INSERT INTO {} (geo_zone, day, shard, created_at, order_id, snapshot) \
             VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let of_day = "INSERT INTO {} (day, shard, created_at, order_id, snapshot) \
             VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let prepare = |table, text| cql.prepare(table, Access::Write, text);
        Ok(Self {
            own: Gather::new(prepare(Table::OrderById, own).await?),
            event: prepare(Table::OrderById, event).await?,
            by_customer: prepare(Table::OrdersByCustomer, of_customer).await?,
            by_zone_day: Gather::new(prepare(Table::OrdersByZoneDay, of_zone_day).await?),
            by_day: Gather::new(prepare(Table::OrdersByDay, of_day).await?),
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

    /// Writes a placed order into all its views, in any order and however often. Without `now` its time to be paid may be
    /// long over.
    pub(super) async fn write_placed(
        &self,
        order: &Order,
        standing: &Standing,
        now: Option<Timestamp>,
    ) -> Result<()> {
        // Lists and queue first: a reader of the order by its id must find it there too.
        tokio::try_join!(self.write_lists(order, standing), self.add_payment(order, now))?;
        self.write_own(order, standing).await
    }

    async fn add_payment(&self, order: &Order, now: Option<Timestamp>) -> Result<()> {
        let place = (slot_of(order.order_id), order.order_id.uuid());
        match now {
            Some(now) => self.due.add(&self.cql, Queue::Payment, order.pay_by, place, now).await,
            None => self.due.add_late(&self.cql, Queue::Payment, order.pay_by, place).await,
        }
    }

    async fn write_own(&self, order: &Order, standing: &Standing) -> Result<()> {
        let slot = slot_of(order.order_id);
        let Snapshot { placed, status, updated_at, version } = Snapshot::of(order);
        let id = order.order_id.uuid();
        let row = (slot, id, placed, standing.clone(), status, updated_at, version, version);
        self.orders.writes.own.write(&self.cql, slot, row).await
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
            Snapshot::of(order),
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
        let of_day = OfDay::new(order, standing.zone_shard);
        let partition = (zone.to_owned(), of_day.day.0, of_day.shard);
        let row = OfZoneDay { geo_zone: zone.to_owned(), of_day };
        self.orders.writes.by_zone_day.write(&self.cql, partition, row).await
    }

    async fn write_by_day(&self, order: &Order, standing: &Standing) -> Result<()> {
        self.announce_day(Table::OrdersByDay, "", order).await?;
        let row = OfDay::new(order, standing.day_shard);
        self.orders.writes.by_day.write(&self.cql, (row.day.0, row.shard), row).await
    }

    /// Takes in an order of another store, with its events oldest first.
    pub(crate) async fn keep_order(&self, order: &Order, events: &[OrderEvent]) -> Result<()> {
        let standing = match self.placed(order.order_id).await? {
            Some((_, standing)) => standing,
            None => self.standing(order),
        };
        for (number, event) in (1_i64..).zip(events) {
            let row = (
                slot_of(order.order_id),
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
            self.add_payment(order, None).await?;
        }
        self.write_own(order, &standing).await
    }
}
