//! Empty stores on the shared cluster, one after another.
//!
//! Making keyspaces takes seconds, so a few sets of them are made once and emptied before each use. A set is leased by a
//! locked file: tests of several processes never meet in one.
#![expect(clippy::expect_used, reason = "a test that cannot be set up must fail")]

use std::env;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use mw_store_cassandra::connect::connect;
use mw_store_cassandra::schema::SchemaError;
use mw_store_cassandra::{CassandraStore, Class, Options, Table};
use scylla::client::session::Session;

use super::{Shared, shared};

/// Sets of keyspaces; as many tests may run at once.
const SETS: usize = 16;
/// A table that still refuses to be emptied after this is broken.
const EMPTYING: Duration = Duration::from_secs(60);

/// Keyspaces that nobody else uses while this lives.
#[derive(Debug)]
pub struct Lease {
    options: Options,
    _lock: File,
}

impl Lease {
    /// Empty keyspaces with the schema in them.
    pub async fn empty() -> Self {
        let lease = Self::take().await;
        let t = std::time::Instant::now();
        let session = connect(&lease.options).await.expect("connect to the shared cluster");
        let t1 = t.elapsed();
        lease.apply_schema(&session).await;
        let t2 = t.elapsed();
        lease.empty_tables(&session).await;
        eprintln!("connect {t1:?} apply {:?} empty {:?}", t2 - t1, t.elapsed() - t2);
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
        loop {
            for set in 0..SETS {
                let path = env::temp_dir().join(format!("mw-test-keyspaces-{}-{set}.lock", points.concat()));
                let lock = File::create(&path).expect("make a lock file");
                if lock.try_lock().is_ok() {
                    let mut options = Options::new(points, local_dc);
                    options.keyspace = format!("mw_test_{set}");
                    // Test machines are slow at times; what is tested here is not how fast they are.
                    options.request_timeout = Duration::from_secs(10);
                    return Self { options, _lock: lock };
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn empty_tables(&self, session: &Session) {
        for table in Table::ALL {
            let name = format!("{}.{}", table.class().keyspace(&self.options.keyspace), table.name());
            let any = session.query_unpaged(format!("SELECT * FROM {name} LIMIT 1"), ()).await;
            let rows = any.expect("look into a table").into_rows_result().expect("rows");
            if rows.rows_num() > 0 {
                let mut truncate = scylla::statement::Statement::new(format!("TRUNCATE {name}"));
                truncate.set_request_timeout(Some(EMPTYING));
                session.query_unpaged(truncate, ()).await.expect("empty a table");
            }
        }
    }

    /// How to reach the keyspaces.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// A process of its own on these keyspaces.
    pub async fn open(&self) -> Arc<CassandraStore> {
        let t = std::time::Instant::now();
        let store = CassandraStore::open(self.options.clone()).await.expect("open the store");
        eprintln!("open {:?}", t.elapsed());
        store
    }
}

/// An empty store, and what it stands on.
pub async fn fresh() -> (Arc<CassandraStore>, Lease) {
    let lease = Lease::empty().await;
    (lease.open().await, lease)
}
