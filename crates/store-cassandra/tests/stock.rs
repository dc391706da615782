//! Stock on a real cluster: ledgers longer than a page, shared timer rows, and operations that are repeated.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use mw_domain::lanes::Lane;
use mw_domain::limits::IDEMPOTENCY_HOURS;
use mw_domain::stock::{Cause, Delta, Movement};
use mw_domain::{Level, ReservationId, Timestamp, ZoneStock};
use mw_store::export::{Checkpoint, ExportImport, Record};
use mw_store::products::ImportProduct;
use mw_store::stock::{Adjust, Reserve};
use mw_store::{Freshness, Maintenance, Products, Refusal, Stock, StoreError};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Table};
use mw_testkit::FakeClock;
use mw_testkit::builders::{demand, identity, product, product_id, zone};
use mw_testkit::cassandra::fresh;
use tokio::task::JoinSet;
use uuid::Uuid;

const NOW: Timestamp = FakeClock::START;
const ZONE: &str = "msk";
/// More than two pages, the last of them not full.
const ROWS: u64 = 600;

async fn import_stock(store: &CassandraStore, name: &str, units: u64) {
    let (product, op) = (product(name).build(), Uuid::now_v7());
    let command = ImportProduct { product, stock: vec![(zone(ZONE), units)], op, now: NOW, identity: None };
    store.import_product(command).await.unwrap();
}

/// The mark of this process in the ids that it makes.
fn lane() -> Lane {
    Lane::of(Uuid::from_u128(7))
}

fn hold(name: &str, quantity: u32, expires_at: Timestamp, now: Timestamp) -> Reserve {
    let reservation_id = ReservationId::new(lane().stamp(Uuid::now_v7()));
    Reserve {
        reservation_id,
        geo_zone: zone(ZONE),
        lines: vec![demand(name, quantity)],
        expires_at,
        now,
        identity: None,
    }
}

/// Concurrent reservations of one unit each.
async fn reserve_concurrently(store: &Arc<CassandraStore>, holds: u64, expires_at: Timestamp) {
    let mut requests = JoinSet::new();
    for _ in 0..holds {
        let store = Arc::clone(store);
        requests.spawn(async move { store.reserve(hold("hit", 1, expires_at, NOW)).await.map(drop) });
    }
    assert!(requests.join_all().await.into_iter().all(|held| held.is_ok()));
}

async fn level(store: &CassandraStore, name: &str, now: Timestamp) -> Level {
    store.zone_stock(&product_id(name), &zone(ZONE), Freshness::Latest, now).await.unwrap().unwrap().level
}

