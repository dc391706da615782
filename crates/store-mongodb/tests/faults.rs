//! Sales while processes and servers fail: nothing that was acknowledged is lost, nothing takes effect twice.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed step fails the test"
)]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mongodb::bson::{Document, doc};
use mw_domain::{
    Demand, GeoZone, IdempotencyKey, OrderId, OrderStatus, Period, ProductId, Timestamp, UserId,
};
use mw_store::orders::{Basket, PlaceOrder, SetStatus};
use mw_store::{Fingerprint, Freshness, Orders, PageRequest, RequestIdentity, Stock, StoreError};
use mw_store_mongodb::{MongoStore, Options};
use mw_testkit::mongodb::{Cluster, Lease, REPLICA_SET, start_replica_set};
use uuid::Uuid;

const UNITS: i64 = 1_000_000;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// What the driver and the runtime may take beyond the request timeout on a busy machine.
const SLACK: Duration = Duration::from_secs(3);
const URI: &str = "MW_TEST_SELLER_URI";
const DATABASE: &str = "MW_TEST_SELLER_DATABASE";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000).plus_seconds(seconds)
}

fn hit() -> ProductId {
    ProductId::parse("hit").unwrap()
}

fn north() -> GeoZone {
    GeoZone::parse("north").unwrap()
}

fn ordering(buyer: usize, key: Option<String>) -> PlaceOrder {
    let identity = key.map(|key| RequestIdentity {
        key: IdempotencyKey::parse(&key).unwrap(),
        fingerprint: Fingerprint([1; 32]),
        keep_until: at(100_000),
    });
    PlaceOrder {
        order_id: OrderId::new(Uuid::now_v7()),
        user_id: UserId::parse(&format!("u{buyer}")).unwrap(),
        geo_zone: north(),
        basket: Basket::Lines(vec![Demand { product_id: hit(), quantity: 1 }]),
        expected_total: None,
        delivery_address: None,
        payment_method: None,
        pay_by: at(1_800),
        now: at(0),
        identity,
    }
}

async fn stock(lease: &Lease) {
    let product = doc! {
        "_id": "hit", "name": "Hit", "category": "phones", "price": 10,
        "stocks": [{ "geozone": "north", "quantity": UNITS }],
    };
    lease.database().await.collection::<Document>("products").insert_one(product).await.unwrap();
}

/// The ids of all orders in the list of the shop.
async fn listed(store: &MongoStore) -> Vec<OrderId> {
    let (mut ids, mut page) = (Vec::new(), PageRequest::first(500));
    loop {
        let found = store.orders(None, Period::ALL, page).await.unwrap();
        ids.extend(found.items.iter().map(|order| order.order_id));
        let Some(after) = found.next else { return ids };
        page = PageRequest { limit: 500, after: Some(after) };
    }
}

/// Each listed order holds its unit, and the ledger agrees.
async fn units_are_exact(store: &MongoStore) {
    let orders = listed(store).await.len() as u64;
    let found = store.zone_stock(&hit(), &north(), Freshness::Latest, at(0)).await.unwrap().unwrap();
    assert_eq!((found.level.on_hand, found.level.reserved), (UNITS.unsigned_abs(), orders));
    assert_eq!(store.audit(&|_| {}).await.unwrap().drifts, []);
}

