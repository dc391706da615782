//! Empty stores on the shared cluster, one after another.
//!
//! Making keyspaces takes seconds, so a few sets of them are made once and emptied before each use. A set is leased by a
//! locked file: tests of several processes never meet in one.
#![expect(clippy::expect_used, reason = "a test that cannot be set up must fail")]

use std::env;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::policy::Policy;
use mw_store_cassandra::schema::SchemaError;
use mw_store_cassandra::{CassandraStore, Class, Options, Table};
use scylla::client::session::Session;
use scylla::statement::Statement;

use super::{Shared, shared};

/// Sets of keyspaces; as many tests may run at once.
const SETS: usize = 5;
/// For what a test did not wait for.
const LAST_WRITES: Duration = Duration::from_secs(2);
/// A table that still refuses to be emptied after this is broken.
const EMPTYING: Duration = Duration::from_mins(1);

/// Keyspaces that nobody else uses while this lives.
#[derive(Debug)]
pub struct Lease {
    options: Options,
    lock: File,
}

impl Drop for Lease {
    /// Notes when the keyspaces were last used.
    fn drop(&mut self) {
        self.lock.set_modified(SystemTime::now()).expect("note the end of a lease");
    }
}

impl Lease {
    /// Empty keyspaces with the schema in them.
    ///
    /// # Panics
    ///
    /// If the shared cluster is not there or does not do as it is told.
    pub async fn empty() -> Self {
        let lease = Self::take().await;
        let session = connect(&lease.options).await.expect("connect to the shared cluster");
        lease.apply_schema(&session).await;
        lease.empty_tables(&session).await;
        lease
    }

    /// Keyspaces of a cluster that outlives the tests may have the schema of another day.
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

    async fn take() -> Self {
        let Shared { contact_points, local_dc } = shared();
        let points: Vec<String> = contact_points.iter().map(ToString::to_string).collect();
        let (set, lock, used) = loop {
            match unused(&points.concat()) {
                Some(found) => break found,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let idle = used.elapsed().unwrap_or_default();
        tokio::time::sleep(LAST_WRITES.saturating_sub(idle)).await;
        let mut options = Options::new(points, local_dc);
        options.keyspace = format!("mw_test_{set}");
        // A write that reaches its last replica late would arrive in the next test's keyspaces.
        for table in Table::ALL {
            options.policy.set(table.name(), "write", "ALL").expect("a level for writes");
        }
        // Test machines are slow at times; what is tested here is not how fast they are.
        options.request_timeout = Duration::from_secs(10);
        Self { options, lock }
    }

    async fn empty_tables(&self, session: &Session) {
        join_all(Table::ALL.iter().map(|table| async {
            let name = format!("{}.{}", table.class().keyspace(&self.options.keyspace), table.name());
            let any = session.query_unpaged(format!("SELECT * FROM {name} LIMIT 1"), ()).await;
            let rows = any.expect("look into a table").into_rows_result().expect("rows");
            // Rows that moved within a category leave deletions with small timestamps, which nobody sees and which count.
            if rows.rows_num() > 0 || *table == Table::ProductsByCategory {
                let mut truncate = Statement::new(format!("TRUNCATE {name}"));
                truncate.set_request_timeout(Some(EMPTYING));
                session.query_unpaged(truncate, ()).await.expect("empty a table");
            }
        }))
        .await;
    }

    /// How to reach the keyspaces.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// How tables are used by stores that are opened from now on.
    pub const fn policy(&mut self) -> &mut Policy {
        &mut self.options.policy
    }

    /// A process of its own on these keyspaces.
    ///
    /// # Panics
    ///
    /// If it cannot start.
    pub async fn open(&self) -> Arc<CassandraStore> {
        CassandraStore::open(self.options.clone()).await.expect("open the store")
    }
}

/// The set that nobody uses for the longest time, locked, and when it was last used.
fn unused(cluster: &str) -> Option<(usize, File, SystemTime)> {
    let mut sets: Vec<(SystemTime, usize, File)> = (0..SETS)
        .map(|set| {
            let path = env::temp_dir().join(format!("mw-test-keyspaces-{cluster}-{set}.lock"));
            let open = File::options().create(true).append(true).open(path);
            let lock = open.expect("make a lock file");
            let used = lock.metadata().and_then(|data| data.modified()).expect("read a lock file");
            (used, set, lock)
        })
        .collect();
    sets.sort_by_key(|(used, set, _)| (*used, *set));
    sets.into_iter().find(|(_, _, lock)| lock.try_lock().is_ok()).map(|(used, set, lock)| (set, lock, used))
}

/// An empty store, and what it stands on.
pub async fn fresh() -> (Arc<CassandraStore>, Lease) {
    let lease = Lease::empty().await;
    (lease.open().await, lease)
}
