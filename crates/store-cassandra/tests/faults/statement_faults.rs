//! Single statements fail or lose their result in the middle of a stock operation: what the caller is told is true, and
//! what was begun is finished or undone without a further request.

use std::time::Duration;

use mw_domain::{Demand, Reservation, ReservationStatus};
use mw_store::stock::{Adjust, Reserve};
use mw_store::{Freshness, Maintenance, Refusal, Stock, StoreError};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, StatementFault, StatementKind, Table};
use mw_testkit::builders::{demand, identity, product_id, zone};
use mw_testkit::cassandra::{Lease, PausedStatement, StatementScript};
use scylla::client::session::Session;
use scylla::deserialize::value::DeserializeValue;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::fixtures::{
    NOW, ZONE, assert_audit, eventually, exclusive, full_name, hold, import_stock, stock_level,
};

/// Abandoned intents are retried every second; test machines are slow at times.
const RETRIED: Duration = Duration::from_secs(20);
const HOUR: i64 = 3_600;
/// More statements than any operation sends.
const ALL: usize = 1_000_000;

fn adjust(delta: i64) -> Adjust {
    Adjust {
        product_id: product_id("hit"),
        geo_zone: zone(ZONE),
        delta,
        reason: "counted".to_owned(),
        op: Uuid::now_v7(),
        now: NOW,
        identity: None,
    }
}

/// A reservation of one unit of each of two products, for three hours.
fn hold_of_two() -> Reserve {
    let lines: Vec<Demand> = ["a", "b"].map(|name| demand(name, 1)).to_vec();
    Reserve { lines, expires_at: NOW.plus_seconds(3 * HOUR), ..hold("a") }
}

async fn import_two(store: &CassandraStore) {
    import_stock(store, "a", 10).await;
    import_stock(store, "b", 10).await;
}

/// The stock levels of both products.
async fn levels(store: &CassandraStore) -> [(u64, u64); 2] {
    [stock_level(store, "a").await.unwrap(), stock_level(store, "b").await.unwrap()]
}

/// A column of the only row with a revision in the stock table.
async fn header_column<T>(session: &Session, lease: &Lease, column: &str) -> Option<T>
where
    T: for<'f, 'm> DeserializeValue<'f, 'm>,
{
    let table = full_name(lease.options(), Table::Stock);
    let select = format!("SELECT rev, {column} FROM {table}");
    let rows = session.query_unpaged(select, ()).await.unwrap().into_rows_result().unwrap();
    let mut values = Vec::new();
    for row in rows.rows::<(Option<i64>, Option<T>)>().unwrap() {
        if let (Some(_), value) = row.unwrap() {
            values.push(value);
        }
    }
    assert_eq!(values.len(), 1, "one stock partition");
    values.pop().unwrap()
}

async fn no_intents(session: &Session, lease: &Lease) {
    let select = format!("SELECT op_id FROM {}", full_name(lease.options(), Table::Intents));
    eventually("the intents are completed", RETRIED, async || {
        let found = session.query_unpaged(select.as_str(), ()).await.unwrap();
        (found.into_rows_result().unwrap().rows_num() == 0).then_some(())
    })
    .await;
}

/// Waits until the statement of a request waits; a request that ends before has failed.
async fn reached_before<T: std::fmt::Debug>(paused: &PausedStatement, request: &mut JoinHandle<T>) {
    tokio::select! {
        () = paused.reached() => {}
        ended = request => unreachable!("ended before its statement was reached: {ended:?}"),
    }
}

