//! Random operations agree between two models: a test of the generator and of the comparison.

use std::sync::Arc;

use mw_store::SharedStore;
use mw_store::changes::{FeedSettings, Topics};
use mw_store::contract::random;
use mw_store::model::Model;

#[tokio::test]
async fn the_model_agrees_with_itself() {
    for seed in random::seeds(6) {
        let feed = FeedSettings { topics: Topics::ALL, retention_ms: random::FEED_RETENTION_MS };
        let kept: SharedStore = Arc::new(Model::with_feed(feed));
        random::run(seed, random::steps(600), async || Arc::clone(&kept)).await;
    }
}

#[tokio::test]
async fn a_seed_is_a_run() {
    let record = async |seed| {
        let store: SharedStore = Arc::new(Model::new());
        let filled = random::fill(seed, 300, &*store).await;
        drop(filled);
        let export = store.export().await.unwrap();
        let page = export.page(mw_store::PageRequest::first(100_000)).await.unwrap();
        format!("{:?}", page.items)
    };
    assert_eq!(record(7).await, record(7).await);
    assert_ne!(record(7).await, record(8).await);
}
