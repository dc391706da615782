//! Stock levels of a live migration: the header holds what is on hand as the sum of compacted rows, and the ledger has the open
//! holds of orders.

use mw_domain::{GeoZone, Level, Movement, ProductId, Timestamp, ZoneStock};
use mw_store::{Freshness, Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;

use super::ZONES_MAX;
use crate::CassandraStore;
use crate::driver::statements::{Access, Cql, Row};
use crate::driver::time::to_cql;
use crate::migration::Stamp;
use crate::schema::tables::Table;
use crate::stock::decision::StockKey;
use crate::stock::ledger::{END_OF_TIME, LedgerRow, LedgerState};
use crate::stock::rows::{DELETE_HEADER, Operation, PUT_HEADER, StoredRow};

/// The revision of a migrated partition: the first change of the service makes it the second one.
const REV: i64 = 1;
/// Ledger rows of one mutation.
const ROWS_AT_ONCE: usize = 100;

#[derive(Debug)]
pub(crate) struct Statements {
    put_header: PreparedStatement,
    delete_header: PreparedStatement,
    put_row: PreparedStatement,
    delete_row: PreparedStatement,
    put_zone: PreparedStatement,
    delete_zone: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let put_row = "INSERT INTO {} (product_id, geo_zone, until, op_id, operation) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let delete_row = "DELETE FROM {} USING TIMESTAMP ? \
             WHERE product_id = ? AND geo_zone = ? AND until = ? AND op_id = ?";
        let put_zone = "INSERT INTO {} (product_id, geo_zone) VALUES (?, ?) USING TIMESTAMP ?";
        let delete_zone = "DELETE FROM {} USING TIMESTAMP ? WHERE product_id = ? AND geo_zone = ?";
        let (stock, zones) = (Table::Stock, Table::StockZones);
        Ok(Self {
            put_header: cql.prepare(stock, Access::Write, PUT_HEADER).await?,
            delete_header: cql.prepare(stock, Access::Write, DELETE_HEADER).await?,
            put_row: cql.prepare(stock, Access::Write, put_row).await?,
            delete_row: cql.prepare(stock, Access::Write, delete_row).await?,
            put_zone: cql.prepare(zones, Access::Write, put_zone).await?,
            delete_zone: cql.prepare(zones, Access::Write, delete_zone).await?,
        })
    }
}

impl CassandraStore {
    /// Replaces a level, and adds and removes open holds.
    pub(crate) async fn migrate_stock(
        &self,
        stock: &ZoneStock,
        held: &[Movement],
        released: &[Movement],
        stamp: Stamp,
    ) -> Result<()> {
        let statements = &self.migration().await?.stock;
        let (product, zone, ts) = (stock.product_id.as_str(), stock.geo_zone.as_str(), stamp.get());
        // Before the level: a reader finds the zone of every level.
        self.cql.write(&statements.put_zone, (product, zone, ts)).await?;
        let Level { on_hand, reserved } = stock.level;
        let (on_hand, reserved) = (on_hand.cast_signed(), reserved.cast_signed());
        let at: CqlTimestamp = to_cql(stock.updated_at);
        let header = (ts, REV, on_hand, reserved, on_hand, at, product.to_owned(), zone.to_owned());
        let until = to_cql(END_OF_TIME);
        let mut rows: Vec<(&PreparedStatement, Row)> = Vec::new();
        // An order that is held again in the same change is in both lists.
        let is_held = |movement: &&Movement| !held.iter().any(|hold| hold.op == movement.op);
        for movement in released.iter().filter(is_held) {
            let key = (ts, product.to_owned(), zone.to_owned(), until, movement.op);
            rows.push((&statements.delete_row, Box::new(key)));
        }
        for movement in held {
            let operation = Operation::of(&hold(movement));
            let row = (product.to_owned(), zone.to_owned(), until, movement.op, operation, ts);
            rows.push((&statements.put_row, Box::new(row)));
        }
        // The header with the last rows: a crash in here leaves rows and a level that do not fit until the batch is written again.
        rows.push((&statements.put_header, Box::new(header)));
        for rows in rows.chunks(ROWS_AT_ONCE) {
            let rows: Vec<_> = rows.iter().map(|(statement, row)| (*statement, row)).collect();
            self.cql.write_batch(&rows).await?;
        }
        Ok(())
    }

    /// Removes a level with its ledger, row by row.
    pub(crate) async fn remove_migrated_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        stamp: Stamp,
    ) -> Result<()> {
        let statements = &self.migration().await?.stock;
        let (product, zone, ts) = (product_id.as_str(), geo_zone.as_str(), stamp.get());
        let mut from = Some(PagingState::start());
        while let Some(page) = from {
            let values = (product, zone, to_cql(Timestamp::EPOCH));
            let (rows, next) = self.cql.page::<StoredRow>(self.ledger_rows(), values, page).await?;
            for rows in rows.chunks(ROWS_AT_ONCE) {
                let keys: Vec<_> =
                    rows.iter().map(|(until, op_id, _)| (ts, product, zone, *until, *op_id)).collect();
                self.cql.write_rows(&statements.delete_row, &keys).await?;
            }
            from = next;
        }
        self.cql.write(&statements.delete_header, (ts, product, zone)).await?;
        self.cql.write(&statements.delete_zone, (ts, product, zone)).await
    }

    /// The levels of a product as their headers have them.
    pub(crate) async fn stored_levels(&self, product_id: &ProductId) -> Result<Vec<(GeoZone, Level)>> {
        let zones: Vec<(String,)> =
            self.cql.rows(&self.stock.zones, (product_id.as_str(), ZONES_MAX)).await?;
        let mut levels = Vec::with_capacity(zones.len());
        for (zone,) in zones {
            let geo_zone = GeoZone::parse(&zone)
                .map_err(|_| StoreError::Corrupt(format!("read zones of {product_id}: {zone:?}")))?;
            let key = StockKey { product_id: product_id.clone(), geo_zone: geo_zone.clone() };
            if let Some(header) = self.header(&key, Freshness::Latest).await? {
                levels.push((geo_zone, header.level));
            }
        }
        Ok(levels)
    }
}

/// The ledger row of an open hold of an order.
fn hold(movement: &Movement) -> LedgerRow {
    LedgerRow {
        until: END_OF_TIME,
        op_id: movement.op,
        state: LedgerState::Held,
        quantity: movement.delta.reserved,
        at: movement.at,
        note: None,
        result: None,
    }
}
