//! Stock and orders beside other programs that read and write the same documents, and on several processes.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mongodb::Database;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mw_domain::{
    Demand, GeoZone, Money, Order, OrderId, OrderStatus, Period, ProductId, ReservationId, Timestamp, UserId,
};
use mw_store::export::{Checkpoint, Record};
use mw_store::orders::{Basket, PlaceOrder, SetStatus};
use mw_store::stock::{Adjust, Reserve, SetOnHand};
use mw_store::{ExportImport, Freshness, Orders, PageRequest, Refusal, Result, Stock};
use mw_store_mongodb::shard_keys::ShardKeys;
use mw_store_mongodb::{MongoStore, Shape};
use mw_testkit::mongodb::{Lease, fresh, shared};
use uuid::Uuid;

const WINDOW: i64 = 1_800;
const COMPACTED_WITHIN: Duration = Duration::from_secs(30);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000).plus_seconds(seconds)
}

fn product(name: &str) -> ProductId {
    ProductId::parse(name).unwrap()
}

fn north() -> GeoZone {
    GeoZone::parse("north").unwrap()
}

fn demands(lines: &[(&str, u32)]) -> Vec<Demand> {
    lines.iter().map(|(name, quantity)| Demand { product_id: product(name), quantity: *quantity }).collect()
}

fn ordering(lines: &[(&str, u32)], now: Timestamp) -> PlaceOrder {
    PlaceOrder {
        order_id: OrderId::new(Uuid::now_v7()),
        user_id: UserId::parse("anna").unwrap(),
        geo_zone: north(),
        basket: Basket::Lines(demands(lines)),
        expected_total: None,
        delivery_address: None,
        payment_method: None,
        pay_by: now.plus_seconds(WINDOW),
        now,
        identity: None,
    }
}

async fn order(store: &MongoStore, lines: &[(&str, u32)], now: Timestamp) -> Result<Order> {
    store.place_order(ordering(lines, now)).await.map(|done| done.value)
}

async fn step(store: &MongoStore, order_id: OrderId, to: OrderStatus, now: Timestamp) -> Result<Order> {
    let command =
        SetStatus { order_id, of_user: None, to, note: None, expected_version: None, now, identity: None };
    store.set_status(command).await.map(|done| done.value)
}

async fn level(store: &MongoStore, name: &str) -> (u64, u64) {
    let stock = store.zone_stock(&product(name), &north(), Freshness::Latest, at(0)).await.unwrap().unwrap();
    (stock.level.on_hand, stock.level.reserved)
}

/// A product as another program of the shop writes it.
fn foreign_product(name: &str, quantity: impl Into<Bson>) -> Document {
    doc! {
        "_id": name, "name": format!("The {name}"), "category": "phones", "price": 19.99,
        "stocks": [{ "geozone": "south", "quantity": 1 }, { "geozone": "north", "quantity": quantity.into() }],
    }
}

async fn products(database: &Database, documents: Vec<Document>) {
    database.collection("products").insert_many(documents).await.unwrap();
}

async fn quantity(database: &Database, name: &str) -> Document {
    let found =
        database.collection::<Document>("products").find_one(doc! { "_id": name }).await.unwrap().unwrap();
    let entries = found.get_array("stocks").unwrap().clone();
    let north = |entry: &&Bson| entry.as_document().unwrap().get_str("geozone").unwrap() == "north";
    entries.iter().find(north).unwrap().as_document().unwrap().clone()
}

async fn change(database: &Database, name: &str, update: Document) {
    let filter = doc! { "_id": name, "stocks.geozone": "north" };
    database.collection::<Document>("products").update_one(filter, update).await.unwrap();
}

