//! Cassandra as the target of a live migration.
//!
//! A batch of changes is written to the log (`log.rs`) before its first effect, and written again from there until all of it is: so the
//! state of the migration always says what was taken, whatever dies in between. Each change has a write timestamp of its own,
//! in the order of the changes, and all of them are below zero (`stamps.rs`): what the service writes after the cutover is newer than
//! anything that the migration wrote, and a late write of the migration changes nothing. One process applies changes (`run.rs`).
//! How the rows of a noun are written and read back is in the folder of the noun.

mod log;
mod messages;
mod run;
mod stamps;
mod state;

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{Cart, Date, GeoZone, OrderId, Owner, ProductId};
use mw_store::migration::{CartKey, Change, Mailbox, MigrationTarget, OrderViews, ProductViews, StateRow};
use mw_store::stock::Audit;
use mw_store::{Result, StoreError};
use scylla::statement::Statement;
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::{Mutex, OnceCell};

use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;
use crate::{carts, orders, products, stock};
use log::Log;
pub(crate) use stamps::Stamp;

/// Subjects that are written or read at the same time.
const CONCURRENT_SUBJECTS: usize = 48;
/// A TRUNCATE waits for all nodes.
const TRUNCATE_TIMEOUT: std::time::Duration = std::time::Duration::from_mins(1);

/// The tables that a migration fills.
const FILLED: [Table; 20] = [
    Table::OrderById,
    Table::OrdersByCustomer,
    Table::OrdersByDay,
    Table::ProductById,
    Table::ProductsByCategory,
    Table::Categories,
    Table::CategoryBands,
    Table::Stock,
    Table::StockZones,
    Table::Reservations,
    Table::Timers,
    Table::TimerBuckets,
    Table::IdempotencyKeys,
    Table::Buckets,
    Table::CartsByOwner,
    Table::ClosedCarts,
    Table::CartChanges,
    Table::CartsByDay,
    Table::SessionsById,
    Table::SessionsByUser,
];

/// What a process needs to run a migration. A process that serves prepares none of it.
#[derive(Debug, Default)]
pub(crate) struct Migration {
    statements: OnceCell<Statements>,
    log: Mutex<Log>,
    /// Buckets of lists that are announced: the verification has seen them.
    pub(crate) announced: StdMutex<HashSet<(Table, String, String, Date)>>,
    /// The last batch may not be written whole: it must be before the state is read.
    is_unfinished: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Statements {
    read: PreparedStatement,
    read_range: PreparedStatement,
    read_part: PreparedStatement,
    write: PreparedStatement,
    delete: PreparedStatement,
    delete_range: PreparedStatement,
    read_run: PreparedStatement,
    set_run: PreparedStatement,
    put_message: PreparedStatement,
    delete_message: PreparedStatement,
    pub(crate) orders: orders::migration::Statements,
    pub(crate) carts: carts::migration::Statements,
    pub(crate) products: products::migration::Statements,
    pub(crate) stock: stock::migration::Statements,
}

impl Statements {
    async fn prepare(cql: &Cql) -> Result<Self> {
        let prepare = |access, text| cql.prepare(Table::Migration, access, text);
        let mut read_part = prepare(Access::Read, "SELECT key, value FROM {} WHERE part = ?").await?;
        read_part.set_page_size(log::PIECES_AT_ONCE);
        Ok(Self {
            read: prepare(Access::Read, "SELECT key, value FROM {} WHERE part = ? AND key IN ?").await?,
            read_range: prepare(
                Access::Read,
                "SELECT key, value FROM {} WHERE part = ? AND key > ? AND key < ? LIMIT ?",
            )
            .await?,
            read_part,
            write: prepare(
                Access::Write,
                "UPDATE {} USING TIMESTAMP ? SET value = ? WHERE part = ? AND key = ?",
            )
            .await?,
            delete: prepare(Access::Write, "DELETE FROM {} USING TIMESTAMP ? WHERE part = ? AND key = ?")
                .await?,
            delete_range: prepare(
                Access::Write,
                "DELETE FROM {} USING TIMESTAMP ? WHERE part = ? AND key >= ? AND key < ?",
            )
            .await?,
            read_run: prepare(Access::Serial, "SELECT value FROM {} WHERE part = ? AND key = ?").await?,
            set_run: prepare(Access::Cas, "UPDATE {} SET value = ? WHERE part = ? AND key = ? IF value = ?")
                .await?,
            put_message: prepare(
                Access::Write,
                "INSERT INTO {} (part, key, value) VALUES (?, ?, ?) USING TTL 600",
            )
            .await?,
            delete_message: prepare(Access::Write, "DELETE FROM {} WHERE part = ? AND key = ?").await?,
            orders: orders::migration::Statements::prepare(cql).await?,
            carts: carts::migration::Statements::prepare(cql).await?,
            products: products::migration::Statements::prepare(cql).await?,
            stock: stock::migration::Statements::prepare(cql).await?,
        })
    }
}

/// What a change is about. Changes of one subject are written one after another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Product(ProductId),
    Stock(ProductId, GeoZone),
    Carts(&'static str, String),
    Order(OrderId),
}

impl Subject {
    fn of(change: &Change) -> Option<Self> {
        let carts = |owner: &Owner| Self::Carts(carts::owner_kind(owner), owner.id().to_owned());
        Some(match change {
            Change::Product(product) => Self::Product(product.product_id.clone()),
            Change::RemoveProduct(product_id) => Self::Product(product_id.clone()),
            Change::Stock { stock, .. } => Self::Stock(stock.product_id.clone(), stock.geo_zone.clone()),
            Change::RemoveStock { product_id, geo_zone } => Self::Stock(product_id.clone(), geo_zone.clone()),
            Change::Cart(cart) => carts(&cart.owner),
            Change::RemoveCart(key) => carts(&key.owner),
            Change::Order { order, .. } => Self::Order(order.order_id),
            Change::RemoveOrder(order_id) => Self::Order(*order_id),
            Change::State { .. } => return None,
        })
    }
}

impl CassandraStore {
    pub(crate) async fn migration(&self) -> Result<&Statements> {
        self.migration.statements.get_or_try_init(|| Statements::prepare(&self.cql)).await
    }

