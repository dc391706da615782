//! Random operations with restarts on the embedded engine, each result compared with the model's.

use std::sync::Arc;

use mw_domain::Currency;
use mw_store::SharedStore;
use mw_store::changes::{FeedSettings, Topics};
use mw_store::contract::random;
use mw_store_embedded::{EmbeddedStore, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_agrees_with_the_model() {
    for seed in random::seeds(6) {
        let folder = tempfile::tempdir().unwrap();
        random::run(seed, random::steps(400), async || {
            let currency = Currency::parse("RUB").unwrap();
            // Memtables so small that they are flushed and compacted while the test runs.
            let options = Options {
                min_free_bytes: 0,
                memtable_bytes: 4 * 1_024,
                feed: FeedSettings { topics: Topics::ALL, retention_ms: random::FEED_RETENTION_MS },
                ..Options::new(folder.path(), currency)
            };
            Arc::new(EmbeddedStore::open(options).unwrap()) as SharedStore
        })
        .await;
    }
}
