//! The contract on a real cluster, with all topics of the change feed.

use mw_store::SharedStore;
use mw_store::changes::{FeedSettings, Topics};
use mw_testkit::cassandra::Lease;

mw_store::contract_tests!({
    let mut lease = Lease::empty().await;
    lease.set_feed(FeedSettings { topics: Topics::ALL, ..FeedSettings::default() });
    (lease.open().await as SharedStore, lease)
});
