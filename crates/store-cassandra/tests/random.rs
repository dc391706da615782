//! Random operations with restarts on a real cluster, each result compared with the model's.

use mw_store::SharedStore;
use mw_store::changes::{FeedSettings, Topics};
use mw_store::contract::random;
use mw_testkit::cassandra::Lease;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_agrees_with_the_model() {
    for seed in random::seeds(1) {
        let mut lease = Lease::empty().await;
        lease.set_feed(FeedSettings { topics: Topics::ALL, retention_ms: random::FEED_RETENTION_MS });
        random::run(seed, random::steps(120), async || lease.open().await as SharedStore).await;
    }
}
