//! Timers: what is added late still fires, unreadable rows stop nothing, and processes divide the work.

use std::time::Duration;

use mw_codec::intents::order::{self as order_intent, OrderIntent};
use mw_domain::{Order, OrderId, OrderStatus};
use mw_store::{Orders, Stock};
use mw_store_cassandra::{CassandraStore, Table};
use uuid::Uuid;

use crate::fixtures::{
    NOW, TIMEOUT, assert_audit, eventually, exclusive, hold, import_stock, order, stock_level,
};
use crate::recovery::Shop;

const ANY: usize = 1_000;
const NOTE: &str = "not paid in time";

async fn status(store: &CassandraStore, order_id: OrderId) -> Option<OrderStatus> {
    store.order(order_id).await.unwrap().map(|order| order.status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_recovered_after_their_payment_window_are_cancelled() {
    const ORPHANS: usize = 40;
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    import_stock(&store, "hit", 100).await;
    let placed = store.place_order(order("u", &["hit"])).await.unwrap().value;
    // Long after the window the timers of that time are fired, and their time is closed.
    let late = NOW.plus_seconds(3 * 3_600);
    assert_eq!(store.cancel_unpaid(late, NOTE, ANY).await, Ok(1));
    for _ in 0..2 {
        assert_eq!(store.cancel_unpaid(late, NOTE, ANY).await, Ok(0));
    }

    let orphan = || Order { order_id: OrderId::new(Uuid::now_v7()), ..placed.clone() };
    let orphans: Vec<Order> = (0..ORPHANS).map(|_| orphan()).collect();
    let intents: Vec<(&str, Uuid, Vec<u8>)> = orphans
        .iter()
        .map(|order| {
            let intent = OrderIntent { order: order.clone(), closing: None, identity: None };
            ("order", order.order_id.uuid(), order_intent::encode(&intent))
        })
        .collect();
    shop.abandon_intent(&intents).await;
    // Timers are fired all the time while the orders are recovered.
    let (mut cancelled, mut now) = (0, late);
    eventually("every order is recovered and cancelled", TIMEOUT, async || {
        now = now.plus_seconds(1);
        cancelled += store.cancel_unpaid(now, NOTE, ANY).await.unwrap();
        (cancelled == ORPHANS).then_some(())
    })
    .await;
    for order in orphans {
        assert_eq!(status(&store, order.order_id).await, Some(OrderStatus::Cancelled));
    }
    assert_eq!(stock_level(&store, "hit").await.unwrap(), (100, 0));
    assert_audit(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_rows_do_not_stop_the_timers() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    import_stock(&store, "hit", 10).await;
    let order_id = store.place_order(order("u", &["hit"])).await.unwrap().value.order_id;
    let reservation = store.reserve(hold("hit")).await.unwrap().value;
    let damaged_order = store.place_order(order("v", &["hit"])).await.unwrap().value.order_id.uuid();
    let damaged_reservation = store.reserve(hold("hit")).await.unwrap().value.reservation_id.uuid();
    let damage =
        "UPDATE {} SET status = 'none' WHERE time_bucket = ? AND order_id = ? AND event_no = 1 IF EXISTS";
    for bucket in shop.time_buckets(Table::OrderById).await {
        shop.run(Table::OrderById, damage, (bucket, damaged_order)).await;
    }
    let damage = "UPDATE {} SET status = 'none' WHERE time_bucket = ? AND reservation_id = ? IF EXISTS";
    for bucket in shop.time_buckets(Table::Reservations).await {
        shop.run(Table::Reservations, damage, (bucket, damaged_reservation)).await;
    }

    let late = NOW.plus_seconds(3_600);
    assert_eq!(store.expire_reservations(late, ANY).await, Ok(1));
    assert_eq!(store.cancel_unpaid(late, NOTE, ANY).await, Ok(1));
    assert_eq!(status(&store, order_id).await, Some(OrderStatus::Cancelled));
    assert!(store.reservation(reservation.reservation_id, late).await.is_ok());
    for _ in 0..2 {
        assert_eq!(store.expire_reservations(late, ANY).await, Ok(0));
        assert_eq!(store.cancel_unpaid(late, NOTE, ANY).await, Ok(0));
    }
    assert_eq!(store.unreadable_rows(), 2, "each row is counted once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_timer_is_fired_by_the_owner_of_its_shard_or_taken_over() {
    const ORDERS: usize = 60;
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let stores = [shop.lease.open().await, shop.lease.open().await];
    import_stock(&stores[0], "hit", 100).await;
    for store in stores.iter().cycle().take(ORDERS) {
        store.place_order(order("u", &["hit"])).await.unwrap();
    }
    // At the very second each process fires what it owns, once they know each other.
    let on_time = NOW.plus_seconds(1_800);
    let mut fired = [0, 0];
    eventually("the processes share the timers", TIMEOUT, async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for (fired, store) in fired.iter_mut().zip(&stores) {
            *fired += store.cancel_unpaid(on_time, NOTE, 5).await.unwrap();
        }
        (fired.iter().sum::<usize>() == ORDERS).then_some(())
    })
    .await;

    assert_eq!(stock_level(&stores[0], "hit").await.unwrap(), (100, 0), "{fired:?}");
    // A process alone takes over what the other one does not fire.
    for _ in 0..ORDERS / 2 {
        stores[0].place_order(order("u", &["hit"])).await.unwrap();
    }
    let overdue = NOW.plus_seconds(1_800 + 600);
    assert_eq!(stores[1].cancel_unpaid(overdue, NOTE, ANY).await, Ok(ORDERS / 2));
    assert_eq!(stock_level(&stores[0], "hit").await.unwrap(), (100, 0));
}
