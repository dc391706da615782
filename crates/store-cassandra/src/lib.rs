//! The storage contract on Apache Cassandra: a folder a noun with its CQL, the driver, and recovery.
//!
//! A conditional write decides wherever two writers could disagree: each partition with several writers carries a revision,
//! and a change of it is one conditional batch. Every other write is plain and idempotent. An operation over several partitions
//! begins with an intent, so that another process can finish it after a crash.

mod bucketing;
mod carts;
mod driver;
mod export;
mod maintenance;
mod orders;
pub mod policy;
mod products;
mod recovery;
mod reservations;
mod revision;
pub mod schema;
mod sessions;
mod settings;
mod stock;

use std::sync::Arc;

use mw_store::Result;
use scylla::client::session::Session;

pub use bucketing::{KeyPlan, PLANNED, Planned};
pub use driver::connect;
pub use driver::connect::{Options, StartError};
pub use driver::trace::{StatementKind, StatementObserver, TracedStatement};
pub use schema::Replication;
pub use schema::tables::{Class, Table};

use bucketing::Bucketing;
use driver::locks::Locks;
use driver::statements::Cql;
use driver::trace::Tracer;
use maintenance::ReadinessProbe;
use products::cache::ProductCache;
use products::offers::OfferReader;
use recovery::idempotency::Claims;
use recovery::intents::Intents;
use recovery::timers::Timers;
use stock::compaction::LedgerCompaction;
use stock::keeper::Keepers;

/// The store of a shop on a cluster.
#[derive(Debug)]
pub struct CassandraStore {
    cql: Arc<Cql>,
    intents: Arc<Intents>,
    keepers: Keepers,
    timers: Timers,
    bucketing: Bucketing,
    offers: OfferReader,
    product_cache: ProductCache,
    stock: stock::Statements,
    reservations: reservations::Statements,
    orders: orders::Statements,
    audit: stock::audit::Statements,
    locks: Locks,
    claims: Claims,
    carts: carts::Statements,
    sessions: sessions::Statements,
    products: products::Statements,
    export: export::Statements,
    compaction: LedgerCompaction,
    readiness: ReadinessProbe,
}

impl CassandraStore {
    /// Connects to a cluster that has the schema already.
    pub async fn open(options: Options) -> Result<Arc<Self>, StartError> {
        let session = connect::connect(&options).await?;
        Self::on(session, options).await
    }

    /// The store on a session of [`connect::connect`].
    pub async fn on(session: Session, options: Options) -> Result<Arc<Self>, StartError> {
        options.schema().check(&session).await?;
        let product_cache =
            ProductCache::new(options.effective_product_cache_ttl(), options.product_cache_size);
        let tracer = Tracer::new(options.trace);
        let cql = Cql::new(
            session,
            options.keyspace,
            options.local_dc,
            options.policy,
            options.request_timeout,
            tracer,
        );
        // Boxed, since it holds a future for every statement.
        let store = Arc::new(Box::pin(Self::prepare(cql, product_cache, options.ready_share)).await?);
        store.intents.heartbeat(&store.cql).await?;
        tokio::spawn(recovery::run(Arc::downgrade(&store)));
        Ok(store)
    }

    /// Deregisters this process, so that the others do not wait for the failure timeout.
    pub async fn close(&self) {
        if let Err(error) = self.intents.deregister(&self.cql).await {
            tracing::warn!(%error, "deregister this process: the others take it for failed after the failure timeout");
        }
    }

    /// How many rows the background work of this process could not read and skipped.
    pub fn unreadable_rows(&self) -> u64 {
        self.intents.unreadable().count()
    }

    async fn prepare(cql: Cql, product_cache: ProductCache, ready_share: f64) -> Result<Self> {
        let intents = Arc::new(Intents::prepare(&cql).await?);
        Ok(Self {
            product_cache,
            locks: Locks::new(),
            claims: Claims::prepare(&cql).await?,
            carts: carts::Statements::prepare(&cql).await?,
            sessions: sessions::Statements::prepare(&cql).await?,
            products: products::Statements::prepare(&cql).await?,
            export: export::Statements::prepare(&cql).await?,
            compaction: LedgerCompaction::prepare(&cql).await?,
            readiness: ReadinessProbe::prepare(&cql, ready_share).await?,
            keepers: Keepers::prepare(&cql).await?,
            timers: Timers::prepare(&cql, Arc::clone(intents.ownership()), Arc::clone(intents.unreadable()))
                .await?,
            bucketing: Bucketing::prepare(&cql).await?,
            offers: OfferReader::prepare(&cql).await?,
            stock: stock::Statements::prepare(&cql).await?,
            reservations: reservations::Statements::prepare(&cql).await?,
            orders: orders::Statements::prepare(&cql).await?,
            audit: stock::audit::Statements::prepare(&cql).await?,
            intents,
            cql: Arc::new(cql),
        })
    }
}
