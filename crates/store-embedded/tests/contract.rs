//! The contract suite on the embedded engine.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::sync::Arc;

use mw_domain::Currency;
use mw_store::SharedStore;
use mw_store::changes::{FeedSettings, Topics};
use mw_store_embedded::{EmbeddedStore, Options};
use tempfile::TempDir;

fn fresh() -> (SharedStore, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        min_free_bytes: 0,
        feed: FeedSettings { topics: Topics::ALL, ..FeedSettings::default() },
        ..Options::new(folder.path(), Currency::parse("RUB").unwrap())
    };
    (Arc::new(EmbeddedStore::open(options).unwrap()), folder)
}

mw_store::contract_tests!(fresh());
