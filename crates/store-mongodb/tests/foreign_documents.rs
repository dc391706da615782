//! Carts and products beside other programs that read and write the same documents, in both shapes.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::{Collection, Database};
use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, CartId, MergeMode, Money, Owner, Timestamp};
use mw_store::carts::{Merge, RemoveLine, SetLine};
use mw_store::products::CategoryQuery;
use mw_store::{Carts, Freshness, PageRequest, Products, Refusal, Stock};
use mw_store_mongodb::shard_keys::ShardKeys;
use mw_store_mongodb::{MongoStore, Shape};
use mw_testkit::builders::{cart_id, category, guest, product, product_id, session_id, user, user_id, zone};
use mw_testkit::mongodb::{Lease, fresh, shared};
use uuid::Uuid;

const DAY_MS: i64 = 86_400_000;
const LIFETIME: CartLifetime = CartLifetime { user_ms: 30 * DAY_MS, guest_ms: DAY_MS };
const ANNA: &str = "507f1f77bcf86cd799439012";
const PHONE: &str = "507f1f77bcf86cd799439013";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000).plus_seconds(seconds)
}

fn date(seconds: i64) -> DateTime {
    DateTime::from_millis(at(seconds).as_millis())
}

fn object_id(text: &str) -> ObjectId {
    ObjectId::parse_str(text).unwrap()
}

fn carts(database: &Database) -> Collection<Document> {
    database.collection("carts")
}

fn setting(owner: &Owner, product: &str, quantity: u32, now: Timestamp) -> SetLine {
    SetLine {
        owner: owner.clone(),
        product_id: product_id(product),
        quantity,
        new_cart_id: CartId::new(Uuid::new_v4()),
        expected_version: None,
        lifetime: LIFETIME,
        now,
    }
}

fn quantities(cart: &Cart) -> Vec<(&str, u32)> {
    cart.lines.iter().map(|line| (line.product_id.as_str(), line.quantity)).collect()
}

async fn fresh_user_shape() -> (Arc<MongoStore>, Lease) {
    let lease = Lease::on(&shared(), |options| {
        options.shape = Shape::User;
        options.shard_keys = ShardKeys::of_shape(Shape::User);
    })
    .await;
    (lease.open().await, lease)
}

/// A cart as the shop's other programs write it: no owner, no version, no expiry.
fn cart_of_anna(items: Vec<Document>) -> Document {
    doc! {
        "_id": object_id("507f1f77bcf86cd799439011"),
        "user_id": object_id(ANNA),
        "session_id": "old-session",
        "items": items,
        "status": "active",
        "created_at": date(0),
        "updated_at": date(5),
        "campaign": "spring",
    }
}

#[tokio::test]
async fn a_cart_of_another_program_is_served_and_taken_over_at_the_first_write() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    let items = vec![
        doc! { "product_id": object_id(PHONE), "quantity": 2.0, "gift": true },
        doc! { "product_id": "case" },
        doc! { "product_id": "case" },
    ];
    carts(&database).insert_one(cart_of_anna(items)).await.unwrap();
    let anna = user(ANNA);
    let cart = store.active_cart(&anna, at(10)).await.unwrap().unwrap();
    assert_eq!(quantities(&cart), [(PHONE, 2), ("case", 2)]);
    assert_eq!(cart.cart_id.to_string(), "507f1f77-bcf8-86cd-8799-439011000000");
    assert_eq!(cart.expires_at, at(5).plus_millis(LIFETIME.user_ms));
    assert_eq!(
        store.carts(&anna, at(10), PageRequest::first(5)).await.unwrap().items,
        std::slice::from_ref(&cart)
    );

    let changed = store.set_line(setting(&anna, "case", 5, at(20))).await.unwrap();
    assert_eq!((changed.cart_id, quantities(&changed)), (cart.cart_id, vec![(PHONE, 2), ("case", 5)]));
    assert!(changed.version > cart.version);
    let document = carts(&database).find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(document.get_str("owner").unwrap(), format!("u:{ANNA}"));
    assert_eq!(document.get_str("campaign").unwrap(), "spring", "fields of the other program stay");
    assert_eq!(document.get_str("session_id").unwrap(), "old-session");
    let again = store.set_line(setting(&anna, PHONE, 7, at(21))).await.unwrap();
    assert_eq!(quantities(&again), [(PHONE, 7), ("case", 5)]);
    assert_eq!(carts(&database).count_documents(doc! {}).await.unwrap(), 1, "it is the same cart");
}

