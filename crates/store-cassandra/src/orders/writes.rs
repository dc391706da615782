//! Writing orders: the row by id, the rows of the lists, and the payment timer.
//!
//! Every write is unconditional and has the order's version as its write timestamp, so it can be repeated and the
//! newest version wins in any order of arrival. Only status changes are conditional (see `status.rs`).

use mw_domain::buckets::{DaySlice, GROUP_SHARDS_MAX, MonthBucket, shard, shard_group};
use mw_domain::lanes::{other_lanes, salted};
use mw_domain::{Order, OrderEvent, OrderId, OrderStatus, Timestamp};
use mw_store::Result;
use scylla::SerializeRow;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlDate, CqlTimestamp, MaybeUnset};
use uuid::Uuid;

use super::lists::{DAY, SHOP, slices_key};
use super::rows::{ListBuckets, Placed, Snapshot, day_of, time_bucket_of, version};
use crate::CassandraStore;
use crate::driver::coalesce::writes::CoalescedWrites;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::to_cql;
use crate::recovery::timers::{TimerQueue, Timers};
use crate::schema::tables::Table;

/// Where the partition of a day has no quorum, one of so many shards is used.
const SHARDS_TO_CHOOSE: u16 = 64;

type OrderInsert = (i64, Uuid, Placed, ListBuckets, String, CqlTimestamp, i64, i64);

/// A row of `orders_by_day`.
#[derive(Debug, SerializeRow)]
struct DayInsert {
    day: CqlDate,
    slice: String,
    shard: i32,
    geo_zone: String,
    created_at: CqlTimestamp,
    order_id: Vec<u8>,
    snapshot: Snapshot,
    #[scylla(rename = "[timestamp]")]
    written_at: i64,
}

impl DayInsert {
    /// The row in the list of a zone, or of the shop.
    fn new(order: &Order, list_buckets: &ListBuckets, geo_zone: &str) -> Self {
        Self {
            day: day_of(order.created_at),
            slice: list_buckets.slice.clone(),
            shard: list_buckets.shard,
            geo_zone: geo_zone.to_owned(),
            created_at: to_cql(order.created_at),
            order_id: order.order_id.as_bytes().to_vec(),
            snapshot: Snapshot::of(order),
            written_at: version(order),
        }
    }

    fn partition(&self) -> DayPartition {
        (self.day.0, self.slice.clone(), self.shard)
    }
}

/// The partition of a list of days: the day, the slice and the shard.
type DayPartition = (u32, String, i32);

/// The statements that write orders. Rows of one time bucket and of one shard of a day are coalesced; a user's rows are not,
/// since a user places few orders at once.
#[derive(Debug)]
pub(super) struct Writes {
    by_id: CoalescedWrites<i64, OrderInsert>,
    event: PreparedStatement,
    pub(super) by_customer: PreparedStatement,
    by_day: CoalescedWrites<DayPartition, DayInsert>,
}

impl Writes {
    pub(super) async fn prepare(cql: &Cql) -> Result<Self> {
        let by_id = "INSERT INTO {} (time_bucket, order_id, event_no, placed, list_buckets, status, updated_at, version) \
             VALUES (?, ?, 1, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let event = "INSERT INTO {} (time_bucket, order_id, event_no, event_at, from_status, to_status, note) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP 1";
        let by_customer = "INSERT INTO {} (user_id, bucket, created_at, order_id, snapshot) \
             VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let by_day = "INSERT INTO {} (day, slice, shard, geo_zone, created_at, order_id, snapshot) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let prepare = |table, text| cql.prepare(table, Access::Write, text);
        Ok(Self {
            by_id: CoalescedWrites::new(prepare(Table::OrderById, by_id).await?),
            event: prepare(Table::OrderById, event).await?,
            by_customer: prepare(Table::OrdersByCustomer, by_customer).await?,
            by_day: CoalescedWrites::new(prepare(Table::OrdersByDay, by_day).await?),
        })
    }
}

