//! Flash sale: a thousand concurrent buyers of one product, on the cluster that `MW_TEST_CASSANDRA` names.
//!
//! Measures reservations, orders without and with an idempotency key, and as baselines one LWT per buyer without a keeper;
//! `cargo bench -- processes` measures many processes that sell the product ([`processes`]).
//! Everything runs once as a warm-up for the JVM; then each case starts on empty tables of its own. The rates depend on the
//! machine; the ratios are the result.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark panics on errors and prints its results"
)]

mod processes;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use mw_domain::lanes::Lane;
use mw_domain::{
    Attributes, Demand, GeoZone, IdempotencyKey, Money, OrderId, Product, ProductId, ReservationId,
    Timestamp, UserId,
};
use mw_store::orders::{Basket, PlaceOrder};
use mw_store::stock::{Reserve, SetOnHand};
use mw_store::{Fingerprint, Freshness, Orders, Products, RequestIdentity, Result, Stock};
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
const RAMP_UP: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(10);
const UNITS: u64 = 1_000_000_000;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
}

/// One case of the benchmark: what a buyer does in a loop.
trait Buy: Send + Sync + 'static {
    fn buy(&self, buyer: usize) -> impl Future<Output = Result<(), String>> + Send;
}

/// Baseline: one LWT per buyer on the stock level alone.
struct Lwt {
    session: Arc<Session>,
    sell: PreparedStatement,
}

impl Buy for Lwt {
    async fn buy(&self, _: usize) -> Result<(), String> {
        let sold = self.session.execute_unpaged(&self.sell, ()).await;
        sold.map(drop).map_err(|error| error.to_string())
    }
}

/// Baseline: one LWT per buyer that also writes the ledger row by which a lost response is resolved.
struct LwtWithRow {
    session: Arc<Session>,
    sell: Batch,
}

impl Buy for LwtWithRow {
    async fn buy(&self, _: usize) -> Result<(), String> {
        let sold = self.session.batch(&self.sell, ((), (Uuid::now_v7(),))).await;
        sold.map(drop).map_err(|error| error.to_string())
    }
}

struct Reservation(Arc<CassandraStore>);

impl Buy for Reservation {
    async fn buy(&self, _: usize) -> Result<(), String> {
        let command = Reserve {
            reservation_id: ReservationId::new(new_id()),
            geo_zone: zone(),
            lines: one_hit(),
            expires_at: now().plus_seconds(900),
            now: now(),
            identity: None,
        };
        self.0.reserve(command).await.map(drop).map_err(|error| error.to_string())
    }
}

struct Order {
    store: Arc<CassandraStore>,
    has_key: bool,
}

impl Buy for Order {
    async fn buy(&self, buyer: usize) -> Result<(), String> {
        let key = || IdempotencyKey::parse(&Uuid::new_v4().to_string()).unwrap();
        let identity = || RequestIdentity {
            key: key(),
            fingerprint: Fingerprint([1; 32]),
            keep_until: now().plus_seconds(86_400),
        };
        let command = PlaceOrder {
            order_id: OrderId::new(new_id()),
            user_id: UserId::parse(&format!("u{buyer}")).unwrap(),
            geo_zone: zone(),
            basket: Basket::Lines(one_hit()),
            expected_total: None,
            delivery_address: Some("12 Long Street".to_owned()),
            payment_method: Some("card".to_owned()),
            pay_by: now().plus_seconds(1_800),
            now: now(),
            identity: self.has_key.then(identity),
        };
        self.store.place_order(command).await.map(drop).map_err(|error| error.to_string())
    }
}