#[tokio::test]
async fn what_another_program_adds_to_our_cart_is_kept() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    let bob = user("bob");
    store.set_line(setting(&bob, "a", 1, at(0))).await.unwrap();
    let update = doc! { "$push": { "items": { "product_id": "b", "quantity": 3, "gift": true } } };
    let filter = doc! { "user_id": "bob", "status": "active" };
    carts(&database).update_one(filter.clone(), update).await.unwrap();
    assert_eq!(quantities(&store.active_cart(&bob, at(1)).await.unwrap().unwrap()), [("a", 1), ("b", 3)]);
    let cart = store.set_line(setting(&bob, "b", 4, at(2))).await.unwrap();
    assert_eq!(quantities(&cart), [("a", 1), ("b", 4)]);
    let document = carts(&database).find_one(filter).await.unwrap().unwrap();
    let items = document.get_array("items").unwrap();
    assert!(items.iter().any(|item| item.as_document().unwrap().get_bool("gift").is_ok_and(|gift| gift)));
    let removal = RemoveLine {
        owner: bob,
        product_id: product_id("b"),
        expected_version: None,
        lifetime: LIFETIME,
        now: at(3),
    };
    assert_eq!(quantities(&store.remove_line(removal).await.unwrap().unwrap()), [("a", 1)]);
}

#[tokio::test]
async fn a_guests_cart_of_another_program_is_merged_once() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    let document = doc! {
        "_id": ObjectId::new(), "session_id": "s-1", "user_id": Bson::Null, "status": "active",
        "items": [{ "product_id": "a", "quantity": 2 }], "created_at": date(0), "updated_at": date(0),
        "expires_at": date(3_600),
    };
    carts(&database).insert_one(document).await.unwrap();
    let merge = Merge {
        user_id: user_id("bob"),
        session_id: session_id("s-1"),
        mode: MergeMode::Sum,
        new_cart_id: cart_id(7),
        expected_version: None,
        lifetime: LIFETIME,
        now: at(10),
        identity: None,
    };
    let merged = store.merge(merge.clone()).await.unwrap().value;
    assert_eq!(quantities(&merged.cart.unwrap()), [("a", 2)]);
    assert_eq!(store.active_cart(&guest("s-1"), at(11)).await.unwrap(), None);
    assert_eq!(store.merge(merge).await.unwrap().value.changes, []);
    let closed = carts(&database).find_one(doc! { "session_id": "s-1" }).await.unwrap().unwrap();
    assert_eq!(closed.get_str("status").unwrap(), "abandoned");
}

#[tokio::test]
async fn of_several_active_carts_of_other_programs_the_newest_is_served() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    for (age, name) in [(5, "new"), (1, "old")] {
        let document = doc! {
            "_id": ObjectId::new(), "user_id": "bob", "status": "active",
            "items": [{ "product_id": name, "quantity": 1 }], "created_at": date(age), "updated_at": date(age),
        };
        carts(&database).insert_one(document).await.unwrap();
    }
    let cart = store.active_cart(&user("bob"), at(9)).await.unwrap().unwrap();
    assert_eq!(quantities(&cart), [("new", 1)]);
}

#[tokio::test]
async fn our_carts_are_the_papers_documents() {
    for (store, lease) in [fresh().await, fresh_user_shape().await] {
        let shape = lease.options().shape;
        let database = lease.database().await;
        store.put_product(product(PHONE).build()).await.unwrap();
        store.set_line(setting(&user(ANNA), PHONE, 2, at(0))).await.unwrap();
        store.set_line(setting(&guest("s-1"), "case", 1, at(0))).await.unwrap();
        let cart = carts(&database).find_one(doc! { "user_id": object_id(ANNA) }).await.unwrap().unwrap();
        assert_eq!(cart.get_str("status").unwrap(), "active");
        for field in ["created_at", "updated_at", "expires_at"] {
            assert!(cart.get_datetime(field).is_ok(), "{field}");
        }
        let item = cart.get_array("items").unwrap()[0].as_document().unwrap().clone();
        assert_eq!(item.get("product_id"), Some(&Bson::ObjectId(object_id(PHONE))));
        let known = store.product(&product_id(PHONE), Freshness::Latest).await.unwrap().unwrap();
        match shape {
            Shape::Customer => assert!(!item.contains_key("category")),
            Shape::User => assert_eq!(item.get_str("category").unwrap(), known.category.as_str()),
        }
        let guests = carts(&database).find_one(doc! { "session_id": "s-1" }).await.unwrap().unwrap();
        assert_eq!(guests.get("user_id"), None);
    }
}

fn priced(id: impl Into<Bson>, price: impl Into<Bson>) -> Document {
    doc! { "_id": id.into(), "name": "A phone", "category": "phones", "price": price.into() }
}

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse().unwrap())
}

