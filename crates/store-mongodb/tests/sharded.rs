//! The contract on a sharded cluster, with the default shard keys.

use mw_store::SharedStore;
use mw_testkit::mongodb::{Cluster, Lease, start_sharded};
use tokio::sync::OnceCell;

/// The cluster of all tests here; it ends with this process.
async fn sharded() -> &'static Cluster {
    static SHARDED: OnceCell<Cluster> = OnceCell::const_new();
    SHARDED.get_or_init(|| start_sharded("contract")).await
}

mw_store::contract_tests!({
    let lease = Lease::reused(&sharded().await.uri(), |_| {}).await;
    (lease.open().await as SharedStore, lease)
});
