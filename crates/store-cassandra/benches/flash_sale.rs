//! A flash sale: a thousand buyers of one product, on the cluster that `MW_TEST_CASSANDRA` names, all in one run.
//!
//! Reservations, whole orders without and with a key, and the way without a keeper (a conditional write a buyer). All of it
//! runs once unmeasured, since a JVM compiles what it has seen often. Rates are of this machine; what counts is their ratio.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures and tells")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use mw_domain::{
    Attributes, Demand, GeoZone, IdempotencyKey, Money, OrderId, Product, ProductId, ReservationId,
    Timestamp, UserId,
};
use mw_store::orders::{Basket, PlaceOrder};
use mw_store::stock::{Reserve, SetOnHand};
use mw_store::{Fingerprint, Freshness, Once, Orders, Products, Result, Stock};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Class, Options, Table};
use mw_testkit::cassandra::shared;
use scylla::client::session::Session;
use scylla::statement::Consistency;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

const BUYERS: usize = 1_000;
const WARM_UP: Duration = Duration::from_secs(20);
const SETTLED: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(10);
const UNITS: u64 = 1_000_000_000;
const PREFIX: &str = "mw_bench";

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
}

/// One buyer's way to buy, over and over.
trait Buy: Send + Sync + 'static {
    fn buy(&self, buyer: usize) -> impl Future<Output = Result<(), String>> + Send;
}

/// A conditional write a buyer that moves the figure and nothing else.
struct Plain {
    session: Arc<Session>,
    sell: PreparedStatement,
}

impl Buy for Plain {
    async fn buy(&self, _: usize) -> Result<(), String> {
        let sold = self.session.execute_unpaged(&self.sell, ()).await;
        sold.map(drop).map_err(|error| error.to_string())
    }
}

/// A conditional write a buyer that leaves the row by which a lost answer can be told, as a reservation does.
struct PlainRow {
    session: Arc<Session>,
    sell: Batch,
}

impl Buy for PlainRow {
    async fn buy(&self, _: usize) -> Result<(), String> {
        let sold = self.session.batch(&self.sell, ((), (Uuid::now_v7(),))).await;
        sold.map(drop).map_err(|error| error.to_string())
    }
}

struct Hold(Arc<CassandraStore>);

impl Buy for Hold {
    async fn buy(&self, _: usize) -> Result<(), String> {
        let command = Reserve {
            reservation_id: ReservationId::new(Uuid::now_v7()),
            geo_zone: zone(),
            lines: one_hit(),
            expires_at: now().plus_seconds(900),
            now: now(),
            once: None,
        };
        self.0.reserve(command).await.map(drop).map_err(|error| error.to_string())
    }
}

struct Order {
    store: Arc<CassandraStore>,
    is_keyed: bool,
}

impl Buy for Order {
    async fn buy(&self, buyer: usize) -> Result<(), String> {
        let key = || IdempotencyKey::parse(&Uuid::new_v4().to_string()).unwrap();
        let once =
            || Once { key: key(), fingerprint: Fingerprint([1; 32]), keep_until: now().plus_seconds(86_400) };
        let command = PlaceOrder {
            order_id: OrderId::new(Uuid::now_v7()),
            user_id: UserId::parse(&format!("u{buyer}")).unwrap(),
            geo_zone: zone(),
            basket: Basket::Lines(one_hit()),
            expected_total: None,
            delivery_address: Some("12 Long Street".to_owned()),
            payment_method: Some("card".to_owned()),
            pay_by: now().plus_seconds(1_800),
            now: now(),
            once: self.is_keyed.then(once),
        };
        self.store.place_order(command).await.map(drop).map_err(|error| error.to_string())
    }
}

fn zone() -> GeoZone {
    GeoZone::parse("north").unwrap()
}

fn hit() -> ProductId {
    ProductId::parse("hit").unwrap()
}

fn one_hit() -> Vec<Demand> {
    vec![Demand { product_id: hit(), quantity: 1 }]
}

