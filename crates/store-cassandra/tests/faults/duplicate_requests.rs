//! Duplicate requests: sent to two processes at once, or again after the response was lost. They take effect once.

use std::collections::BTreeSet;
use std::sync::Arc;

use mw_domain::{OrderId, OrderStatus, ReservationId, SessionId};
use mw_store::orders::{Basket, PlaceOrder, SetStatus};
use mw_store::sessions::CreateSession;
use mw_store::stock::Reserve;
use mw_store::{Orders, Refusal, Sessions, Stock};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Options, Table};
use mw_testkit::builders::{demand, identity, user};
use mw_testkit::cassandra::Lease;
use scylla::client::session::Session;
use scylla::value::{CqlValue, Row};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::fixtures::{
    LIFETIME, NOW, assert_audit, exclusive, full_name, guest_session, hold, import_stock, order, set_line,
};

/// The audited stock level: units on hand, and units reserved.
async fn audited_level(store: &CassandraStore) -> (u64, u64) {
    assert_audit(store).await;
    crate::fixtures::stock_level(store, "hit").await.unwrap()
}

fn reserve(key: &str, quantity: u32) -> Reserve {
    Reserve { lines: vec![demand("hit", quantity)], identity: Some(identity(key, key, NOW)), ..hold("hit") }
}

