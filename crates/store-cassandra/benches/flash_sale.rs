//! A flash sale: a thousand buyers of one product, on the cluster that `MW_TEST_CASSANDRA` names, all in one run.
//!
//! Reservations, whole orders without and with a key, and the way without a keeper (a conditional write a buyer). All of it
//! runs once unmeasured, since a JVM compiles what it has seen often; then each way begins with tables of its own that are
//! empty. Rates are of this machine; what counts is their ratio.
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
const WARM_UP: Duration = Duration::from_secs(30);
const SETTLED: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(10);
const UNITS: u64 = 1_000_000_000;

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
async fn plain(Shop { session, prefix, .. }: &Shop) -> (Plain, PlainRow) {
    let table = format!("{}.plain_stock", Class::Core.keyspace(prefix));
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

/// A shop with the product on keyspaces of its own, which are empty.
struct Shop {
    store: Arc<CassandraStore>,
    session: Arc<Session>,
    prefix: String,
}

impl Shop {
    async fn open(name: &str) -> Self {
        let shared = shared();
        let points = shared.contact_points.iter().map(ToString::to_string).collect();
        let mut options = Options::new(points, shared.local_dc);
        options.keyspace = format!("mw_sale_{name}");
        options.request_timeout = Duration::from_secs(10);
        let session = Arc::new(connect(&options).await.unwrap());
        options.schema().apply(&session, &|_| {}).await.unwrap();
        let prefix = options.keyspace.clone();
        clear(&session, &prefix).await;
        let store = CassandraStore::open(options).await.unwrap();
        let shop = Self { store, session, prefix };
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
        shop.store.put_product(product).await.unwrap();
        let set = SetOnHand {
            product_id: hit(),
            geo_zone: zone(),
            on_hand: UNITS,
            expected_on_hand: None,
            op: Uuid::new_v4(),
            now: now(),
        };
        shop.store.set_on_hand(set).await.unwrap();
        shop
    }

    fn holds(&self) -> Arc<Hold> {
        Arc::new(Hold(Arc::clone(&self.store)))
    }

    fn orders(&self, is_keyed: bool) -> Arc<Order> {
        Arc::new(Order { store: Arc::clone(&self.store), is_keyed })
    }

    /// Whether all figures are explained.
    async fn audit(&self) {
        let audit = self.store.audit(&|_| {}).await.unwrap();
        let stock = self.store.zone_stock(&hit(), &zone(), Freshness::Full, now()).await.unwrap();
        let level = stock.unwrap().level;
        println!(
            "  reserved {} of {}, drifts of the audit: {}",
            level.reserved,
            level.on_hand,
            audit.drifts.len()
        );
    }

    /// Leaves nothing that the nodes would be busy with.
    async fn close(self) {
        self.store.close().await;
        clear(&self.session, &self.prefix).await;
    }
}

async fn clear(session: &Session, prefix: &str) {
    for table in Table::ALL {
        let truncate = format!("TRUNCATE {}.{table}", table.class().keyspace(prefix));
        session.query_unpaged(truncate, ()).await.unwrap();
    }
}

/// Measures one way on a shop of its own.
async fn alone<B: Buy>(name: &str, title: &str, way: impl AsyncFn(&Shop) -> Arc<B>) -> f64 {
    let shop = Shop::open(name).await;
    let rate = report(title, &way(&shop).await).await;
    shop.audit().await;
    shop.close().await;
    rate
}

#[tokio::main]
async fn main() {
    println!("{BUYERS} buyers of one product, {} s each after a warm-up", MEASURED.as_secs());
    let holds = async || alone("holds", "reservations", async |shop| shop.holds()).await;
    let orders = async || alone("orders", "whole orders", async |shop| shop.orders(false)).await;
    let keyed = async || alone("keyed", "whole orders with a key", async |shop| shop.orders(true)).await;
    // `cargo bench -- orders` runs one of them, for a profiler.
    match std::env::args().nth(1).as_deref() {
        Some("reservations") => drop(holds().await),
        Some("orders") => drop(orders().await),
        Some("keyed-orders") => drop(keyed().await),
        _ => {
            let practice = Shop::open("practice").await;
            measure(&practice.holds(), WARM_UP).await;
            measure(&practice.orders(false), WARM_UP).await;
            measure(&practice.orders(true), WARM_UP).await;
            practice.close().await;
            let together = holds().await;
            orders().await;
            keyed().await;
            let figure = async |shop: &Shop| Arc::new(plain(shop).await.0);
            let single = alone("plain", "a conditional write a buyer", figure).await;
            let row = async |shop: &Shop| Arc::new(plain(shop).await.1);
            let with_row = alone("row", "the same with a row of its own", row).await;
            println!(
                "reservations are {:.0} times a conditional write a buyer, {:.0} times one with a row",
                together / single.max(0.1),
                together / with_row.max(0.1)
            );
        }
    }
}
