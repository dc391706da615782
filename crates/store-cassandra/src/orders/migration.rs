//! Orders of a live migration: written over what is stored of them, and read back in every view.
//!
//! The order's own row says where its list rows are. So it is written last and deleted last: after a crash in between the
//! repeated write finds the same row and deletes the same list rows.

use std::sync::PoisonError;

use mw_domain::{Order, OrderEvent, OrderId, OrderStatus, Period, Timestamp};
use mw_store::Result;
use mw_store::migration::OrderViews;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlDate, CqlTimestamp, MaybeUnset};

use super::lists::{DAY, SHOP, slices_key};
use super::rows::{ListBuckets, ListRow, Snapshot, StoredOrder, day_of, read_listed, time_bucket_of};
use crate::CassandraStore;
use crate::driver::scan::{self, Scan};
use crate::driver::statements::{Access, Cql, Row};
use crate::driver::time::to_cql;
use crate::migration::{Stamp, in_order};
use crate::schema::tables::Table;

/// List rows that are checked together.
const STRAY_PAGE: usize = 500;
/// Buckets of a key that are read to find one of them: more than a month or a day has.
const BUCKETS_READ: i32 = 2_000;
/// Announced buckets that this process has seen.
const SEEN_MAX: usize = 200_000;

#[derive(Debug)]
pub(crate) struct Statements {
    put: PreparedStatement,
    put_event: PreparedStatement,
    delete_event: PreparedStatement,
    put_by_day: PreparedStatement,
    delete_by_customer: PreparedStatement,
    delete_by_day: PreparedStatement,
    by_customer: PreparedStatement,
    by_day: PreparedStatement,
    scan_customers: PreparedStatement,
    scan_days: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let [orders, customers, days] = [Table::OrderById, Table::OrdersByCustomer, Table::OrdersByDay];
        let put = "INSERT INTO {} (time_bucket, order_id, event_no, placed, list_buckets, status, updated_at, version) \
             VALUES (?, ?, 1, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let put_event = "INSERT INTO {} (time_bucket, order_id, event_no, event_at, from_status, to_status, note) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let delete_event =
            "DELETE FROM {} USING TIMESTAMP ? WHERE time_bucket = ? AND order_id = ? AND event_no = ?";
        let put_by_day = "INSERT INTO {} (day, slice, shard, geo_zone, created_at, order_id, snapshot) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let of_customer = "user_id = ? AND bucket = ? AND created_at = ? AND order_id = ?";
        let of_day =
            "day = ? AND slice = ? AND shard = ? AND geo_zone = ? AND created_at = ? AND order_id = ?";
        let delete = |of: &str| format!("DELETE FROM {{}} USING TIMESTAMP ? WHERE {of}");
        let read = |of: &str| format!("SELECT {} FROM {{}} WHERE {of}", super::rows::LIST_COLUMNS);
        Ok(Self {
            put: cql.prepare(orders, Access::Write, put).await?,
            put_event: cql.prepare(orders, Access::Write, put_event).await?,
            delete_event: cql.prepare(orders, Access::Write, delete_event).await?,
            put_by_day: cql.prepare(days, Access::Write, put_by_day).await?,
            delete_by_customer: cql.prepare(customers, Access::Write, &delete(of_customer)).await?,
            delete_by_day: cql.prepare(days, Access::Write, &delete(of_day)).await?,
            by_customer: cql.prepare(customers, Access::Read, &read(of_customer)).await?,
            by_day: cql.prepare(days, Access::Read, &read(of_day)).await?,
            scan_customers: scan::prepare(cql, customers, "user_id, bucket, created_at, order_id").await?,
            scan_days: scan::prepare(cql, days, "day, slice, shard, geo_zone, created_at, order_id").await?,
        })
    }
}

/// The key of a row in the list of a customer.
type CustomerKey = (String, String, CqlTimestamp, Vec<u8>);
/// The key of a row in the lists of a day.
type DayKey = (CqlDate, String, i32, String, CqlTimestamp, Vec<u8>);

/// Where an order is in the lists.
#[derive(Debug, Clone, PartialEq)]
struct ListKeys {
    customer: CustomerKey,
    zone: DayKey,
    shop: DayKey,
}

