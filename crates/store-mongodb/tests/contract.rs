//! The contract on a real replica set, in both shapes: with all topics of the change feed, and with those of a new shop.

use std::time::Duration;

use mw_store::SharedStore;
use mw_store::changes::{FeedSettings, Topics};
use mw_testkit::mongodb::{Lease, shared};

mw_store::contract_tests!({
    let lease = Lease::reused(&shared(), |options| {
        options.feed = FeedSettings { topics: Topics::ALL, ..FeedSettings::default() };
        // Fifty changes of one cart at once are fifty transactions, one after the other.
        options.request_timeout = Duration::from_mins(1);
    })
    .await;
    (lease.open().await as SharedStore, lease)
});

mod shape_user {
    use mw_store::SharedStore;
    use mw_store_mongodb::Shape;
    use mw_store_mongodb::shard_keys::ShardKeys;
    use mw_testkit::mongodb::{Lease, shared};

    mw_store::contract_tests!({
        let lease = Lease::reused(&shared(), |options| {
            options.shape = Shape::User;
            options.shard_keys = ShardKeys::of_shape(Shape::User);
        })
        .await;
        (lease.open().await as SharedStore, lease)
    });
}
