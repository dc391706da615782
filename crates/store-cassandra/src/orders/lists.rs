//! Lists of orders: buckets newest first, until the page is full.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{Date, GeoZone, Money, Order, OrderStatus, Period, Timestamp, UserId};
use mw_store::orders::Sales;
use mw_store::{Page, PageRequest, Position, Refusal, Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlDate;
use uuid::Uuid;

use super::rows::{LIST_COLUMNS, ListRow, Snapshot, day_of, read_listed};
use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::tables::Table;
use crate::time::{from_cql, to_cql};

/// Buckets looked up at once.
const BUCKETS: i32 = 64;
/// Shards read at once.
const AT_ONCE: usize = 16;
/// Orders summed in one read of a report.
const SALES_PAGE: i32 = 1_000;

#[derive(Debug)]
pub(super) struct Statements {
    by_customer: PreparedStatement,
    by_zone_day: PreparedStatement,
    by_day: PreparedStatement,
    sales_by_zone_day: PreparedStatement,
    sales_by_day: PreparedStatement,
}

impl Statements {
    pub(super) async fn prepare(cql: &Cql) -> Result<Self> {
        let list = |partition: &str| {
            format!(
                "SELECT {LIST_COLUMNS} FROM {{}} WHERE {partition} AND (created_at) >= (?) \
                 AND (created_at, order_id) < (?, ?) LIMIT ?"
            )
        };
        let sales = |partition: &str| {
            format!(
                "SELECT snapshot FROM {{}} WHERE {partition} \
                 AND created_at >= ? AND created_at < ?"
            )
        };
        let (zone_day, day) = ("geo_zone = ? AND day = ? AND shard = ?", "day = ? AND shard = ?");
        let customer = list("user_id = ? AND bucket = ?");
        let mut statements = Self {
            by_customer: cql.prepare(Table::OrdersByCustomer, Access::Read, &customer).await?,
            by_zone_day: cql.prepare(Table::OrdersByZoneDay, Access::Read, &list(zone_day)).await?,
            by_day: cql.prepare(Table::OrdersByDay, Access::Read, &list(day)).await?,
            sales_by_zone_day: cql.prepare(Table::OrdersByZoneDay, Access::Read, &sales(zone_day)).await?,
            sales_by_day: cql.prepare(Table::OrdersByDay, Access::Read, &sales(day)).await?,
        };
        statements.sales_by_zone_day.set_page_size(SALES_PAGE);
        statements.sales_by_day.set_page_size(SALES_PAGE);
        Ok(statements)
    }
}

/// Orders before this one are still to be listed.
#[derive(Debug, Clone, Copy)]
struct Before {
    created_at: Timestamp,
    order_id: Uuid,
}

impl Before {
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

/// A page that is being filled.
struct Filling {
    limit: usize,
    items: Vec<Order>,
}

impl Filling {
    /// One more than the page: it tells that there is more.
    fn wanted(&self) -> i32 {
        i32::try_from(self.limit + 1 - self.items.len()).unwrap_or(i32::MAX)
    }

    fn is_full(&self) -> bool {
        self.items.len() > self.limit
    }

    fn page(mut self) -> Page<Order> {
        let is_more = self.is_full();
        self.items.truncate(self.limit);
        let next = self.items.last().filter(|_| is_more).map(Before::position);
        Page { items: self.items, next }
    }
}

impl CassandraStore {
    /// Buckets of a list that may have orders of the period before a place, newest first, a few at a time.
    async fn next_buckets(
        &self,
        table: Table,
        key: &str,
        period: &Period,
        below: Timestamp,
    ) -> Result<Vec<(Timestamp, String)>> {
        let asked = Period { from: period.from, to: below };
        let mut buckets = self.plans.buckets(&self.cql, table, key, &asked, BUCKETS).await?;
        // The bucket that the period begins in is the last one with something of it.
        if let Some(last) = buckets.iter().position(|(starts_at, _)| *starts_at <= period.from) {
            let first = buckets.get(last).map(|(starts_at, _)| *starts_at);
            buckets.retain(|(starts_at, _)| Some(*starts_at) >= first);
        }
        Ok(buckets)
    }

    pub(super) async fn list_of_customer(
        &self,
        user_id: &UserId,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        let before = Before::new(&period, request.after.as_ref())?;
        let mut filling = Filling { limit: request.limit, items: Vec::new() };
        let table = Table::OrdersByCustomer;
        let mut below = before.created_at.plus_millis(1).min(period.to);
        loop {
            let buckets = self.next_buckets(table, user_id.as_str(), &period, below).await?;
            for (_, bucket) in &buckets {
                let asked = (
                    user_id.as_str(),
                    bucket.as_str(),
                    to_cql(period.from),
                    to_cql(before.created_at),
                    &before.order_id.as_bytes()[..],
                    filling.wanted(),
                );
                let rows: Vec<ListRow> = self.cql.rows(&self.orders.lists.by_customer, asked).await?;
                for row in rows {
                    filling.items.push(read_listed(row)?);
                }
                if filling.is_full() {
                    return Ok(filling.page());
                }
            }
            match buckets.last() {
                Some((starts_at, _)) if *starts_at > period.from && is_cut(&buckets) => below = *starts_at,
                _ => return Ok(filling.page()),
            }
        }
    }

    /// The days of a list with their shards, newest first, a few at a time.
    async fn next_days(
        &self,
        table: Table,
        key: &str,
        period: &Period,
        below: Timestamp,
    ) -> Result<(Vec<(Date, i32)>, Option<Timestamp>)> {
        let buckets = self.next_buckets(table, key, period, below).await?;
        let mut days: Vec<(Date, i32)> = Vec::new();
        for (starts_at, cut) in &buckets {
            let date = starts_at.date();
            let cut: i32 = cut.parse().map_err(|_| StoreError::Corrupt(format!("a day cut into {cut:?}")))?;
            match days.last_mut() {
                Some((last, shards)) if *last == date => *shards = cut.max(*shards),
                _ => days.push((date, cut)),
            }
        }
        let next = buckets.last().map(|(starts_at, _)| *starts_at);
        Ok((days, next.filter(|starts_at| *starts_at > period.from && is_cut(&buckets))))
    }

    fn list_of(geo_zone: Option<&GeoZone>) -> (Table, &str) {
        match geo_zone {
            Some(zone) => (Table::OrdersByZoneDay, zone.as_str()),
            None => (Table::OrdersByDay, ""),
        }
    }

    pub(super) async fn list_by_day(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        let before = Before::new(&period, request.after.as_ref())?;
        let mut filling = Filling { limit: request.limit, items: Vec::new() };
        let (table, key) = Self::list_of(geo_zone);
        let mut below = before.created_at.plus_millis(1).min(period.to);
        loop {
            let (days, next) = self.next_days(table, key, &period, below).await?;
            for (date, shards) in days {
                self.fill_from_day(geo_zone, date, shards, &period, before, &mut filling).await?;
                if filling.is_full() {
                    return Ok(filling.page());
                }
            }
            match next {
                Some(starts_at) => below = starts_at,
                None => return Ok(filling.page()),
            }
        }
    }

    async fn fill_from_day(
        &self,
        geo_zone: Option<&GeoZone>,
        date: Date,
        shards: i32,
        period: &Period,
        before: Before,
        filling: &mut Filling,
    ) -> Result<()> {
        let day = day_of(date.midnight());
        let (from, until) = (to_cql(period.from), to_cql(before.created_at));
        let id = &before.order_id.as_bytes()[..];
        let wanted = filling.wanted();
        let reads = (0..shards).map(|shard| async move {
            let lists = &self.orders.lists;
            if let Some(zone) = geo_zone {
                let asked = (zone.as_str(), day, shard, from, until, id, wanted);
                self.cql.rows::<ListRow>(&lists.by_zone_day, asked).await
            } else {
                let asked = (day, shard, from, until, id, wanted);
                self.cql.rows::<ListRow>(&lists.by_day, asked).await
            }
        });
        let reads: Vec<_> = reads.collect();
        let found: Vec<Vec<ListRow>> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        let mut orders = Vec::new();
        for row in found.into_iter().flatten() {
            orders.push(read_listed(row)?);
        }
        orders.sort_by_key(|order| Reverse((order.created_at, order.order_id)));
        orders.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        filling.items.extend(orders);
        Ok(())
    }

    pub(super) async fn sum_sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        let (table, key) = Self::list_of(geo_zone);
        let mut sales = BTreeMap::new();
        let mut below = period.to;
        loop {
            let (days, next) = self.next_days(table, key, &period, below).await?;
            for (date, shards) in days {
                for shard in 0..shards {
                    self.sum_shard(geo_zone, date, shard, &period, &mut sales).await?;
                }
            }
            match next {
                Some(starts_at) => below = starts_at,
                None => return Ok(sales.into_values().collect()),
            }
        }
    }

    async fn sum_shard(
        &self,
        geo_zone: Option<&GeoZone>,
        date: Date,
        shard: i32,
        period: &Period,
        sales: &mut BTreeMap<(Date, GeoZone), Sales>,
    ) -> Result<()> {
        let day: CqlDate = day_of(date.midnight());
        let (from, to) = (to_cql(period.from), to_cql(period.to));
        let lists = &self.orders.lists;
        let mut page = PagingState::start();
        loop {
            let (rows, next) = if let Some(zone) = geo_zone {
                let asked = (zone.as_str(), day, shard, from, to);
                self.cql.page::<SalesRow>(&lists.sales_by_zone_day, asked, page).await?
            } else {
                let asked = (day, shard, from, to);
                self.cql.page::<SalesRow>(&lists.sales_by_day, asked, page).await?
            };
            for row in rows {
                add_sale(row, sales)?;
            }
            let Some(next) = next else { return Ok(()) };
            page = next;
        }
    }
}

fn is_cut(buckets: &[(Timestamp, String)]) -> bool {
    buckets.len() == usize::try_from(BUCKETS).unwrap_or_default()
}

type SalesRow = (Option<Snapshot>,);

fn add_sale((snapshot,): SalesRow, sales: &mut BTreeMap<(Date, GeoZone), Sales>) -> Result<()> {
    let Some(Snapshot { placed, status, .. }) = snapshot else { return Ok(()) };
    if !OrderStatus::parse(&status).is_some_and(OrderStatus::is_sale) {
        return Ok(());
    }
    let date = from_cql(placed.created_at).date();
    let zone = &placed.geo_zone;
    let geo_zone =
        GeoZone::parse(zone).map_err(|_| StoreError::Corrupt(format!("an order of zone {zone:?}")))?;
    let row = sales.entry((date, geo_zone.clone())).or_insert_with(|| Sales {
        date,
        geo_zone,
        orders: 0,
        units: 0,
        revenue: Money::ZERO,
    });
    row.orders += 1;
    row.units +=
        placed.items.iter().map(|item| u64::try_from(item.quantity).unwrap_or_default()).sum::<u64>();
    row.revenue = row.revenue.saturating_add(Money::from_minor(placed.total));
    Ok(())
}