impl ListKeys {
    fn of(order: &Order, buckets: &ListBuckets) -> Self {
        let (created_at, id) = (to_cql(order.created_at), order.order_id.as_bytes().to_vec());
        let day = |zone: &str| {
            let slice = buckets.slice.clone();
            (day_of(order.created_at), slice, buckets.shard, zone.to_owned(), created_at, id.clone())
        };
        Self {
            customer: (order.user_id.as_str().to_owned(), buckets.bucket.clone(), created_at, id.clone()),
            zone: day(order.geo_zone.as_str()),
            shop: day(SHOP),
        }
    }
}

/// The rows of `buckets` by which a list of days finds a slice.
fn announced_of_day<'a>((key, of_day): &'a (&str, String), slice: &'a str) -> Vec<(Table, &'a str, &'a str)> {
    vec![(Table::OrdersByDay, key, DAY), (Table::OrdersByDay, of_day, slice)]
}

/// An order as its partition has it.
#[derive(Debug, Default)]
struct Before {
    stored: Option<StoredOrder>,
    /// The numbers of the events.
    events: Vec<i64>,
}

impl CassandraStore {
    /// Writes an order with its events, oldest first, over what is stored of it.
    pub(crate) async fn migrate_order(
        &self,
        order: &Order,
        events: &[OrderEvent],
        stamp: Stamp,
    ) -> Result<()> {
        let before = self.order_before(order.order_id).await?;
        self.bucketing.keep_fresh(&self.cql).await?;
        let buckets = self.list_buckets(order);
        let keys = ListKeys::of(order, &buckets);
        if let Some(stored) = &before.stored {
            let old = ListKeys::of(&stored.order, &stored.list_buckets);
            self.delete_from_lists(&old, Some(&keys), stamp).await?;
        }
        Box::pin(self.announce_lists(order, &buckets)).await?;
        self.write_into_lists(order, &keys, stamp).await?;
        if order.status == OrderStatus::Created && order.pay_by < Timestamp::MAX {
            // A timer that is near may fire before the order's row is there, but no process fires timers of a shop that is
            // being migrated.
            self.add_payment_timer(order, None).await?;
        }
        self.write_migrated_row(order, events, &buckets, &before, stamp).await
    }

    pub(crate) async fn remove_migrated_order(&self, order_id: OrderId, stamp: Stamp) -> Result<()> {
        let before = self.order_before(order_id).await?;
        if let Some(stored) = &before.stored {
            let keys = ListKeys::of(&stored.order, &stored.list_buckets);
            self.delete_from_lists(&keys, None, stamp).await?;
        }
        let statement = &self.migration().await?.orders.delete_event;
        let key = (time_bucket_of(order_id), order_id.uuid());
        let rows: Vec<_> = before.events.iter().map(|number| (stamp.get(), key.0, key.1, *number)).collect();
        if rows.is_empty() { Ok(()) } else { self.cql.write_rows(statement, &rows).await }
    }

    async fn order_before(&self, order_id: OrderId) -> Result<Before> {
        let mut before = Before::default();
        for row in self.order_rows(order_id).await? {
            before.events.push(row.event_no);
            before.stored = row.read()?.or(before.stored);
        }
        Ok(before)
    }

    /// Deletes the rows of an order in its lists, but not those that it still has.
    async fn delete_from_lists(&self, old: &ListKeys, new: Option<&ListKeys>, stamp: Stamp) -> Result<()> {
        let statements = &self.migration().await?.orders;
        let ts = stamp.get();
        if new.is_none_or(|new| new.customer != old.customer) {
            let (user_id, bucket, created_at, id) = &old.customer;
            self.cql.write(&statements.delete_by_customer, (ts, user_id, bucket, created_at, id)).await?;
        }
        for (key, still) in [(&old.zone, new.map(|new| &new.zone)), (&old.shop, new.map(|new| &new.shop))] {
            if still == Some(key) {
                continue;
            }
            let (day, slice, shard, zone, created_at, id) = key;
            let values = (ts, day, slice, shard, zone, created_at, id);
            self.cql.write(&statements.delete_by_day, values).await?;
        }
        Ok(())
    }

