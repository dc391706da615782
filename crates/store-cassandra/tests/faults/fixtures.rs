//! Fixtures of the fault tests: clusters of their own, products with stock, and commands with defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::carts::CartLifetime;
use mw_domain::{
    Cart, CartId, Demand, OrderId, Owner, Period, ReservationId, Session, SessionId, Timestamp, UserId,
};
use mw_store::carts::SetLine;
use mw_store::orders::{Basket, PlaceOrder};
use mw_store::products::ImportProduct;
use mw_store::stock::Reserve;
use mw_store::{Carts, Freshness, Orders, PageRequest, Products, Result, Stock};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Options, Table};
use mw_testkit::FakeClock;
use mw_testkit::builders::{demand, product, product_id, user, user_id, zone};
use mw_testkit::cassandra::{Cluster, ClusterOptions};
use tokio::sync::{Mutex, MutexGuard};
use uuid::Uuid;

pub(crate) const NOW: Timestamp = FakeClock::START;
pub(crate) const ZONE: &str = "msk";
pub(crate) const LIFETIME: CartLifetime = CartLifetime { user_ms: 30 * 86_400_000, guest_ms: 86_400_000 };
/// Bounds every wait. What is awaited takes seconds; test machines are slow at times.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// Runs one test at a time: they measure latencies, and a second cluster would slow them.
pub(crate) async fn exclusive() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::const_new(());
    RUNNING.lock().await
}

pub(crate) async fn start(options: ClusterOptions) -> Arc<Cluster> {
    Arc::new(tokio::task::spawn_blocking(|| Cluster::start(options).unwrap()).await.unwrap())
}

/// Runs a blocking operation on a cluster.
pub(crate) async fn with<T: Send + 'static>(
    cluster: &Arc<Cluster>,
    work: impl FnOnce(&Cluster) -> T + Send + 'static,
) -> T {
    let cluster = Arc::clone(cluster);
    tokio::task::spawn_blocking(move || work(&cluster)).await.unwrap()
}

/// Options for a process in one data centre.
pub(crate) fn options(cluster: &Cluster, dc: &str) -> Options {
    let points = cluster.contact_points().into_iter().zip(cluster.nodes());
    let local = points.filter(|(_, node)| node.dc() == dc).map(|(point, _)| point.to_string());
    Options::new(local.collect(), dc)
}

/// `keyspace.table`.
pub(crate) fn full_name(options: &Options, table: Table) -> String {
    format!("{}.{}", table.class().keyspace(&options.keyspace), table.name())
}

pub(crate) async fn apply_schema(options: &Options) {
    let session = connect(options).await.unwrap();
    options.schema().apply(&session, &|_| {}).await.unwrap();
}

/// Polls until `poll` returns a value.
pub(crate) async fn eventually<T>(
    what: &str,
    timeout: Duration,
    mut poll: impl AsyncFnMut() -> Option<T>,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(started.elapsed() < timeout, "not within {timeout:?}: {what}");
        tokio::time::sleep(POLL_PAUSE).await;
    }
}

/// Imports a product with units on hand in the zone.
pub(crate) async fn import_stock(store: &CassandraStore, name: &str, units: u64) {
    let (product, op) = (product(name).build(), Uuid::now_v7());
    let command = ImportProduct { product, stock: vec![(zone(ZONE), units)], op, now: NOW, identity: None };
    store.import_product(command).await.unwrap();
}

/// Units on hand, and units reserved.
pub(crate) async fn stock_level(store: &CassandraStore, name: &str) -> Result<(u64, u64)> {
    let stock = store.zone_stock(&product_id(name), &zone(ZONE), Freshness::Latest, NOW).await?.unwrap();
    Ok((stock.level.on_hand, stock.level.reserved))
}

pub(crate) async fn set_line(
    store: &CassandraStore,
    owner: Owner,
    name: &str,
    quantity: u32,
) -> Result<Cart> {
    let command = SetLine {
        owner,
        product_id: product_id(name),
        quantity,
        new_cart_id: CartId::new(Uuid::now_v7()),
        expected_version: None,
        lifetime: LIFETIME,
        now: NOW,
    };
    store.set_line(command).await
}

/// A session without a user.
pub(crate) fn guest_session(session_id: SessionId) -> Session {
    Session {
        session_id,
        user_id: None,
        geo_zone: None,
        ip: None,
        user_agent: None,
        device_type: None,
        data: BTreeMap::new(),
        created_at: NOW,
        last_activity: NOW,
        expires_at: NOW.plus_seconds(86_400),
    }
}

/// An order of one unit of each product.
pub(crate) fn order(user: &str, names: &[&str]) -> PlaceOrder {
    PlaceOrder {
        order_id: OrderId::new(Uuid::now_v7()),
        user_id: user_id(user),
        geo_zone: zone(ZONE),
        basket: Basket::Lines(names.iter().map(|name| demand(name, 1)).collect()),
        expected_total: None,
        delivery_address: None,
        payment_method: None,
        pay_by: NOW.plus_seconds(1_800),
        now: NOW,
        identity: None,
    }
}

/// A reservation of one unit.
pub(crate) fn hold(name: &str) -> Reserve {
    let lines: Vec<Demand> = vec![demand(name, 1)];
    let reservation_id = ReservationId::new(Uuid::now_v7());
    let expires_at = NOW.plus_seconds(900);
    Reserve { reservation_id, geo_zone: zone(ZONE), lines, expires_at, now: NOW, identity: None }
}

fn today() -> Period {
    Period::day(NOW.date())
}

/// The orders that are listed for the user, or for the zone.
pub(crate) async fn listed(store: &CassandraStore, user: Option<&UserId>) -> Result<BTreeSet<OrderId>> {
    let mut found = BTreeSet::new();
    let mut request = PageRequest::first(100);
    loop {
        let page = match user {
            Some(user) => store.user_orders(user, today(), request.clone()).await?,
            None => store.orders(Some(&zone(ZONE)), today(), request.clone()).await?,
        };
        found.extend(page.items.iter().map(|order| order.order_id));
        match page.next {
            Some(_) => request.after = page.next,
            None => return Ok(found),
        }
    }
}

/// Every stock level is the sum of its ledger.
pub(crate) async fn assert_audit(store: &CassandraStore) {
    let audit = store.audit(&|_| {}).await.unwrap();
    assert!(audit.levels > 0);
    assert_eq!(audit.drifts, []);
}

pub(crate) async fn cart_lines(store: &CassandraStore, name: &str) -> Result<Vec<(String, u32)>> {
    let cart = store.active_cart(&user(name), NOW).await?;
    let lines = cart.map(|cart| cart.lines).unwrap_or_default();
    Ok(lines.iter().map(|line| (line.product_id.to_string(), line.quantity)).collect())
}
