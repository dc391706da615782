//! A faulty store without faults passes the contract; with them it fails as injected.

use std::sync::Arc;

use mw_domain::Timestamp;
use mw_store::model::Model;
use mw_store::{Freshness, Maintenance, Products, Refusal, SharedStore, StoreError};
use mw_testkit::builders::{product, product_id};
use mw_testkit::faults::{CAUSE, Noun};
use mw_testkit::{Calls, Fault, FaultyStore};

fn healthy() -> SharedStore {
    FaultyStore::new(Arc::new(Model::new()))
}

mod without_faults {
    mw_store::contract_tests!(super::healthy());
}

fn store() -> Arc<FaultyStore> {
    FaultyStore::new(Arc::new(Model::new()))
}

async fn is_there(store: &FaultyStore, id: &str) -> bool {
    matches!(store.product(&product_id(id), Freshness::Latest).await, Ok(Some(_)))
}

#[tokio::test]
async fn a_certain_failure_is_not_applied() {
    let store = store();
    store.fail(Calls::Writes, Fault::Unavailable);
    let result = store.put_product(product("p").into()).await;
    assert!(matches!(result, Err(StoreError::Unavailable(_))), "{result:?}");
    store.fail(Calls::WritesOf(Noun::Products), Fault::Overloaded);
    let result = store.put_product(product("p").into()).await;
    assert_eq!(result, Err(StoreError::Overloaded), "the later fault goes first");
    assert!(!is_there(&store, "p").await, "reads go on");
    store.heal();
    store.put_product(product("p").into()).await.unwrap();
    assert!(is_there(&store, "p").await);
}

#[tokio::test]
async fn an_ambiguous_failure_is_applied_or_not() {
    let store = store();
    for (id, fault, done) in [("a", Fault::AmbiguousNotDone, false), ("b", Fault::AmbiguousDone, true)] {
        store.fail_next(1, Calls::Named("put_product"), fault);
        let result = store.put_product(product(id).into()).await;
        assert!(matches!(result, Err(StoreError::Ambiguous(_))), "{result:?}");
        assert_eq!(is_there(&store, id).await, done);
    }
    store.fail(Calls::Writes, Fault::AmbiguousDone);
    let refused = store.delete_product(&product_id("absent"), Timestamp::EPOCH).await.unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::ProductNotFound(_))), "{refused:?}");
}

#[tokio::test]
async fn a_fault_applies_to_the_given_number_of_calls() {
    let store = store();
    store.fail_next(2, Calls::ReadsOf(Noun::Maintenance), Fault::Corrupt);
    assert!(store.ready().await.is_err());
    store.put_product(product("p").into()).await.unwrap();
    assert!(store.ready().await.is_err());
    assert!(store.ready().await.is_ok());
    assert_eq!(store.count(Calls::Named("ready")), 3);
    assert_eq!((store.count(Calls::Of(Noun::Products)), store.count(Calls::All)), (1, 4));
}

#[tokio::test]
async fn a_panic_is_the_callers_and_the_store_goes_on() {
    let store = store();
    store.fail_next(1, Calls::All, Fault::Panic);
    let panicking = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.ready().await }
    });
    let panic = panicking.await.unwrap_err().into_panic();
    assert!(panic.downcast_ref::<String>().unwrap().contains(CAUSE));
    assert!(store.ready().await.is_ok());
}

#[test]
fn what_the_store_stands_on_goes_after_it() {
    let inner: SharedStore = Arc::new(Model::new());
    let watched = Arc::downgrade(&inner);
    let store = FaultyStore::on(inner, Ground(Box::new(move || assert!(watched.upgrade().is_none()))));
    drop(store);
}

/// Calls this when it goes.
struct Ground(Box<dyn Fn() + Send + Sync>);

impl Drop for Ground {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[tokio::test]
async fn a_call_that_hangs_goes_on_when_healed() {
    let store = store();
    store.fail(Calls::Writes, Fault::Hang);
    let hanging = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.put_product(product("p").into()).await }
    });
    while store.count(Calls::Writes) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!hanging.is_finished());
    assert!(!is_there(&store, "p").await);
    store.heal();
    hanging.await.unwrap().unwrap();
    assert!(is_there(&store, "p").await);
}
