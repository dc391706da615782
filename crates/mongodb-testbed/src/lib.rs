//! Real MongoDB servers on this machine, started, disturbed and stopped from Rust: a standalone server, a replica set, or a
//! sharded cluster with mongos.
//!
//! - `mongod` and `mongos` are fetched once, checked against a pinned hash and cached; `MONGOD` and `MONGOS` name other ones.
//! - A [`Cluster`] ends with the process that started it, also after `kill -9` ([`mw_testbed::Watchdog`]). Its members can be
//!   paused, killed, restarted and stepped down ([`Member`]).
//! - A [`DetachedCluster`] (`cargo xtask mongo up`) runs until it is taken down.
//! - All calls block. No driver is needed: a few commands are sent over the wire protocol (`wire.rs`).

mod binaries;
mod cluster;
mod detached;
mod initiate;
mod member;
mod options;
mod ports;
mod scram;
#[cfg(feature = "tls")]
mod tls;
mod user;
mod wire;

pub use cluster::Cluster;
pub use detached::{DetachedCluster, MemberStatus};
pub use member::Member;
pub use mw_testbed::{ClusterError, Result};
pub use options::{ClusterOptions, Layout};

/// The version of MongoDB that runs here, unless `MONGOD` names another.
pub const MONGODB_VERSION: &str = "8.2.0";

/// The environment variable in which `cargo xtask test` gives tests the URI of their shared replica set.
pub const TEST_VARIABLE: &str = "MW_TEST_MONGODB";

/// The administrator of a cluster with authentication.
pub const SUPERUSER: &str = "admin";
pub const SUPERUSER_PASSWORD: &str = "mobile-world";

/// The replica set's name where there is one only, and the sets of a sharded cluster.
pub const REPLICA_SET: &str = "rs0";
pub const CONFIG_SET: &str = "config";
pub const SHARD_A: &str = "a";
pub const SHARD_B: &str = "b";
/// The name of a sharded cluster's router among its members.
pub const MONGOS: &str = "mongos";