async fn listed(store: &MongoStore, query: &CategoryQuery, limit: usize) -> Vec<String> {
    let (mut ids, mut request) = (Vec::new(), PageRequest::first(limit));
    loop {
        let page = store.category(query, Freshness::Latest, at(0), request.clone()).await.unwrap();
        ids.extend(page.items.iter().map(|item| item.product.product_id.to_string()));
        match page.next {
            None => return ids,
            next => request.after = next,
        }
    }
}

#[tokio::test]
async fn prices_of_any_type_are_compared_as_money() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    let low = "0000000000000000000000aa";
    let high = "ffffffffffffffffffffffff";
    let documents = vec![
        priced("b", decimal("19.99")),
        priced("d", 19.99),
        priced("c", 19.990_000_000_1),
        priced(object_id(low), decimal("19.990")),
        priced(object_id(high), 19.99),
        priced("cheap", 0.1 + 0.2),
        priced("dear", 20),
        priced("a", 20_i64),
    ];
    database.collection::<Document>("products").insert_many(documents).await.unwrap();
    let query = CategoryQuery {
        category: category("phones"),
        min_price: None,
        max_price: None,
        descending: false,
        geo_zone: None,
        in_stock: false,
    };
    let expected = ["cheap", low, "b", "c", "d", high, "a", "dear"];
    for limit in 1..=expected.len() + 1 {
        assert_eq!(listed(&store, &query, limit).await, expected, "pages of {limit}");
        let descending = CategoryQuery { descending: true, ..query.clone() };
        let mut reversed = listed(&store, &descending, limit).await;
        reversed.reverse();
        assert_eq!(reversed, expected, "pages of {limit}, descending");
        let price = Some(Money::from_minor(1_999));
        let bounded = CategoryQuery { min_price: price, max_price: price, ..query.clone() };
        assert_eq!(listed(&store, &bounded, limit).await, expected[1..6], "the bounds are inclusive");
    }
}

#[tokio::test]
async fn a_document_that_cannot_be_read_is_left_out_and_counted() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    let documents = vec![priced("good", decimal("1")), priced("bad", 1.999), priced("text", "12.00")];
    database.collection::<Document>("products").insert_many(documents).await.unwrap();
    let query = CategoryQuery {
        category: category("phones"),
        min_price: None,
        max_price: None,
        descending: false,
        geo_zone: None,
        in_stock: false,
    };
    assert_eq!(listed(&store, &query, 10).await, ["good"]);
    let before = store.unreadable_documents();
    assert_eq!(store.product(&product_id("bad"), Freshness::Latest).await.unwrap(), None);
    assert_eq!(store.unreadable_documents(), before + 1);
    let refused = store.delete_product(&product_id("bad"), at(0)).await.unwrap_err();
    assert_eq!(refused.refusal(), Some(&Refusal::ProductNotFound(product_id("bad"))));
    let broken = doc! {
        "_id": ObjectId::new(), "user_id": "bob", "status": "active", "created_at": date(0),
        "items": [{ "product_id": "a", "quantity": -1 }],
    };
    carts(&database).insert_one(broken).await.unwrap();
    assert_eq!(store.active_cart(&user("bob"), at(1)).await.unwrap(), None);
}

#[tokio::test]
async fn a_product_of_the_other_shape_keeps_its_stock_when_it_is_replaced_and_deleted() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    let mut document = priced(object_id(PHONE), 19.99);
    document.insert("stock", vec![doc! { "zone": "north", "quantity": 5 }]);
    document.insert("attributes", vec![doc! { "key": "colour", "value": "black" }]);
    document.insert("supplier", "acme");
    let products = database.collection::<Document>("products");
    products.insert_one(document).await.unwrap();
    let known = store.product(&product_id(PHONE), Freshness::Latest).await.unwrap().unwrap();
    assert_eq!(known.attributes.get("colour"), Some("black"));

    let put = store.put_product(product(PHONE).build()).await.unwrap();
    assert!(!put.created);
    assert_eq!(put.product.created_at, known.created_at);
    let stored = products.find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(stored.get_str("supplier").unwrap(), "acme");
    assert!(matches!(stored.get("price"), Some(Bson::Decimal128(_))));
    assert!(stored.get_document("attributes").is_ok(), "in the configured shape");
    let level = async || {
        let stock = store.zone_stock(&product_id(PHONE), &zone("north"), Freshness::Latest, at(0)).await;
        stock.unwrap().unwrap().level.on_hand
    };
    assert_eq!(level().await, 5);
    store.delete_product(&product_id(PHONE), at(0)).await.unwrap();
    assert_eq!((products.count_documents(doc! {}).await.unwrap(), level().await), (0, 5));
    assert!(store.put_product(product(PHONE).build()).await.unwrap().created);
    assert_eq!(level().await, 5);
}