/// Sells for ever, and prints what was acknowledged.
#[expect(clippy::print_stdout, reason = "the other process reads it")]
async fn sell(store: Arc<MongoStore>, buyer: usize) {
    loop {
        let placed = store.place_order(ordering(buyer, None)).await.unwrap().value;
        println!("sold {}", placed.order_id);
        if !placed.order_id.uuid().as_bytes()[15].is_multiple_of(2) {
            continue;
        }
        let cancel = SetStatus {
            order_id: placed.order_id,
            of_user: None,
            to: OrderStatus::Cancelled,
            note: None,
            expected_version: Some(1),
            now: at(1),
            identity: None,
        };
        store.set_status(cancel).await.unwrap();
        println!("cancelled {}", placed.order_id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seller() {
    // The entry of the process that the next test starts and kills; started by the test runner it has nothing to do.
    let Ok(uri) = std::env::var(URI) else { return };
    let mut options = Options::new(&uri);
    options.database = std::env::var(DATABASE).unwrap();
    let store = MongoStore::open(options).await.unwrap();
    join_all((0..16).map(|buyer| sell(Arc::clone(&store), buyer))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_in_the_middle_of_sales_leaves_every_order_whole() {
    let lease = Lease::empty().await;
    stock(&lease).await;
    for _ in 0..3 {
        let (options, exe) = (lease.options().clone(), std::env::current_exe().unwrap());
        let lines = tokio::task::spawn_blocking(move || {
            let mut process = Command::new(exe)
                .args(["--exact", "seller", "--nocapture"])
                .env(URI, &options.uri)
                .env(DATABASE, &options.database)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let output = BufReader::new(process.stdout.take().unwrap());
            let mut lines = output.lines().map_while(Result::ok).filter(|line| line.contains(' '));
            let mut seen: Vec<String> = lines.by_ref().take(150).collect();
            // SIGKILL: nothing of the process runs any more.
            process.kill().unwrap();
            process.wait().unwrap();
            seen.extend(lines);
            seen
        })
        .await
        .unwrap();
        let store = lease.open().await;
        let orders = listed(&store).await;
        for line in &lines {
            let Some((what, id)) = line.split_once(' ') else { continue };
            let Ok(id) = OrderId::parse(id) else { continue };
            assert!(orders.contains(&id), "an acknowledged order is lost");
            let order = store.order(id).await.unwrap().unwrap();
            assert_eq!(store.order_events(id).await.unwrap().unwrap().len() as u64, order.version);
            if what == "cancelled" {
                assert_eq!(order.status, OrderStatus::Cancelled);
            }
        }
        let mut held = 0;
        for id in orders {
            held += u64::from(store.order(id).await.unwrap().unwrap().status == OrderStatus::Created);
        }
        let found = store.zone_stock(&hit(), &north(), Freshness::Latest, at(0)).await.unwrap().unwrap();
        assert_eq!((found.level.on_hand, found.level.reserved), (UNITS.unsigned_abs(), held));
        assert_eq!(store.audit(&|_| {}).await.unwrap().drifts, []);
    }
}

/// What the buyers saw.
#[derive(Default)]
struct Seen {
    acknowledged: Vec<OrderId>,
    longest: Duration,
}

/// Buys until told to stop. A request whose outcome is unknown is sent again with its key, as a client does.
async fn buy(store: Arc<MongoStore>, buyer: usize, stop: Arc<AtomicBool>) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let key = Uuid::new_v4().to_string();
        loop {
            let started = Instant::now();
            let result = store.place_order(ordering(buyer, Some(key.clone()))).await;
            seen.longest = seen.longest.max(started.elapsed());
            match result {
                Ok(done) => {
                    seen.acknowledged.push(done.value.order_id);
                    break;
                }
                Err(StoreError::Ambiguous(_)) => {}
                Err(error) => panic!("buyer {buyer}: {error}"),
            }
        }
    }
    seen
}

/// Sells while `disturb` runs; nothing acknowledged is lost, and no request fails or outlasts its timeout.
async fn sell_through(cluster: &Cluster, disturb: impl AsyncFnOnce(&Cluster)) {
    let lease = Lease::on(&cluster.uri(), |options| options.request_timeout = REQUEST_TIMEOUT).await;
    stock(&lease).await;
    let stores = [lease.open().await, lease.open().await];
    let stop = Arc::new(AtomicBool::new(false));
    let buyers: Vec<_> = (0..16)
        .map(|buyer| tokio::spawn(buy(Arc::clone(&stores[buyer % 2]), buyer, Arc::clone(&stop))))
        .collect();
    disturb(cluster).await;
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for buyer in buyers {
        let seen = buyer.await.unwrap();
        assert!(seen.longest <= REQUEST_TIMEOUT + SLACK, "a request took {:?}", seen.longest);
        acknowledged.extend(seen.acknowledged);
    }
    let orders = listed(&stores[0]).await;
    assert_eq!(acknowledged.len(), orders.len(), "each request took effect once");
    assert!(acknowledged.iter().all(|id| orders.contains(id)), "an acknowledged order is lost");
    units_are_exact(&stores[0]).await;
}

/// Waits until further orders were sold.
async fn sales_go_on(cluster: &Cluster) {
    let client = mongodb::Client::with_uri_str(cluster.uri()).await.unwrap();
    let names = client.list_database_names().await.unwrap();
    let name = names.into_iter().find(|name| name.starts_with("mw_test_")).unwrap();
    let orders = client.database(&name).collection::<Document>("orders");
    let before = orders.count_documents(doc! {}).await.unwrap();
    while orders.count_documents(doc! {}).await.unwrap() < before + 100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_survive_a_primary_that_steps_down_and_one_that_is_killed() {
    let cluster = start_replica_set("faults", 3).await;
    sell_through(&cluster, async |cluster| {
        sales_go_on(cluster).await;
        cluster.primary(REPLICA_SET).unwrap().step_down().unwrap();
        sales_go_on(cluster).await;
        let primary = cluster.primary(REPLICA_SET).unwrap();
        primary.kill().unwrap();
        sales_go_on(cluster).await;
        primary.restart().unwrap();
    })
    .await;
}
