//! The contract on a real replica set, in both shapes.

use mw_store::SharedStore;
use mw_testkit::mongodb::fresh;

mw_store::contract_tests!({
    let (store, lease) = fresh().await;
    (store as SharedStore, lease)
});

mod shape_user {
    use mw_store::SharedStore;
    use mw_store_mongodb::Shape;
    use mw_store_mongodb::shard_keys::ShardKeys;
    use mw_testkit::mongodb::{Lease, shared};

    mw_store::contract_tests!({
        let lease = Lease::on(&shared(), |options| {
            options.shape = Shape::User;
            options.shard_keys = ShardKeys::of_shape(Shape::User);
        })
        .await;
        (lease.open().await as SharedStore, lease)
    });
}
