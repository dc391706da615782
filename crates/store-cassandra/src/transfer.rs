//! Stock, orders and keys out as records and stock in: the ledger of another store becomes a sum and the holds that are
//! open.

use std::collections::BTreeMap;
use std::time::Duration;

use mw_domain::stock::{Cause, Delta, Movement};
use mw_domain::{
    GeoZone, IdempotencyKey, Level, OrderId, ProductId, ReservationId, ReservationStatus, Timestamp,
    ZoneStock,
};
use mw_store::once::{Outcome, Remembered};
use mw_store::records::Record;
use mw_store::{Fingerprint, Freshness, Once, Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::keeper::{Answer, Change, Operation, Place, Replacement, StoredRow, read_row};
use crate::ledger::{END_OF_TIME, LedgerRow, State};
use crate::orders::{OwnRow, read_scanned};
use crate::records::Spool;
use crate::scan::{self, Group, Scan};
use crate::tables::Table;
use crate::time::{from_cql, to_cql};

/// How often a partition that changes meanwhile is read again.
const ROUNDS: u32 = 8;
/// Rows of a ledger that are in memory, and removed by one write, at a time.
const ROWS_PAGE: i32 = 256;

/// Rows of a figure that are read at one moment.
const WHOLE_PAGE: i32 = 50_000;
/// Before a figure is read again, the longer the more often.
const PAUSE: Duration = Duration::from_millis(50);

type ScannedStock = (
    String,
    String,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<CqlTimestamp>,
    Option<CqlTimestamp>,
    Option<Uuid>,
    Option<Operation>,
);

type ScannedKey = (String, Option<Vec<u8>>, Option<Uuid>, Option<CqlTimestamp>, Option<Vec<u8>>);

#[derive(Debug)]
pub(crate) struct Statements {
    stock: PreparedStatement,
    whole_stock: PreparedStatement,
    keys: PreparedStatement,
    rows: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let stock =
            "product_id, geo_zone, rev, on_hand, reserved, folded, updated_at, until, op_id, operation";
        let whole = format!("SELECT {stock} FROM {{}} WHERE product_id = ? AND geo_zone = ?");
        let mut whole_stock = cql.prepare(Table::Stock, Access::Read, &whole).await?;
        whole_stock.set_page_size(WHOLE_PAGE);
        // Figures without any row are shown as a row of nothing, unless a bound of the rows is asked for.
        let rows = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND until >= ?";
        let keys = "key, fingerprint, op_id, keep_until, outcome";
        let mut rows = cql.prepare(Table::Stock, Access::Read, rows).await?;
        rows.set_page_size(ROWS_PAGE);
        Ok(Self {
            stock: scan::prepare(cql, Table::Stock, stock).await?,
            whole_stock,
            keys: scan::prepare(cql, Table::IdempotencyKeys, keys).await?,
            rows,
        })
    }
}

impl CassandraStore {
    /// Every figure, with the sum of what came and went and the holds that are open.
    pub(crate) async fn export_stock(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, ScannedStock> = Scan::new(&self.cql, &self.transfer.stock);
        while let Some(Group { mut rows, is_torn }) = rows.group(|a, b| (&a.0, &a.1) == (&b.0, &b.1)).await? {
            if is_torn && let Some((product_id, geo_zone, ..)) = rows.first() {
                rows = self.whole_stock(&place_of(product_id, geo_zone)?).await?;
            }
            into.push(&read_stock(rows)?)?;
        }
        Ok(())
    }

    /// A figure with all its rows, as they were at one moment.
    async fn whole_stock(&self, place: &Place) -> Result<Vec<ScannedStock>> {
        for round in 1..=ROUNDS {
            let asked = (place.product_id.as_str(), place.geo_zone.as_str());
            let (mut whole, mut pages) = (Vec::new(), 0_u32);
            let mut from = Some(PagingState::start());
            while let Some(page) = from {
                let (rows, next) = self.cql.page(&self.transfer.whole_stock, asked, page).await?;
                whole.extend(rows);
                pages += 1;
                from = next;
            }
            if pages == 1 {
                return Ok(whole);
            }
            let figures = self.figures(place, Freshness::Full).await?;
            let rev = whole.first().and_then(|(_, _, rev, ..): &ScannedStock| *rev);
            if figures.and_then(|figures| figures.rev) == rev {
                return Ok(whole);
            }
            tokio::time::sleep(PAUSE * round).await;
        }
        Err(StoreError::Unavailable(format!(
            "the stock of {} in {} is sold too fast to be exported: try again in a calmer hour",
            place.product_id, place.geo_zone
        )))
    }

    /// Takes in the figures of another store in place of those here.
    pub(crate) async fn keep_stock(&self, stock: &ZoneStock, ledger: &[Movement]) -> Result<()> {
        let place = Place { product_id: stock.product_id.clone(), geo_zone: stock.geo_zone.clone() };
        let rows = self.open_holds(ledger).await?;
        let folded = ledger.iter().map(|movement| movement.delta.on_hand).sum();
        for _ in 0..ROUNDS {
            let rev = self.figures(&place, Freshness::Full).await?.and_then(|figures| figures.rev);
            if !self.clear(&place, stock.updated_at).await? {
                continue;
            }
            let replacement = Replacement {
                rev,
                level: stock.level,
                folded,
                updated_at: stock.updated_at,
                rows: rows.clone(),
            };
            let change = Change::Replace(Box::new(replacement));
            let answer = self.keepers.ask(&self.cql, &place, change, stock.updated_at).await?;
            if matches!(answer, Answer::Done { state: Some(_), .. }) {
                return Ok(());
            }
        }
        Err(StoreError::Unavailable(format!("the stock of {} changes too fast", place.product_id)))
    }

