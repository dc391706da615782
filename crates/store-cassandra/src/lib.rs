//! The storage contract on Apache Cassandra: a folder a noun with its CQL, the driver, and recovery.
//!
//! A conditional write decides wherever two writers could disagree: each partition with several writers carries a revision,
//! and a change of it is one conditional batch. Every other write is plain and idempotent. An operation over several partitions
//! begins with an intent, so that another process can finish it after a crash.

mod audit_log;
mod bucketing;
mod carts;
mod changes;
mod driver;
mod export;
mod maintenance;
mod migration;
mod nodes;
mod orders;
mod partitions;
pub mod policy;
mod products;
mod recovery;
mod repair;
mod reservations;
mod revision;
pub mod schema;
pub mod selling;
mod sessions;
mod settings;
mod stock;

use std::sync::Arc;

use mw_store::Result;
use scylla::client::session::Session;

pub use bucketing::{BUCKETED, KeyPlan};
pub use driver::connect;
pub use driver::connect::{InternalOptions, InternalToken, Options, StartError};
#[doc(hidden)]
pub use driver::fault_injection::{FaultInjector, StatementFault};
pub use driver::trace::{StatementKind, StatementObserver, TracedStatement};
pub use repair::{ALL_TABLES, RecordedRun, RepairPolicy, RepairRun};
pub use schema::Replication;
pub use schema::tables::{Class, Table};
pub use stock::forwarding::ForwardingCounts;

use bucketing::Bucketing;
use changes::Feed;
use driver::clock_guard::{self, ClockGuard};
use driver::fault_injection::Faults;
use driver::locks::Locks;
use driver::statements::Cql;
use driver::trace::Tracer;
use maintenance::ReadinessProbe;
use migration::Migration;
use partitions::PartitionStatements;
use products::cache::ProductCache;
use products::offers::OfferReader;
use recovery::completed::CompletedIntents;
use recovery::idempotency::Claims;
use recovery::intents::Intents;
use recovery::timers::Timers;
use selling::SellingGuard;
use stock::compaction::LedgerCompaction;
use stock::keeper::Keepers;

/// The store of a shop on a cluster.
#[derive(Debug)]
pub struct CassandraStore {
    cql: Arc<Cql>,
    clock: Arc<ClockGuard>,
    selling: SellingGuard,
    intents: Arc<Intents>,
    completed: Arc<CompletedIntents>,
    keepers: Keepers,
    timers: Timers,
    bucketing: Bucketing,
    partitions: PartitionStatements,
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
    migration: Migration,
    compaction: LedgerCompaction,
    readiness: ReadinessProbe,
    feed: Feed,
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
        let clock = ClockGuard::start(&session, &options).await?;
        let tracer = Tracer::new(options.trace.clone(), options.partitions.clone());
        let cql = Cql::new(
            session,
            options.keyspace.clone(),
            options.local_dc.clone(),
            options.policy.clone(),
            options.request_timeout,
            tracer,
        )
        .with_faults(Faults::new(options.faults.clone()));
        let selling = SellingGuard::start(&cql, &options).await?;
        // Boxed, since it holds a future for every statement.
        let guards = (clock, selling);
        let prepared = Self::prepare(cql, guards, product_cache, &options);
        let store = Arc::new(Box::pin(prepared).await?);
        store.start_forwarding(options.internal, &options.local_dc).await?;
        store.intents.heartbeat(&store.cql).await?;
        tokio::spawn(recovery::run(Arc::downgrade(&store)));
        tokio::spawn(clock_guard::run(Arc::downgrade(&store)));
        tokio::spawn(selling::run(Arc::downgrade(&store)));
        Ok(store)
    }

    /// Deregisters this process, so that the others do not wait for the failure timeout.
    pub async fn close(&self) {
        self.feed.close(&self.cql).await;
        recovery::remove_completed(&self.completed, &self.intents, &self.cql).await;
        if let Err(error) = self.intents.deregister(&self.cql).await {
            tracing::warn!(%error, "deregister this process: the others take it for failed after the failure timeout");
        }
        // After the deregistration: the others send no more commands soon, and those that they have sent are decided.
        self.keepers.forwarding().close().await;
    }

    /// How many rows the background work of this process could not read and skipped.
    pub fn unreadable_rows(&self) -> u64 {
        self.intents.unreadable().count()
    }

    async fn prepare(
        cql: Cql,
        (clock, selling): (ClockGuard, SellingGuard),
        product_cache: ProductCache,
        options: &Options,
    ) -> Result<Self> {
        let intents = Arc::new(Intents::prepare(&cql).await?);
        Ok(Self {
            clock: Arc::new(clock),
            selling,
            product_cache,
            locks: Locks::new(),
            claims: Claims::prepare(&cql).await?,
            carts: carts::Statements::prepare(&cql).await?,
            sessions: sessions::Statements::prepare(&cql).await?,
            products: products::Statements::prepare(&cql).await?,
            export: export::Statements::prepare(&cql).await?,
            compaction: LedgerCompaction::prepare(&cql).await?,
            readiness: ReadinessProbe::prepare(&cql, options.ready_share).await?,
            feed: Feed::prepare(&cql, options.feed, options.clock).await?,
            migration: Migration::default(),
            completed: Arc::default(),
            keepers: Keepers::prepare(&cql).await?,
            timers: Timers::prepare(&cql, Arc::clone(intents.ownership()), Arc::clone(intents.unreadable()))
                .await?,
            bucketing: Bucketing::prepare(&cql).await?,
            partitions: PartitionStatements::prepare(&cql).await?,
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