    /// Writes a batch whose first change has the stamp `first`. It may be written again, whole or in part.
    async fn write_changes(&self, first: Stamp, changes: Vec<Change>) -> Result<()> {
        let mut subjects: BTreeMap<Subject, Vec<(Stamp, Change)>> = BTreeMap::new();
        let mut rows = BTreeMap::new();
        for (stamp, change) in first.following().zip(changes) {
            match (Subject::of(&change), change) {
                (Some(subject), change) => subjects.entry(subject).or_default().push((stamp, change)),
                (None, Change::State { key, value }) => drop(rows.insert(key, (stamp, value))),
                (None, _) => {}
            }
        }
        // A crash in here leaves some of the rows; the batch is in the log, and the next run writes all of them again.
        let writes: Vec<_> = subjects.into_values().map(|changes| self.write_subject(changes)).collect();
        stream::iter(writes).buffer_unordered(CONCURRENT_SUBJECTS).try_collect::<()>().await?;
        self.write_state(rows).await
    }

    async fn write_subject(&self, changes: Vec<(Stamp, Change)>) -> Result<()> {
        let mut of_carts = Vec::new();
        for (stamp, change) in changes {
            match change {
                Change::Product(product) => self.migrate_product(&product, stamp).await?,
                Change::RemoveProduct(product_id) => self.remove_migrated_product(&product_id, stamp).await?,
                Change::Stock { stock, held, released } => {
                    self.migrate_stock(&stock, &held, &released, stamp).await?;
                }
                Change::RemoveStock { product_id, geo_zone } => {
                    self.remove_migrated_stock(&product_id, &geo_zone, stamp).await?;
                }
                Change::Order { order, events } => self.migrate_order(&order, &events, stamp).await?,
                Change::RemoveOrder(order_id) => self.remove_migrated_order(order_id, stamp).await?,
                change @ (Change::Cart(_) | Change::RemoveCart(_)) => of_carts.push((stamp, change)),
                Change::State { .. } => {}
            }
        }
        if of_carts.is_empty() { Ok(()) } else { self.migrate_carts(of_carts).await }
    }
}

/// Reads that belong together, several at a time, in the order of their subjects.
pub(crate) async fn in_order<T>(reads: Vec<impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    stream::iter(reads).buffered(CONCURRENT_SUBJECTS).try_collect().await
}

#[async_trait]
impl MigrationTarget for CassandraStore {
    async fn begin_run(&self) -> Result<bool> {
        if !self.take_run().await? {
            return Ok(false);
        }
        self.open_log().await?;
        Ok(true)
    }

    async fn end_run(&self) {
        self.leave_run().await;
    }

    fn mailbox(&self) -> Option<&dyn Mailbox> {
        Some(self)
    }

    async fn apply(&self, changes: Vec<Change>) -> Result<()> {
        self.clock.check()?;
        self.apply_logged(changes).await
    }

    async fn state(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>> {
        self.finish_batch().await?;
        self.read_state(keys).await
    }

    async fn states(&self, prefix: Vec<u8>, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<StateRow>> {
        self.finish_batch().await?;
        self.read_states(&prefix, after, limit).await
    }

    async fn remove_states(&self, prefix: Vec<u8>) -> Result<()> {
        self.delete_states(&prefix).await
    }

    async fn orders_in_views(&self, ids: Vec<OrderId>) -> Result<Vec<Option<OrderViews>>> {
        in_order(ids.into_iter().map(|id| self.order_views(id)).collect()).await
    }

    async fn products_in_views(&self, ids: Vec<ProductId>) -> Result<Vec<ProductViews>> {
        in_order(ids.iter().map(|id| self.product_views(id)).collect()).await
    }

    async fn carts_by_key(&self, keys: Vec<CartKey>) -> Result<Vec<Option<Cart>>> {
        in_order(keys.into_iter().map(|key| self.migrated_cart(key)).collect()).await
    }

    async fn stray_rows(&self, limit: usize) -> Result<Vec<String>> {
        // Rows of a batch that is being written may name an order that is not there yet: they are looked at again without one.
        let found = self.stray_order_rows(limit).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let _still = self.without_batch().await?;
        self.still_stray(found).await
    }

    async fn audit_stock(&self) -> Result<Audit> {
        let mut audit = Self::audit_stock(self, &|_| {}).await?;
        if !audit.drifts.is_empty() {
            // An order and its holds are written one after the other: what does not add up is looked at again without a batch.
            let _still = self.without_batch().await?;
            audit.drifts = self.audit_again(audit.drifts).await?;
        }
        Ok(audit)
    }

    async fn clear(&self) -> Result<()> {
        for table in FILLED {
            let mut truncate = Statement::new(format!("TRUNCATE {}", self.cql.name(table)));
            truncate.set_request_timeout(Some(TRUNCATE_TIMEOUT));
            // A crash in here leaves the other tables and the state; the repeated call removes them.
            self.cql.session().query_unpaged(truncate, ()).await.map_err(|error| {
                StoreError::Unavailable(format!("truncate {table}: {error}; all nodes must be up"))
            })?;
        }
        Ok(())
    }
}

impl Migration {
    fn is_unfinished(&self) -> bool {
        self.is_unfinished.load(Ordering::SeqCst)
    }
}