#[track_caller]
fn assert_ambiguous<T: std::fmt::Debug>(result: &Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::Ambiguous(_))), "{result:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adjustment_that_may_still_arrive_is_ambiguous_when_the_next_statement_fails() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let session = connect(lease.options()).await.unwrap();
    let other = lease.open().await;
    import_stock(&other, "hit", 10).await;
    // Serial reads: the header, the fate of the lost write, the header again.
    for (kind, skip) in [(StatementKind::Serial, 2), (StatementKind::Cas, 1)] {
        let script = StatementScript::default();
        let store = lease.open_with(&script).await;
        script.fail(Table::Stock, StatementKind::Cas, (0, 1), StatementFault::RequestLost);
        script.fail(Table::Stock, kind, (skip, 1), StatementFault::NotSent);
        let command = adjust(5);
        assert_ambiguous(&store.adjust(command.clone()).await);
        script.heal();

        // The next batch changes nothing by itself. It takes the revision, so that the lost write can never apply.
        let before: i64 = header_column(&session, &lease, "rev").await.unwrap();
        let refused = store.adjust(adjust(-1_000)).await.unwrap_err();
        assert!(matches!(refused.refusal(), Some(Refusal::StockBelowReserved { .. })), "{refused:?}");
        assert_eq!(header_column(&session, &lease, "rev").await, Some(before + 1), "{kind:?}");
        let level = store.adjust(command).await.unwrap().value.level;
        store.adjust(adjust(-5)).await.unwrap();
        assert_eq!((level.on_hand, stock_level(&store, "hit").await.unwrap()), (15, (10, 0)));
    }
    assert_audit(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirmation_or_release_that_fails_after_its_first_product_is_ambiguous_and_finished() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let session = connect(lease.options()).await.unwrap();
    let script = StatementScript::default();
    let store = lease.open_with(&script).await;
    import_two(&store).await;
    let read = async |held: &Reservation| store.reservation(held.reservation_id, NOW).await.unwrap().unwrap();
    let ended = async |held: &Reservation, status, expected| {
        eventually("the reservation has ended", RETRIED, async || {
            (read(held).await.status == status && levels(&store).await == expected).then_some(())
        })
        .await;
    };

    let confirmed = store.reserve(hold_of_two()).await.unwrap().value;
    script.fail(Table::Stock, StatementKind::Cas, (1, 1), StatementFault::NotSent);
    assert_ambiguous(&store.confirm(confirmed.reservation_id, NOW, None).await);
    ended(&confirmed, ReservationStatus::Confirmed, [(9, 0), (9, 0)]).await;

    let released = store.reserve(hold_of_two()).await.unwrap().value;
    script.fail(Table::Stock, StatementKind::Cas, (1, 1), StatementFault::NotSent);
    assert_ambiguous(&store.release(released.reservation_id, NOW).await);
    ended(&released, ReservationStatus::Released, [(9, 0), (9, 0)]).await;

    // Of one product only the row can be left behind.
    let single = store.reserve(hold("a")).await.unwrap().value;
    script.fail(Table::Reservations, StatementKind::Write, (0, 1), StatementFault::NotSent);
    assert_ambiguous(&store.confirm(single.reservation_id, NOW, None).await);
    ended(&single, ReservationStatus::Confirmed, [(8, 0), (9, 0)]).await;

    // Before the first product nothing is done.
    let kept = store.reserve(hold_of_two()).await.unwrap().value;
    script.fail(Table::Stock, StatementKind::Cas, (0, 1), StatementFault::NotSent);
    let failed = store.confirm(kept.reservation_id, NOW, None).await;
    assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
    // A confirmation that may have been sent is decided: here it was lost, and the reservation stays held.
    script.fail(Table::Stock, StatementKind::Cas, (0, 1), StatementFault::RequestLost);
    script.fail(Table::Stock, StatementKind::Cas, (1, 1), StatementFault::NotSent);
    assert_ambiguous(&store.confirm(kept.reservation_id, NOW, None).await);
    no_intents(&session, &lease).await;
    assert_eq!((read(&kept).await.status, levels(&store).await), (ReservationStatus::Held, [(8, 1), (9, 1)]));
    assert_audit(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_fails_after_its_first_product_is_ambiguous_and_undone_or_finished() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let session = connect(lease.options()).await.unwrap();
    let script = StatementScript::default();
    let store = lease.open_with(&script).await;
    import_two(&store).await;
    let reached = async |expected| {
        eventually("the reservation is finished or undone", RETRIED, async || {
            (levels(&store).await == expected).then_some(())
        })
        .await;
    };

    script.fail(Table::Stock, StatementKind::Cas, (1, 1), StatementFault::NotSent);
    assert_ambiguous(&store.reserve(hold_of_two()).await);
    reached([(10, 0), (10, 0)]).await;

    // The hold of a single product whose result is lost, and cannot be read.
    script.fail(Table::Stock, StatementKind::Cas, (0, 1), StatementFault::ResultLost);
    script.fail(Table::Stock, StatementKind::Serial, (0, 8), StatementFault::NotSent);
    assert_ambiguous(&store.reserve(hold("a")).await);
    reached([(10, 0), (10, 0)]).await;

    // With a key the client repeats the request, and finds what was finished.
    let keyed = Reserve { identity: Some(identity("k", "k", NOW)), ..hold_of_two() };
    script.fail(Table::Stock, StatementKind::Cas, (1, 1), StatementFault::NotSent);
    assert_ambiguous(&store.reserve(keyed.clone()).await);
    reached([(10, 1), (10, 1)]).await;
    let repeated = store.reserve(keyed.clone()).await.unwrap();
    assert_eq!((repeated.value.reservation_id, repeated.replayed), (keyed.reservation_id, true));
    assert_eq!(levels(&store).await, [(10, 1), (10, 1)]);
    no_intents(&session, &lease).await;
    assert_audit(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_acknowledged_by_another_process_is_not_released_by_a_duplicate() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let script = StatementScript::default();
    let (first, second) = (lease.open_with(&script).await, lease.open().await);
    import_stock(&second, "hit", 1).await;
    let taken = second.reserve(hold("hit")).await.unwrap().value;
    let command = Reserve { identity: Some(identity("k", "k", NOW)), ..hold("hit") };

    // The first process finds no unit and is about to give up, when the unit is back and the second process holds it.
    let gives_up = script.pause(Table::Stock, StatementKind::Cas, 0);
    let mut duplicate = tokio::spawn({
        let (first, command) = (first.clone(), command.clone());
        async move { first.reserve(command).await }
    });
    reached_before(&gives_up, &mut duplicate).await;
    second.release(taken.reservation_id, NOW).await.unwrap();
    let acknowledged = second.reserve(command).await.unwrap().value;
    gives_up.resume();
    assert_eq!(duplicate.await.unwrap().unwrap().value, acknowledged);
    assert_eq!(stock_level(&second, "hit").await.unwrap(), (1, 1));
    let found = second.reservation(acknowledged.reservation_id, NOW).await.unwrap();
    assert_eq!(found, Some(acknowledged));
    assert_audit(&second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_of_an_adjustment_at_two_processes_return_the_same_level() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let script = StatementScript::default();
    let (first, second) = (lease.open_with(&script).await, lease.open().await);
    import_stock(&second, "hit", 10).await;
    let command = Adjust { identity: Some(identity("k", "k", NOW)), ..adjust(5) };

    // The claim of the key, then its outcome.
    let stores_outcome = script.pause(Table::IdempotencyKeys, StatementKind::Cas, 1);
    let mut duplicate = tokio::spawn({
        let (first, command) = (first.clone(), command.clone());
        async move { first.adjust(command).await }
    });
    reached_before(&stores_outcome, &mut duplicate).await;
    second.reserve(hold("hit")).await.unwrap();
    let repeated = second.adjust(command).await.unwrap().value;
    stores_outcome.resume();
    assert_eq!(duplicate.await.unwrap().unwrap().value, repeated);
    assert_eq!((repeated.level.on_hand, repeated.level.reserved), (15, 0));
    assert_eq!(stock_level(&second, "hit").await.unwrap(), (15, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledger_compaction_keeps_the_hold_that_decides_an_unfinished_confirmation() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let session = connect(lease.options()).await.unwrap();
    let script = StatementScript::default();
    let (failing, other) = (lease.open_with(&script).await, lease.open().await);
    import_two(&other).await;
    let held = failing.reserve(hold_of_two()).await.unwrap().value;
    script.fail(Table::Stock, StatementKind::Cas, (1, ALL), StatementFault::NotSent);
    assert_ambiguous(&failing.confirm(held.reservation_id, NOW, None).await);

    // Two hours later, and after the end of the hold: by then only the taken hold says that it was confirmed.
    let brief = other.reserve(hold("a")).await.unwrap().value;
    other.release(brief.reservation_id, NOW).await.unwrap();
    for hours in [2, 5, 7] {
        other.purge_expired(NOW.plus_seconds(hours * HOUR), 100).await.unwrap();
    }
    script.heal();
    let ended = NOW.plus_seconds(HOUR);
    let stock = async |name| {
        let found = other.zone_stock(&product_id(name), &zone(ZONE), Freshness::Latest, ended).await;
        let level = found.unwrap().unwrap().level;
        (level.on_hand, level.reserved)
    };
    eventually("the confirmation is finished", RETRIED, async || {
        ((stock("a").await, stock("b").await) == ((9, 0), (9, 0))).then_some(())
    })
    .await;
    no_intents(&session, &lease).await;
    // Now the row may go: the reservation says that it is confirmed.
    for hours in [9, 11] {
        other.purge_expired(NOW.plus_seconds(hours * HOUR), 100).await.unwrap();
    }
    assert_eq!(stock("a").await, (9, 0));
    assert_audit(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_earliest_hold_end_rises_without_a_sale() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let session = connect(lease.options()).await.unwrap();
    let store = lease.open().await;
    import_stock(&store, "hit", 10).await;
    let later = NOW.plus_seconds(2 * HOUR);
    let short = store.reserve(hold("hit")).await.unwrap().value;
    store.reserve(Reserve { expires_at: later, ..hold("hit") }).await.unwrap();
    let earliest = async || {
        let found: Option<scylla::value::CqlTimestamp> =
            header_column(&session, &lease, "earliest_hold_end").await;
        found.map(|at| at.0)
    };
    assert_eq!(earliest().await, Some(short.expires_at.as_millis()));
    assert_eq!(store.expire_reservations(short.expires_at, 10).await, Ok(1));
    assert_eq!(earliest().await, Some(later.as_millis()));
    assert_eq!(store.expire_reservations(later, 10).await, Ok(1));
    assert_eq!(earliest().await, None);
    assert_audit(&store).await;
}
