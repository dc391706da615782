//! Inconsistent data, for example of a damaged import: sales continue, and the audit reports the drift.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use mw_domain::{
    Currency, Demand, GeoZone, Level, Money, Order, OrderId, OrderLine, OrderStatus, Product, Reservation,
    ReservationId, ReservationStatus, Timestamp, UserId, ZoneStock,
};
use mw_store::export::{Checkpoint, ExportImport, Record};
use mw_store::stock::{Reserve, Stock};
use mw_store::{Freshness, Orders};
use mw_store_embedded::{EmbeddedStore, Options};
use mw_testkit::builders::product;
use uuid::Uuid;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000).plus_seconds(seconds)
}

fn phone() -> Product {
    product("p").made_at(at(0)).build()
}

/// A hold and an unpaid order whose units the stock level does not count as reserved.
fn unexplained() -> Vec<Record> {
    let (product_id, geo_zone) = (phone().product_id, GeoZone::parse("z").unwrap());
    let stock = ZoneStock {
        product_id: product_id.clone(),
        geo_zone: geo_zone.clone(),
        level: Level { on_hand: 5, reserved: 0 },
        updated_at: at(0),
    };
    let reservation = Reservation {
        reservation_id: ReservationId::new(Uuid::from_u128(1)),
        geo_zone: geo_zone.clone(),
        lines: vec![Demand { product_id: product_id.clone(), quantity: 2 }],
        status: ReservationStatus::Held,
        created_at: at(0),
        expires_at: at(10),
    };
    let order = Order {
        order_id: OrderId::new(Uuid::from_u128(2)),
        user_id: UserId::parse("u").unwrap(),
        status: OrderStatus::Created,
        geo_zone,
        lines: vec![OrderLine {
            product_id,
            name: "Phone".into(),
            price: Money::from_minor(100),
            quantity: 3,
        }],
        total: Money::from_minor(300),
        delivery_address: None,
        payment_method: None,
        created_at: at(0),
        updated_at: at(0),
        version: 1,
        pay_by: at(10),
    };
    let events = vec![order.created_event()];
    vec![
        Record::Product(phone()),
        Record::Stock { stock, ledger: Vec::new() },
        Record::Reservation(reservation),
        Record::Order { order, events },
    ]
}

#[tokio::test]
async fn a_hold_that_the_stock_level_does_not_explain_does_not_block_sales() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { min_free_bytes: 0, ..Options::new(folder.path(), Currency::parse("RUB").unwrap()) };
    let store = EmbeddedStore::open(options).unwrap();
    store.import(unexplained(), Checkpoint { import: "x".into(), done: 4 }).await.unwrap();
    assert_eq!(store.audit(&|_| ()).await.unwrap().drifts.len(), 1);

    assert_eq!(store.expire_reservations(at(11), 10).await, Ok(1));
    assert_eq!(store.expire_reservations(at(11), 10).await, Ok(0));
    assert_eq!(store.cancel_unpaid(at(11), "late", 10).await, Ok(1));
    assert_eq!(store.cancel_unpaid(at(11), "late", 10).await, Ok(0));
    let reserve = Reserve {
        reservation_id: ReservationId::new(Uuid::from_u128(3)),
        geo_zone: GeoZone::parse("z").unwrap(),
        lines: vec![Demand { product_id: phone().product_id, quantity: 5 }],
        expires_at: at(20),
        now: at(12),
        identity: None,
    };
    let zone = reserve.geo_zone.clone();
    store.reserve(reserve).await.unwrap();
    let stock =
        store.zone_stock(&phone().product_id, &zone, Freshness::Latest, at(13)).await.unwrap().unwrap();
    assert_eq!(stock.level, Level { on_hand: 5, reserved: 5 });
}