/// As if the process had died before it stored the outcome of the key.
async fn delete_outcome(session: &Session, options: &Options, key: &str) {
    let table = full_name(options, Table::IdempotencyKeys);
    let forget = format!("UPDATE {table} SET outcome = null WHERE key = ? IF EXISTS");
    session.query_unpaged(forget, (key,)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_reservation_on_two_processes_holds_its_units_once() {
    const KEYS: u64 = 40;
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await];
    import_stock(&stores[0], "hit", KEYS).await;
    let mut requests = JoinSet::new();
    for key in 0..KEYS {
        for store in &stores {
            let store = Arc::clone(store);
            requests.spawn(async move { (key, store.reserve(reserve(&format!("key-{key}"), 1)).await) });
        }
    }
    let mut results = requests.join_all().await;
    results.sort_by_key(|(key, _)| *key);
    for pair in results.chunks(2) {
        let ids: Vec<ReservationId> =
            pair.iter().map(|(_, result)| result.as_ref().unwrap().value.reservation_id).collect();
        assert_eq!(ids[0], ids[1], "one key is one reservation");
    }
    assert_eq!(audited_level(&stores[1]).await, (KEYS, KEYS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_order_on_another_process_holds_its_units_once() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let (first, second) = (lease.open().await, lease.open().await);
    import_stock(&first, "hit", 10).await;
    // The keeper of the second process has a stock header from before the first order.
    second.place_order(order("u", &["hit"])).await.unwrap();
    let command = order("u", &["hit"]);
    first.place_order(command.clone()).await.unwrap();
    second.place_order(command.clone()).await.unwrap();
    let third = lease.open().await;
    third.place_order(command).await.unwrap();
    assert_eq!(audited_level(&third).await, (10, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_concurrent_checkouts_of_one_cart_all_but_one_find_it_empty() {
    const CARTS: usize = 12;
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await, lease.open().await];
    // The others of a cart are short of what the first one holds.
    for number in 0..CARTS {
        import_stock(&stores[0], &format!("last-{number}"), 2).await;
        set_line(&stores[0], user(&format!("u{number}")), &format!("last-{number}"), 2).await.unwrap();
    }
    let mut checkouts = JoinSet::new();
    for number in 0..CARTS {
        for store in stores.iter().cycle().take(6) {
            let basket = Basket::Cart { expected_version: None, lifetime: LIFETIME };
            let command = PlaceOrder { basket, ..order(&format!("u{number}"), &[]) };
            let store = Arc::clone(store);
            checkouts.spawn(async move { (number, store.place_order(command).await) });
        }
    }
    let mut placed = [0; CARTS];
    for (number, result) in checkouts.join_all().await {
        match result {
            Ok(_) => placed[number] += 1,
            Err(error) => assert!(matches!(error.refusal(), Some(Refusal::CartEmpty)), "{number}: {error:?}"),
        }
    }
    assert_eq!(placed, [1; CARTS]);
    assert_audit(&stores[0]).await;
}

fn status(order_id: OrderId, to: OrderStatus, key: Option<&str>) -> SetStatus {
    let identity = key.map(|key| identity(key, key, NOW));
    SetStatus { order_id, of_user: None, to, note: None, expected_version: Some(1), now: NOW, identity }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_payment_with_a_lost_outcome_is_replayed_after_a_later_step() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let (first, second) = (lease.open().await, lease.open().await);
    let session = connect(lease.options()).await.unwrap();
    import_stock(&first, "hit", 10).await;
    let order_id = first.place_order(order("u", &["hit"])).await.unwrap().value.order_id;
    let paid = first.set_status(status(order_id, OrderStatus::Paid, Some("pay"))).await.unwrap().value;
    delete_outcome(&session, lease.options(), "pay").await;
    let ship = SetStatus { expected_version: Some(2), ..status(order_id, OrderStatus::Shipped, None) };
    let shipped = second.set_status(ship).await.unwrap().value;

    let again = second.set_status(status(order_id, OrderStatus::Paid, Some("pay"))).await.unwrap();
    assert_eq!((again.value, again.replayed), (paid.clone(), true));
    // The outcome is stored now.
    let again = first.set_status(status(order_id, OrderStatus::Paid, Some("pay"))).await.unwrap();
    assert_eq!((again.value, again.replayed), (paid, true));
    assert_eq!(first.order(order_id).await.unwrap(), Some(shipped));
    let other = first.set_status(status(order_id, OrderStatus::Cancelled, Some("cancel"))).await.unwrap_err();
    assert!(matches!(other.refusal(), Some(Refusal::OrderVersion { .. })), "{other:?}");
    assert_eq!(audited_level(&second).await, (9, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_reservation_with_a_lost_outcome_is_not_out_of_stock_because_of_its_own_hold() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let store = lease.open().await;
    let session = connect(lease.options()).await.unwrap();
    import_stock(&store, "hit", 5).await;
    let held = store.reserve(reserve("all", 5)).await.unwrap().value;
    delete_outcome(&session, lease.options(), "all").await;
    let again = store.reserve(reserve("all", 5)).await.unwrap();
    assert_eq!((again.value, again.replayed), (held, true));
    assert_eq!(audited_level(&store).await, (5, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_reservation_was_voided_is_refused_once_and_then_usable() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let store = lease.open().await;
    let session = connect(lease.options()).await.unwrap();
    import_stock(&store, "hit", 5).await;
    let held = store.reserve(reserve("key", 5)).await.unwrap().value;
    store.release(held.reservation_id, NOW).await.unwrap();
    let table = full_name(lease.options(), Table::Reservations);
    let found = session.query_unpaged(format!("SELECT time_bucket FROM {table}"), ()).await.unwrap();
    let (time_bucket,) = found.into_rows_result().unwrap().first_row::<(i64,)>().unwrap();
    let void = format!(
        "UPDATE {table} USING TIMESTAMP 3 SET status = 'void' WHERE time_bucket = ? AND reservation_id = ?"
    );
    session.query_unpaged(void, (time_bucket, held.reservation_id.uuid())).await.unwrap();
    delete_outcome(&session, lease.options(), "key").await;

    let refused = store.reserve(reserve("key", 5)).await.unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::OutOfStock(_))), "{refused:?}");
    assert_eq!(audited_level(&store).await, (5, 0));
    let second = store.reserve(reserve("key", 5)).await.unwrap().value;
    assert_eq!(store.reservation(second.reservation_id, NOW).await.unwrap(), Some(second));
    assert_eq!(audited_level(&store).await, (5, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_arrives_after_its_key_was_released_finds_it_taken() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let store = lease.open().await;
    let session = connect(lease.options()).await.unwrap();
    import_stock(&store, "hit", 5).await;
    let refused = store.reserve(reserve("late", 9)).await.unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::OutOfStock(_))), "{refused:?}");
    // What a claim of the refused request sends that was held up until now.
    let table = full_name(lease.options(), Table::IdempotencyKeys);
    let claim = format!("UPDATE {table} SET op_id = ? WHERE key = 'late' IF op_id = null");
    let late = session.query_unpaged(claim, (Uuid::new_v4(),)).await.unwrap().into_rows_result().unwrap();
    let row = late.first_row::<Row>().unwrap();
    assert_eq!(row.columns.first(), Some(&Some(CqlValue::Boolean(false))));

    let held = store.reserve(reserve("late", 5)).await.unwrap();
    assert!(!held.replayed);
    assert_eq!(audited_level(&store).await, (5, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_create_session_on_two_processes_creates_one_session() {
    const KEYS: usize = 40;
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await];
    let mut requests = JoinSet::new();
    for key in 0..KEYS {
        for store in &stores {
            let (store, id_seed, key) = (Arc::clone(store), Uuid::new_v4(), format!("key-{key}"));
            let session = guest_session(SessionId::from_seed(id_seed));
            let identity = Some(identity(&key, &key, NOW));
            let command = CreateSession { session, id_seed: Some(id_seed), now: NOW, identity };
            requests
                .spawn(async move { (key, store.create_session(command).await.unwrap().value.session_id) });
        }
    }
    let sessions: BTreeSet<(String, SessionId)> = requests.join_all().await.into_iter().collect();
    assert_eq!(sessions.len(), KEYS, "one key is one session: {sessions:?}");
    for (_, session_id) in sessions {
        assert!(stores[0].session(&session_id, NOW).await.unwrap().is_some());
    }
}
