//! Export and import of stock.
//!
//! An exported ledger is compacted: one movement with the sum of everything that came and went, then the open holds. An
//! import replaces the partition; at every moment of it the header is the sum of the ledger rows and `compacted`.

use std::collections::BTreeMap;
use std::time::Duration;

use mw_domain::stock::{Cause, Delta, Movement};
use mw_domain::{Level, ReservationId, ReservationStatus, Timestamp, ZoneStock};
use mw_store::export::Record;
use mw_store::{Freshness, Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::scan::{self, Group, Scan};
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql};
use crate::export::Spool;
use crate::schema::tables::Table;
use crate::stock::decision::{Decision, Replacement, StockCommand, StockKey};
use crate::stock::ledger::{END_OF_TIME, LedgerRow, LedgerState};
use crate::stock::rows::{
    HeaderRow, Operation, SELECT_HEADER, StoredRow, corrupt_partition, read_level, read_rows, read_stock_key,
};

/// How often a partition that changes meanwhile is read again.
const ROUNDS: u32 = 8;
/// Ledger rows that are in memory, and removed by one write, at a time.
const CLEAR_PAGE: i32 = 256;
/// Rows of a partition that one page reads, and so as of one moment.
const WHOLE_PAGE: i32 = 50_000;
/// Before a partition is read again; grows with every round.
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

#[derive(Debug)]
pub(crate) struct Statements {
    scan: PreparedStatement,
    /// One partition.
    whole: PreparedStatement,
    header_serial: PreparedStatement,
    /// The ledger rows of one partition.
    rows: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let columns =
            "product_id, geo_zone, rev, on_hand, reserved, compacted, updated_at, until, op_id, operation";
        let whole = format!("SELECT {columns} FROM {{}} WHERE product_id = ? AND geo_zone = ?");
        let mut whole = cql.prepare(Table::Stock, Access::Read, &whole).await?;
        whole.set_page_size(WHOLE_PAGE);
        // The header comes before every bound on `until`.
        let rows = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND until >= ?";
        let mut rows = cql.prepare(Table::Stock, Access::Read, rows).await?;
        rows.set_page_size(CLEAR_PAGE);
        Ok(Self {
            scan: scan::prepare(cql, Table::Stock, columns).await?,
            whole,
            header_serial: cql.prepare(Table::Stock, Access::Serial, SELECT_HEADER).await?,
            rows,
        })
    }
}

impl CassandraStore {
    /// The rows of a ledger, without the header.
    pub(crate) const fn ledger_rows(&self) -> &PreparedStatement {
        &self.export.stock.rows
    }

    /// The stock of every product and zone, with its compacted ledger and the open holds.
    pub(crate) async fn export_stock(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, ScannedStock> = Scan::new(&self.cql, &self.export.stock.scan);
        while let Some(Group { mut rows, is_torn }) = rows.group(|a, b| (&a.0, &a.1) == (&b.0, &b.1)).await? {
            if is_torn && let Some((product_id, geo_zone, ..)) = rows.first() {
                rows = self.whole_stock(&read_stock_key(product_id, geo_zone)?).await?;
            }
            let record = read_stock(rows)?;
            if !is_without_level(&record) {
                into.push(&record)?;
            }
        }
        Ok(())
    }

    /// The revision of a partition; a commit that only some replicas have is completed.
    async fn completed_revision(&self, key: &StockKey) -> Result<Option<i64>> {
        let partition = (key.product_id.as_str(), key.geo_zone.as_str());
        let row: Option<HeaderRow> = self.cql.first(&self.export.stock.header_serial, partition).await?;
        Ok(row.and_then(|(rev, ..)| rev))
    }

    /// All rows of a partition as of one moment: one page, or several between which the revision did not change. The revision
    /// is read at the serial level before and after: pages at a quorum may or may not show a commit that is under way.
    async fn whole_stock(&self, key: &StockKey) -> Result<Vec<ScannedStock>> {
        for round in 1..=ROUNDS {
            let before = self.completed_revision(key).await?;
            let partition = (key.product_id.as_str(), key.geo_zone.as_str());
            let (mut whole, mut pages) = (Vec::new(), 0_u32);
            let mut from = Some(PagingState::start());
            while let Some(page) = from {
                let (rows, next) = self.cql.page(&self.export.stock.whole, partition, page).await?;
                whole.extend(rows);
                pages += 1;
                from = next;
            }
            if pages == 1 {
                return Ok(whole);
            }
            let rev = whole.first().and_then(|(_, _, rev, ..): &ScannedStock| *rev);
            if before == rev && self.completed_revision(key).await? == rev {
                return Ok(whole);
            }
            tokio::time::sleep(PAUSE * round).await;
        }
        Err(StoreError::Unavailable(format!(
            "export stock of {} in {}: its ledger changed during each of {ROUNDS} reads; try again when fewer orders arrive",
            key.product_id, key.geo_zone
        )))
    }

