//! The storage contract on MongoDB: the documents of the shop as its other programs read and write them, in both shapes.
//!
//! What one document holds is changed by one atomic statement; what several hold, by a transaction with write concern
//! majority and read concern snapshot. A document that another program wrote is served like our own; one that cannot be
//! read is left out and counted.

mod audit_log;
mod carts;
pub mod changes;
pub mod collections;
mod documents;
mod driver;
mod export;
pub mod foreign;
mod idempotency;
mod locks;
mod maintenance;
mod metrics;
mod orders;
pub mod policy;
mod products;
mod reservations;
pub mod sales;
pub mod schema;
mod sessions;
mod settings;
pub mod shard_keys;
pub mod shards;
pub mod statuses;
mod stock;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mongodb::Client;
use tokio::task::AbortHandle;

pub use documents::Shape;
pub use driver::connect::{self, Options, StartError};

use changes::{Feed, sequencer};
use collections::Collections;
use driver::reads::Reads;
use locks::Locks;
use orders::OtherShape;
use policy::lag::Lags;
use products::Uniformity;
use sales::SalesCollections;
use shards::CallCounts;
use stock::compaction::WrittenRows;
use stock::keeper::Keepers;

/// The store of a shop on a replica set or a sharded cluster.
#[derive(Debug)]
pub struct MongoStore {
    client: Client,
    collections: Collections,
    sales: SalesCollections,
    keepers: Keepers,
    written_rows: WrittenRows,
    /// By owner, where the changes of carts are in the feed.
    cart_locks: Locks<String>,
    /// For the tasks of keepers, which outlive the request that starts them.
    me: Weak<Self>,
    options: Options,
    reads: Reads,
    feed: Arc<Feed>,
    counts: Arc<CallCounts>,
    /// Stores the counts; ends with the store.
    storing_counts: AbortHandle,
    uniformity: Uniformity,
    other_shape: OtherShape,
    /// Documents that could not be read, since the start of the process.
    unreadable: Arc<AtomicU64>,
}

impl MongoStore {
    /// Connects, and checks what must hold before the first request.
    pub async fn open(options: Options) -> Result<Arc<Self>, StartError> {
        let client = connect::connect(&options).await?;
        Self::on(client, options).await
    }

    /// The store on a client of [`connect::connect`].
    pub async fn on(client: Client, options: Options) -> Result<Arc<Self>, StartError> {
        let database = client.database(&options.database);
        let lags = Lags::new(client.clone(), connect::client_options(&options).await?);
        let is_sharded = connect::is_sharded_cluster(&client).await?;
        let reads = Reads::new(options.policy.clone(), lags, is_sharded);
        let counts = Arc::new(CallCounts::new(&options.shard_keys));
        let storing = shards::flush_forever(Arc::clone(&counts), database.clone());
        let storing_counts = tokio::spawn(storing).abort_handle();
        let feed = Arc::new(Feed::new(&database, options.feed));
        let store = Arc::new_cyclic(|me| Self {
            client,
            collections: Collections::new(&database),
            sales: SalesCollections::new(&database),
            keepers: Keepers::default(),
            written_rows: WrittenRows::default(),
            cart_locks: Locks::default(),
            me: Weak::clone(me),
            options,
            reads,
            feed,
            counts,
            storing_counts,
            uniformity: Uniformity::default(),
            other_shape: OtherShape::default(),
            unreadable: Arc::default(),
        });
        sequencer::start(&store);
        Ok(store)
    }

    /// Ends the connections after the statements that are under way.
    pub async fn close(&self) {
        self.storing_counts.abort();
        self.feed.stop();
        self.reads.close().await;
        self.client.clone().shutdown().await;
    }

    /// How many documents could not be read and were left out, since the start of the process.
    pub fn unreadable_documents(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// A document that could be read; one that could not is counted, logged and left out.
    fn readable<T>(&self, read: Result<T, documents::Unreadable>) -> Option<T> {
        read.inspect_err(|unreadable| {
            self.unreadable.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%unreadable, "leave out a document");
        })
        .ok()
    }
}

impl Drop for MongoStore {
    fn drop(&mut self) {
        self.storing_counts.abort();
        self.feed.stop();
    }
}