/// An id of this process, as the shop makes them.
fn new_id() -> Uuid {
    static LANE: LazyLock<Lane> = LazyLock::new(|| Lane::of(Uuid::new_v4()));
    LANE.stamp(Uuid::now_v7())
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

/// The purchases per second of all buyers together, and the number of failures.
async fn measure(case: &Arc<impl Buy>, measured: Duration) -> (f64, u64) {
    let stop = Arc::new(AtomicBool::new(false));
    let (bought, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let buyers: Vec<_> = (0..BUYERS)
        .map(|buyer| {
            let (case, stop) = (Arc::clone(case), Arc::clone(&stop));
            let (bought, failed) = (Arc::clone(&bought), Arc::clone(&failed));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let count = if case.buy(buyer).await.is_ok() { &bought } else { &failed };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(RAMP_UP).await;
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

async fn report(name: &str, case: &Arc<impl Buy>) -> f64 {
    let (rate, failed) = measure(case, MEASURED).await;
    println!("{name:<38} {rate:>9.1}/s   failed {failed}");
    rate
}

/// The baselines, at the same consistency levels as the engine.
async fn baselines(Shop { session, prefix, .. }: &Shop) -> (Lwt, LwtWithRow) {
    let table = format!("{}.lwt_stock", Class::Core.keyspace(prefix));
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
    let with_row = LwtWithRow { session: Arc::clone(session), sell: batch };
    (Lwt { session: Arc::clone(session), sell }, with_row)
}

/// A shop with the product, on empty keyspaces of its own.
struct Shop {
    store: Arc<CassandraStore>,
    session: Arc<Session>,
    prefix: String,
}

impl Shop {
    /// A further process on the keyspaces of a shop.
    async fn join(name: &str) -> Self {
        let mut options = options();
        options.keyspace = format!("mw_sale_{name}");
        let session = Arc::new(connect(&options).await.unwrap());
        let prefix = options.keyspace.clone();
        let store = CassandraStore::open(options).await.unwrap();
        Self { store, session, prefix }
    }

    async fn open(name: &str) -> Self {
        let mut options = options();
        options.keyspace = format!("mw_sale_{name}");
        let session = connect(&options).await.unwrap();
        options.schema().apply(&session, &|_| {}).await.unwrap();
        clear(&session, &options.keyspace).await;
        let shop = Self::join(name).await;
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

    fn reservations(&self) -> Arc<Reservation> {
        Arc::new(Reservation(Arc::clone(&self.store)))
    }

    fn orders(&self, has_key: bool) -> Arc<Order> {
        Arc::new(Order { store: Arc::clone(&self.store), has_key })
    }

    /// Audits the stock.
    async fn audit(&self) {
        let audit = self.store.audit(&|_| {}).await.unwrap();
        let stock = self.store.zone_stock(&hit(), &zone(), Freshness::Latest, now()).await.unwrap();
        let level = stock.unwrap().level;
        println!("  reserved {} of {}, audit drifts: {}", level.reserved, level.on_hand, audit.drifts.len());
    }

    /// Ends this process and leaves the shop to others; returns the keyspace.
    async fn leave(self) -> String {
        self.store.close().await;
        self.prefix
    }

    /// Empties the tables, so that compaction does not disturb the next case.
    async fn close(self) {
        self.store.close().await;
        clear(&self.session, &self.prefix).await;
    }
}

/// Of a process on the cluster.
fn options() -> Options {
    let shared = shared();
    let points = shared.contact_points.iter().map(ToString::to_string).collect();
    let mut options = Options::new(points, shared.local_dc);
    options.request_timeout = Duration::from_secs(10);
    options
}

async fn clear(session: &Session, prefix: &str) {
    for table in Table::ALL {
        let truncate = format!("TRUNCATE {}.{table}", table.class().keyspace(prefix));
        session.query_unpaged(truncate, ()).await.unwrap();
    }
}

/// Measures one case on a shop of its own.
async fn run_case<B: Buy>(name: &str, title: &str, case: impl AsyncFn(&Shop) -> Arc<B>) -> f64 {
    let shop = Shop::open(name).await;
    let rate = report(title, &case(&shop).await).await;
    shop.audit().await;
    shop.close().await;
    rate
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(processes::SELLER) {
        return processes::sell(arguments).await;
    }
    println!("{BUYERS} buyers of one product, {} s each after a warm-up", MEASURED.as_secs());
    let reservations =
        async || run_case("reservations", "reservations", async |shop| shop.reservations()).await;
    let orders = async || run_case("orders", "whole orders", async |shop| shop.orders(false)).await;
    let keyed = async || run_case("keyed", "whole orders with a key", async |shop| shop.orders(true)).await;
    // `cargo bench -- orders` runs one of them, for a profiler.
    match std::env::args().nth(1).as_deref() {
        Some("reservations") => drop(reservations().await),
        Some("orders") => drop(orders().await),
        Some("keyed-orders") => drop(keyed().await),
        Some("processes") => processes::compare().await,
        _ => {
            let warm_up = Shop::open("warm_up").await;
            measure(&warm_up.reservations(), WARM_UP).await;
            measure(&warm_up.orders(false), WARM_UP).await;
            measure(&warm_up.orders(true), WARM_UP).await;
            warm_up.close().await;
            let batched = reservations().await;
            orders().await;
            keyed().await;
            let lwt = async |shop: &Shop| Arc::new(baselines(shop).await.0);
            let single = run_case("lwt", "one LWT per buyer", lwt).await;
            let row = async |shop: &Shop| Arc::new(baselines(shop).await.1);
            let with_row = run_case("row", "one LWT per buyer, with a ledger row", row).await;
            println!(
                "reservations are {:.0} times one LWT per buyer, {:.0} times one with a ledger row",
                batched / single.max(0.1),
                batched / with_row.max(0.1)
            );
        }
    }
}
