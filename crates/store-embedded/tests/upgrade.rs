//! Upgrade: a directory of format 1, kept as a fixture, is read and served; the first write renews its version.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::fs;
use std::path::Path;

use mw_domain::{Currency, Date, GeoZone, OrderId, OrderStatus, Period, ProductId, Timestamp};
use mw_store::export::Record;
use mw_store::orders::SetStatus;
use mw_store::stock::{SetOnHand, Stock};
use mw_store::{ExportImport, Maintenance, Orders, PageRequest};
use mw_store_embedded::{EmbeddedStore, Options};
use uuid::Uuid;

/// Writes the fixture: a line a file, its path and its bytes. A journal is longer than what is written in it.
fn unpack(folder: &Path) {
    const JOURNAL_REST: [u8; 4_096] = [0; 4_096];
    for line in include_str!("../fixtures/format-1.hex").lines() {
        let (path, hex) = line.split_once(' ').unwrap();
        let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        let mut bytes: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        if Path::new(path).extension().is_some_and(|extension| extension == "jnl") {
            bytes.extend(JOURNAL_REST);
        }
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    fs::write(folder.join("db/lock"), "").unwrap();
    // fjall expects the folder of every table, also of one without tables on disk.
    for keyspace in fs::read_dir(folder.join("db/keyspaces")).unwrap() {
        fs::create_dir_all(keyspace.unwrap().path().join("tables")).unwrap();
    }
}

fn open(folder: &Path) -> EmbeddedStore {
    let options = Options { min_free_bytes: 0, ..Options::new(folder, Currency::parse("RUB").unwrap()) };
    EmbeddedStore::open(options).unwrap()
}

fn format(folder: &Path) -> String {
    fs::read_to_string(folder.join("FORMAT")).unwrap()
}

async fn export(store: &EmbeddedStore) -> Vec<Record> {
    let export = store.export().await.unwrap();
    export.page(PageRequest::first(500)).await.unwrap().items
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::parse("2026-09-21T14:13:20Z").unwrap().plus_seconds(seconds)
}

#[tokio::test]
async fn a_directory_of_format_1_is_read_and_its_version_renewed_with_the_first_write() {
    let folder = tempfile::tempdir().unwrap();
    unpack(folder.path());
    assert_eq!(format(folder.path()), "mobile-world 1\n");
    let store = open(folder.path());
    let records = export(&store).await;
    assert_eq!(records.len(), 9, "{records:?}");
    assert_eq!(
        format(folder.path()),
        "mobile-world 1\n",
        "reading leaves a directory that the old release opens"
    );

    let set = SetOnHand {
        product_id: ProductId::parse("phone-1").unwrap(),
        geo_zone: GeoZone::parse("spb").unwrap(),
        on_hand: 5,
        expected_on_hand: None,
        op: Uuid::from_u128(1),
        now: at(10),
    };
    store.set_on_hand(set).await.unwrap();
    assert_eq!(format(folder.path()), "mobile-world 2\n", "an older release refuses it from now on");
    drop(store);
    assert_eq!(export(&open(folder.path())).await.len(), 10);
}

#[tokio::test]
async fn sales_before_and_after_an_upgrade_are_in_one_report() {
    let folder = tempfile::tempdir().unwrap();
    unpack(folder.path());
    let store = open(folder.path());
    let order_id = OrderId::parse("507f1f77-bcf8-86cd-8799-439011000000").unwrap();
    let order = store.order(order_id).await.unwrap().unwrap();
    assert_eq!(order.status, OrderStatus::Paid);
    let day = Period::day(order.created_at.date());
    let sold = |sales: Vec<mw_store::orders::Sales>| sales.iter().map(|it| it.orders).sum::<u64>();
    assert_eq!(sold(store.sales(None, day).await.unwrap()), 1, "from the sum of the day");
    let around = Period { from: order.created_at, to: order.created_at.plus_millis(1) };
    assert_eq!(sold(store.sales(None, around).await.unwrap()), 1, "from the order");
    let cancel = SetStatus {
        order_id,
        of_user: None,
        to: OrderStatus::Cancelled,
        note: None,
        expected_version: None,
        now: at(100),
        identity: None,
    };
    store.set_status(cancel).await.unwrap();
    assert_eq!(sold(store.sales(None, day).await.unwrap()), 0, "the sum of the day is corrected");
    let next = Date::from_days(day.to.date().as_days());
    assert_eq!(sold(store.sales(None, Period::day(next)).await.unwrap()), 0);
}

#[tokio::test]
async fn rows_of_format_1_still_expire() {
    let folder = tempfile::tempdir().unwrap();
    unpack(folder.path());
    let store = open(folder.path());
    let late = at(400 * 86_400);
    while store.expire_reservations(late, 100).await.unwrap() > 0 {}
    for _ in 0..5 {
        while store.purge_expired(late, 100).await.unwrap() > 0 {}
    }
    let kinds = export(&store).await;
    let kept =
        |record: &Record| matches!(record, Record::Product(_) | Record::Stock { .. } | Record::Order { .. });
    assert!(kinds.iter().all(kept), "{kinds:?}");
    let idle = mw_store::Carts::idle_carts(&store, late, late, PageRequest::first(9)).await.unwrap();
    assert_eq!(idle.items, []);
}
