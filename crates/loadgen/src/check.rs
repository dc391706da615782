//! The consistency check after a run: every acknowledged order is readable, and no unit was sold twice.
//!
//! Orders are read back through the API, summed up by product and zone, and compared with the stock levels: units of
//! unpaid orders are reserved, units of paid orders have left the stock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::sampling::Names;
use crate::scenarios::Placed;
use crate::target::Target;
use crate::worker_pool::WorkerPool;

/// Findings with a text of their own; the rest is counted.
const FINDINGS_MAX: usize = 20;

/// The result of the check.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub passed: bool,
    /// Acknowledged orders, all of them read.
    pub orders: u64,
    pub orders_missing: u64,
    /// Orders whose read got no response at all.
    pub orders_unread: u64,
    /// Orders whose outcome stayed unknown in spite of retries.
    pub orders_unresolved: u64,
    /// Stock levels, one per product and zone, that were compared with the orders.
    pub figures: u64,
    pub figures_wrong: u64,
    pub units_reserved: u64,
    pub units_sold: u64,
    pub units_oversold: u64,
    /// The first mismatches, in words.
    pub findings: Vec<String>,
}

/// A product and a zone, by number.
type StockKey = (u64, u64);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Level {
    on_hand: u64,
    reserved: u64,
}

/// Stock levels before the run: the same everywhere, or as they were read.
#[derive(Debug)]
pub(crate) enum Before {
    Units(u64),
    Read(BTreeMap<StockKey, Level>),
}

/// Units of orders of one product in one zone.
#[derive(Debug, Clone, Copy, Default)]
struct Units {
    held: u64,
    sold: u64,
}

#[derive(Deserialize)]
struct OrderForm<'a> {
    order_id: &'a str,
    user_id: &'a str,
    status: &'a str,
    geo_zone: &'a str,
    #[serde(borrow)]
    lines: Vec<LineForm<'a>>,
}

#[derive(Deserialize)]
struct LineForm<'a> {
    product_id: &'a str,
    quantity: u64,
}

#[derive(Deserialize)]
struct StockForm<'a> {
    #[serde(borrow)]
    zones: Vec<ZoneForm<'a>>,
}

#[derive(Deserialize)]
struct ZoneForm<'a> {
    geo_zone: &'a str,
    on_hand: u64,
    reserved: u64,
}

/// Reads the stock levels of all products.
pub(crate) fn levels(
    pool: &mut WorkerPool,
    target: &Target,
    names: &Names,
    products: &[u64],
) -> Result<BTreeMap<StockKey, Level>, LoadError> {
    let path = |product: &u64, out: &mut Vec<u8>| {
        out.extend_from_slice(format!("/v1/products/{}/stock", names.id('p', *product)).as_bytes());
    };
    let parse = |product: &u64, response: Option<(u16, &[u8])>| {
        let (200, body) = response? else { return None };
        let form: StockForm<'_> = serde_json::from_slice(body).ok()?;
        let level = |zone: ZoneForm<'_>| {
            let place = (*product, number(names, 'z', zone.geo_zone)?);
            Some((place, Level { on_hand: zone.on_hand, reserved: zone.reserved }))
        };
        form.zones.into_iter().map(level).collect::<Option<Vec<_>>>()
    };
    let read = pool.read(target, products, path, parse)?;
    Ok(read.into_iter().flatten().flatten().collect())
}

/// Reads all orders and stock levels back. A mismatch is read a second time, since an order that was not paid in time
/// may be cancelled between two reads.
pub(crate) fn check(
    pool: &mut WorkerPool,
    target: &Target,
    names: &Names,
    before: &Before,
) -> Result<Check, LoadError> {
    let first = read_and_compare(pool, target, names, before)?;
    if first.figures_wrong == 0 {
        return Ok(first);
    }
    read_and_compare(pool, target, names, before)
}

