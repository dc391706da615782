//! The same thing asked of two processes, and what a process that died was in the middle of: it counts once.

use std::sync::Arc;

use mw_codec::Writer;
use mw_domain::{OrderId, OrderStatus, ReservationId};
use mw_store::orders::SetStatus;
use mw_store::stock::Reserve;
use mw_store::{Orders, Refusal, Stock};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Options, Table};
use mw_testkit::builders::{demand, once};
use mw_testkit::cassandra::Lease;
use scylla::client::session::Session;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::given::{NOW, PATIENCE, alone, audited, eventually, hold, name, order, stocked};

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

/// The intent of a step of a process that died, as `orders/status.rs` writes it: here to give units back.
fn returning_step(id: OrderId, version: i64) -> Vec<u8> {
    let mut writer = Writer::new(32);
    writer.bytes(id.as_bytes());
    writer.signed(version);
    writer.byte(3);
    writer.done()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_lost_is_not_followed_by_whoever_recovers_it() {
    let _turn = alone().await;
    let lease = Lease::empty().await;
    let session = connect(lease.options()).await.unwrap();
    let store = lease.open().await;
    stocked(&store, "hit", 10).await;
    let order_id = store.place_order(order("u", &["hit"])).await.unwrap().value.order_id;
    for to in [OrderStatus::Paid, OrderStatus::Shipped] {
        let command = SetStatus {
            order_id,
            of_user: None,
            to,
            note: None,
            expected_version: None,
            now: NOW,
            once: None,
        };
        store.set_status(command).await.unwrap();
    }
    assert_eq!(units(&store).await, (9, 0));

    // A process that died wanted to cancel the paid order, and the other step was faster. Beside it lies what nobody can read.
    let (dead, options) = (Uuid::new_v4(), lease.options());
    let (intents, processes) = (name(options, Table::Intents), name(options, Table::Processes));
    let intent =
        format!("INSERT INTO {intents} (process, slot, op_id, kind, payload) VALUES (?, 0, ?, ?, ?)");
    let damaged = Uuid::new_v4();
    let lost = (dead, Uuid::new_v4(), "status", returning_step(order_id, 3));
    session.query_unpaged(intent.as_str(), lost).await.unwrap();
    session.query_unpaged(intent.as_str(), (dead, damaged, "status", vec![0_u8; 3])).await.unwrap();
    let process = format!(
        "INSERT INTO {processes} (part, process, beat, oldest_slot, newest_slot) VALUES (0, ?, 1, 0, 0)"
    );
    session.query_unpaged(process, (dead,)).await.unwrap();

    let left = format!("SELECT op_id FROM {intents} WHERE process = ? AND slot = 0");
    eventually("what can be finished is gone from beside what cannot", PATIENCE, async || {
        let found = session.query_unpaged(left.as_str(), (dead,)).await.unwrap().into_rows_result().unwrap();
        let found: Vec<(Uuid,)> = found.rows().unwrap().collect::<Result<_, _>>().unwrap();
        (found == [(damaged,)]).then_some(())
    })
    .await;
    assert_eq!(units(&store).await, (9, 0), "units came back that a parcel has");
}
