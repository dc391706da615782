//! What operators see and do, on real servers: schema, errors at start, read policy, shards.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod policy;
mod schema;
mod shards;
mod start;
mod targeting;

use mw_testkit::mongodb::{Cluster, start_sharded};
use tokio::sync::OnceCell;

/// The sharded cluster of all tests here; it ends with this process.
async fn sharded() -> &'static Cluster {
    static SHARDED: OnceCell<Cluster> = OnceCell::const_new();
    SHARDED.get_or_init(|| start_sharded("operate")).await
}
