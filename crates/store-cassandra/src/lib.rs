//! The contract on Apache Cassandra: one file a noun with its CQL, the stock keeper, and what makes orders whole.
//!
//! Conditional writes decide wherever two could disagree: each partition that is changed from several sides carries a
//! revision, and a change is one conditional batch on it. Everything else is written plainly, so that writing it again
//! changes nothing.

mod audit;
mod cards;
mod carts;
mod cql;
mod due;
mod gather;
mod guard;
mod intents;
mod keeper;
mod ledger;
mod locks;
mod once;
mod orders;
mod outcome;
mod plans;
pub mod policy;
mod products;
mod records;
mod recover;
mod replicas;
mod reservations;
mod scan;
pub mod schema;
mod sessions;
mod stock;
mod tables;
mod time;
mod transfer;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use mw_store::{Result, StoreError};
use scylla::client::session_builder::SessionBuilder;

use cards::Cards;
use cql::Cql;
use due::Due;
use intents::Intents;
use keeper::Keepers;
use locks::Locks;
use once::Claims;
use plans::Plans;
use policy::Policy;
pub use schema::Replication;
pub use tables::{Class, Table};

/// Where the cluster is and how the shop lives in it.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port`.
    pub contact_points: Vec<String>,
    pub local_dc: String,
    /// Keyspaces begin with this.
    pub keyspace: String,
    pub replication: Replication,
    pub policy: Policy,
    pub request_timeout: Duration,
}

/// The shop's store on a cluster.
#[derive(Debug)]
pub struct CassandraStore {
    cql: Arc<Cql>,
    intents: Arc<Intents>,
    keepers: Keepers,
    due: Due,
    plans: Plans,
    cards: Cards,
    stock: stock::Statements,
    reservations: reservations::Statements,
    orders: orders::Statements,
    audit: audit::Statements,
    locks: Locks,
    claims: Claims,
    carts: carts::Statements,
    sessions: sessions::Statements,
    products: products::Statements,
    records: records::Statements,
    transfer: transfer::Statements,
    upkeep: upkeep::Upkeeping,
}

impl CassandraStore {
    pub async fn open(options: Options) -> Result<Arc<Self>> {
        let session = SessionBuilder::new()
            .known_nodes(&options.contact_points)
            .prefer_datacenter(options.local_dc.clone())
            .keepalive_interval(Duration::from_secs(2))
            .keepalive_timeout(Duration::from_secs(3))
            .build()
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let cql =
            Cql::new(session, options.keyspace, options.local_dc, options.policy, options.request_timeout);
        let store = Arc::new(Self {
            locks: Locks::new(),
            claims: Claims::prepare(&cql).await?,
            carts: carts::Statements::prepare(&cql).await?,
            sessions: sessions::Statements::prepare(&cql).await?,
            products: products::Statements::prepare(&cql).await?,
            records: records::Statements::prepare(&cql).await?,
            transfer: transfer::Statements::prepare(&cql).await?,
            upkeep: upkeep::Upkeeping::prepare(&cql).await?,
            intents: Arc::new(Intents::prepare(&cql).await?),
            keepers: Keepers::prepare(&cql).await?,
            due: Due::prepare(&cql).await?,
            plans: Plans::prepare(&cql).await?,
            cards: Cards::prepare(&cql).await?,
            stock: stock::Statements::prepare(&cql).await?,
            reservations: reservations::Statements::prepare(&cql).await?,
            orders: orders::Statements::prepare(&cql).await?,
            audit: audit::Statements::prepare(&cql).await?,
            cql: Arc::new(cql),
        });
        store.intents.beat(&store.cql).await?;
        tokio::spawn(recover::run(Arc::downgrade(&store)));
        Ok(store)
    }
}
