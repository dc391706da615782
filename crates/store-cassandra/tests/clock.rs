//! A process whose clock jumps ahead while it runs: it changes nothing until the clock is right again.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mw_domain::carts::CartLifetime;
use mw_domain::{CartId, OrderId, OrderStatus, ReservationId, ReservationStatus, Timestamp};
use mw_store::carts::SetLine;
use mw_store::orders::{Basket, PlaceOrder};
use mw_store::products::ImportProduct;
use mw_store::stock::Reserve;
use mw_store::{Carts, Freshness, Maintenance, Orders, Products, Result, Stock, StoreError};
use mw_store_cassandra::{CassandraStore, Options};
use mw_testkit::builders::{demand, product, product_id, user, user_id, zone};
use mw_testkit::cassandra::Lease;
use uuid::Uuid;

const JUMP: Duration = Duration::from_mins(40);
/// Longer than two comparisons with the nodes.
const CONFIRMED: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL_PAUSE: Duration = Duration::from_millis(100);
const ZONE: &str = "msk";

/// How far the clock of the process under test is ahead.
static AHEAD_MS: AtomicI64 = AtomicI64::new(0);

fn clock() -> SystemTime {
    let ahead = AHEAD_MS.load(Ordering::SeqCst);
    SystemTime::now() + Duration::from_millis(ahead.unsigned_abs())
}

fn jump(ahead: Duration) {
    AHEAD_MS.store(i64::try_from(ahead.as_millis()).unwrap(), Ordering::SeqCst);
}

fn time_of(clock: SystemTime) -> Timestamp {
    let since = clock.duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
}

/// The time by the clock of the process under test.
fn now() -> Timestamp {
    time_of(clock())
}

fn order() -> PlaceOrder {
    let now = now();
    PlaceOrder {
        order_id: OrderId::new(Uuid::now_v7()),
        user_id: user_id("u"),
        geo_zone: zone(ZONE),
        basket: Basket::Lines(vec![demand("p", 1)]),
        expected_total: None,
        delivery_address: None,
        payment_method: None,
        pay_by: now.plus_seconds(1_800),
        now,
        identity: None,
    }
}

fn hold() -> Reserve {
    let now = now();
    Reserve {
        reservation_id: ReservationId::new(Uuid::now_v7()),
        geo_zone: zone(ZONE),
        lines: vec![demand("p", 1)],
        expires_at: now.plus_seconds(900),
        now,
        identity: None,
    }
}

fn line() -> SetLine {
    SetLine {
        owner: user("u"),
        product_id: product_id("p"),
        quantity: 1,
        new_cart_id: CartId::new(Uuid::now_v7()),
        expected_version: None,
        lifetime: CartLifetime { user_ms: 86_400_000, guest_ms: 86_400_000 },
        now: now(),
    }
}

/// The work in the background of a served shop, at a time.
async fn expire(store: &CassandraStore, now: Timestamp) -> [usize; 3] {
    [
        store.expire_reservations(now, 100).await.unwrap(),
        store.cancel_unpaid(now, "not paid", 100).await.unwrap(),
        store.purge_expired(now, 100).await.unwrap(),
    ]
}

fn assert_refused<T: Debug>(result: Result<T>) {
    match result {
        Err(StoreError::NotServing(reason)) => {
            assert!(reason.contains("the clock of this machine is "), "{reason}");
            assert!(reason.contains(" s ahead of the cluster's"), "{reason}");
        }
        other => unreachable!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_whose_clock_jumps_ahead_ends_nothing_and_refuses_writes() {
    let lease = Lease::empty().await;
    let jumping = Options { clock, stamps_commands: true, ..lease.options().clone() };
    let store = CassandraStore::open(jumping).await.unwrap();
    let healthy = lease.open().await;
    let command = ImportProduct {
        product: product("p").build(),
        stock: vec![(zone(ZONE), 10)],
        op: Uuid::now_v7(),
        now: now(),
        identity: None,
    };
    store.import_product(command).await.unwrap();
    let placed = store.place_order(order()).await.unwrap().value.order_id;
    let held = store.reserve(hold()).await.unwrap().value.reservation_id;

    // Stamped by a clock that was ahead for a moment only.
    assert_eq!(expire(&store, time_of(SystemTime::now() + JUMP)).await, [0; 3]);
    store.ready().await.unwrap();

    jump(JUMP);
    assert_eq!(expire(&store, now()).await, [0; 3], "at once, before the next comparison");
    let jumped = Instant::now();
    while jumped.elapsed() < CONFIRMED {
        assert_refused(store.ready().await);
        assert_refused(store.place_order(order()).await);
        assert_refused(store.reserve(hold()).await);
        assert_refused(store.release(held, now()).await);
        assert_refused(store.set_line(line()).await);
        assert_eq!(expire(&store, now()).await, [0; 3]);
        assert!(store.order(placed).await.unwrap().is_some(), "reads go on");
        tokio::time::sleep(POLL_PAUSE).await;
    }
    let seen = time_of(SystemTime::now());
    let status = healthy.order(placed).await.unwrap().map(|order| order.status);
    assert_eq!(status, Some(OrderStatus::Created));
    let reservation = healthy.reservation(held, seen).await.unwrap().unwrap();
    assert_eq!(reservation.status, ReservationStatus::Held);
    let stock = healthy.zone_stock(&product_id("p"), &zone(ZONE), Freshness::Latest, seen).await.unwrap();
    assert_eq!(stock.unwrap().level.reserved, 2);

    jump(Duration::ZERO);
    let corrected = Instant::now();
    while let Err(error) = store.ready().await {
        assert!(corrected.elapsed() < TIMEOUT, "{error}");
        tokio::time::sleep(POLL_PAUSE).await;
    }
    store.place_order(order()).await.unwrap();
    store.set_line(line()).await.unwrap();
    assert_eq!(expire(&store, now()).await, [0; 3]);
}
