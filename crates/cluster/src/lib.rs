//! A real Apache Cassandra 5.0.9 cluster on this machine: started, disturbed and stopped from Rust.
//!
//! Nodes are Java processes on loopback addresses, from jars that are fetched once. A [`Cluster`] ends with the process
//! that started it, in whatever way that ends; a [`Background`] cluster stays until it is taken down. All calls block.
//! Linux only, since no other system has the whole of 127.0.0.0/8 to listen on.

mod apt;
mod archive;
mod background;
mod cache;
mod cluster;
mod error;
mod jars;
mod java;
mod launch;
mod log;
mod network;
mod node;
mod options;
mod process;
mod render;
mod tls;
mod watchdog;

pub use apt::install as install_package;
pub use background::{Background, NodeStatus};
pub use cluster::Cluster;
pub use error::{ClusterError, Result};
pub use network::Network;
pub use node::Node;
pub use options::ClusterOptions;

/// The version of Cassandra that runs here.
pub const CASSANDRA_VERSION: &str = "5.0.9";

/// The port for clients, on every node's own address.
pub const CQL_PORT: u16 = 9042;

/// The variable in which `cargo xtask test` tells tests where their shared cluster is: addresses with commas between.
pub const TEST_VARIABLE: &str = "MW_TEST_CASSANDRA";

/// Who may do everything on a cluster with password authentication.
pub const SUPERUSER: &str = "cassandra";
pub const SUPERUSER_PASSWORD: &str = "cassandra";