fn read_and_compare(
    pool: &mut WorkerPool,
    target: &Target,
    names: &Names,
    before: &Before,
) -> Result<Check, LoadError> {
    let placed = pool.orders();
    let mut check =
        Check { orders: placed.len() as u64, orders_unresolved: pool.unresolved(), ..Check::default() };
    let mut units: BTreeMap<StockKey, Units> = BTreeMap::new();
    for (order, found) in placed.iter().zip(read_orders(pool, target, names, &placed)?) {
        match found {
            Ok(lines) => {
                for (place, more) in lines {
                    let sum = units.entry(place).or_default();
                    sum.held += more.held;
                    sum.sold += more.sold;
                }
            }
            Err(None) => {
                check.orders_unread += 1;
                check.find(format!("order {} was acknowledged and cannot be read: no response", order.id));
            }
            Err(Some(why)) => {
                check.orders_missing += 1;
                check.find(format!("order {} was acknowledged and {why}", order.id));
            }
        }
    }
    let mut products: Vec<u64> = units.keys().map(|(product, _)| *product).collect();
    products.dedup();
    let after = levels(pool, target, names, &products)?;
    for (place, units) in &units {
        check.compare(names, *place, *units, before, after.get(place).copied());
    }
    check.passed = check.orders_missing + check.orders_unread + check.figures_wrong == 0;
    Ok(check)
}

type Lines = Vec<(StockKey, Units)>;

fn read_orders(
    pool: &mut WorkerPool,
    target: &Target,
    names: &Names,
    placed: &[Placed],
) -> Result<Vec<Result<Lines, Option<String>>>, LoadError> {
    let path = |order: &Placed, out: &mut Vec<u8>| {
        out.extend_from_slice(format!("/v1/orders/{}", order.id).as_bytes());
    };
    let parse = |order: &Placed, response: Option<(u16, &[u8])>| match response {
        Some((status, body)) => read_order(names, order, status, body).map_err(Some),
        None => Err(None),
    };
    pool.read(target, placed, path, parse)
}

fn read_order(names: &Names, order: &Placed, status: u16, body: &[u8]) -> Result<Lines, String> {
    if status != 200 {
        return Err(format!("cannot be read: the server returned {status}"));
    }
    let form: OrderForm<'_> =
        serde_json::from_slice(body).map_err(|error| format!("is not an order: {error}"))?;
    if form.order_id != order.id.to_string() {
        return Err(format!("reads as order {}", form.order_id));
    }
    if number(names, 'b', form.user_id) != Some(order.buyer) {
        return Err(format!("belongs to {}", form.user_id));
    }
    let zone = number(names, 'z', form.geo_zone).ok_or_else(|| format!("is in zone {}", form.geo_zone))?;
    let line = |line: &LineForm<'_>| {
        let product =
            number(names, 'p', line.product_id).ok_or_else(|| format!("has {}", line.product_id))?;
        let units = match form.status {
            "created" => Units { held: line.quantity, sold: 0 },
            "paid" | "shipped" | "delivered" => Units { held: 0, sold: line.quantity },
            _ => Units::default(),
        };
        Ok(((product, zone), units))
    };
    form.lines.iter().map(line).collect()
}

/// The number in an id that this generator made.
fn number(names: &Names, kind: char, id: &str) -> Option<u64> {
    id.strip_prefix(names.prefix.as_str())?.strip_prefix('-')?.strip_prefix(kind)?.parse().ok()
}

