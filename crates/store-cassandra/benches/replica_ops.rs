//! What the replicas do for a request: local reads, local writes and lightweight transactions per operation of the shop.
//! `cargo xtask replica-ops` runs this on a real cluster and compares with `replica_ops.toml`.
//!
//! One process sends the requests one by one, 50 ms apart by the time that commands carry. The nodes count for themselves
//! (`system_views`, local to each node); the cluster must have nothing else to do meanwhile. Background work has tables of
//! its own, which are not counted.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step ends the program, which prints its counts"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mw_domain::carts::CartLifetime;
use mw_domain::lanes::Lane;
use mw_domain::sessions::SessionLifetime;
use mw_domain::{CartId, Demand, OrderId, OrderStatus, Period, ReservationId, Timestamp};
use mw_store::carts::SetLine;
use mw_store::orders::{Basket, PlaceOrder, SetStatus};
use mw_store::products::ImportProduct;
use mw_store::sessions::{CreateSession, TouchSession};
use mw_store::stock::{Adjust, Reserve};
use mw_store::{Carts, Freshness, Orders, PageRequest, Products, RequestIdentity, Sessions, Stock};
use mw_store_cassandra::{
    CassandraStore, Class, Options, StatementKind, StatementObserver, Table, TracedStatement,
};
use mw_testkit::FakeClock;
use mw_testkit::builders::{demand, identity, product, product_id, session_id, user, user_id, zone};
use mw_testkit::cassandra::Lease;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::host_filter::AllowListHostFilter;
use uuid::Uuid;

/// Names the file for the counts, which `cargo xtask replica-ops` compares.
const REPORT: &str = "MW_REPLICA_OPS_REPORT";
const WARM_UP: u64 = 20;
const REQUESTS: u64 = 40;
/// Few, so that the keeper of each is running when its next order comes.
const PRODUCTS: u64 = 10;
const USERS: u64 = 10;
const ZONE: &str = "msk";
const LIFETIME: CartLifetime = CartLifetime { user_ms: 30 * 86_400_000, guest_ms: 86_400_000 };
const SESSION_LIFETIME: SessionLifetime = SessionLifetime { ttl_ms: 86_400_000 };
/// Between two requests, by the time that they carry.
const STEP_MS: i64 = 50;
/// The counts are complete when they have not changed for this time: a response does not wait for every replica.
const SETTLED: Duration = Duration::from_millis(700);
/// Tables of background work: what they take does not grow with the requests.
const BACKGROUND: [Table; 4] = [Table::Processes, Table::BucketPlans, Table::Settings, Table::ChangeLanes];

/// Reads and writes of the replicas by table.
type Ops = BTreeMap<String, (u64, u64)>;

/// A session to each node, and the keyspaces to count in.
struct Nodes {
    sessions: Vec<Session>,
    keyspaces: Vec<String>,
}

impl Nodes {
    async fn of(options: &Options) -> Self {
        let mut sessions = Vec::new();
        for point in &options.contact_points {
            let only = AllowListHostFilter::new([point]).unwrap();
            let builder = SessionBuilder::new().known_node(point).host_filter(Arc::new(only));
            sessions.push(builder.build().await.unwrap());
        }
        let keyspaces = Class::ALL.iter().map(|class| class.keyspace(&options.keyspace));
        Self { sessions, keyspaces: keyspaces.collect() }
    }

    fn counts(&self, keyspace: &str, table: &str) -> bool {
        let is_background = BACKGROUND.iter().any(|background| background.name() == table);
        let is_paxos = keyspace == "system" && table == "paxos";
        is_paxos || !is_background && self.keyspaces.iter().any(|name| name == keyspace)
    }

    async fn read(&self) -> Ops {
        let mut ops = Ops::new();
        for (view, is_read) in [("local_read_latency", true), ("local_write_latency", false)] {
            let text = format!("SELECT keyspace_name, table_name, count FROM system_views.{view}");
            for session in &self.sessions {
                let rows =
                    session.query_unpaged(text.as_str(), ()).await.unwrap().into_rows_result().unwrap();
                for row in rows.rows::<(String, String, i64)>().unwrap() {
                    let (keyspace, table, count) = row.unwrap();
                    if self.counts(&keyspace, &table) {
                        let (reads, writes) = ops.entry(table).or_default();
                        *(if is_read { reads } else { writes }) += u64::try_from(count).unwrap();
                    }
                }
            }
        }
        ops
    }

    /// The counts when nothing is under way any more.
    async fn settled(&self) -> Ops {
        let mut last = self.read().await;
        loop {
            tokio::time::sleep(SETTLED).await;
            let ops = self.read().await;
            if ops == last {
                return ops;
            }
            last = ops;
        }
    }
}

/// Counts the lightweight transactions that the engine sends.
#[derive(Debug, Default)]
struct CasCount(AtomicU64);