/// The audit finds no drift; returns the movements of other programs.
async fn audit_closes(store: &MongoStore) -> u64 {
    let audit = store.audit(&|_| {}).await.unwrap();
    assert_eq!(audit.drifts, []);
    audit.external
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quantity_is_what_can_be_sold_and_reserved_stands_beside_it() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    products(&database, vec![foreign_product("p", 10.0)]).await;
    assert_eq!(level(&store, "p").await, (10, 0));
    let placed = order(&store, &[("p", 3)], at(0)).await.unwrap();
    assert_eq!(placed.total, Money::from_minor(5_997));
    let entry = quantity(&database, "p").await;
    assert_eq!(entry.get("quantity"), Some(&Bson::Double(7.0)), "the number keeps its type");
    assert_eq!(entry.get("reserved"), Some(&Bson::Int64(3)));
    assert_eq!(level(&store, "p").await, (10, 3));
    step(&store, placed.order_id, OrderStatus::Paid, at(1)).await.unwrap();
    let entry = quantity(&database, "p").await;
    assert_eq!((entry.get("quantity"), entry.get("reserved")), (Some(&7.0.into()), Some(&0_i64.into())));
    assert_eq!(audit_closes(&store).await, 2, "the units of both zones came from elsewhere");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sold_unit_never_reappears_while_other_programs_change_quantity() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    products(&database, vec![foreign_product("hit", 100), foreign_product("other", 100)]).await;
    let buyers = join_all((0..60).map(|number| {
        let (store, name) = (Arc::clone(&store), if number % 2 == 0 { "hit" } else { "other" });
        tokio::spawn(async move { order(&store, &[(name, 1)], at(0)).await.is_ok() })
    }));
    let others = async {
        for _ in 0..20 {
            change(&database, "hit", doc! { "$inc": { "stocks.$.quantity": -1 } }).await;
        }
    };
    let (sold, ()) = tokio::join!(buyers, others);
    assert!(sold.into_iter().all(|sold| sold.unwrap()), "every buyer bought");
    assert_eq!(quantity(&database, "hit").await.get_i32("quantity").ok(), Some(100 - 30 - 20));
    assert_eq!(level(&store, "hit").await, (80, 30));
    change(&database, "hit", doc! { "$set": { "stocks.$.quantity": 7 } }).await;
    assert_eq!(level(&store, "hit").await, (37, 30));
    assert!(order(&store, &[("hit", 8)], at(1)).await.is_err());
    order(&store, &[("hit", 7)], at(1)).await.unwrap();
    assert_eq!(level(&store, "hit").await, (37, 37));
    assert!(audit_closes(&store).await >= 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_another_program_replaces_keeps_its_holds() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    products(&database, vec![foreign_product("p", 10)]).await;
    let placed = order(&store, &[("p", 4)], at(0)).await.unwrap();
    let replaced = doc! { "$set": { "stocks": [{ "geozone": "north", "quantity": 5 }] } };
    database.collection::<Document>("products").update_one(doc! { "_id": "p" }, replaced).await.unwrap();
    audit_closes(&store).await;
    step(&store, placed.order_id, OrderStatus::Cancelled, at(1)).await.unwrap();
    assert_eq!(level(&store, "p").await, (9, 0), "five, and the four that were held");
    audit_closes(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_outlive_a_product_that_another_program_deletes() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    products(&database, vec![foreign_product("p", 10)]).await;
    let placed = order(&store, &[("p", 4)], at(0)).await.unwrap();
    database.collection::<Document>("products").delete_one(doc! { "_id": "p" }).await.unwrap();
    step(&store, placed.order_id, OrderStatus::Paid, at(1)).await.unwrap();
    assert_eq!(level(&store, "p").await, (0, 0), "the units that were held have left");
    audit_closes(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversold_quantity_has_nothing_to_sell_until_it_is_counted() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    products(&database, vec![foreign_product("p", -2)]).await;
    assert_eq!(level(&store, "p").await, (0, 0));
    assert!(order(&store, &[("p", 1)], at(0)).await.is_err());
    let count = SetOnHand {
        product_id: product("p"),
        geo_zone: north(),
        on_hand: 6,
        expected_on_hand: None,
        op: Uuid::now_v7(),
        now: at(1),
    };
    assert_eq!(store.set_on_hand(count).await.unwrap().level.on_hand, 6);
    assert_eq!(quantity(&database, "p").await.get("quantity"), Some(&6.into()));
    audit_closes(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_never_oversell() {
    let (first, lease) = fresh().await;
    let stores = [first, lease.open().await, lease.open().await];
    products(&lease.database().await, vec![foreign_product("hit", 40), foreign_product("b", 1_000)]).await;
    let results = join_all((0..90).map(|number| {
        let store = Arc::clone(&stores[number % 3]);
        let lines: &[(&str, u32)] = if number % 2 == 0 { &[("hit", 1)] } else { &[("b", 1), ("hit", 1)] };
        tokio::spawn(async move { order(&store, lines, at(0)).await })
    }))
    .await;
    let (mut sold, mut short) = (0, 0);
    for result in results {
        match result.unwrap() {
            Ok(_) => sold += 1,
            Err(error) => {
                assert!(matches!(error.refusal(), Some(Refusal::OutOfStock(_))), "{error}");
                short += 1;
            }
        }
    }
    assert_eq!((sold, short), (40, 50));
    assert_eq!(level(&stores[0], "hit").await, (40, 40));
    audit_closes(&stores[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_of_another_program_moves_no_units_when_paid_and_returns_them_when_cancelled() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    products(&database, vec![foreign_product("p", 10)]).await;
    let orders = database.collection::<Document>("orders");
    let ids = [ObjectId::new(), ObjectId::new(), ObjectId::new()];
    let items = doc! { "product_id": "p", "price": 19.99, "quantity": 2 };
    let made = DateTime::from_millis(at(0).as_millis());
    let customer = |id: ObjectId, status: &str| {
        doc! {
            "_id": id, "customer_id": "anna", "created_at": made, "items": [items.clone()],
            "status": status, "total": 39.98, "geozone": "north",
        }
    };
    orders.insert_one(customer(ids[0], "new")).await.unwrap();
    orders.insert_one(customer(ids[1], "lost")).await.unwrap();
    let unit = doc! { "product_id": "p", "category": "phones", "price": 19.99 };
    let user = doc! {
        "_id": ids[2], "user_id": "anna", "order_date": made, "items": [unit.clone(), unit],
        "status": "pending", "total_price": 39.98, "geo_zone": "north",
    };
    orders.insert_one(user).await.unwrap();
    let id = |at: usize| OrderId::parse(&ids[at].to_hex()).unwrap();
    let anna = UserId::parse("anna").unwrap();
    let listed = store.user_orders(&anna, Period::ALL, PageRequest::first(10)).await.unwrap().items;
    assert_eq!(listed.len(), 2, "one status word is unknown");
    assert!(listed.iter().all(|order| order.units() == 2 && order.lines[0].name == "The p"));
    assert_eq!(store.order(id(1)).await, Ok(None));
    assert!(store.unreadable_documents() >= 2);

    assert_eq!(store.cancel_unpaid(at(100 * WINDOW), "late", 10).await, Ok(0), "they have no payment window");
    step(&store, id(0), OrderStatus::Paid, at(1)).await.unwrap();
    assert_eq!(level(&store, "p").await, (10, 0), "their program took the units when it made the order");
    let cancelled = step(&store, id(2), OrderStatus::Cancelled, at(2)).await.unwrap();
    assert_eq!((cancelled.version, cancelled.order_id), (2, id(2)));
    assert_eq!(level(&store, "p").await, (12, 0));
    let document = orders.find_one(doc! { "_id": ids[2] }).await.unwrap().unwrap();
    assert_eq!(document.get_str("status").unwrap(), "cancelled");
    assert_eq!(document.get_array("items").unwrap().len(), 2, "their fields stay");
    audit_closes(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_in_the_shape_user_has_an_item_per_unit_and_a_limit() {
    let lease = Lease::on(&shared(), |options| {
        options.shape = Shape::User;
        options.shard_keys = ShardKeys::of_shape(Shape::User);
    })
    .await;
    let (store, database) = (lease.open().await, lease.database().await);
    let entry = doc! { "zone": "north", "quantity": 1_000_000 };
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"];
    let documents = names.map(|name| {
        doc! { "_id": name, "name": name, "category": "phones", "price": 1, "stock": [entry.clone()] }
    });
    products(&database, documents.to_vec()).await;
    let placed = order(&store, &[("b", 2), ("a", 1)], at(0)).await.unwrap();
    let orders = database.collection::<Document>("orders");
    let document = orders.find_one(doc! { "user_id": "anna" }).await.unwrap().unwrap();
    let items = document.get_array("items").unwrap();
    assert_eq!(items.len(), 3);
    assert_eq!(items[0].as_document().unwrap().get_str("category").unwrap(), "phones");
    assert_eq!(document.get_str("geo_zone").unwrap(), "north");
    assert!(document.contains_key("total_price"));
    assert_eq!(store.order(placed.order_id).await, Ok(Some(placed)));

    let most: Vec<(&str, u32)> = names.iter().take(10).map(|name| (*name, 10_000)).collect();
    let more: Vec<(&str, u32)> = names.iter().map(|name| (*name, 10_000)).collect();
    let refused = order(&store, &more, at(1)).await.unwrap_err();
    assert!(
        matches!(refused.refusal(), Some(Refusal::InvalidField { field, .. }) if field == "lines"),
        "{refused}"
    );
    assert_eq!(order(&store, &most, at(2)).await.unwrap().units(), 100_000);
    audit_closes(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_expired_holds_than_one_transaction_releases_do_not_block_a_sale() {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    products(&database, vec![foreign_product("p", 1_200)]).await;
    let reserve = || Reserve {
        reservation_id: ReservationId::new(Uuid::now_v7()),
        geo_zone: north(),
        lines: demands(&[("p", 1)]),
        expires_at: at(60),
        now: at(0),
        identity: None,
    };
    let held = join_all((0..1_200).map(|_| store.reserve(reserve()))).await;
    assert!(held.into_iter().all(|done| done.is_ok()));
    let now = at(61);
    let stock = store.zone_stock(&product("p"), &north(), Freshness::Latest, now).await.unwrap().unwrap();
    assert_eq!((stock.level.on_hand, stock.level.reserved), (1_200, 0), "available where it is read");
    assert_eq!(order(&store, &[("p", 1_200)], now).await.unwrap().units(), 1_200);
    assert_eq!(store.expire_reservations(now, 10_000).await, Ok(0), "the sale released them");
    audit_closes(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_does_not_grow_with_its_history() {
    const MOVEMENTS: i64 = 1_100;
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    products(&database, vec![foreign_product("p", 10)]).await;
    let ledger = database.collection::<Document>("stock_ledger");
    let move_often = async || {
        let moves = (0..MOVEMENTS).map(|_| {
            store.adjust(Adjust {
                product_id: product("p"),
                geo_zone: north(),
                delta: 1,
                reason: "delivery".to_owned(),
                op: Uuid::now_v7(),
                now: at(1),
                identity: None,
            })
        });
        for moved in join_all(moves).await {
            moved.unwrap();
        }
        let started = Instant::now();
        while ledger.count_documents(doc! {}).await.unwrap() > 200 {
            assert!(started.elapsed() < COMPACTED_WITHIN, "the ledger has too many rows");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let open = order(&store, &[("p", 3)], at(0)).await.unwrap();
    let sold = order(&store, &[("p", 2)], at(0)).await.unwrap();
    step(&store, sold.order_id, OrderStatus::Paid, at(1)).await.unwrap();
    move_often().await;
    let on_hand = 8 + MOVEMENTS.unsigned_abs();
    assert_eq!(level(&store, "p").await, (on_hand, 3));
    let audit = store.audit(&|_| {}).await.unwrap();
    assert_eq!(audit.drifts, []);
    assert!(audit.movements >= MOVEMENTS.unsigned_abs(), "compacted movements count: {}", audit.movements);

    // The row of the sold order is compacted, that of the open one is not.
    for order in [&sold, &open] {
        step(&store, order.order_id, OrderStatus::Cancelled, at(2)).await.unwrap();
    }
    assert_eq!(level(&store, "p").await, (on_hand + 2, 0));
    move_often().await;
    // The ledger still explains an entry that another program writes as a whole.
    let whole = doc! { "$set": { "stocks.$": { "geozone": "north", "quantity": 5 } } };
    change(&database, "p", whole).await;
    order(&store, &[("p", 1)], at(3)).await.unwrap();
    assert_eq!(level(&store, "p").await, (5, 1));
    audit_closes(&store).await;
}

/// Stock and the reservations that hold it are in one page of records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imported_holds_end_with_their_reservations() {
    const HOLDS: usize = 32;
    let ((from, lease), (to, _to_lease)) = (fresh().await, fresh().await);
    let products = lease.database().await.collection::<Document>("products");
    for number in 0..HOLDS {
        let name = format!("p{number}");
        products.insert_one(foreign_product(&name, 9)).await.unwrap();
        let reserve = Reserve {
            reservation_id: ReservationId::new(Uuid::now_v7()),
            geo_zone: north(),
            lines: demands(&[(&name, 2)]),
            expires_at: at(WINDOW),
            now: at(0),
            identity: None,
        };
        from.reserve(reserve).await.unwrap();
    }
    let export = from.export().await.unwrap();
    let mut records = export.page(PageRequest::first(1_000)).await.unwrap().items;
    // A reservation beside its stock: the order of records does not matter.
    records.sort_by_key(|record| match record {
        Record::Stock { stock, .. } => Some(stock.product_id.clone()),
        Record::Reservation(reservation) => reservation.lines.first().map(|line| line.product_id.clone()),
        _ => None,
    });
    let checkpoint = Checkpoint { import: "holds".to_owned(), done: records.len() as u64 };
    to.import(records, checkpoint).await.unwrap();
    assert_eq!(to.expire_reservations(at(WINDOW), 2 * HOLDS).await, Ok(HOLDS));
    assert_eq!(to.audit(&|_| {}).await.unwrap().drifts, []);
}
