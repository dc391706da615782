//! Lists of orders and the sales report. Reads only.
//!
//! A list is divided into buckets: months of a user, slices of the days of a zone or of the shop. The table `buckets` names
//! those that may have orders; a list walks them newest first and stops when its page is full. A slice has several shards of each
//! process that wrote to it, which are read together.

use std::cmp::Reverse;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::buckets::DaySlice;
use mw_domain::{Date, GeoZone, Money, Order, OrderStatus, Period, Timestamp, UserId};
use mw_store::orders::{Sales, SalesReport};
use mw_store::{Page, PageRequest, Position, Refusal, Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlDate;
use uuid::Uuid;

use super::rows::{LIST_COLUMNS, ListRow, Snapshot, day_of, read_listed, read_slice_and_group};
use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql};
use crate::schema::tables::Table;

/// Buckets read from the table `buckets` at a time.
const BUCKETS: i32 = 64;
/// Slices with a group each read from the table `buckets` at a time: more than a slice has groups.
const SLICE_GROUPS: i32 = 4_096;
/// Shards of a slice read at the same time.
const CONCURRENT_SHARDS: usize = 16;
/// Orders in one page of the sales report.
const SALES_PAGE: i32 = 1_000;

#[derive(Debug)]
pub(super) struct Statements {
    by_customer: PreparedStatement,
    by_day: PreparedStatement,
    sales: PreparedStatement,
}

impl Statements {
    pub(super) async fn prepare(cql: &Cql) -> Result<Self> {
        let list = |partition: &str| {
            format!(
                "SELECT {LIST_COLUMNS} FROM {{}} WHERE {partition} AND (created_at) >= (?) \
                 AND (created_at, order_id) < (?, ?) LIMIT ?"
            )
        };
        let day = "day = ? AND slice = ? AND shard = ? AND geo_zone = ?";
        let sales = format!("SELECT snapshot FROM {{}} WHERE {day} AND created_at >= ? AND created_at < ?");
        let by_user = list("user_id = ? AND bucket = ?");
        let mut statements = Self {
            by_customer: cql.prepare(Table::OrdersByCustomer, Access::Read, &by_user).await?,
            by_day: cql.prepare(Table::OrdersByDay, Access::Read, &list(day)).await?,
            sales: cql.prepare(Table::OrdersByDay, Access::Read, &sales).await?,
        };
        statements.sales.set_page_size(SALES_PAGE);
        Ok(statements)
    }

    /// Whether a shard of a slice can be read and written.
    pub(super) fn has_quorum(&self, cql: &Cql, day: CqlDate, slice: &str, shard: i32) -> bool {
        let any = to_cql(Timestamp::EPOCH);
        cql.has_quorum(&self.sales, &(day, slice, shard, SHOP, any, any))
    }
}

/// Where a page begins: orders before this one are still to be listed.
#[derive(Debug, Clone, Copy)]
struct ListCursor {
    created_at: Timestamp,
    order_id: Uuid,
}

impl ListCursor {
    fn new(period: &Period, after: Option<&Position>) -> Result<Self> {
        let Some(Position(bytes)) = after else {
            return Ok(Self { created_at: period.to, order_id: Uuid::nil() });
        };
        let (millis, id) = bytes.split_first_chunk::<8>().ok_or(Refusal::InvalidCursor)?;
        let order_id = Uuid::from_slice(id).map_err(|_| Refusal::InvalidCursor)?;
        let created_at = Timestamp::from_millis(i64::from_be_bytes(*millis));
        if created_at >= period.to {
            return Ok(Self { created_at: period.to, order_id: Uuid::nil() });
        }
        Ok(Self { created_at, order_id })
    }

    fn position(order: &Order) -> Position {
        let millis = order.created_at.as_millis().to_be_bytes();
        Position([&millis[..], &order.order_id.as_bytes()[..]].concat())
    }
}

/// A page while it is filled.
struct PageBuilder {
    limit: usize,
    items: Vec<Order>,
}

impl PageBuilder {
    /// Rows to read: one more than the page has room for shows that there is a next page.
    fn wanted(&self) -> i32 {
        i32::try_from(self.limit + 1 - self.items.len()).unwrap_or(i32::MAX)
    }

    fn is_full(&self) -> bool {
        self.items.len() > self.limit
    }

    fn build(mut self) -> Page<Order> {
        let has_more = self.is_full();
        self.items.truncate(self.limit);
        let next = self.items.last().filter(|_| has_more).map(ListCursor::position);
        Page { items: self.items, next }
    }
}

