//! Every kind of record survives the round trip through JSON, and a bad line is refused with its reason.

use std::collections::BTreeMap;

use mw_domain::carts::MergeChange;
use mw_domain::stock::{Cause, Delta};
use mw_domain::*;
use mw_store::carts::Merged;
use mw_store::export::Record;
use mw_store::idempotency::{Outcome, StoredOutcome};
use mw_store::sessions::LoggedIn;
use mw_store::{Fingerprint, RequestIdentity};
use uuid::Uuid;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_123).plus_seconds(seconds)
}

fn product_id() -> ProductId {
    ProductId::parse("phone-1").unwrap()
}

fn zone() -> GeoZone {
    GeoZone::parse("moscow").unwrap()
}

fn cart(owner: Owner, status: CartStatus) -> Cart {
    let closed = status != CartStatus::Active;
    Cart {
        cart_id: CartId::new(Uuid::from_u128(1)),
        owner,
        status,
        version: 7,
        lines: vec![CartLine { product_id: product_id(), quantity: 2, updated_at: at(1) }],
        created_at: at(0),
        updated_at: at(1),
        expires_at: at(100),
        merged_into: closed.then(|| CartId::new(Uuid::from_u128(2))),
        order_id: closed.then(|| OrderId::new(Uuid::from_u128(3))),
    }
}

fn user() -> Owner {
    Owner::User(UserId::parse("u-1").unwrap())
}

fn session() -> Session {
    Session {
        session_id: SessionId::parse("s:1").unwrap(),
        user_id: Some(UserId::parse("u-1").unwrap()),
        geo_zone: Some(zone()),
        ip: Some("10.0.0.1".into()),
        user_agent: Some("curl \"8\"".into()),
        device_type: None,
        data: BTreeMap::from([("тема".into(), "тёмная\n".into())]),
        created_at: at(0),
        last_activity: at(5),
        expires_at: at(90),
    }
}

fn stock() -> ZoneStock {
    ZoneStock {
        product_id: product_id(),
        geo_zone: zone(),
        level: Level { on_hand: 5, reserved: 2 },
        updated_at: at(3),
    }
}

fn reservation() -> Reservation {
    Reservation {
        reservation_id: ReservationId::new(Uuid::from_u128(9)),
        geo_zone: zone(),
        lines: vec![Demand { product_id: product_id(), quantity: 2 }],
        status: ReservationStatus::Held,
        created_at: at(0),
        expires_at: at(900),
    }
}

fn order() -> (Order, Vec<OrderEvent>) {
    let mut order = Order {
        order_id: OrderId::parse("507f1f77bcf86cd799439011").unwrap(),
        user_id: UserId::parse("u-1").unwrap(),
        status: OrderStatus::Created,
        geo_zone: zone(),
        lines: vec![OrderLine {
            product_id: product_id(),
            name: "Телефон «Аврора»".into(),
            price: Money::parse("1999.90").unwrap(),
            quantity: 2,
        }],
        total: Money::parse("3999.80").unwrap(),
        delivery_address: Some("Москва".into()),
        payment_method: None,
        created_at: at(0),
        updated_at: at(0),
        version: 1,
        pay_by: at(1_800),
    };
    let events = vec![order.created_event(), order.advance(OrderStatus::Paid, Some("card".into()), at(9))];
    (order, events)
}

fn stored_outcome(outcome: Outcome) -> Record {
    Record::StoredOutcome(StoredOutcome {
        identity: RequestIdentity {
            key: IdempotencyKey::parse("key-1").unwrap().line(3),
            fingerprint: Fingerprint([0xab; 32]),
            keep_until: at(172_800),
        },
        outcome,
    })
}

fn samples() -> Vec<Record> {
    let product = Product {
        product_id: product_id(),
        name: "Aurora".into(),
        category: Category::parse("Телефоны").unwrap(),
        price: Money::parse("1999.90").unwrap(),
        description: String::new(),
        attributes: [("color", "black")].into(),
        created_at: at(0),
        updated_at: at(1),
    };
    let movement = Movement {
        at: at(3),
        op: Uuid::from_u128(77),
        cause: Cause::Adjust,
        delta: Delta { on_hand: -3, reserved: 0 },
        note: Some("broken".into()),
    };
    let guest = Owner::Session(SessionId::parse("s:1").unwrap());
    let (order, events) = order();
    let merged = Merged {
        cart: Some(cart(user(), CartStatus::Active)),
        changes: vec![MergeChange { product_id: product_id(), from: 0, to: 2 }],
    };
    vec![
        Record::Product(product),
        Record::Stock { stock: stock(), ledger: vec![movement.clone()] },
        Record::Cart(cart(user(), CartStatus::Active)),
        Record::Cart(cart(guest.clone(), CartStatus::Abandoned)),
        Record::CartChange {
            owner: guest,
            change: cart(user(), CartStatus::Active).line_history(&product_id()),
        },
        Record::Session(session()),
        Record::Reservation(reservation()),
        Record::Order { order: order.clone(), events },
        stored_outcome(Outcome::Cart(cart(user(), CartStatus::Ordered))),
        stored_outcome(Outcome::Merged(merged)),
        stored_outcome(Outcome::Session(session())),
        stored_outcome(Outcome::LoggedIn(LoggedIn { session: session(), cart: None })),
        stored_outcome(Outcome::Stock(stock())),
        stored_outcome(Outcome::Reservation(reservation())),
        stored_outcome(Outcome::Placed(order.order_id)),
        stored_outcome(Outcome::Order(order)),
        stored_outcome(Outcome::Imported { product_id: product_id(), created: true }),
        Record::Ledger { product_id: stock().product_id, geo_zone: stock().geo_zone, ledger: vec![movement] },
    ]
}