impl CassandraStore {
    /// The buckets of a new order in the lists, by the bucket plans of this moment.
    pub(super) fn list_buckets(&self, order: &Order) -> ListBuckets {
        let at = order.created_at;
        let plan = self.bucketing.at(Table::OrdersByCustomer, order.user_id.as_str(), at);
        let bucket = MonthBucket::of(at, plan).name;
        let (slice, shard) = self.day_bucket(order.order_id, at);
        ListBuckets { bucket, slice, shard }
    }

    /// The slice and the shard of an order of a moment in the lists of days.
    fn day_bucket(&self, order_id: OrderId, at: Timestamp) -> (String, i32) {
        let DaySlice { name, shards, .. } = DaySlice::of(at, self.bucketing.at(Table::OrdersByDay, "", at));
        let shard = shard_group(order_id) * GROUP_SHARDS_MAX + shard(order_id, shards);
        (name, i32::try_from(shard).unwrap_or_default())
    }

    /// The id for a new order: the one that it was given, or one made from it whose partitions have their quorum, the order's
    /// own and that of its day. Both follow from the id, so recovery finds them again.
    pub(super) fn available_order_id(&self, order_id: OrderId, at: Timestamp) -> OrderId {
        let has_row =
            |id: &OrderId| self.cql.has_quorum(&self.orders.read, &(time_bucket_of(*id), id.uuid()));
        let has_day = |id: &OrderId| {
            let (slice, shard) = self.day_bucket(*id, at);
            self.orders.lists.has_quorum(&self.cql, day_of(at), &slice, shard)
        };
        // First the lane, which all orders of this moment change in the same way, so that they still share a partition.
        let in_lane = other_lanes(order_id.uuid()).map(OrderId::new).find(has_row).unwrap_or(order_id);
        let mut ids = (0..SHARDS_TO_CHOOSE).map(|salt| OrderId::new(salted(in_lane.uuid(), salt)));
        ids.find(has_day).unwrap_or(in_lane)
    }

    /// Writes a placed order into its lists, its own row and its timer; may be repeated. `now` is `None` in recovery,
    /// where the payment window may be over already.
    pub(super) async fn write_placed(
        &self,
        order: &Order,
        list_buckets: &ListBuckets,
        now: Option<Timestamp>,
    ) -> Result<()> {
        Box::pin(self.announce_lists(order, list_buckets)).await?;
        let is_timer_far = now.is_some_and(|now| Timers::is_far(order.pay_by, now));
        let far_timer =
            async { if is_timer_far { self.add_payment_timer(order, now).await } else { Ok(()) } };
        // Lists come first, so that a reader who finds the order by its id finds it in the lists too. A crash here
        // leaves some of them: a list may show an order that has no row yet, and a timer may fire for nothing.
        // Recovery writes all of them again, then the row, then the timer.
        tokio::try_join!(self.write_lists(order, list_buckets), far_timer)?;
        // A crash here leaves the order in the lists only; recovery writes the row and the timer.
        self.write_order_row(order, list_buckets).await?;
        // A crash here leaves an order whose timer may have fired before its row was there; recovery adds the timer
        // again. A timer that is near or overdue is therefore added after the row.
        if is_timer_far { Ok(()) } else { self.add_payment_timer(order, now).await }
    }

    pub(super) async fn add_payment_timer(&self, order: &Order, now: Option<Timestamp>) -> Result<()> {
        let target = (time_bucket_of(order.order_id), order.order_id.uuid());
        match now {
            Some(now) => self.timers.add(&self.cql, TimerQueue::Payment, order.pay_by, target, now).await,
            None => self.timers.add_overdue(&self.cql, TimerQueue::Payment, order.pay_by, target).await,
        }
    }

    async fn write_order_row(&self, order: &Order, list_buckets: &ListBuckets) -> Result<()> {
        let time_bucket = time_bucket_of(order.order_id);
        let Snapshot { placed, status, updated_at, version } = Snapshot::of(order);
        let id = order.order_id.uuid();
        let row = (time_bucket, id, placed, list_buckets.clone(), status, updated_at, version, version);
        self.orders.writes.by_id.write(&self.cql, time_bucket, row).await
    }