impl StatementObserver for CasCount {
    fn statement(&self, statement: &TracedStatement<'_>) {
        if statement.kind == StatementKind::Cas {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The shop, and what was counted so far.
struct Counting {
    store: Arc<CassandraStore>,
    nodes: Nodes,
    cas: Arc<CasCount>,
    /// Requests so far: each has its own time.
    sent: u64,
    report: String,
}

impl Counting {
    /// Sends the requests of a route; those of the warm-up do not count.
    async fn route(&mut self, name: &str, mut send: impl AsyncFnMut(&CassandraStore, u64, Timestamp)) {
        for number in 0..WARM_UP {
            send(&self.store, number, self.now()).await;
            self.sent += 1;
        }
        let (before, cas_before) = (self.nodes.settled().await, self.cas.0.load(Ordering::Relaxed));
        for number in WARM_UP..WARM_UP + REQUESTS {
            send(&self.store, number, self.now()).await;
            self.sent += 1;
        }
        let (after, cas) = (self.nodes.settled().await, self.cas.0.load(Ordering::Relaxed) - cas_before);
        let mut sums = (0, 0);
        let mut tables = String::new();
        for (table, (reads, writes)) in &after {
            let (reads_before, writes_before) = before.get(table).copied().unwrap_or_default();
            let (reads, writes) = (reads - reads_before, writes - writes_before);
            sums = (sums.0 + reads, sums.1 + writes);
            if reads + writes > 0 {
                write!(tables, "  {table} {:.1}/{:.1}", each(reads), each(writes)).unwrap();
            }
        }
        let (reads, writes) = sums;
        println!(
            "{name:<16} reads {:>5.1}  writes {:>5.1}  lwts {:>4.1} {tables}",
            each(reads),
            each(writes),
            each(cas)
        );
        writeln!(self.report, "{name}\t{REQUESTS}\t{reads}\t{writes}\t{cas}").unwrap();
    }

    fn now(&self) -> Timestamp {
        FakeClock::START.plus_millis(i64::try_from(self.sent).unwrap() * STEP_MS)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand operations are far below 2^52")]
fn each(sum: u64) -> f64 {
    sum as f64 / REQUESTS as f64
}

/// An id as the shop makes it: version 7, with the lane of this process.
fn id(at: Timestamp) -> Uuid {
    let millis = u128::try_from(at.as_millis()).unwrap();
    let random = Uuid::new_v4().as_u128() & 0xffff_ffff_0000;
    Lane::of(Uuid::nil()).stamp(Uuid::from_u128(millis << 80 | 0x7 << 76 | 0b10 << 62 | random))
}

fn at<T: Copy>(made: &[T], number: u64) -> T {
    *made.get(usize::try_from(number).unwrap()).unwrap()
}

fn name(number: u64) -> String {
    format!("p{}", number % PRODUCTS)
}

fn two_lines(number: u64) -> Vec<Demand> {
    vec![demand(&name(number), 1), demand(&name(number + 1), 1)]
}

fn key(route: &str, number: u64, now: Timestamp) -> RequestIdentity {
    let key = format!("{route}-{number}");
    identity(&key, &key, now)
}

fn buyer(number: u64) -> String {
    format!("u{}", number % USERS)
}

fn order(route: &str, number: u64, basket: Basket, now: Timestamp) -> PlaceOrder {
    PlaceOrder {
        order_id: OrderId::new(id(now)),
        user_id: user_id(&buyer(number)),
        geo_zone: zone(ZONE),
        basket,
        expected_total: None,
        delivery_address: Some("12 Long Street".to_owned()),
        payment_method: Some("card".to_owned()),
        pay_by: now.plus_seconds(1_800),
        now,
        identity: Some(key(route, number, now)),
    }
}

fn reservation(number: u64, now: Timestamp) -> Reserve {
    Reserve {
        reservation_id: ReservationId::new(id(now)),
        geo_zone: zone(ZONE),
        lines: two_lines(number),
        expires_at: now.plus_seconds(900),
        now,
        identity: Some(key("reserve", number, now)),
    }
}

fn cart_line(number: u64, line: u64, now: Timestamp) -> SetLine {
    SetLine {
        owner: user(&buyer(number)),
        product_id: product_id(&name(number + line)),
        quantity: 1,
        new_cart_id: CartId::new(id(now)),
        expected_version: None,
        lifetime: LIFETIME,
        now,
    }
}

async fn fill(store: &CassandraStore) {
    let now = FakeClock::START;
    for number in 0..PRODUCTS {
        let (product, stock) = (product(&name(number)).build(), vec![(zone(ZONE), 1_000_000)]);
        let command = ImportProduct { product, stock, op: id(now), now, identity: None };
        store.import_product(command).await.unwrap();
    }
}

async fn count_orders(counting: &mut Counting) {
    let mut orders = Vec::new();
    counting
        .route("place_order", async |store, number, now| {
            let command = order("order", number, Basket::Lines(two_lines(number)), now);
            orders.push(store.place_order(command).await.unwrap().value.order_id);
        })
        .await;
    let steps = [("pay_order", OrderStatus::Paid, false), ("ship_order_keyed", OrderStatus::Shipped, true)];
    for (route, to, is_keyed) in steps {
        counting
            .route(route, async |store, number, now| {
                let order_id = at(&orders, number);
                let (note, identity) = (None, is_keyed.then(|| key(route, number, now)));
                let command =
                    SetStatus { order_id, of_user: None, to, note, expected_version: None, now, identity };
                store.set_status(command).await.unwrap();
            })
            .await;
    }
    counting
        .route("order", async |store, number, _| {
            store.order(at(&orders, number)).await.unwrap().unwrap();
        })
        .await;
    counting
        .route("orders_of_user", async |store, number, now| {
            let period = Period { from: Timestamp::EPOCH, to: now };
            let user_id = user_id(&buyer(number));
            store.user_orders(&user_id, period, PageRequest::first(20)).await.unwrap();
        })
        .await;
}

async fn count_carts(counting: &mut Counting) {
    counting
        .route("set_line", async |store, number, now| {
            store.set_line(cart_line(number, number / USERS, now)).await.unwrap();
        })
        .await;
    counting
        .route("cart", async |store, number, now| {
            store.active_cart(&user(&buyer(number)), now).await.unwrap().unwrap();
        })
        .await;
    counting
        .route("line_and_checkout", async |store, number, now| {
            store.set_line(cart_line(number, 0, now)).await.unwrap();
            let basket = Basket::Cart { expected_version: None, lifetime: LIFETIME };
            store.place_order(order("checkout", number, basket, now)).await.unwrap();
        })
        .await;
}

fn session_of(name: &str, now: Timestamp) -> CreateSession {
    let session = mw_domain::Session {
        session_id: session_id(name),
        user_id: None,
        geo_zone: Some(zone(ZONE)),
        ip: None,
        user_agent: None,
        device_type: None,
        data: BTreeMap::new(),
        created_at: now,
        last_activity: now,
        expires_at: now.plus_millis(SESSION_LIFETIME.ttl_ms),
    };
    CreateSession { session, id_seed: Some(id(now)), now, identity: None }
}

async fn count_sessions(counting: &mut Counting) {
    let mut sessions = Vec::new();
    counting
        .route("create_session", async |store, number, now| {
            let command = session_of(&format!("s{number}"), now);
            sessions.push(store.create_session(command).await.unwrap().value.session_id);
        })
        .await;
    counting
        .route("touch_session", async |store, number, now| {
            let session_id = sessions.get(usize::try_from(number).unwrap()).unwrap().clone();
            let data = BTreeMap::from([("page".to_owned(), Some(number.to_string()))]);
            let command = TouchSession { session_id, data, lifetime: SESSION_LIFETIME, now };
            store.touch_session(command).await.unwrap();
        })
        .await;
    counting
        .route("session", async |store, number, now| {
            let session_id = sessions.get(usize::try_from(number).unwrap()).unwrap();
            store.session(session_id, now).await.unwrap().unwrap();
        })
        .await;
}

async fn count_stock(counting: &mut Counting) {
    let mut held = Vec::new();
    counting
        .route("reserve", async |store, number, now| {
            held.push(store.reserve(reservation(number, now)).await.unwrap().value.reservation_id);
        })
        .await;
    counting
        .route("confirm", async |store, number, now| {
            let reservation_id = at(&held, number);
            store.confirm(reservation_id, now, Some(key("confirm", number, now))).await.unwrap();
        })
        .await;
    counting
        .route("adjust", async |store, number, now| {
            let command = Adjust {
                product_id: product_id(&name(number)),
                geo_zone: zone(ZONE),
                delta: 1,
                reason: "delivery".to_owned(),
                op: id(now),
                now,
                identity: Some(key("adjust", number, now)),
            };
            store.adjust(command).await.unwrap();
        })
        .await;
    counting
        .route("product", async |store, number, _| {
            store.product(&product_id(&name(number)), Freshness::Latest).await.unwrap().unwrap();
        })
        .await;
    counting
        .route("import_product", async |store, number, now| {
            let (product, stock) = (product(&name(number)).build(), vec![(zone(ZONE), 1_000_000)]);
            let identity = Some(key("import", number, now));
            store.import_product(ImportProduct { product, stock, op: id(now), now, identity }).await.unwrap();
        })
        .await;
}

#[tokio::main]
async fn main() {
    let lease = Lease::empty().await;
    let cas = Arc::new(CasCount::default());
    let options = Options { trace: Some(Arc::clone(&cas) as _), ..lease.options().clone() };
    let store = CassandraStore::open(options).await.unwrap();
    let nodes = Nodes::of(lease.options()).await;
    fill(&store).await;
    let mut counting = Counting { store, nodes, cas, sent: 0, report: String::new() };
    count_orders(&mut counting).await;
    count_carts(&mut counting).await;
    count_sessions(&mut counting).await;
    count_stock(&mut counting).await;
    if let Some(path) = std::env::var_os(REPORT) {
        std::fs::write(path, counting.report).unwrap();
    }
}