/// What all buyers together get done in a second for so long, and how many were turned away.
async fn measure(way: &Arc<impl Buy>, measured: Duration) -> (f64, u64) {
    let stop = Arc::new(AtomicBool::new(false));
    let (bought, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let buyers: Vec<_> = (0..BUYERS)
        .map(|buyer| {
            let (way, stop) = (Arc::clone(way), Arc::clone(&stop));
            let (bought, failed) = (Arc::clone(&bought), Arc::clone(&failed));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let count = if way.buy(buyer).await.is_ok() { &bought } else { &failed };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(SETTLED).await;
    let (before, started) = (bought.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(measured).await;
    let count = bought.load(Ordering::Relaxed) - before;
    let rate = f64::from(u32::try_from(count).unwrap()) / started.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for buyer in buyers {
        buyer.await.unwrap();
    }
    (rate, failed.load(Ordering::Relaxed))
}

async fn report(name: &str, way: &Arc<impl Buy>) -> f64 {
    let (rate, failed) = measure(way, MEASURED).await;
    println!("{name:<38} {rate:>9.1}/s   failed {failed}");
    rate
}

/// The ways without a keeper, with the settings a careful program would have.
async fn plain(session: &Arc<Session>) -> (Plain, PlainRow) {
    let table = format!("{}.plain_stock", Class::Core.keyspace(PREFIX));
    let create = format!(
        "CREATE TABLE IF NOT EXISTS {table} (id text, op_id uuid, reserved int static, quantity int, \
         PRIMARY KEY ((id), op_id))"
    );
    session.query_unpaged(create, ()).await.unwrap();
    session.query_unpaged(format!("UPDATE {table} SET reserved = 0 WHERE id = 'hit'"), ()).await.unwrap();
    let most = i32::MAX;
    let sell = format!("UPDATE {table} SET reserved = reserved + 1 WHERE id = 'hit' IF reserved < {most}");
    let row = format!("INSERT INTO {table} (id, op_id, quantity) VALUES ('hit', ?, 1)");
    let mut sell = session.prepare(sell).await.unwrap();
    sell.set_consistency(Consistency::LocalQuorum);
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.append_statement(sell.clone());
    batch.append_statement(session.prepare(row).await.unwrap());
    batch.set_consistency(Consistency::LocalQuorum);
    let plain_row = PlainRow { session: Arc::clone(session), sell: batch };
    (Plain { session: Arc::clone(session), sell }, plain_row)
}

#[tokio::main]
async fn main() {
    let shared = shared();
    let points = shared.contact_points.iter().map(ToString::to_string).collect();
    let mut options = Options::new(points, shared.local_dc);
    PREFIX.clone_into(&mut options.keyspace);
    options.request_timeout = Duration::from_secs(10);
    let session = Arc::new(connect(&options).await.unwrap());
    options.schema().apply(&session, &|_| {}).await.unwrap();
    for table in Table::ALL {
        let name = format!("{}.{table}", table.class().keyspace(PREFIX));
        session.query_unpaged(format!("TRUNCATE {name}"), ()).await.unwrap();
    }
    let store = CassandraStore::open(options).await.unwrap();
    let product = Product {
        product_id: hit(),
        name: "The hit".to_owned(),
        category: mw_domain::Category::parse("hits").unwrap(),
        price: Money::from_minor(19_990),
        description: String::new(),
        attributes: Attributes::default(),
        created_at: now(),
        updated_at: now(),
    };
    store.put_product(product).await.unwrap();
    let set = SetOnHand {
        product_id: hit(),
        geo_zone: zone(),
        on_hand: UNITS,
        expected_on_hand: None,
        op: Uuid::new_v4(),
        now: now(),
    };
    store.set_on_hand(set).await.unwrap();

    let hold = Arc::new(Hold(Arc::clone(&store)));
    let order = Arc::new(Order { store: Arc::clone(&store), is_keyed: false });
    let keyed = Arc::new(Order { store: Arc::clone(&store), is_keyed: true });
    let (plain, plain_row) = plain(&session).await;
    let (plain, plain_row) = (Arc::new(plain), Arc::new(plain_row));
    println!("{BUYERS} buyers of one product, {} s each after a warm-up", MEASURED.as_secs());
    // `cargo bench -- orders` runs one of them, for a profiler.
    match std::env::args().nth(1).as_deref() {
        Some("reservations") => drop(report("reservations", &hold).await),
        Some("orders") => drop(report("whole orders", &order).await),
        Some("keyed-orders") => drop(report("whole orders with a key", &keyed).await),
        _ => {
            measure(&hold, WARM_UP).await;
            measure(&order, WARM_UP).await;
            measure(&keyed, WARM_UP).await;
            let together = report("reservations", &hold).await;
            report("whole orders", &order).await;
            report("whole orders with a key", &keyed).await;
            let alone = report("a conditional write a buyer", &plain).await;
            let with_row = report("the same with a row of its own", &plain_row).await;
            println!(
                "reservations are {:.0} times a conditional write a buyer, {:.0} times one with a row",
                together / alone.max(0.1),
                together / with_row.max(0.1)
            );
        }
    }
    let audit = store.audit(&|_| {}).await.unwrap();
    let level = store.zone_stock(&hit(), &zone(), Freshness::Full, now()).await.unwrap().unwrap().level;
    println!("reserved {} of {}, drifts of the audit: {}", level.reserved, level.on_hand, audit.drifts.len());
    store.close().await;
}