    /// Lists the buckets of a new order, each once per process, before its rows are written.
    pub(super) async fn announce_lists(&self, order: &Order, list_buckets: &ListBuckets) -> Result<()> {
        let (user, zone) = (order.user_id.as_str(), order.geo_zone.as_str());
        let plan = self.bucketing.at(Table::OrdersByCustomer, user, order.created_at);
        let month = MonthBucket::of(order.created_at, plan);
        let bucket = &list_buckets.bucket;
        // A crash after any of them leaves a bucket without this order: readers find it empty or without the row.
        tokio::try_join!(
            self.bucketing.announce(&self.cql, Table::OrdersByCustomer, user, month.starts_at, bucket),
            self.announce_slice(zone, list_buckets, order),
            self.announce_slice(SHOP, list_buckets, order),
        )?;
        Ok(())
    }

    /// Lists the day of an order, and its slice and group among those of the day, for a zone or the shop.
    async fn announce_slice(&self, key: &str, list_buckets: &ListBuckets, order: &Order) -> Result<()> {
        let table = Table::OrdersByDay;
        let plan = self.bucketing.at(table, "", order.created_at);
        let starts_at = DaySlice::of(order.created_at, plan).starts_at;
        let day = order.created_at.date();
        let (of_day, slice) = (slices_key(key, day), list_buckets.slice_and_group());
        tokio::try_join!(
            self.bucketing.announce(&self.cql, table, key, day.midnight(), DAY),
            self.bucketing.announce(&self.cql, table, &of_day, starts_at, &slice),
        )?;
        Ok(())
    }

    /// Brings an order's rows in the lists up to its version. A crash leaves some lists behind: the intent of the
    /// placement or of the status change is still there, and recovery writes all of them again.
    pub(super) async fn write_lists(&self, order: &Order, list_buckets: &ListBuckets) -> Result<()> {
        tokio::try_join!(
            self.write_by_customer(order, list_buckets),
            self.write_by_day(order, list_buckets),
        )?;
        Ok(())
    }

    async fn write_by_customer(&self, order: &Order, list_buckets: &ListBuckets) -> Result<()> {
        let row = (
            order.user_id.as_str(),
            list_buckets.bucket.as_str(),
            to_cql(order.created_at),
            &order.order_id.as_bytes()[..],
            Snapshot::of(order),
            version(order),
        );
        self.cql.write(&self.orders.writes.by_customer, row).await
    }

    /// Writes the rows in the lists of the zone and of the shop: one partition, one mutation.
    async fn write_by_day(&self, order: &Order, list_buckets: &ListBuckets) -> Result<()> {
        let of_shop = DayInsert::new(order, list_buckets, SHOP);
        let of_zone = DayInsert::new(order, list_buckets, order.geo_zone.as_str());
        self.orders.writes.by_day.write_all(&self.cql, of_shop.partition(), vec![of_shop, of_zone]).await
    }

    /// Imports an order of another store with its events, oldest first. Every step can be repeated; a crash leaves a
    /// part of the order, without its own row, until the operator runs the import again.
    pub(crate) async fn import_order(&self, order: &Order, events: &[OrderEvent]) -> Result<()> {
        let list_buckets = match self.find_order(order.order_id).await? {
            Some(stored) => stored.list_buckets,
            None => self.list_buckets(order),
        };
        for (number, event) in (1_i64..).zip(events) {
            let row = (
                time_bucket_of(order.order_id),
                order.order_id.uuid(),
                number,
                to_cql(event.at),
                event.from.map_or(MaybeUnset::Unset, |from| MaybeUnset::Set(from.as_str())),
                event.to.as_str(),
                event.note.clone().map_or(MaybeUnset::Unset, MaybeUnset::Set),
            );
            self.cql.write(&self.orders.writes.event, row).await?;
        }
        Box::pin(self.announce_lists(order, &list_buckets)).await?;
        self.write_lists(order, &list_buckets).await?;
        self.write_order_row(order, &list_buckets).await?;
        // A crash here leaves an unpaid order without a timer until the import runs again.
        if order.status == OrderStatus::Created {
            self.add_payment_timer(order, None).await?;
        }
        Ok(())
    }
}
