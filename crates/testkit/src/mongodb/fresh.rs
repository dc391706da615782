//! Empty databases: one per test. Creating the collections and indexes of a shop takes the servers longer than most tests, so
//! a test that does not change the schema takes a database that an earlier test of its process has used, and empties it.
#![expect(clippy::expect_used, reason = "a test without its fixture must fail")]

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mw_store_mongodb::policy::Policy;
use mw_store_mongodb::schema::Schema;
use mw_store_mongodb::{MongoStore, Options, connect};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use super::shared;

/// Databases of tests begin with this, then the pid of their process.
const PREFIX: &str = "mw_test_";

/// Drops databases: a test's own runtime ends before its lease does.
static CLEANER: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("start the cleaner of databases")
});

/// Databases that tests of this process have used: their options, and their names. Taken in the order in which they came back,
/// so that what a test has left running ends before the next one begins.
static USED: Mutex<VecDeque<(String, String)>> = Mutex::new(VecDeque::new());

/// A database that no other test uses until this is dropped.
#[derive(Debug)]
pub struct Lease {
    options: Options,
    /// What the database was created with, if another test may use it afterwards.
    reused_by: Option<String>,
}

impl Lease {
    /// An empty database on the shared replica set, with the schema in it.
    ///
    /// # Panics
    ///
    /// If the shared replica set is missing or fails.
    pub async fn empty() -> Self {
        Self::on(&swept().await, |_| {}).await
    }

    /// An empty database on other servers, such as a sharded cluster, with options that `change` has changed.
    ///
    /// # Panics
    ///
    /// If the servers fail.
    pub async fn on(uri: &str, change: impl FnOnce(&mut Options)) -> Self {
        let lease = Self { options: options(uri, change), reused_by: None };
        lease.create().await;
        lease
    }

    /// Like [`Lease::on`], for a test that leaves the schema as it is.
    ///
    /// # Panics
    ///
    /// If the servers fail.
    pub async fn reused(uri: &str, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = options(uri, change);
        let key = format!("{uri} {} {:?}", options.shape.as_str(), options.shard_keys);
        let used = {
            let mut used = USED.lock().expect("lock the used databases");
            let at = used.iter().position(|(of, _)| *of == key);
            at.and_then(|at| used.remove(at))
        };
        if let Some((_, name)) = used {
            options.database = name;
            let lease = Self { options, reused_by: Some(key) };
            lease.clear().await;
            return lease;
        }
        let lease = Self { options, reused_by: Some(key) };
        lease.create().await;
        lease
    }

    async fn create(&self) {
        let client = connect::connect(&self.options).await.expect("connect to the servers");
        Schema::new(&self.options).apply(&client, &|_| {}).await.expect("apply the schema");
        client.shutdown().await;
    }

    async fn clear(&self) {
        let client = connect::connect(&self.options).await.expect("connect to the servers");
        let database = client.database(&self.options.database);
        let schema = Schema::new(&self.options);
        let names = schema.collections().iter().map(|collection| collection.name);
        let clearing = names.map(|name| {
            let collection = database.collection::<Document>(name);
            async move { collection.delete_many(doc! {}).await }
        });
        for cleared in join_all(clearing).await {
            cleared.expect("empty a collection");
        }
        client.shutdown().await;
    }

    /// The options of a process on this database.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// The same, to change what stores that are opened from now on do.
    pub const fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// Opens a store, as a further process on this database.
    ///
    /// # Panics
    ///
    /// If it cannot start.
    pub async fn open(&self) -> Arc<MongoStore> {
        MongoStore::open(self.options.clone()).await.expect("open the store")
    }

    /// A client of this database's servers, to read and write documents as other programs do.
    ///
    /// # Panics
    ///
    /// If the servers fail.
    pub async fn database(&self) -> mongodb::Database {
        let client = connect::connect(&self.options).await.expect("connect to the servers");
        client.database(&self.options.database)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let (Some(key), Ok(mut used)) = (self.reused_by.take(), USED.lock()) {
            // Dropped by the next process, after this one has ended.
            used.push_back((key, self.options.database.clone()));
            return;
        }
        let options = self.options.clone();
        CLEANER.spawn(async move {
            // What could not be dropped, since this process ended first, is dropped by the next one.
            if let Ok(client) = Client::with_uri_str(&options.uri).await {
                let _ = client.database(&options.database).drop().await;
                client.shutdown().await;
            }
        });
    }
}

/// The shared replica set, without the databases of processes that have ended.
async fn swept() -> String {
    static SWEPT: OnceCell<()> = OnceCell::const_new();
    let uri = shared();
    SWEPT.get_or_init(|| sweep(&uri)).await;
    uri
}

/// The options of a process on a new database.
fn options(uri: &str, change: impl FnOnce(&mut Options)) -> Options {
    static CREATED: AtomicU32 = AtomicU32::new(0);
    let number = CREATED.fetch_add(1, Ordering::Relaxed);
    let mut options = Options::new(uri);
    options.database = format!("{PREFIX}{}_{number}", std::process::id());
    // Test machines are slow at times, and these tests do not measure latency.
    options.request_timeout = Duration::from_secs(20);
    // The tests read what another process has just written, also where reads may be stale.
    options.policy = Policy::primary_only();
    change(&mut options);
    options
}

/// Drops databases of processes that have ended.
async fn sweep(uri: &str) {
    let client = Client::with_uri_str(uri).await.expect("connect to the shared replica set");
    let filter = doc! { "name": { "$regex": format!("^{PREFIX}") } };
    let names = client.list_database_names().filter(filter).await.expect("list the databases");
    for name in names {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('_').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another process may drop it at the same time.
            let _ = client.database(&name).drop().await;
        }
    }
    client.shutdown().await;
}

/// An empty store, and the lease of its database, for a test that leaves the schema as it is.
pub async fn fresh() -> (Arc<MongoStore>, Lease) {
    let lease = Lease::reused(&swept().await, |_| {}).await;
    (lease.open().await, lease)
}
