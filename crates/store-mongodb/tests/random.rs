//! Random operations on a real replica set, compared with the model.

use mw_store::SharedStore;
use mw_store::changes::{FeedSettings, Topics};
use mw_store::contract::random;
use mw_testkit::mongodb::{Lease, shared};

const RUNS: usize = 2;
const STEPS: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_agree_with_the_model() {
    for seed in random::seeds(RUNS) {
        let feed = FeedSettings { topics: Topics::ALL, retention_ms: random::FEED_RETENTION_MS };
        let lease = Lease::on(&shared(), |options| options.feed = feed).await;
        random::run(seed, random::steps(STEPS), async || lease.open().await as SharedStore).await;
    }
}
