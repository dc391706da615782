//! Real MongoDB for tests: the replica set that all tests share, and clusters of their own for tests that disturb members or
//! need shards.
//!
//! Starting a cluster blocks: call [`start`] in async tests.

mod fresh;

pub use fresh::{Lease, fresh};
pub use mw_mongodb_testbed::{
    CONFIG_SET, Cluster, ClusterError, ClusterOptions, Layout, MONGODB_VERSION, MONGOS, Member, REPLICA_SET,
    SHARD_A, SHARD_B, SUPERUSER, SUPERUSER_PASSWORD, TEST_VARIABLE,
};

use std::env;

/// The URI of the replica set that `cargo xtask test` started: three members, without passwords and TLS. Each test uses a
/// database of its own, and none disturbs a member.
///
/// # Panics
///
/// If there is no shared replica set: a test that needs one must not pass without it.
pub fn shared() -> String {
    let uri = env::var(TEST_VARIABLE).unwrap_or_default();
    assert!(
        uri.starts_with("mongodb://") || uri.starts_with("mongodb+srv://"),
        "find the MongoDB replica set of the tests: {TEST_VARIABLE} names none (`{uri}`): run `cargo xtask test`, or `cargo \
         xtask mongo up` and set {TEST_VARIABLE} to the URI that it prints"
    );
    uri
}

/// A cluster of this test alone, started without blocking the runtime.
///
/// # Panics
///
/// If it does not start.
#[expect(clippy::expect_used, reason = "a test without its fixture must fail")]
pub async fn start(options: ClusterOptions) -> Cluster {
    let started = tokio::task::spawn_blocking(|| Cluster::start(options));
    started.await.expect("start a cluster").expect("start a cluster")
}

/// A sharded cluster of this test alone.
pub async fn start_sharded(name: &str) -> Cluster {
    let name = name.to_owned();
    start(ClusterOptions { name, layout: Layout::Sharded, ..ClusterOptions::default() }).await
}

/// A replica set of this test alone.
pub async fn start_replica_set(name: &str, members: usize) -> Cluster {
    let name = name.to_owned();
    start(ClusterOptions { name, layout: Layout::ReplicaSet { members }, ..ClusterOptions::default() }).await
}
