//! Sales: running sums by hour and zone, and the report.
//!
//! Invariant: an order that is a sale counts in exactly one sum: in that of its hour, or, if it was created before
//! [`HourlyFrom`], in that of its day. The sum is written in the batch that changes the order's status.

use std::ops::ControlFlow;

use mw_codec::Damaged;
use mw_domain::orders::SalesSums;
use mw_domain::{Date, GeoZone, Order, Period, Timestamp};
use mw_store::Result;
use mw_store::orders::{Sales, SalesReport};

use crate::keys::{self, OrderList};
use crate::orders::{list_table, listed};
use crate::reader::{KeyRange, Reader};
use crate::tables::Table;
use crate::tx::Tx;

const HOUR_MS: i64 = 3_600_000;
/// The row of [`Table::Meta`] with the first hour of the hourly sums.
pub(crate) const HOURLY_FROM_KEY: &[u8] = b"hourly_sales_from";

/// The first hour of the hourly sums, always the first of a day. A store of format 1 has daily sums up to its upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HourlyFrom {
    pub(crate) hour: i64,
    pub(crate) is_stored: bool,
}

impl HourlyFrom {
    /// Reads the hour; without one it is the midnight after the newest order.
    pub(crate) fn read(reader: &dyn Reader) -> Result<Self> {
        if let Some(row) = reader.get(Table::Meta, HOURLY_FROM_KEY)? {
            let hour = row.as_ref().try_into().map_err(|_| Damaged("first hour of sales"))?;
            return Ok(Self { hour: i64::from_be_bytes(hour), is_stored: true });
        }
        let mut newest = None;
        reader.scan(Table::OrdersByTime, &KeyRange::prefix(Vec::new()), false, &mut |key, _| {
            newest = Some(keys::read_order(key)?.0);
            Ok(ControlFlow::Break(()))
        })?;
        let hour = newest.map_or(i64::MIN, |at: Timestamp| at.date().next().midnight().hour());
        Ok(Self { hour, is_stored: false })
    }

    fn start(self) -> Timestamp {
        Timestamp::from_millis(self.hour.saturating_mul(HOUR_MS))
    }
}

/// Updates the running sums when an order becomes a sale or stops being one.
pub(crate) fn count(tx: &mut Tx, order: &Order, was_sale: bool, is_sale: bool) -> Result<()> {
    if was_sale == is_sale {
        return Ok(());
    }
    let hour = order.created_at.hour();
    let (table, key) = if hour >= tx.hourly_from.hour {
        (Table::SalesByHour, keys::hourly_sales(hour, &order.geo_zone))
    } else {
        (Table::Sales, keys::sales(order.created_at.date(), &order.geo_zone))
    };
    let row = tx.get(table, &key)?;
    let mut sums = row.map(|row| mw_codec::orders::decode_sums(&row)).transpose()?.unwrap_or_default();
    if is_sale {
        sums.add(order.units(), order.total);
    } else {
        sums.remove(order.units(), order.total);
    }
    tx.put(table, key, mw_codec::orders::encode_sums(sums));
    Ok(())
}

/// The sales of a period: whole hours, or days before the hourly sums, from the sums; orders of the rest are read one by one.
pub(crate) fn report(
    reader: &dyn Reader,
    hourly_from: HourlyFrom,
    geo_zone: Option<&GeoZone>,
    period: Period,
) -> Result<Vec<Sales>> {
    let mut report = SalesReport::default();
    let start = hourly_from.start();
    let daily = Period { from: period.from, to: period.to.min(start) };
    if !daily.is_empty() {
        add_daily(reader, daily, geo_zone, &mut report)?;
    }
    let hourly = Period { from: period.from.max(start), to: period.to };
    if !hourly.is_empty() {
        add_hourly(reader, hourly, geo_zone, &mut report)?;
    }
    Ok(report.into_sales())
}

fn add_daily(
    reader: &dyn Reader,
    period: Period,
    geo_zone: Option<&GeoZone>,
    report: &mut SalesReport,
) -> Result<()> {
    let (first, last) = (period.from.date(), period.to.date());
    let whole_from = if first.midnight() < period.from { first.next() } else { first };
    if whole_from < last {
        let range = KeyRange { from: keys::sales_of_day(whole_from), to: Some(keys::sales_of_day(last)) };
        let read_date = |key: &[u8]| keys::read_sales(key);
        add_sums(reader, Table::Sales, &range, geo_zone, &read_date, report)?;
    }
    let whole = Period { from: whole_from.midnight(), to: last.midnight() };
    add_rest(reader, period, whole, geo_zone, report)
}

fn add_hourly(
    reader: &dyn Reader,
    period: Period,
    geo_zone: Option<&GeoZone>,
    report: &mut SalesReport,
) -> Result<()> {
    let start = |hour: i64| Timestamp::from_millis(hour.saturating_mul(HOUR_MS));
    let (first, last) = (period.from.hour(), period.to.hour());
    let whole_from = if start(first) < period.from { first.saturating_add(1) } else { first };
    if whole_from < last {
        let range = KeyRange { from: keys::sales_of_hour(whole_from), to: Some(keys::sales_of_hour(last)) };
        let read_date =
            |key: &[u8]| keys::read_hourly_sales(key).map(|(hour, zone)| (start(hour).date(), zone));
        add_sums(reader, Table::SalesByHour, &range, geo_zone, &read_date, report)?;
    }
    add_rest(reader, period, Period { from: start(whole_from), to: start(last) }, geo_zone, report)
}

/// Reads the date and the zone of a sum from its key.
type ReadSumKey<'a> = &'a dyn Fn(&[u8]) -> Result<(Date, GeoZone), Damaged>;

fn add_sums(
    reader: &dyn Reader,
    table: Table,
    range: &KeyRange,
    geo_zone: Option<&GeoZone>,
    read_key: ReadSumKey<'_>,
    report: &mut SalesReport,
) -> Result<()> {
    reader.scan(table, range, false, &mut |key, value| {
        let (date, zone) = read_key(key)?;
        if geo_zone.is_none_or(|asked| *asked == zone) {
            let sums: SalesSums = mw_codec::orders::decode_sums(value)?;
            report.add_sums(date, zone, sums);
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Adds the orders of a period before and after its whole hours or days.
fn add_rest(
    reader: &dyn Reader,
    period: Period,
    whole: Period,
    geo_zone: Option<&GeoZone>,
    report: &mut SalesReport,
) -> Result<()> {
    let head = Period { from: period.from, to: whole.from.min(period.to) };
    let tail = Period { from: whole.to.max(head.to), to: period.to };
    for part in [head, tail] {
        if !part.is_empty() {
            add_orders(reader, part, geo_zone, report)?;
        }
    }
    Ok(())
}

fn add_orders(
    reader: &dyn Reader,
    period: Period,
    geo_zone: Option<&GeoZone>,
    report: &mut SalesReport,
) -> Result<()> {
    let list = geo_zone.map_or(OrderList::All, OrderList::Zone);
    let end = list.until(period.from).or_else(|| keys::after_prefix(&list.prefix()));
    let range = KeyRange { from: list.before(period.to), to: end };
    reader.scan(list_table(list), &range, false, &mut |key, _| {
        let (_, order_id) = keys::read_order(key)?;
        report.add_order(&listed(reader, order_id)?);
        Ok(ControlFlow::Continue(()))
    })
}
