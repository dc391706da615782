//! Keyspaces of a test's own on the shared cluster, with a schema or without.

use mw_store_cassandra::{Class, Options};
use mw_testkit::cassandra::shared;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::deserialize::value::DeserializeValue;

pub(crate) struct Keyspaces {
    prefix: String,
    session: Session,
}

impl Keyspaces {
    /// Without a schema.
    pub(crate) async fn new(name: &str) -> Self {
        let session = SessionBuilder::new().known_nodes_addr(shared().contact_points).build().await.unwrap();
        let keyspaces = Self { prefix: format!("schema_{name}_{}", std::process::id()), session };
        keyspaces.remove().await;
        keyspaces
    }

    pub(crate) fn options(&self) -> Options {
        let shared = shared();
        let points = shared.contact_points.iter().map(ToString::to_string).collect();
        Options { keyspace: self.prefix.clone(), ..Options::new(points, shared.local_dc) }
    }

    pub(crate) async fn run(&self, statement: &str) {
        self.session.query_unpaged(statement, ()).await.unwrap();
    }

    pub(crate) async fn value<T>(&self, statement: &str) -> T
    where
        T: for<'f, 'm> DeserializeValue<'f, 'm>,
    {
        let result = self.session.query_unpaged(statement, ()).await.unwrap();
        result.into_rows_result().unwrap().first_row::<(T,)>().unwrap().0
    }

    async fn remove(&self) {
        for class in Class::ALL {
            self.run(&format!("DROP KEYSPACE IF EXISTS {}", class.keyspace(&self.prefix))).await;
        }
    }

    pub(crate) async fn drop(self) {
        self.remove().await;
    }
}
