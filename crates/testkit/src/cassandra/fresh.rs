//! Empty stores on the shared cluster.
//!
//! Creating keyspaces takes seconds, so a few sets of them are created once and truncated before each use. A set is leased
//! by a file lock: two tests never use one at the same time, also in different processes.
#![expect(clippy::expect_used, reason = "a test without its fixture must fail")]

use std::env;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use mw_store::changes::FeedSettings;
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::policy::Policy;
use mw_store_cassandra::schema::SchemaError;
use mw_store_cassandra::{CassandraStore, Class, Options, Table};
use scylla::client::session::Session;
use scylla::statement::Statement;

use super::{Shared, StatementScript, shared};

/// Sets of keyspaces, and so the number of concurrent tests.
const SETS: usize = 3;
/// Late writes of the previous test have arrived after this time.
const LATE_WRITES: Duration = Duration::from_secs(2);
/// A TRUNCATE that takes longer has failed.
const TRUNCATE_TIMEOUT: Duration = Duration::from_mins(1);

/// Keyspaces that no other test uses until this is dropped.
#[derive(Debug)]
pub struct Lease {
    options: Options,
    lock: File,
}

impl Drop for Lease {
    /// Records when the keyspaces were last used.
    fn drop(&mut self) {
        self.lock.set_modified(SystemTime::now()).expect("record the end of a lease");
    }
}

impl Lease {
    /// Empty keyspaces with the schema in them.
    ///
    /// # Panics
    ///
    /// If the shared cluster is missing or fails.
    pub async fn empty() -> Self {
        let lease = Self::acquire().await;
        let session = connect(&lease.options).await.expect("connect to the shared cluster");
        lease.apply_schema(&session).await;
        lease.truncate_tables(&session).await;
        lease
    }

    /// The keyspaces of a long-lived cluster may have an older schema: they are dropped then.
    async fn apply_schema(&self, session: &Session) {
        let schema = self.options.schema();
        let applied = schema.apply(session, &|_| {}).await;
        if let Err(SchemaError::Edited { .. }) = applied {
            for class in Class::ALL {
                let drop = format!("DROP KEYSPACE IF EXISTS {}", class.keyspace(&self.options.keyspace));
                session.query_unpaged(drop, ()).await.expect("drop old keyspaces");
            }
            schema.apply(session, &|_| {}).await.expect("apply the schema");
        } else {
            applied.expect("apply the schema");
        }
    }

    async fn acquire() -> Self {
        let Shared { contact_points, local_dc } = shared();
        let points: Vec<String> = contact_points.iter().map(ToString::to_string).collect();
        let (set, lock, used) = loop {
            match least_recently_used(&points.concat()) {
                Some(found) => break found,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let idle = used.elapsed().unwrap_or_default();
        tokio::time::sleep(LATE_WRITES.saturating_sub(idle)).await;
        let mut options = Options::new(points, local_dc);
        options.keyspace = format!("mw_test_{set}");
        // A write that reaches a replica late would appear in the next test's keyspaces.
        for table in Table::ALL {
            options.policy.set(table.name(), "write", "ALL").expect("set the write level");
        }
        // Test machines are slow at times, and these tests do not measure latency.
        options.request_timeout = Duration::from_secs(10);
        Self { options, lock }
    }

    async fn truncate_tables(&self, session: &Session) {
        join_all(Table::ALL.iter().map(|table| async {
            let name = format!("{}.{}", table.class().keyspace(&self.options.keyspace), table.name());
            // The selling data centre is stored again by every process: it stays, and most tests store nothing else there.
            let rest = if *table == Table::Settings { "WHERE name = 'currency'" } else { "" };
            let any = session.query_unpaged(format!("SELECT * FROM {name} {rest} LIMIT 1"), ()).await;
            let rows = any.expect("read a table").into_rows_result().expect("rows");
            // A product that moved within a category leaves tombstones with small timestamps, which no read returns.
            if rows.rows_num() > 0 || *table == Table::ProductsByCategory {
                let mut truncate = Statement::new(format!("TRUNCATE {name}"));
                truncate.set_request_timeout(Some(TRUNCATE_TIMEOUT));
                session.query_unpaged(truncate, ()).await.expect("truncate a table");
            }
        }))
        .await;
    }

    /// The options of a process on these keyspaces.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// The change feed of stores that are opened from now on.
    pub const fn set_feed(&mut self, feed: FeedSettings) {
        self.options.feed = feed;
    }

    /// The policy of stores that are opened from now on.
    pub const fn policy(&mut self) -> &mut Policy {
        &mut self.options.policy
    }

    /// Opens a store whose statements fail as the script says.
    ///
    /// # Panics
    ///
    /// If it cannot start.
    pub async fn open_with(&self, script: &StatementScript) -> Arc<CassandraStore> {
        let options = Options { faults: Some(Arc::new(script.clone())), ..self.options.clone() };
        CassandraStore::open(options).await.expect("open the store")
    }

    /// Opens a store, as a further process on these keyspaces.
    ///
    /// # Panics
    ///
    /// If it cannot start.
    pub async fn open(&self) -> Arc<CassandraStore> {
        CassandraStore::open(self.options.clone()).await.expect("open the store")
    }
}

/// The free set that was not used for the longest time, locked, and when it was last used.
fn least_recently_used(cluster: &str) -> Option<(usize, File, SystemTime)> {
    let mut sets: Vec<(SystemTime, usize, File)> = (0..SETS)
        .map(|set| {
            let path = env::temp_dir().join(format!("mw-test-keyspaces-{cluster}-{set}.lock"));
            let open = File::options().create(true).append(true).open(path);
            let lock = open.expect("create a lock file");
            let used = lock.metadata().and_then(|data| data.modified()).expect("read a lock file");
            (used, set, lock)
        })
        .collect();
    sets.sort_by_key(|(used, set, _)| (*used, *set));
    sets.into_iter().find(|(_, _, lock)| lock.try_lock().is_ok()).map(|(used, set, lock)| (set, lock, used))
}

/// An empty store, and the lease of its keyspaces.
pub async fn fresh() -> (Arc<CassandraStore>, Lease) {
    let lease = Lease::empty().await;
    (lease.open().await, lease)
}
