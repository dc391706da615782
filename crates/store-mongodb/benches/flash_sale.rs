//! Flash sale: 64 concurrent buyers of one product, on the replica set that `MW_TEST_MONGODB` names.
//!
//! Measures orders and reservations through the keeper, and as the baseline a loop of one transaction per buyer that writes
//! the same documents and begins again on a conflict. All run on the same server in the same run, one after the other, and
//! the stock is exact after each. The rates depend on the machine; the ratios are the result.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark panics on errors and prints its results"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use mongodb::bson::{Document, doc};
use mongodb::error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::{ReadConcern, WriteConcern};
use mongodb::{Client, Database};
use mw_domain::{Demand, GeoZone, OrderId, ProductId, ReservationId, Timestamp, UserId};
use mw_store::orders::{Basket, PlaceOrder};
use mw_store::stock::Reserve;
use mw_store::{Freshness, Orders, Stock};
use mw_store_mongodb::MongoStore;
use mw_testkit::mongodb::{Lease, fresh};
use uuid::Uuid;

const BUYERS: usize = 64;
const RAMP_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(8);
const UNITS: i64 = 100_000_000;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
}

fn zone() -> GeoZone {
    GeoZone::parse("north").unwrap()
}

fn one_hit() -> Vec<Demand> {
    vec![Demand { product_id: ProductId::parse("hit").unwrap(), quantity: 1 }]
}

/// One case of the benchmark: what a buyer does in a loop.
trait Buy: Send + Sync + 'static {
    fn buy(&self) -> impl Future<Output = ()> + Send;
}

struct Order(Arc<MongoStore>);

impl Buy for Order {
    async fn buy(&self) {
        let now = now();
        let command = PlaceOrder {
            order_id: OrderId::new(Uuid::now_v7()),
            user_id: UserId::parse("anna").unwrap(),
            geo_zone: zone(),
            basket: Basket::Lines(one_hit()),
            expected_total: None,
            delivery_address: None,
            payment_method: None,
            pay_by: now.plus_seconds(1_800),
            now,
            identity: None,
        };
        self.0.place_order(command).await.unwrap();
    }
}

struct Reservation(Arc<MongoStore>);

impl Buy for Reservation {
    async fn buy(&self) {
        let now = now();
        let command = Reserve {
            reservation_id: ReservationId::new(Uuid::now_v7()),
            geo_zone: zone(),
            lines: one_hit(),
            expires_at: now.plus_seconds(900),
            now,
            identity: None,
        };
        self.0.reserve(command).await.unwrap();
    }
}

/// Baseline: one transaction per buyer that reads the product, takes a unit, and writes the order and a ledger row.
struct OneTransaction {
    client: Client,
    database: Database,
}

impl OneTransaction {
    async fn attempt(&self, session: &mut mongodb::ClientSession) -> mongodb::error::Result<()> {
        let transaction = session.start_transaction();
        transaction.read_concern(ReadConcern::snapshot()).write_concern(WriteConcern::majority()).await?;
        let collection = |name| self.database.collection::<Document>(name);
        let product = collection("products").find_one(doc! { "_id": "hit" }).session(&mut *session).await?;
        let price = product.and_then(|product| product.get("price").cloned());
        let filter = doc! { "_id": "hit", "stocks": { "$elemMatch": { "geozone": "north", "quantity": { "$gte": 1 } } } };
        let sold = doc! { "$inc": { "stocks.$.quantity": -1, "stocks.$.reserved": 1 } };
        collection("products").update_one(filter, sold).session(&mut *session).await?;
        let id = Uuid::now_v7().to_string();
        let row = doc! { "_id": &id, "state": "held", "quantity": 1 };
        collection("baseline_ledger").insert_one(row).session(&mut *session).await?;
        let items = doc! { "product_id": "hit", "price": price, "quantity": 1 };
        let order = doc! { "_id": id, "customer_id": "anna", "items": [items], "status": "created" };
        collection("baseline_orders").insert_one(order).session(&mut *session).await?;
        loop {
            match session.commit_transaction().await {
                Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {}
                committed => return committed,
            }
        }
    }
}

impl Buy for OneTransaction {
    async fn buy(&self) {
        let mut session = self.client.start_session().await.unwrap();
        loop {
            match self.attempt(&mut session).await {
                Ok(()) => return,
                Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {
                    let _ = session.abort_transaction().await;
                    let random = Uuid::new_v4().as_u64_pair().1 & 0xff;
                    tokio::time::sleep(Duration::from_micros(random * 40)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Purchases a second of all buyers, and all purchases made.
async fn measure(case: impl Buy) -> (f64, u64) {
    let (case, stop) = (Arc::new(case), Arc::new(AtomicBool::new(false)));
    let bought = Arc::new(AtomicU64::new(0));
    let buyers: Vec<_> = (0..BUYERS)
        .map(|_| {
            let (case, stop, bought) = (Arc::clone(&case), Arc::clone(&stop), Arc::clone(&bought));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    case.buy().await;
                    bought.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(RAMP_UP).await;
    let (before, started) = (bought.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(MEASURED).await;
    let measured = bought.load(Ordering::Relaxed) - before;
    #[expect(clippy::cast_precision_loss, reason = "a rate of a few thousand")]
    let rate = measured as f64 / started.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for buyer in buyers {
        buyer.await.unwrap();
    }
    (rate, bought.load(Ordering::Relaxed))
}

async fn stocked() -> (Arc<MongoStore>, Lease, Database) {
    let (store, lease) = fresh().await;
    let database = lease.database().await;
    let product = doc! {
        "_id": "hit", "name": "Hit", "category": "phones", "price": 10,
        "stocks": [{ "geozone": "north", "quantity": UNITS }],
    };
    database.collection("products").insert_one(product).await.unwrap();
    for name in ["baseline_ledger", "baseline_orders"] {
        database.create_collection(name).await.unwrap();
    }
    (store, lease, database)
}

/// The units that are held are those that were bought.
async fn check(store: &MongoStore, bought: u64) {
    let hit = ProductId::parse("hit").unwrap();
    let stock = store.zone_stock(&hit, &zone(), Freshness::Latest, Timestamp::EPOCH).await.unwrap().unwrap();
    assert_eq!((stock.level.on_hand, stock.level.reserved), (UNITS.unsigned_abs(), bought));
}

#[tokio::main]
async fn main() {
    let (store, _lease, database) = stocked().await;
    let client = database.client().clone();
    let (baseline, bought) = measure(OneTransaction { client, database }).await;
    check(&store, bought).await;
    println!("one transaction per buyer  {baseline:>9.0}/s");
    let (store, _lease, _) = stocked().await;
    let (reservations, bought) = measure(Reservation(Arc::clone(&store))).await;
    check(&store, bought).await;
    println!("reservations by the keeper {reservations:>9.0}/s  {:.1} ×", reservations / baseline);
    let (store, _lease, _) = stocked().await;
    let (orders, bought) = measure(Order(Arc::clone(&store))).await;
    check(&store, bought).await;
    println!("orders by the keeper       {orders:>9.0}/s  {:.1} ×", orders / baseline);
}