impl CassandraStore {
    /// Buckets of a list that may have orders of the period before `below`, newest first, up to `limit`.
    async fn next_buckets(
        &self,
        table: Table,
        key: &str,
        period: &Period,
        (below, limit): (Timestamp, i32),
    ) -> Result<Vec<(Timestamp, String)>> {
        let period_below = Period { from: period.from, to: below };
        let mut buckets = self.bucketing.buckets(&self.cql, table, key, &period_below, limit).await?;
        // The bucket that the period begins in is the last one with orders of the period.
        if let Some(last) = buckets.iter().position(|(starts_at, _)| *starts_at <= period.from) {
            let first = buckets.get(last).map(|(starts_at, _)| *starts_at);
            buckets.retain(|(starts_at, _)| Some(*starts_at) >= first);
        }
        Ok(buckets)
    }

    pub(super) async fn list_by_user(
        &self,
        user_id: &UserId,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        let before = ListCursor::new(&period, request.after.as_ref())?;
        let mut page = PageBuilder { limit: request.limit, items: Vec::new() };
        let table = Table::OrdersByCustomer;
        let mut below = before.created_at.plus_millis(1).min(period.to);
        loop {
            let buckets = self.next_buckets(table, user_id.as_str(), &period, (below, BUCKETS)).await?;
            for (_, bucket) in &buckets {
                let values = (
                    user_id.as_str(),
                    bucket.as_str(),
                    to_cql(period.from),
                    to_cql(before.created_at),
                    &before.order_id.as_bytes()[..],
                    page.wanted(),
                );
                let rows: Vec<ListRow> = self.cql.rows(&self.orders.lists.by_customer, values).await?;
                for row in rows {
                    page.items.push(read_listed(row)?);
                }
                if page.is_full() {
                    return Ok(page.build());
                }
            }
            match next_below(&buckets, &period) {
                Some(starts_at) => below = starts_at,
                None => return Ok(page.build()),
            }
        }
    }

    /// The slices of a day that may have orders of the period before `below`, newest first, each with its groups.
    async fn slices(
        &self,
        key: &str,
        day: Date,
        period: &Period,
        mut below: Timestamp,
    ) -> Result<Vec<GroupedSlice>> {
        let (table, key) = (Table::OrdersByDay, slices_key(key, day));
        let corrupt = |name: &str| {
            StoreError::Corrupt(format!("read buckets of {}: invalid slice {name:?}", table.name()))
        };
        let mut slices: Vec<GroupedSlice> = Vec::new();
        loop {
            let mut buckets = self.next_buckets(table, &key, period, (below, SLICE_GROUPS)).await?;
            // Of the last slice some groups may be missing: it is read again, with the next ones.
            let cut =
                buckets.last().map(|(starts_at, _)| *starts_at).filter(|_| is_cut(&buckets, SLICE_GROUPS));
            buckets.retain(|(starts_at, _)| Some(*starts_at) > cut);
            for (starts_at, name) in &buckets {
                let (slice, first_shard) =
                    read_slice_and_group(name, *starts_at).ok_or_else(|| corrupt(name))?;
                match slices.last_mut() {
                    Some(last) if last.slice == slice => last.first_shards.push(first_shard),
                    _ => slices.push(GroupedSlice { slice, first_shards: vec![first_shard] }),
                }
            }
            match cut {
                Some(starts_at) if !buckets.is_empty() => below = starts_at.plus_millis(1),
                Some(_) => return Err(corrupt("more groups than there can be")),
                None => return Ok(slices),
            }
        }
    }

    pub(super) async fn list_by_day(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        let before = ListCursor::new(&period, request.after.as_ref())?;
        let mut page = PageBuilder { limit: request.limit, items: Vec::new() };
        let list = geo_zone.map_or(SHOP, GeoZone::as_str);
        let mut below = before.created_at.plus_millis(1).min(period.to);
        loop {
            let days = self.next_buckets(Table::OrdersByDay, list, &period, (below, BUCKETS)).await?;
            for (midnight, _) in &days {
                for slice in self.slices(list, midnight.date(), &period, below).await? {
                    self.fill_from_slice(list, midnight.date(), &slice, &period, before, &mut page).await?;
                    if page.is_full() {
                        return Ok(page.build());
                    }
                }
            }
            match next_below(&days, &period) {
                Some(midnight) => below = midnight,
                None => return Ok(page.build()),
            }
        }
    }

