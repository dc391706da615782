//! The contract on Apache Cassandra: one file a noun with its CQL, the stock keeper, and what makes orders whole.
//!
//! Conditional writes decide wherever two could disagree: each partition that is changed from several sides carries a
//! revision, and a change is one conditional batch on it. Everything else is written plainly, so that writing it again
//! changes nothing.

mod audit;
mod cards;
mod carts;
pub mod connect;
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
mod registers;
mod replicas;
mod reservations;
mod scan;
pub mod schema;
mod second_copy;
mod sessions;
mod settings;
mod stock;
mod tables;
mod time;
mod transfer;
mod upkeep;
mod window;

use std::sync::Arc;

use mw_store::Result;
use scylla::client::session::Session;

pub use connect::{Options, StartError};

use cards::Cards;
use cql::Cql;
use due::Due;
use intents::Intents;
use keeper::Keepers;
use locks::Locks;
use once::Claims;
use plans::Plans;
pub use plans::{KeyPlan, PLANNED, Planned};
pub use schema::Replication;
pub use tables::{Class, Table};
use window::Window;

/// The shop's store on a cluster.
#[derive(Debug)]
pub struct CassandraStore {
    cql: Arc<Cql>,
    intents: Arc<Intents>,
    keepers: Keepers,
    due: Due,
    plans: Plans,
    cards: Cards,
    window: Window,
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
    /// Connects to a cluster that has the schema already.
    pub async fn open(options: Options) -> Result<Arc<Self>, StartError> {
        let session = connect::connect(&options).await?;
        Self::on(session, options).await
    }

    /// The store on a session that [`connect::connect`] gave.
    pub async fn on(session: Session, options: Options) -> Result<Arc<Self>, StartError> {
        options.schema().check(&session).await?;
        let window = Window::new(options.cards_kept_for(), options.card_memory);
        let cql =
            Cql::new(session, options.keyspace, options.local_dc, options.policy, options.request_timeout);
        // Boxed, since it holds a future for every statement.
        let store = Arc::new(Box::pin(Self::prepare(cql, window)).await?);
        store.intents.beat(&store.cql).await?;
        tokio::spawn(recover::run(Arc::downgrade(&store)));
        Ok(store)
    }

    /// Takes this process out of the list of those that live, so that nobody has to find out.
    pub async fn close(&self) {
        if let Err(error) = self.intents.leave_list(&self.cql).await {
            tracing::warn!(%error, "leave the list of processes");
        }
    }

    async fn prepare(cql: Cql, window: Window) -> Result<Self> {
        Ok(Self {
            window,
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
        })
    }
}
