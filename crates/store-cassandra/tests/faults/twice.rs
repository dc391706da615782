//! The same thing asked of two processes, or again after its answer was lost: it counts once.

use std::collections::BTreeSet;
use std::sync::Arc;

use mw_domain::{ReservationId, SessionId};
use mw_store::sessions::CreateSession;
use mw_store::stock::Reserve;
use mw_store::{Orders, Refusal, Sessions, Stock};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Options, Table};
use mw_testkit::builders::{demand, once};
use mw_testkit::cassandra::Lease;
use scylla::client::session::Session;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::given::{NOW, alone, audited, hold, name, order, stocked, visit};

/// Units on hand, and those promised to somebody; all explained by the ledger.
async fn units(store: &CassandraStore) -> (u64, u64) {
    audited(store).await;
    crate::given::units(store, "hit").await.unwrap()
}

fn reserve(key: &str, quantity: u32) -> Reserve {
    Reserve { lines: vec![demand("hit", quantity)], once: Some(once(key, key, NOW)), ..hold("hit") }
}

/// As if the process had died before it remembered the answer of a key.
async fn forget_answer(session: &Session, options: &Options, key: &str) {
    let table = name(options, Table::IdempotencyKeys);
    let found = session
        .query_unpaged(format!("SELECT shard FROM {table} WHERE key = ? ALLOW FILTERING"), (key,))
        .await
        .unwrap();
    let (shard,) = found.into_rows_result().unwrap().first_row::<(i32,)>().unwrap();
    let forget = format!("UPDATE {table} SET outcome = null WHERE shard = ? AND key = ? IF EXISTS");
    session.query_unpaged(forget, (shard, key)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_comes_to_two_processes_at_once_holds_its_units_once() {
    const KEYS: u64 = 40;
    let _turn = alone().await;
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await];
    stocked(&stores[0], "hit", KEYS).await;
    let mut asked = JoinSet::new();
    for key in 0..KEYS {
        for store in &stores {
            let store = Arc::clone(store);
            asked.spawn(async move { (key, store.reserve(reserve(&format!("key-{key}"), 1)).await) });
        }
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(key, _)| *key);
    for pair in answers.chunks(2) {
        let ids: Vec<ReservationId> =
            pair.iter().map(|(_, answer)| answer.as_ref().unwrap().value.reservation_id).collect();
        assert_eq!(ids[0], ids[1], "one key is one reservation");
    }
    assert_eq!(units(&stores[1]).await, (KEYS, KEYS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_another_process_has_held_is_not_held_again() {
    let _turn = alone().await;
    let lease = Lease::empty().await;
    let (first, second) = (lease.open().await, lease.open().await);
    stocked(&first, "hit", 10).await;
    // The second one's keeper has figures of its own from before.
    second.place_order(order("u", &["hit"])).await.unwrap();
    let command = order("u", &["hit"]);
    first.place_order(command.clone()).await.unwrap();
    second.place_order(command.clone()).await.unwrap();
    let third = lease.open().await;
    third.place_order(command).await.unwrap();
    assert_eq!(units(&third).await, (10, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_answer_was_lost_is_not_short_because_of_its_own_hold() {
    let _turn = alone().await;
    let lease = Lease::empty().await;
    let store = lease.open().await;
    let session = connect(lease.options()).await.unwrap();
    stocked(&store, "hit", 5).await;
    let held = store.reserve(reserve("all", 5)).await.unwrap().value;
    forget_answer(&session, lease.options(), "all").await;
    let again = store.reserve(reserve("all", 5)).await.unwrap();
    assert_eq!((again.value, again.replayed), (held, true));
    assert_eq!(units(&store).await, (5, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_reservation_was_given_up_is_refused_and_then_free() {
    let _turn = alone().await;
    let lease = Lease::empty().await;
    let store = lease.open().await;
    let session = connect(lease.options()).await.unwrap();
    stocked(&store, "hit", 5).await;
    let held = store.reserve(reserve("key", 5)).await.unwrap().value;
    store.release(held.reservation_id, NOW).await.unwrap();
    let table = name(lease.options(), Table::Reservations);
    let found = session.query_unpaged(format!("SELECT slot FROM {table}"), ()).await.unwrap();
    let (slot,) = found.into_rows_result().unwrap().first_row::<(i64,)>().unwrap();
    let give_up =
        format!("UPDATE {table} USING TIMESTAMP 3 SET status = 'void' WHERE slot = ? AND reservation_id = ?");
    session.query_unpaged(give_up, (slot, held.reservation_id.uuid())).await.unwrap();
    forget_answer(&session, lease.options(), "key").await;

    let refused = store.reserve(reserve("key", 5)).await.unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::OutOfStock(_))), "{refused:?}");
    assert_eq!(units(&store).await, (5, 0));
    let anew = store.reserve(reserve("key", 5)).await.unwrap().value;
    assert_eq!(store.reservation(anew.reservation_id, NOW).await.unwrap(), Some(anew));
    assert_eq!(units(&store).await, (5, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_comes_to_two_processes_at_once_opens_one_session() {
    const KEYS: usize = 40;
    let _turn = alone().await;
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await];
    let mut asked = JoinSet::new();
    for key in 0..KEYS {
        for store in &stores {
            let (store, made_of, key) = (Arc::clone(store), Uuid::new_v4(), format!("key-{key}"));
            let session = visit(SessionId::made_of(made_of));
            let once = Some(once(&key, &key, NOW));
            let command = CreateSession { session, made_of: Some(made_of), now: NOW, once };
            asked.spawn(async move { (key, store.create_session(command).await.unwrap().value.session_id) });
        }
    }
    let answers: BTreeSet<(String, SessionId)> = asked.join_all().await.into_iter().collect();
    assert_eq!(answers.len(), KEYS, "one key is one session: {answers:?}");
    for (_, session_id) in answers {
        assert!(stores[0].session(&session_id, NOW).await.unwrap().is_some());
    }
}
