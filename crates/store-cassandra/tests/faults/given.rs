//! What the tests begin with: clusters of their own, a catalogue with stock, and commands in few words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::cart::CartLifetime;
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
/// What is awaited comes in seconds; machines are slow at times.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(100);

/// One test at a time: they measure how long requests take, and a cluster beside another one slows both.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

pub(crate) async fn start(options: ClusterOptions) -> Arc<Cluster> {
    Arc::new(tokio::task::spawn_blocking(|| Cluster::start(options).unwrap()).await.unwrap())
}

/// Does something to a cluster that takes a while.
pub(crate) async fn with<T: Send + 'static>(
    cluster: &Arc<Cluster>,
    work: impl FnOnce(&Cluster) -> T + Send + 'static,
) -> T {
    let cluster = Arc::clone(cluster);
    tokio::task::spawn_blocking(move || work(&cluster)).await.unwrap()
}

/// How to reach the nodes of one data centre.
pub(crate) fn options(cluster: &Cluster, dc: &str) -> Options {
    let points = cluster.contact_points().into_iter().zip(cluster.nodes());
    let local = points.filter(|(_, node)| node.dc() == dc).map(|(point, _)| point.to_string());
    Options::new(local.collect(), dc)
}

/// `keyspace.table`, as statements name it.
pub(crate) fn name(options: &Options, table: Table) -> String {
    format!("{}.{}", table.class().keyspace(&options.keyspace), table.name())
}

pub(crate) async fn apply_schema(options: &Options) {
    let session = connect(options).await.unwrap();
    options.schema().apply(&session, &|_| {}).await.unwrap();
}

/// Polls until it answers something.
pub(crate) async fn eventually<T>(
    what: &str,
    patience: Duration,
    mut poll: impl AsyncFnMut() -> Option<T>,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(started.elapsed() < patience, "not in {patience:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// A card with so many units in the zone.
pub(crate) async fn stocked(store: &CassandraStore, name: &str, units: u64) {
    let (product, op) = (product(name).build(), Uuid::now_v7());
    let command = ImportProduct { product, stock: vec![(zone(ZONE), units)], op, now: NOW, once: None };
    store.import_product(command).await.unwrap();
}

/// Units on hand, and those promised to somebody.
pub(crate) async fn units(store: &CassandraStore, name: &str) -> Result<(u64, u64)> {
    let stock = store.zone_stock(&product_id(name), &zone(ZONE), Freshness::Full, NOW).await?.unwrap();
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

/// A session of somebody unknown.
pub(crate) fn visit(session_id: SessionId) -> Session {
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

/// An order of one unit of each.
pub(crate) fn order(customer: &str, names: &[&str]) -> PlaceOrder {
    PlaceOrder {
        order_id: OrderId::new(Uuid::now_v7()),
        user_id: user_id(customer),
        geo_zone: zone(ZONE),
        basket: Basket::Lines(names.iter().map(|name| demand(name, 1)).collect()),
        expected_total: None,
        delivery_address: None,
        payment_method: None,
        pay_by: NOW.plus_seconds(1_800),
        now: NOW,
        once: None,
    }
}

/// A hold on one unit.
pub(crate) fn hold(name: &str) -> Reserve {
    let lines: Vec<Demand> = vec![demand(name, 1)];
    let reservation_id = ReservationId::new(Uuid::now_v7());
    let expires_at = NOW.plus_seconds(900);
    Reserve { reservation_id, geo_zone: zone(ZONE), lines, expires_at, now: NOW, once: None }
}

fn today() -> Period {
    Period::day(NOW.date())
}

/// Where a customer's orders, or a zone's, are listed.
pub(crate) async fn listed(store: &CassandraStore, customer: Option<&UserId>) -> Result<BTreeSet<OrderId>> {
    let mut found = BTreeSet::new();
    let mut request = PageRequest::first(100);
    loop {
        let page = match customer {
            Some(customer) => store.customer_orders(customer, today(), request.clone()).await?,
            None => store.orders(Some(&zone(ZONE)), today(), request.clone()).await?,
        };
        found.extend(page.items.iter().map(|order| order.order_id));
        match page.next {
            Some(_) => request.after = page.next,
            None => return Ok(found),
        }
    }
}

/// Every figure is explained by the ledger and by what is held.
pub(crate) async fn audited(store: &CassandraStore) {
    let audit = store.audit(&|_| {}).await.unwrap();
    assert!(audit.figures > 0);
    assert_eq!(audit.drifts, []);
}

pub(crate) async fn lines(store: &CassandraStore, customer: &str) -> Result<Vec<(String, u32)>> {
    let cart = store.active_cart(&user(customer), NOW).await?;
    let lines = cart.map(|cart| cart.lines).unwrap_or_default();
    Ok(lines.iter().map(|line| (line.product_id.to_string(), line.quantity)).collect())
}