    /// Replaces the stock of a product and zone by that of the record.
    pub(crate) async fn import_stock(&self, stock: &ZoneStock, ledger: &[Movement]) -> Result<()> {
        let key = StockKey { product_id: stock.product_id.clone(), geo_zone: stock.geo_zone.clone() };
        let rows = self.open_holds(ledger).await?;
        let compacted = ledger.iter().map(|movement| movement.delta.on_hand).sum();
        for _ in 0..ROUNDS {
            let rev = self.header(&key, Freshness::Latest).await?.and_then(|header| header.rev);
            // A crash while the ledger is cleared leaves fewer rows, each removed together with its effect on the header:
            // the partition stays consistent, and the repeated import clears the rest.
            if !self.clear(&key, stock.updated_at).await? {
                continue;
            }
            let replacement = Replacement {
                rev,
                level: stock.level,
                compacted,
                updated_at: stock.updated_at,
                rows: rows.clone(),
            };
            // One conditional batch. A crash before it leaves an empty ledger, after it the imported stock; the checkpoint
            // is not written yet, so the client repeats the import in both cases.
            let command = StockCommand::Replace(Box::new(replacement));
            let decision = self.keepers.submit(&self.cql, &key, command, stock.updated_at).await?;
            if matches!(decision, Decision::Done { state: Some(_), .. }) {
                return Ok(());
            }
        }
        Err(StoreError::Unavailable(format!(
            "import stock of {} in {}: gave up after {ROUNDS} lost CAS rounds (contention); stop the other writers",
            key.product_id, key.geo_zone
        )))
    }

    /// Removes the ledger rows a page at a time, each page together with its effect on the header. Returns whether there
    /// were none.
    async fn clear(&self, key: &StockKey, now: Timestamp) -> Result<bool> {
        let mut is_clear = true;
        let mut from = PagingState::start();
        loop {
            let values = (key.product_id.as_str(), key.geo_zone.as_str(), to_cql(Timestamp::EPOCH));
            let (rows, next) = self.cql.page::<StoredRow>(&self.export.stock.rows, values, from).await?;
            if !rows.is_empty() {
                is_clear = false;
                let rows = read_rows(rows)?;
                self.keepers.submit(&self.cql, key, StockCommand::Clear { rows }, now).await?;
            }
            let Some(next) = next else { return Ok(is_clear) };
            from = next;
        }
    }

    /// The open holds of a ledger, each with the expiry of its reservation.
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
            let state = LedgerState::Held;
            rows.push(LedgerRow { until, op_id, state, quantity, at, note: None, result: None });
        }
        Ok(rows)
    }
}

/// Whether a partition has void rows and fences alone.
fn is_without_level(record: &Record) -> bool {
    matches!(record, Record::Stock { stock, .. } if stock.updated_at == Timestamp::EPOCH && stock.level == Level::default())
}

/// The record of a partition.
fn read_stock(group: Vec<ScannedStock>) -> Result<Record> {
    let mut header: Option<(ZoneStock, i64)> = None;
    let mut holds = Vec::new();
    for row in group {
        let (product, zone, _, on_hand, reserved, compacted, updated_at, until, op_id, operation) = row;
        if header.is_none() {
            let StockKey { product_id, geo_zone } = read_stock_key(&product, &zone)?;
            let stock = ZoneStock {
                product_id,
                geo_zone,
                level: read_level(on_hand, reserved).ok_or_else(|| corrupt_partition(&product, &zone))?,
                updated_at: updated_at.map_or(Timestamp::EPOCH, from_cql),
            };
            header = Some((stock, compacted.unwrap_or_default()));
        }
        let (Some((_, total)), Some(until), Some(op), Some(operation)) =
            (&mut header, until, op_id, operation)
        else {
            continue;
        };
        let row = operation.row(until, op)?;
        let effect = row.state.effect(row.quantity);
        *total += effect.on_hand;
        if row.state == LedgerState::Held {
            holds.push(Movement { at: row.at, op, cause: Cause::Hold, delta: effect, note: None });
        }
    }
    let (stock, total) =
        header.ok_or_else(|| StoreError::Corrupt("a stock partition without rows".to_owned()))?;
    holds.sort_by_key(|hold| (hold.at, hold.op));
    let compacted = Movement {
        at: stock.updated_at,
        op: Uuid::nil(),
        cause: Cause::Set,
        delta: Delta { on_hand: total, reserved: 0 },
        note: None,
    };
    let ledger = std::iter::once(compacted).chain(holds).collect();
    Ok(Record::Stock { stock, ledger })
}