    async fn fill_from_slice(
        &self,
        list: &str,
        date: Date,
        slice: &GroupedSlice,
        period: &Period,
        before: ListCursor,
        page: &mut PageBuilder,
    ) -> Result<()> {
        let (day, name) = (day_of(date.midnight()), slice.slice.name.as_str());
        let (from, until) = (to_cql(period.from), to_cql(before.created_at));
        let id = &before.order_id.as_bytes()[..];
        let wanted = page.wanted();
        let reads = slice.shards().map(|shard| async move {
            let values = (day, name, shard, list, from, until, id, wanted);
            self.cql.rows::<ListRow>(&self.orders.lists.by_day, values).await
        });
        let reads: Vec<_> = reads.collect();
        let found: Vec<Vec<ListRow>> = stream::iter(reads).buffered(CONCURRENT_SHARDS).try_collect().await?;
        let mut orders = Vec::new();
        for row in found.into_iter().flatten() {
            orders.push(read_listed(row)?);
        }
        orders.sort_by_key(|order| Reverse((order.created_at, order.order_id)));
        orders.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        page.items.extend(orders);
        Ok(())
    }

    pub(super) async fn sum_sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        let list = geo_zone.map_or(SHOP, GeoZone::as_str);
        let mut report = SalesReport::default();
        let mut below = period.to;
        loop {
            let days = self.next_buckets(Table::OrdersByDay, list, &period, (below, BUCKETS)).await?;
            for (midnight, _) in &days {
                for slice in self.slices(list, midnight.date(), &period, below).await? {
                    let partition = (midnight.date(), &slice.slice);
                    let sums: Vec<_> =
                        slice.shards().map(|shard| self.sum_shard(list, partition, shard, &period)).collect();
                    let mut sums = stream::iter(sums).buffered(CONCURRENT_SHARDS);
                    while let Some(sum) = sums.next().await {
                        report.merge(sum?);
                    }
                }
            }
            match next_below(&days, &period) {
                Some(midnight) => below = midnight,
                None => return Ok(report.into_sales()),
            }
        }
    }

    async fn sum_shard(
        &self,
        list: &str,
        (date, slice): (Date, &DaySlice),
        shard: i32,
        period: &Period,
    ) -> Result<SalesReport> {
        let mut report = SalesReport::default();
        let (day, name): (CqlDate, _) = (day_of(date.midnight()), slice.name.as_str());
        let (from, to) = (to_cql(period.from), to_cql(period.to));
        let mut page = PagingState::start();
        loop {
            let values = (day, name, shard, list, from, to);
            let (rows, next) = self.cql.page::<SalesRow>(&self.orders.lists.sales, values, page).await?;
            for row in rows {
                add_sale(row, &mut report)?;
            }
            let Some(next) = next else { return Ok(report) };
            page = next;
        }
    }
}

/// The list of the whole shop, where the list of a zone has the name of the zone.
pub(super) const SHOP: &str = "";

/// The bucket of a list of days under its key: which days have slices.
pub(super) const DAY: &str = "day";

/// The key of the slices of a day: of a list's buckets, so that the buckets of a key stay few.
pub(super) fn slices_key(key: &str, day: Date) -> String {
    let (year, month, day) = day.civil();
    format!("{key}@{year:04}-{month:02}-{day:02}")
}

/// A slice with the groups of shards that may have orders.
struct GroupedSlice {
    slice: DaySlice,
    first_shards: Vec<i32>,
}

impl GroupedSlice {
    fn shards(&self) -> impl Iterator<Item = i32> {
        let shards = i32::try_from(self.slice.shards).unwrap_or_default();
        self.first_shards.iter().flat_map(move |first| *first..first.saturating_add(shards))
    }
}

/// Where to read on after these buckets; `None` where there are no more of the period.
fn next_below(buckets: &[(Timestamp, String)], period: &Period) -> Option<Timestamp> {
    let (starts_at, _) = buckets.last()?;
    (*starts_at > period.from && is_cut(buckets, BUCKETS)).then_some(*starts_at)
}

/// Whether there may be more buckets than were read.
fn is_cut(buckets: &[(Timestamp, String)], limit: i32) -> bool {
    buckets.len() == usize::try_from(limit).unwrap_or_default()
}

type SalesRow = (Option<Snapshot>,);

fn add_sale((snapshot,): SalesRow, report: &mut SalesReport) -> Result<()> {
    let Some(Snapshot { placed, status, .. }) = snapshot else { return Ok(()) };
    if !OrderStatus::parse(&status).is_some_and(OrderStatus::is_sale) {
        return Ok(());
    }
    let zone = &placed.geo_zone;
    let geo_zone = GeoZone::parse(zone)
        .map_err(|_| StoreError::Corrupt(format!("read sales: invalid zone {zone:?}")))?;
    let units = placed.items.iter().map(|item| u64::try_from(item.quantity).unwrap_or_default()).sum();
    report.add_sale(from_cql(placed.created_at), &geo_zone, units, Money::from_minor(placed.total));
    Ok(())
}