    async fn write_into_lists(&self, order: &Order, keys: &ListKeys, stamp: Stamp) -> Result<()> {
        let statements = &self.migration().await?.orders;
        let snapshot = Snapshot::of(order);
        let of_day = |(day, slice, shard, zone, created_at, id): &DayKey| {
            let key = (*day, slice.clone(), *shard, zone.clone(), *created_at, id.clone());
            (key.0, key.1, key.2, key.3, key.4, key.5, snapshot.clone(), stamp.get())
        };
        let days = [of_day(&keys.shop), of_day(&keys.zone)];
        let (user_id, bucket, created_at, id) = &keys.customer;
        let customer = (user_id, bucket, created_at, id, &snapshot, stamp.get());
        tokio::try_join!(
            self.cql.write(&self.orders.writes.by_customer, customer),
            self.cql.write_rows(&statements.put_by_day, &days),
        )?;
        Ok(())
    }

    /// Writes the order's own row and its events: one partition, one mutation.
    async fn write_migrated_row(
        &self,
        order: &Order,
        events: &[OrderEvent],
        buckets: &ListBuckets,
        before: &Before,
        stamp: Stamp,
    ) -> Result<()> {
        let statements = &self.migration().await?.orders;
        let (bucket, id, ts) = (time_bucket_of(order.order_id), order.order_id.uuid(), stamp.get());
        let Snapshot { placed, status, updated_at, version } = Snapshot::of(order);
        let put = (bucket, id, placed, buckets.clone(), status, updated_at, version, ts);
        let mut rows: Vec<(&PreparedStatement, Row)> = vec![(&statements.put, Box::new(put))];
        let mut written = 0;
        for (number, event) in (1_i64..).zip(events) {
            // A cell that was never written stays unset: null would be a tombstone.
            let is_known = before.events.contains(&number);
            let text = |text: Option<String>| match text {
                None if !is_known => MaybeUnset::Unset,
                text => MaybeUnset::Set(text),
            };
            let from = text(event.from.map(|from| from.as_str().to_owned()));
            let event =
                (bucket, id, number, to_cql(event.at), from, event.to.as_str(), text(event.note.clone()), ts);
            rows.push((&statements.put_event, Box::new(event)));
            written = number;
        }
        for number in before.events.iter().filter(|number| **number > written.max(1)) {
            rows.push((&statements.delete_event, Box::new((ts, bucket, id, *number))));
        }
        self.cql.write_batch(&rows).await
    }

    /// An order as each view shows it.
    pub(crate) async fn order_views(&self, order_id: OrderId) -> Result<Option<OrderViews>> {
        let mut rows = self.order_rows(order_id).await?;
        rows.reverse();
        let mut stored = None;
        let mut events = Vec::with_capacity(rows.len());
        for row in rows {
            // The event of a row is read from a copy: reading it takes the row apart.
            let (found, event) = row.into_parts()?;
            stored = found.or(stored);
            events.push(event.read(order_id)?);
        }
        let Some(StoredOrder { order, list_buckets, .. }) = stored else { return Ok(None) };
        let missing_from = self.lists_without(&order, &list_buckets).await?;
        Ok(Some(OrderViews { order, events, missing_from }))
    }

