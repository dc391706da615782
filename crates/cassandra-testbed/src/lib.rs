//! A real Apache Cassandra 5.0.9 cluster on this machine, started, disturbed and stopped from Rust.
//!
//! - Nodes are Java processes on loopback addresses. Their jars are fetched once with Maven and cached.
//! - A [`Cluster`] ends with the process that started it, also after `kill -9` ([`mw_testbed::Watchdog`]). Its nodes can be paused,
//!   killed and restarted ([`Node`]).
//! - A [`DetachedCluster`] (`cargo xtask cluster up`) runs until it is taken down.
//! - All calls block. Linux only: other systems do not listen on all of 127.0.0.0/8.

mod archive;
mod cluster;
mod detached;
mod jars;
mod java;
mod launch;
mod log;
mod network;
mod node;
mod options;
mod render;
mod tls;

pub use cluster::Cluster;
pub use detached::{DetachedCluster, NodeStatus};
pub use mw_testbed::{ClusterError, Result};
pub use network::Network;
pub use node::Node;
pub use options::ClusterOptions;

/// The version of Cassandra that runs here.
pub const CASSANDRA_VERSION: &str = "5.0.9";

/// The port for clients, on every node's own address.
pub const CQL_PORT: u16 = 9042;

/// The port of JMX over HTTP, on every node's own address, and its credentials.
pub const JOLOKIA_PORT: u16 = 8778;
pub const JOLOKIA_USER: &str = "jolokia";
pub const JOLOKIA_PASSWORD: &str = "jolokia";

/// The environment variable in which `cargo xtask test` gives tests the addresses of their shared cluster, separated by
/// commas.
pub const TEST_VARIABLE: &str = "MW_TEST_CASSANDRA";

/// The superuser of a cluster with password authentication.
pub const SUPERUSER: &str = "cassandra";
pub const SUPERUSER_PASSWORD: &str = "cassandra";