    /// Removes the rows of a ledger a page at a time, each page with what it did to the figures; answers whether there were
    /// none.
    async fn clear(&self, place: &Place, now: Timestamp) -> Result<bool> {
        let mut is_clear = true;
        let mut from = PagingState::start();
        loop {
            let values = (place.product_id.as_str(), place.geo_zone.as_str(), to_cql(Timestamp::EPOCH));
            let (rows, next) = self.cql.page::<StoredRow>(&self.transfer.rows, values, from).await?;
            if !rows.is_empty() {
                is_clear = false;
                let rows = rows.into_iter().map(read_row).collect::<Result<_>>()?;
                self.keepers.ask(&self.cql, place, Change::Clear { rows }, now).await?;
            }
            let Some(next) = next else { return Ok(is_clear) };
            from = next;
        }
    }

    /// What a ledger leaves promised, each with the end that its reservation has.
    async fn open_holds(&self, ledger: &[Movement]) -> Result<Vec<LedgerRow>> {
        let mut holds: BTreeMap<Uuid, (i64, Timestamp)> = BTreeMap::new();
        for movement in ledger.iter().filter(|movement| movement.delta.reserved != 0) {
            let (units, _) = holds.entry(movement.op).or_insert((0, movement.at));
            *units += movement.delta.reserved;
        }
        let mut rows = Vec::new();
        for (op_id, (quantity, at)) in holds.into_iter().filter(|(_, (units, _))| *units != 0) {
            let reservation = self.stored_reservation(ReservationId::new(op_id)).await?;
            let held = reservation.filter(|found| found.status == ReservationStatus::Held);
            let until = held.map_or(END_OF_TIME, |reservation| reservation.expires_at);
            rows.push(LedgerRow { until, op_id, state: State::Held, quantity, at, note: None });
        }
        Ok(rows)
    }

    /// Every key that has an answer. What a placed order's key answers is the order.
    pub(crate) async fn export_keys(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, ScannedKey> = Scan::new(&self.cql, &self.transfer.keys);
        while let Some((key, fingerprint, op_id, keep_until, outcome)) = rows.next().await? {
            let corrupt = || StoreError::Corrupt(format!("idempotency key {key:?}"));
            let (Some(fingerprint), Some(op_id), Some(keep_until)) = (fingerprint, op_id, keep_until) else {
                return Err(corrupt());
            };
            let outcome = match outcome {
                Some(bytes) => mw_codec::once::decode_outcome(&bytes)?,
                None if self.order_status(OrderId::new(op_id)).await?.is_some() => {
                    Outcome::Placed(OrderId::new(op_id))
                }
                None => continue,
            };
            let fingerprint = Fingerprint(fingerprint.try_into().map_err(|_| corrupt())?);
            let key = IdempotencyKey::restore(&key).map_err(|_| corrupt())?;
            let once = Once { key, fingerprint, keep_until: from_cql(keep_until) };
            into.push(&Record::Remembered(Remembered { once, outcome }))?;
        }
        Ok(())
    }

    /// Every order, with its events oldest first.
    pub(crate) async fn export_orders(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, OwnRow> = Scan::new(&self.cql, self.order_scan());
        while let Some(Group { mut rows, is_torn }) = rows.group(|a, b| a.order_id == b.order_id).await? {
            if is_torn && let Some(row) = rows.first() {
                rows = self.order_rows(OrderId::new(row.order_id)).await?;
            }
            if let Some((order, events)) = read_scanned(rows)? {
                into.push(&Record::Order { order, events })?;
            }
        }
        Ok(())
    }
}

fn place_of(product: &str, zone: &str) -> Result<Place> {
    let corrupt = || StoreError::Corrupt(format!("the stock of {product} in {zone}"));
    Ok(Place {
        product_id: ProductId::parse(product).map_err(|_| corrupt())?,
        geo_zone: GeoZone::parse(zone).map_err(|_| corrupt())?,
    })
}

/// The rows of a partition as a record.
fn read_stock(group: Vec<ScannedStock>) -> Result<Record> {
    let mut sum: Option<(ZoneStock, i64)> = None;
    let mut holds = Vec::new();
    for row in group {
        let (product, zone, _, on_hand, reserved, folded, updated_at, until, op_id, operation) = row;
        let corrupt = || StoreError::Corrupt(format!("the stock of {product} in {zone}"));
        let units = |figure: Option<i64>| u64::try_from(figure.unwrap_or_default()).map_err(|_| corrupt());
        if sum.is_none() {
            let Place { product_id, geo_zone } = place_of(&product, &zone)?;
            let stock = ZoneStock {
                product_id,
                geo_zone,
                level: Level { on_hand: units(on_hand)?, reserved: units(reserved)? },
                updated_at: updated_at.map_or(Timestamp::EPOCH, from_cql),
            };
            sum = Some((stock, folded.unwrap_or_default()));
        }
        let (Some((_, total)), Some(until), Some(op), Some(operation)) = (&mut sum, until, op_id, operation)
        else {
            continue;
        };
        let row = operation.row(until, op)?;
        let effect = row.state.effect(row.quantity);
        *total += effect.on_hand;
        if row.state == State::Held {
            holds.push(Movement { at: row.at, op, cause: Cause::Hold, delta: effect, note: None });
        }
    }
    let (stock, total) = sum.ok_or_else(|| StoreError::Corrupt("stock without rows".to_owned()))?;
    holds.sort_by_key(|hold| (hold.at, hold.op));
    let carried = Movement {
        at: stock.updated_at,
        op: Uuid::nil(),
        cause: Cause::Set,
        delta: Delta { on_hand: total, reserved: 0 },
        note: None,
    };
    let ledger = std::iter::once(carried).chain(holds).collect();
    Ok(Record::Stock { stock, ledger })
}
