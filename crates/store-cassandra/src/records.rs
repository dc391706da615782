//! Everything as records, and records as everything. Lists, queues and sums are not exported but made again.
//!
//! An export is read into a temporary file first, so that what is written meanwhile does not move it. Each record is whole;
//! records that are changed while the file is being filled may be of different moments.

mod spool;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use mw_store::records::{Checkpoint, Export, Record, Records};
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::guard::half_done;
use crate::tables::Table;
pub(crate) use spool::Spool;

/// Records that are written at the same time.
const AT_ONCE: usize = 32;

/// The tables that records come from, each with a column of its key.
const SOURCES: [(Table, &str); 8] = [
    (Table::ProductById, "product_id"),
    (Table::Stock, "product_id"),
    (Table::CartsByOwner, "owner_id"),
    (Table::CartChanges, "owner_id"),
    (Table::SessionsById, "session_id"),
    (Table::Reservations, "slot"),
    (Table::OrderById, "slot"),
    (Table::IdempotencyKeys, "key"),
];

#[derive(Debug)]
pub(crate) struct Statements {
    /// A row of each source.
    any: Vec<PreparedStatement>,
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
            progress: cql
                .prepare(Table::Imports, Access::Read, "SELECT done FROM {} WHERE import = ?")
                .await?,
            checkpoint: cql.prepare(Table::Imports, Access::Write, checkpoint).await?,
        })
    }
}

#[async_trait]
impl Records for CassandraStore {
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

    /// Every record may be written again, so an import that was cut off goes on from the checkpoint before it.
    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
        // A hold ends with its reservation: stock is written when those are there.
        let (stock, others): (Vec<Record>, Vec<Record>) =
            records.into_iter().partition(|record| matches!(record, Record::Stock { .. }));
        for records in [others, stock] {
            let writes: Vec<_> = records.into_iter().map(|record| self.keep(record)).collect();
            let written = stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<()>();
            written.await.map_err(half_done)?;
        }
        let done = i64::try_from(checkpoint.done).unwrap_or(i64::MAX);
        // The furthest wins, whatever the order of arrival.
        self.cql.write(&self.records.checkpoint, (checkpoint.import.as_str(), done, done)).await
    }

    async fn import_progress(&self, import: &str) -> Result<u64> {
        let row: Option<(Option<i64>,)> = self.cql.first(&self.records.progress, (import,)).await?;
        let done = row.and_then(|(done,)| done).unwrap_or_default();
        u64::try_from(done).map_err(|_| StoreError::Corrupt(format!("the progress of import {import}")))
    }

    async fn is_empty(&self) -> Result<bool> {
        for statement in &self.records.any {
            if self.cql.first::<scylla::value::Row>(statement, ()).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl CassandraStore {
    async fn keep(&self, record: Record) -> Result<()> {
        match record {
            Record::Product(product) => self.keep_product(&product).await,
            Record::Stock { stock, ledger } => self.keep_stock(&stock, &ledger).await,
            Record::Cart(cart) => self.keep_cart(&cart).await,
            Record::CartChange { owner, change } => self.keep_change(&owner, &change).await,
            Record::Session(session) => self.keep_session(&session).await,
            Record::Reservation(reservation) => self.keep_reservation(&reservation).await,
            Record::Order { order, events } => self.keep_order(&order, &events).await,
            Record::Remembered(remembered) => self.claims.keep(&self.cql, &remembered).await,
        }
    }
}
