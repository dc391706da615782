//! Benchmarks of encoding and decoding stored values. `cargo bench -p mw-codec`.

#![expect(clippy::unwrap_used, reason = "a value that is spelled wrongly is a bench that fails")]

use std::collections::BTreeMap;

use divan::{Bencher, black_box};
use mw_codec::{carts, orders, products, sessions};
use mw_domain::{
    Cart, CartId, CartLine, CartStatus, Category, GeoZone, Money, Order, OrderId, OrderLine, OrderStatus,
    Owner, Product, ProductId, Session, SessionId, Timestamp, UserId,
};
use uuid::Uuid;

const LINES: [u32; 3] = [1, 5, 100];

fn main() {
    divan::main();
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000 + ms)
}

fn product_id(number: u32) -> ProductId {
    ProductId::parse(&format!("product-{number:06}")).unwrap()
}

fn cart(lines: u32) -> Cart {
    let line = |number: u32| CartLine {
        product_id: product_id(number),
        quantity: number % 5 + 1,
        updated_at: at(i64::from(number)),
    };
    Cart {
        cart_id: CartId::new(Uuid::from_u128(1)),
        owner: Owner::User(UserId::parse("user-1234567").unwrap()),
        status: CartStatus::Active,
        version: 300,
        lines: (0..lines).map(line).collect(),
        created_at: at(0),
        updated_at: at(70_000),
        expires_at: at(86_470_000),
        merged_into: None,
        order_id: None,
    }
}

fn order(lines: u32) -> Order {
    let line = |number: u32| OrderLine {
        product_id: product_id(number),
        name: format!("Product {number}"),
        price: Money::from_minor(1_999_000),
        quantity: 2,
    };
    Order {
        order_id: OrderId::new(Uuid::from_u128(2)),
        user_id: UserId::parse("user-1234567").unwrap(),
        status: OrderStatus::Created,
        geo_zone: GeoZone::parse("moscow").unwrap(),
        lines: (0..lines).map(line).collect(),
        total: Money::from_minor(3_998_000),
        delivery_address: Some("Moscow, 1 Tverskaya street, flat 2".to_owned()),
        payment_method: Some("card".to_owned()),
        pay_by: at(1_800_000),
        created_at: at(0),
        updated_at: at(0),
        version: 1,
    }
}

fn product() -> Product {
    let attributes = [("colour", "black"), ("memory", "256 GB"), ("weight", "180 g")];
    Product {
        product_id: product_id(7),
        name: "Product 7".to_owned(),
        category: Category::parse("smartphones").unwrap(),
        price: Money::from_minor(1_999_000),
        description: "A product with a description of ordinary length, in plain words.     ".repeat(3),
        attributes: attributes.into(),
        created_at: at(0),
        updated_at: at(0),
    }
}

fn session() -> Session {
    Session {
        session_id: SessionId::parse("session-1234567").unwrap(),
        user_id: Some(UserId::parse("user-1234567").unwrap()),
        geo_zone: Some(GeoZone::parse("moscow").unwrap()),
        ip: Some("2001:db8::1".to_owned()),
        user_agent: Some("Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0".to_owned()),
        device_type: Some("mobile".to_owned()),
        data: BTreeMap::from([("seen".to_owned(), "product-000007".to_owned())]),
        created_at: at(0),
        last_activity: at(1_000),
        expires_at: at(86_401_000),
    }
}

#[divan::bench(args = LINES)]
fn cart_write(bencher: Bencher<'_, '_>, lines: u32) {
    let cart = cart(lines);
    bencher.bench(|| carts::encode(black_box(&cart)));
}

#[divan::bench(args = LINES)]
fn cart_read(bencher: Bencher<'_, '_>, lines: u32) {
    let bytes = carts::encode(&cart(lines));
    bencher.bench(|| carts::decode(black_box(&bytes)).unwrap());
}

#[divan::bench(args = LINES)]
fn order_write(bencher: Bencher<'_, '_>, lines: u32) {
    let order = order(lines);
    bencher.bench(|| orders::encode(black_box(&order), &[]));
}

#[divan::bench(args = LINES)]
fn order_read(bencher: Bencher<'_, '_>, lines: u32) {
    let bytes = orders::encode(&order(lines), &[]);
    bencher.bench(|| orders::decode_order(black_box(&bytes)).unwrap());
}

#[divan::bench]
fn product_write(bencher: Bencher<'_, '_>) {
    let product = product();
    bencher.bench(|| products::encode(black_box(&product)));
}

#[divan::bench]
fn product_read(bencher: Bencher<'_, '_>) {
    let bytes = products::encode(&product());
    bencher.bench(|| products::decode(black_box(&bytes)).unwrap());
}

#[divan::bench]
fn session_write(bencher: Bencher<'_, '_>) {
    let session = session();
    bencher.bench(|| sessions::encode(black_box(&session)));
}

#[divan::bench]
fn session_read(bencher: Bencher<'_, '_>) {
    let bytes = sessions::encode(&session());
    bencher.bench(|| sessions::decode(black_box(&bytes)).unwrap());
}