    /// The lists that lack the order, or show another state of it.
    async fn lists_without(&self, order: &Order, buckets: &ListBuckets) -> Result<Vec<&'static str>> {
        let statements = &self.migration().await?.orders;
        let keys = ListKeys::of(order, buckets);
        let (customer, zone, shop) = tokio::try_join!(
            self.cql.first::<ListRow>(&statements.by_customer, &keys.customer),
            self.cql.first::<ListRow>(&statements.by_day, &keys.zone),
            self.cql.first::<ListRow>(&statements.by_day, &keys.shop),
        )?;
        let slice = buckets.slice_and_group();
        let at = order.created_at;
        let [of_zone, of_shop] = [order.geo_zone.as_str(), SHOP].map(|key| (key, slices_key(key, at.date())));
        let month = (Table::OrdersByCustomer, order.user_id.as_str(), buckets.bucket.as_str());
        let lists = [
            ("customer", customer, vec![month]),
            ("zone and day", zone, announced_of_day(&of_zone, &slice)),
            ("period", shop, announced_of_day(&of_shop, &slice)),
        ];
        let mut missing = Vec::new();
        for (name, row, announced) in lists {
            let listed = row.map(read_listed).transpose()?;
            let mut is_there = listed.as_ref() == Some(order);
            for (table, key, bucket) in announced {
                is_there = is_there && self.is_announced(table, key, bucket, at).await?;
            }
            if !is_there {
                missing.push(name);
            }
        }
        Ok(missing)
    }

    /// Whether a list that reads the buckets of a key finds this one.
    async fn is_announced(&self, table: Table, key: &str, bucket: &str, at: Timestamp) -> Result<bool> {
        let id = (table, key.to_owned(), bucket.to_owned(), at.date());
        let seen = || self.migration.announced.lock().unwrap_or_else(PoisonError::into_inner);
        if seen().contains(&id) {
            return Ok(true);
        }
        let until = Period { from: Timestamp::EPOCH, to: at.plus_millis(1) };
        // The nearest ones come first: the months of a customer, the days of a zone, or the slices of one day.
        let buckets = self.bucketing.buckets(&self.cql, table, key, &until, BUCKETS_READ).await?;
        let midnight = at.date().midnight();
        let is_it = |(starts_at, name): &(Timestamp, String)| {
            name == bucket && (name != DAY || *starts_at == midnight)
        };
        if !buckets.iter().any(is_it) {
            return Ok(false);
        }
        let mut seen = seen();
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(id);
        Ok(true)
    }

    /// Rows of the lists whose order is missing or has its row elsewhere, as of the moment at which each was read.
    pub(crate) async fn stray_order_rows(&self, limit: usize) -> Result<Vec<ListedAt>> {
        let statements = &self.migration().await?.orders;
        let mut found = Vec::new();
        let mut customers: Scan<'_, CustomerKey> = Scan::new(&self.cql, &statements.scan_customers);
        let mut days: Scan<'_, DayKey> = Scan::new(&self.cql, &statements.scan_days);
        loop {
            let mut page = Vec::new();
            while page.len() < STRAY_PAGE
                && let Some(key) = customers.next().await?
            {
                page.push(ListedAt::Customer(key));
            }
            while page.len() < STRAY_PAGE
                && let Some(key) = days.next().await?
            {
                page.push(ListedAt::Day(key));
            }
            let is_last = page.len() < STRAY_PAGE;
            found.extend(self.strays(page).await?);
            if is_last || found.len() >= limit {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Describes those of the rows that are still there and still not those of an order.
    pub(crate) async fn still_stray(&self, rows: Vec<ListedAt>) -> Result<Vec<String>> {
        let statements = &self.migration().await?.orders;
        let mut described = Vec::new();
        for row in self.strays(rows).await? {
            let is_there = match &row {
                ListedAt::Customer(key) => self.cql.first::<ListRow>(&statements.by_customer, key).await?,
                ListedAt::Day(key) => self.cql.first::<ListRow>(&statements.by_day, key).await?,
            };
            if is_there.is_some() {
                described.push(row.described());
            }
        }
        Ok(described)
    }

    /// The rows that are not those of an order.
    async fn strays(&self, rows: Vec<ListedAt>) -> Result<Vec<ListedAt>> {
        let orders = rows.iter().map(|row| {
            let id = row.order_id();
            async move {
                match id {
                    Some(id) => self.find_order(id).await,
                    None => Ok(None),
                }
            }
        });
        let orders = in_order(orders.collect()).await?;
        let is_stray = |(row, stored): (ListedAt, Option<StoredOrder>)| {
            let keys = stored.map(|stored| ListKeys::of(&stored.order, &stored.list_buckets));
            (!keys.is_some_and(|keys| row.is_of(&keys))).then_some(row)
        };
        Ok(rows.into_iter().zip(orders).filter_map(is_stray).collect())
    }
}

/// A row of a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ListedAt {
    Customer(CustomerKey),
    Day(DayKey),
}

impl ListedAt {
    fn id(&self) -> &[u8] {
        match self {
            Self::Customer((.., id)) | Self::Day((.., id)) => id,
        }
    }

    fn order_id(&self) -> Option<OrderId> {
        uuid::Uuid::from_slice(self.id()).ok().map(OrderId::new)
    }

    fn is_of(&self, keys: &ListKeys) -> bool {
        match self {
            Self::Customer(key) => keys.customer == *key,
            Self::Day(key) => keys.zone == *key || keys.shop == *key,
        }
    }

    fn described(&self) -> String {
        let list = match self {
            Self::Customer(_) => Table::OrdersByCustomer,
            Self::Day(_) => Table::OrdersByDay,
        };
        let id = self.order_id().map_or_else(|| format!("{:02x?}", self.id()), |id| id.to_string());
        format!("{list}: a row of order {id} that is not its own")
    }
}