impl Check {
    fn find(&mut self, finding: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    fn compare(
        &mut self,
        names: &Names,
        place: StockKey,
        units: Units,
        before: &Before,
        after: Option<Level>,
    ) {
        self.figures += 1;
        self.units_reserved += units.held;
        self.units_sold += units.sold;
        let place_name = format!("{} in {}", names.id('p', place.0), names.id('z', place.1));
        let (put_in, foreign) = match before {
            Before::Units(units) => (*units, 0),
            Before::Read(levels) => {
                levels.get(&place).map_or((0, 0), |level| (level.on_hand, level.reserved))
            }
        };
        let oversold = (units.held + units.sold).saturating_sub(put_in);
        if oversold > 0 {
            self.units_oversold += oversold;
            self.wrong(format!(
                "{place_name}: {oversold} units oversold: {put_in} imported, {} ordered",
                units.held + units.sold
            ));
            return;
        }
        let Some(after) = after else {
            self.wrong(format!("{place_name}: cannot read its stock"));
            return;
        };
        // An unresolved order may hold units, and units of an earlier run may be released meanwhile.
        let is_certain = self.orders_unresolved == 0;
        let left = put_in - units.sold;
        if after.reserved > after.on_hand {
            self.wrong(format!("{place_name}: {} reserved of {} on hand", after.reserved, after.on_hand));
        } else if after.on_hand > left || (is_certain && after.on_hand < left) {
            self.wrong(format!("{place_name}: {} on hand, {left} expected", after.on_hand));
        } else if after.reserved < units.held || (is_certain && after.reserved > units.held + foreign) {
            self.wrong(format!("{place_name}: {} reserved, {} expected", after.reserved, units.held));
        }
    }

    fn wrong(&mut self, finding: String) {
        self.figures_wrong += 1;
        self.find(finding);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn names() -> Names {
        Names { prefix: "bench-1".to_owned(), run: "r".to_owned() }
    }

    fn compared(units: Units, put_in: u64, after: Option<Level>, unresolved: u64) -> Check {
        let mut check = Check { orders_unresolved: unresolved, ..Check::default() };
        check.compare(&names(), (3, 1), units, &Before::Units(put_in), after);
        check
    }

    #[test]
    fn levels_that_match_the_orders_pass() {
        let check = compared(Units { held: 3, sold: 2 }, 10, Some(Level { on_hand: 8, reserved: 3 }), 0);
        assert_eq!((check.figures_wrong, check.units_reserved, check.units_sold), (0, 3, 2));
    }

    #[test]
    fn more_sold_than_was_there_is_oversold() {
        let check = compared(Units { held: 7, sold: 5 }, 10, Some(Level { on_hand: 5, reserved: 5 }), 0);
        assert_eq!((check.units_oversold, check.figures_wrong), (2, 1));
        assert_eq!(check.findings, ["bench-1-p3 in bench-1-z1: 2 units oversold: 10 imported, 12 ordered"]);
    }

    #[test]
    fn levels_that_differ_from_the_orders_are_reported() {
        let message = |on_hand, reserved, unresolved| {
            let level = Level { on_hand, reserved };
            compared(Units { held: 3, sold: 2 }, 10, Some(level), unresolved).findings
        };
        assert_eq!(message(9, 3, 0), ["bench-1-p3 in bench-1-z1: 9 on hand, 8 expected"]);
        assert_eq!(message(7, 3, 0), ["bench-1-p3 in bench-1-z1: 7 on hand, 8 expected"]);
        assert_eq!(message(8, 2, 0), ["bench-1-p3 in bench-1-z1: 2 reserved, 3 expected"]);
        assert_eq!(message(8, 4, 0), ["bench-1-p3 in bench-1-z1: 4 reserved, 3 expected"]);
        assert_eq!(message(2, 3, 0), ["bench-1-p3 in bench-1-z1: 3 reserved of 2 on hand"]);
        assert_eq!(message(8, 4, 1), [""; 0], "an unresolved order may hold one unit");
        assert_eq!(message(8, 2, 1), ["bench-1-p3 in bench-1-z1: 2 reserved, 3 expected"]);
        let unread = compared(Units { held: 1, sold: 0 }, 10, None, 0);
        assert_eq!(unread.findings, ["bench-1-p3 in bench-1-z1: cannot read its stock"]);
    }

    #[test]
    fn an_order_must_read_as_it_was_placed() {
        let order = Placed { id: Uuid::from_u128(5), buyer: 7 };
        let body = |user: &str, status: &str| {
            format!(
                r#"{{"order_id":"{}","user_id":"{user}","status":"{status}","geo_zone":"bench-1-z2","lines":[{{"product_id":"bench-1-p4","name":"x","quantity":2}}],"total":{{}}}}"#,
                order.id
            )
        };
        let read = |status, body: &str| read_order(&names(), &order, status, body.as_bytes());
        let lines = read(200, &body("bench-1-b7", "paid")).unwrap();
        assert_eq!((lines[0].0, lines[0].1.sold, lines[0].1.held), ((4, 2), 2, 0));
        let lines = read(200, &body("bench-1-b7", "cancelled")).unwrap();
        assert_eq!((lines[0].1.sold, lines[0].1.held), (0, 0));
        assert_eq!(read(404, "{}").unwrap_err(), "cannot be read: the server returned 404");
        assert_eq!(read(200, &body("bench-1-b8", "paid")).unwrap_err(), "belongs to bench-1-b8");
        assert!(read(200, "{}").is_err());
    }
}
