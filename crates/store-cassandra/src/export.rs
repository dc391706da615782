//! Export and import of the whole shop as records. Indexes, timers and sums are not exported: an import builds them again.
//!
//! An export is spooled to a temporary file before its first page is read, so that later writes do not change it. Each
//! record is complete; records may be of different moments of the time the spool took to fill.

mod idempotency;
mod orders;
mod stock;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use mw_store::export::{Checkpoint, Export, ExportImport, Record};
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;

use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;
pub(crate) use mw_codec::spool::Spool;

/// Records that are written at the same time.
const CONCURRENT_WRITES: usize = 32;

/// The tables that records are read from, each with a column of its key.
const SOURCES: [(Table, &str); 9] = [
    (Table::ProductById, "product_id"),
    (Table::Stock, "product_id"),
    (Table::CartsByOwner, "owner_id"),
    (Table::ClosedCarts, "owner_id"),
    (Table::CartChanges, "owner_id"),
    (Table::SessionsById, "session_id"),
    (Table::Reservations, "time_bucket"),
    (Table::OrderById, "time_bucket"),
    (Table::IdempotencyKeys, "key"),
];

#[derive(Debug)]
pub(crate) struct Statements {
    /// One row of each source.
    any: Vec<PreparedStatement>,
    keys: PreparedStatement,
    stock: stock::Statements,
    progress: PreparedStatement,
    checkpoint: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let mut any = Vec::with_capacity(SOURCES.len());
        for (table, column) in SOURCES {
            any.push(cql.prepare(table, Access::Read, &format!("SELECT {column} FROM {{}} LIMIT 1")).await?);
        }
        let checkpoint = "INSERT INTO {} (import, done) VALUES (?, ?) USING TIMESTAMP ?";
        Ok(Self {
            any,
            keys: idempotency::prepare_scan(cql).await?,
            stock: stock::Statements::prepare(cql).await?,
            progress: cql
                .prepare(Table::Imports, Access::Read, "SELECT done FROM {} WHERE import = ?")
                .await?,
            checkpoint: cql.prepare(Table::Imports, Access::Write, checkpoint).await?,
        })
    }
}

#[async_trait]
impl ExportImport for CassandraStore {
    async fn export(&self) -> Result<Box<dyn Export>> {
        let mut spool = Spool::new()?;
        self.export_products(&mut spool).await?;
        self.export_stock(&mut spool).await?;
        self.export_carts(&mut spool).await?;
        self.export_cart_changes(&mut spool).await?;
        self.export_sessions(&mut spool).await?;
        self.export_reservations(&mut spool).await?;
        self.export_orders(&mut spool).await?;
        self.export_keys(&mut spool).await?;
        Ok(Box::new(spool.finish()?))
    }

    /// Every record may be imported again, so an interrupted import goes on from its last checkpoint.
    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
        self.clock.check()?;
        self.selling.check()?;
        // Stock last: a hold takes its expiry from its reservation.
        let (stock, others): (Vec<Record>, Vec<Record>) =
            records.into_iter().partition(|record| matches!(record, Record::Stock { .. }));
        for records in [others, stock] {
            // A crash in here leaves some records of the page imported and the checkpoint before it; the client repeats the
            // page, and each record overwrites itself.
            let writes: Vec<_> = records.into_iter().map(|record| self.import_record(record)).collect();
            let written = stream::iter(writes).buffer_unordered(CONCURRENT_WRITES).try_collect::<()>();
            written.await.map_err(StoreError::after_first_effect)?;
        }
        let done = i64::try_from(checkpoint.done).unwrap_or(i64::MAX);
        // The write timestamp is the position itself, so the furthest checkpoint wins whatever the order of arrival. A crash
        // before it has the page repeated, after it the next page is sent.
        self.cql.write(&self.export.checkpoint, (checkpoint.import.as_str(), done, done)).await
    }

    async fn import_progress(&self, import: &str) -> Result<u64> {
        let row: Option<(Option<i64>,)> = self.cql.first(&self.export.progress, (import,)).await?;
        let done = row.and_then(|(done,)| done).unwrap_or_default();
        u64::try_from(done)
            .map_err(|_| StoreError::Corrupt(format!("the checkpoint of import {import:?} is negative")))
    }

    async fn is_empty(&self) -> Result<bool> {
        for statement in &self.export.any {
            if self.cql.first::<scylla::value::Row>(statement, ()).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl CassandraStore {
    async fn import_record(&self, record: Record) -> Result<()> {
        match record {
            Record::Product(product) => self.import_product_record(&product).await,
            Record::Stock { stock, ledger } => self.import_stock(&stock, &ledger).await,
            // The caller joins the parts of a ledger first: `imports_ledger_parts` is false.
            Record::Ledger { product_id, geo_zone, .. } => Err(StoreError::Unavailable(format!(
                "import stock of {product_id} in {geo_zone}: a part of its ledger without its stock level"
            ))),
            Record::Cart(cart) => self.import_cart(&cart).await,
            Record::CartChange { owner, change } => self.import_cart_change(&owner, &change).await,
            Record::Session(session) => self.import_session(&session).await,
            Record::Reservation(reservation) => self.import_reservation(&reservation).await,
            Record::Order { order, events } => self.import_order(&order, &events).await,
            Record::StoredOutcome(stored_outcome) => self.claims.import(&self.cql, &stored_outcome).await,
        }
    }
}
