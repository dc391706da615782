//! The contract on a real cluster.

use mw_store::SharedStore;
use mw_testkit::cassandra::fresh;

mw_store::contract_tests!({
    let (store, lease) = fresh().await;
    (store as SharedStore, lease)
});