fn line(record: &Record) -> String {
    let mut line = Vec::new();
    write_record(record, &mut line).unwrap();
    String::from_utf8(line).unwrap()
}

fn refused(line: &str) -> String {
    read_line(line.as_bytes()).expect_err(line)
}

#[test]
fn every_record_reads_back() {
    for record in samples() {
        let text = line(&record);
        match read_line(text.trim_end().as_bytes()) {
            Ok(Line::Record(read)) => assert_eq!(*read, record, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
        assert_eq!(text.matches('\n').count(), 1, "{text}");
    }
}

/// A file of every version that was ever written must be read for ever; this is the first. `MW_BLESS=1` writes it anew,
/// which is allowed only for an unreleased version.
#[test]
fn a_file_of_version_1_is_read_and_still_written_the_same() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/export-v1.ndjson");
    let written: String = samples().iter().map(line).collect();
    if std::env::var_os("MW_BLESS").is_some() {
        std::fs::write(path, &written).unwrap();
    }
    let fixture = std::fs::read_to_string(path).unwrap();
    for (text, sample) in fixture.lines().zip(samples()) {
        let Ok(Line::Record(read)) = read_line(text.as_bytes()) else { panic!("{text}") };
        assert_eq!(*read, sample, "{text}");
    }
    assert_eq!(written, fixture);
}

#[test]
fn a_bad_line_says_what_is_wrong_and_where() {
    let product = line(&samples()[0]);
    let cases = [
        ("nonsense".to_owned(), "expected value (column 1)"),
        (product.replace("1999.90", "1999.901"), "at most 2 fraction digits"),
        (product.replace("\"name\":\"Aurora\"", "\"name\":\"\""), "name: at least 1 character"),
        (product.replace("\"name\"", "\"nam\""), "unknown field `nam`"),
        (product.replace("\"phone-1\"", "\"phone 1\""), "an id is 1 to 128 characters"),
        (product.replace("{\"product\"", "{\"gadget\""), "unknown variant `gadget`"),
        (format!("{} x", product.trim_end()), "trailing characters"),
        (line(&samples()[1]).replace("\"on_hand\":5", "\"on_hand\":1"), "reserved is more than on_hand"),
        (line(&samples()[2]).replace("\"quantity\":2", "\"quantity\":0"), "a quantity is 1 to 10000"),
        (line(&samples()[7]).replace("3999.80", "3999.81"), "order.total: not the sum of the lines"),
        (line(&samples()[7]).replace("\"to\":\"paid\"", "\"to\":\"shipped\""), "the events do not lead"),
        (line(&samples()[8]).replace("abab", "xxxx"), "64 hexadecimal digits"),
    ];
    for (text, expected) in cases {
        let message = refused(text.trim_end());
        assert!(message.contains(expected), "{message} / {expected}");
    }
    let message = refused(&product.replace("1999.90", "x"));
    assert!(message.starts_with("product.price: "), "{message}");
}

#[test]
fn a_header_of_a_newer_version_or_of_something_else_is_refused() {
    let header = Header::new(Currency::parse("RUB").unwrap(), at(0));
    let mut text = Vec::new();
    write_header(&header, &mut text).unwrap();
    assert_eq!(read_header(&text), Ok(header));
    let text = String::from_utf8(text).unwrap();
    let newer = read_header(text.replace("\"version\":1", "\"version\":2").as_bytes()).unwrap_err();
    assert!(newer.contains("import it with a newer mw"), "{newer}");
    let other = read_header(text.replace("mobile-world", "other").as_bytes()).unwrap_err();
    assert!(other.contains("\"other\""), "{other}");
    assert!(read_header(b"{}").is_err());
}

#[test]
fn the_end_is_told_from_a_record() {
    let mut text = Vec::new();
    write_end(5, &mut text).unwrap();
    assert!(matches!(read_line(&text), Ok(Line::End(End { records: 5 }))));
}