async fn assert_audit(store: &CassandraStore) {
    let audit = store.audit(&|_| {}).await.unwrap();
    assert_eq!((audit.levels, audit.drifts), (1, Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_holds_of_many_pages_are_not_counted_and_are_released() {
    let (store, _lease) = fresh().await;
    import_stock(&store, "hit", ROWS).await;
    let ends = NOW.plus_seconds(60);
    reserve_concurrently(&store, ROWS, ends).await;
    assert_eq!(level(&store, "hit", NOW).await, Level { on_hand: ROWS, reserved: ROWS });

    let later = ends.plus_seconds(1);
    assert_eq!(
        level(&store, "hit", later).await,
        Level { on_hand: ROWS, reserved: 0 },
        "a reader counts them all"
    );
    // A reservation of all units succeeds, because it releases the expired holds first.
    let everything = hold("hit", u32::try_from(ROWS).unwrap(), later.plus_seconds(60), later);
    store.reserve(everything).await.unwrap();
    assert_eq!(level(&store, "hit", later).await, Level { on_hand: ROWS, reserved: ROWS });
    assert_audit(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_of_another_process_is_released_by_a_keeper_with_an_older_header() {
    let (store, lease) = fresh().await;
    let other = lease.open().await;
    import_stock(&store, "hit", 10).await;
    let ends = NOW.plus_seconds(900);
    // The keeper of this process last saw no unit reserved.
    let own = store.reserve(hold("hit", 1, ends, NOW)).await.unwrap().value.reservation_id;
    store.release(own, NOW).await.unwrap();
    let held = other.reserve(hold("hit", 1, ends, NOW)).await.unwrap().value.reservation_id;
    store.release(held, NOW).await.unwrap();
    assert_eq!(level(&store, "hit", NOW).await, Level { on_hand: 10, reserved: 0 });
    assert_audit(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_holds_share_timer_rows_and_all_of_them_expire() {
    const HOLDS: usize = 400;
    const LIMIT: usize = 150;
    let (store, lease) = fresh().await;
    let session = connect(lease.options()).await.unwrap();
    import_stock(&store, "hit", 1_000).await;
    let ends = NOW.plus_seconds(900);
    reserve_concurrently(&store, HOLDS as u64, ends).await;

    let table = format!("{}.{}", Table::Timers.class().keyspace(&lease.options().keyspace), Table::Timers);
    let timer_rows = async || {
        let found = session.query_unpaged(format!("SELECT id FROM {table}"), ()).await.unwrap();
        found.into_rows_result().unwrap().rows_num()
    };
    let rows = timer_rows().await;
    assert!((1..HOLDS / 2).contains(&rows), "{rows} rows for {HOLDS} holds");
    assert_eq!(store.expire_reservations(ends.plus_seconds(-1), HOLDS).await, Ok(0));
    let mut expired = Vec::new();
    while expired.iter().sum::<usize>() < HOLDS {
        let count = store.expire_reservations(ends, LIMIT).await.unwrap();
        assert!((1..=LIMIT).contains(&count), "{count} after {expired:?}");
        expired.push(count);
    }
    assert_eq!(store.expire_reservations(ends, LIMIT).await, Ok(0));
    assert_eq!((timer_rows().await, level(&store, "hit", NOW).await.reserved), (0, 0));
    assert_audit(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adjustment_is_remembered_for_as_long_as_it_may_be_repeated() {
    const HOUR: i64 = 3_600;
    let (store, _lease) = fresh().await;
    import_stock(&store, "hit", 10).await;
    let adjust = Adjust {
        product_id: product_id("hit"),
        geo_zone: zone(ZONE),
        delta: 5,
        reason: "counted".to_owned(),
        op: Uuid::now_v7(),
        now: NOW,
        identity: None,
    };
    store.adjust(adjust.clone()).await.unwrap();
    let held = store.reserve(hold("hit", 1, NOW.plus_seconds(60), NOW)).await.unwrap().value;
    store.release(held.reservation_id, NOW).await.unwrap();

    assert_eq!(
        store.purge_expired(NOW.plus_seconds(2 * HOUR), 100).await,
        Ok(1),
        "the hold that was released"
    );
    let late = NOW.plus_seconds((IDEMPOTENCY_HOURS - 1) * HOUR);
    assert_eq!(store.purge_expired(late, 100).await, Ok(0));
    store.adjust(Adjust { now: late, ..adjust }).await.unwrap();
    assert_eq!(level(&store, "hit", late).await, Level { on_hand: 15, reserved: 0 }, "it counted twice");
    assert_eq!(store.purge_expired(NOW.plus_seconds(12 * 24 * HOUR), 100).await, Ok(2));
    assert_eq!(level(&store, "hit", late).await, Level { on_hand: 15, reserved: 0 });
    assert_audit(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adjustment_refused_under_its_key_stays_refused_for_a_concurrent_attempt() {
    let (store, _lease) = fresh().await;
    import_stock(&store, "hit", 8).await;
    let held = store.reserve(hold("hit", 5, NOW.plus_seconds(60), NOW)).await.unwrap().value;
    let adjust = Adjust {
        product_id: product_id("hit"),
        geo_zone: zone(ZONE),
        delta: -5,
        reason: "broken".to_owned(),
        op: Uuid::now_v7(),
        now: NOW,
        identity: Some(identity("broken", "broken", NOW)),
    };
    let below = |error: &StoreError| matches!(error.refusal(), Some(Refusal::StockBelowReserved { .. }));
    assert!(store.adjust(adjust.clone()).await.is_err_and(|error| below(&error)));
    store.release(held.reservation_id, NOW).await.unwrap();

    let concurrent = Adjust { identity: None, ..adjust.clone() };
    assert!(store.adjust(concurrent).await.is_err_and(|error| below(&error)));
    let again = Adjust { op: Uuid::now_v7(), ..adjust };
    assert_eq!(store.adjust(again.clone()).await.unwrap().value.level.on_hand, 3);
    assert!(store.adjust(again).await.unwrap().replayed);
    assert_eq!(level(&store, "hit", NOW).await, Level { on_hand: 3, reserved: 0 });
    assert_audit(&store).await;
}

/// The stock records of a store.
async fn exported(store: &CassandraStore) -> Vec<(ZoneStock, Vec<Movement>)> {
    let export = store.export().await.unwrap();
    let records = export.page(mw_store::PageRequest::first(100)).await.unwrap().items;
    let stock = |record| match record {
        Record::Stock { stock, ledger } => Some((stock, ledger)),
        _ => None,
    };
    records.into_iter().filter_map(stock).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_of_many_pages_is_exported_as_of_one_moment() {
    let (store, _lease) = fresh().await;
    import_stock(&store, "hit", 2 * ROWS).await;
    reserve_concurrently(&store, ROWS, NOW.plus_seconds(60)).await;

    let selling = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            loop {
                let held = store.reserve(hold("hit", 1, NOW.plus_seconds(60), NOW)).await.unwrap().value;
                store.release(held.reservation_id, NOW).await.unwrap();
            }
        })
    };
    for _ in 0..20 {
        let stock = exported(&store).await;
        let [(stock, ledger)] = &stock[..] else { panic!("{stock:?}") };
        let sum = |part: fn(&Delta) -> i64| ledger.iter().map(|movement| part(&movement.delta)).sum::<i64>();
        let ledger_sum = (sum(|delta| delta.on_hand), sum(|delta| delta.reserved));
        let level = stock.level;
        assert_eq!((level.on_hand.cast_signed(), level.reserved.cast_signed()), ledger_sum);
    }
    assert!(!selling.is_finished(), "a sale failed");
    selling.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_of_many_pages_is_replaced_by_an_import() {
    let (store, _lease) = fresh().await;
    import_stock(&store, "old", 10).await;
    let mut changes = JoinSet::new();
    for _ in 0..ROWS {
        let store = Arc::clone(&store);
        changes.spawn(async move {
            let adjust = Adjust {
                product_id: product_id("old"),
                geo_zone: zone(ZONE),
                delta: 1,
                reason: "counted".to_owned(),
                op: Uuid::now_v7(),
                now: NOW,
                identity: None,
            };
            store.adjust(adjust).await.map(drop)
        });
    }
    assert!(changes.join_all().await.into_iter().all(|changed| changed.is_ok()));
    store.reserve(hold("old", 3, NOW.plus_seconds(60), NOW)).await.unwrap();
    assert_eq!(level(&store, "old", NOW).await, Level { on_hand: 10 + ROWS, reserved: 3 });

    let imported = Level { on_hand: 7, reserved: 0 };
    let stock =
        ZoneStock { product_id: product_id("old"), geo_zone: zone(ZONE), level: imported, updated_at: NOW };
    let delta = Delta { on_hand: 7, reserved: 0 };
    let ledger = vec![Movement { at: NOW, op: Uuid::now_v7(), cause: Cause::Set, delta, note: None }];
    let checkpoint = Checkpoint { import: "again".to_owned(), done: 1 };
    store.import(vec![Record::Stock { stock, ledger }], checkpoint).await.unwrap();
    assert_eq!(level(&store, "old", NOW).await, imported);
    let ledgers: Vec<usize> = exported(&store).await.iter().map(|(_, ledger)| ledger.len()).collect();
    assert_eq!(ledgers, [1], "rows of the old ledger remain");
    assert_audit(&store).await;
}
