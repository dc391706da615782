//! A migration from a real replica set to a real Cassandra cluster, while the shop's programs write: killed, resumed by another
//! process, verified, and cut over by a command of a third one.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mw_domain::carts::CartLifetime;
use mw_domain::{OrderStatus, Period, Timestamp};
use mw_migrate::control::{Request, Response, ask_through};
use mw_migrate::{
    CutOver, Cutover, Ended, Kind, Parts, Phase, RunOptions, Settings, Source, Status, run, status,
};
use mw_store::migration::{Change, MigrationTarget};
use mw_store::orders::SetStatus;
use mw_store::{ExportImport, Orders, PageRequest};
use mw_store_cassandra::CassandraStore;
use mw_store_mongodb::Options as MongoOptions;
use mw_store_mongodb::statuses::Statuses;
use mw_testkit::cassandra::Lease;
use mw_testkit::mongodb::start_replica_set;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Shape, Shop, Writers, add_unacceptable};

const DAY_MS: i64 = 86_400_000;
const DATABASE: &str = "mobile_world";
/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_mins(4);
/// Documents of the shop before the migration. The cluster shares the machine with all other tests.
const ORDERS: usize = 400;
const CARTS: usize = 80;

/// A migrator of its own, as a process is: it opens the target and goes on from there.
struct Migrator {
    store: Arc<CassandraStore>,
    task: tokio::task::JoinHandle<mw_migrate::Result<Ended>>,
}

impl Migrator {
    async fn start(uri: &str, lease: &Lease) -> Self {
        let store = lease.open().await;
        let parts = Parts {
            source: Arc::new(source(uri).await),
            target: Arc::clone(&store) as Arc<dyn MigrationTarget>,
            settings: Settings {
                statuses: Statuses::default(),
                zones: [("Казань".to_owned(), "kazan".to_owned())].into(),
                cart_lifetime: CartLifetime { user_ms: 30 * DAY_MS, guest_ms: DAY_MS },
            },
            listener: None,
        };
        let options = RunOptions { rate: Some(400), recopy: false };
        let task = tokio::spawn(async move { run(parts, options, &|_| {}, std::future::pending()).await });
        Self { store, task }
    }

    /// Ends it in the middle of whatever it does; the other processes only see that its heartbeat stands still.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        let started = Instant::now();
        while Arc::strong_count(&self.store) > 1 {
            assert!(started.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn source(uri: &str) -> Source {
    let options = MongoOptions { database: DATABASE.to_owned(), ..MongoOptions::new(uri) };
    Source::connect(&options).await.unwrap()
}

/// A command of an operator on another machine.
async fn ask(operator: &CassandraStore, request: Request) -> Option<Response> {
    ask_through(operator.mailbox().unwrap(), request).await.unwrap()
}

async fn wait_until(operator: &CassandraStore, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
    let started = Instant::now();
    loop {
        match ask(operator, Request::Status).await {
            Some(Response::Status(status)) if is_so(&status) => return status,
            found => assert!(started.elapsed() < PATIENCE, "wait until {what}: {found:?}"),
        }
    }
}

async fn verified(operator: &CassandraStore, repair: bool) -> mw_migrate::Verified {
    match ask(operator, Request::Verify { repair }).await {
        Some(Response::Verified(verified)) => verified,
        other => panic!("{other:?}"),
    }
}

async fn cut_over(operator: &CassandraStore, accept_rejected: bool) -> CutOver {
    let cutover = Cutover { timeout: Duration::from_mins(1), block: true, accept_rejected };
    match ask(operator, Request::CutOver(cutover)).await {
        Some(Response::CutOver(done)) => done,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_moves_to_a_cluster_under_live_writes_and_kills() {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (cluster, lease) = tokio::join!(start_replica_set("migrate_to_cassandra", 1), Lease::empty());
    let uri = cluster.uri();
    let shape = if seed.is_multiple_of(2) { Shape::Customer } else { Shape::User };
    let shop = Arc::new(Shop::new(&uri, DATABASE, shape).await);
    shop.fill(&mut random, ORDERS, CARTS).await;
    let rejected = add_unacceptable(&shop, &mut random).await;
    let writers = Writers::start(&shop, seed, 1);
    let operator = lease.open().await;
    for _ in 0..2 {
        let migrator = Migrator::start(&uri, &lease).await;
        tokio::time::sleep(Duration::from_millis(random.random_range(500..4_000))).await;
        migrator.kill().await;
    }
    let migrator = Migrator::start(&uri, &lease).await;
    wait_until(&operator, "everything is equal", |status| status.verified_up_to.is_some()).await;
    check_faults(&shop, &operator, &migrator.store).await;

    let CutOver::Refused(reasons) = cut_over(&operator, false).await else {
        panic!("rejected documents block it")
    };
    assert!(reasons.iter().any(|reason| reason.contains("rejected")), "{reasons:?}");
    let done = cut_over(&operator, true).await;
    let CutOver::Done { pause } = done else { panic!("the cutover must succeed: {done:?}") };
    eprintln!("{} writes, pause {pause:?}", writers.writes.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(migrator.task.await.unwrap().unwrap(), Ended::CutOver);
    writers.end().await;
    let found: BTreeSet<(String, String)> = status::rejected(&*operator)
        .await
        .unwrap()
        .into_iter()
        .filter(|it| it.blocking)
        .map(|it| (it.collection, it.id))
        .collect();
    assert_eq!(found, rejected);
    assert!(ask(&operator, Request::Status).await.is_none(), "no process runs it any more");
    check_orders(&shop, &operator, &rejected).await;
    check_service(&operator).await;
    mw_migrate::finish(&source(&uri).await, &*operator).await.unwrap();
    shop.collection("orders").insert_one(shop.order(&mut random, "new")).await.unwrap();
    let status = status::stopped(&*operator).await.unwrap().unwrap();
    assert_eq!((status.phase, status.counts.of(Kind::Orders).mismatched), (Phase::Done, 0));
}

/// What someone did to the target behind the migration's back is found, and mended.
async fn check_faults(shop: &Shop, operator: &CassandraStore, running: &CassandraStore) {
    let mut random = StdRng::seed_from_u64(7);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut order = shop.order(&mut random, "done");
        order.insert("keep", true);
        ids.push(mw_domain::OrderId::parse(&order.get_object_id("_id").unwrap().to_hex()).unwrap());
        shop.collection("orders").insert_one(order).await.unwrap();
    }
    let started = Instant::now();
    while operator.order(ids[1]).await.unwrap().is_none() {
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut extra = operator.orders_in_views(vec![ids[1]]).await.unwrap().remove(0).unwrap();
    let other = Change::Order {
        order: mw_domain::Order { status: OrderStatus::Returned, ..extra.order.clone() },
        events: extra.events.clone(),
    };
    extra.order.order_id = mw_domain::OrderId::parse("507f1f77bcf86cd799439011").unwrap();
    let added = Change::Order { order: extra.order.clone(), events: extra.events };
    running.apply(vec![Change::RemoveOrder(ids[0]), other, added]).await.unwrap();
    let wanted: BTreeSet<String> =
        [ids[0], ids[1], extra.order.order_id].map(|id| id.object_id().unwrap()).into();
    let found = verified(operator, false).await;
    let found: BTreeSet<String> = found.differences.into_iter().map(|it| it.id).collect();
    assert_eq!(found, wanted);
    let mended = verified(operator, true).await;
    assert!(mended.is_equal() && mended.repaired == 3, "{mended:?}");
}

/// The target holds exactly the orders of the source that can be taken, in every list, and its stock is explained.
async fn check_orders(shop: &Shop, store: &CassandraStore, rejected: &BTreeSet<(String, String)>) {
    let mut expected = BTreeSet::new();
    let mut found = shop.collection("orders").find(doc! {}).await.unwrap();
    while found.advance().await.unwrap() {
        expected.insert(found.deserialize_current().unwrap().get_object_id("_id").unwrap().to_hex());
    }
    expected.retain(|id| !rejected.contains(&("orders".to_owned(), id.clone())));
    let mut exported = BTreeSet::new();
    let export = store.export().await.unwrap();
    let mut after = None;
    loop {
        let page = export.page(PageRequest { after, limit: 500 }).await.unwrap();
        for record in page.items {
            if let mw_store::export::Record::Order { order, .. } = record {
                exported.insert(order.order_id.object_id().unwrap());
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(exported, expected);
    let period = Period { from: Timestamp::EPOCH, to: Timestamp::from_millis(2_800_000_000_000) };
    let mut by_customer = BTreeSet::new();
    for number in 0..40 {
        let user = mw_domain::UserId::parse(&format!("user-{number}")).unwrap();
        let page = store.user_orders(&user, period, PageRequest::first(1_000)).await.unwrap();
        by_customer.extend(page.items.iter().map(|order| order.order_id.object_id().unwrap()));
    }
    assert_eq!(by_customer, expected);
    assert_eq!(store.stray_rows(10).await.unwrap(), [""; 0]);
    let audit = MigrationTarget::audit_stock(store).await.unwrap();
    assert!(audit.drifts.is_empty(), "{:?}", audit.drifts);
}

/// The service goes on with what was migrated: the units of a created order come back when it is cancelled.
async fn check_service(store: &CassandraStore) {
    let period = Period { from: Timestamp::EPOCH, to: Timestamp::from_millis(2_800_000_000_000) };
    for number in 0..40 {
        let user = mw_domain::UserId::parse(&format!("user-{number}")).unwrap();
        let orders = store.user_orders(&user, period, PageRequest::first(1_000)).await.unwrap().items;
        let Some(order) = orders.into_iter().find(|order| order.status == OrderStatus::Created) else {
            continue;
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let cancel = SetStatus {
            order_id: order.order_id,
            of_user: None,
            to: OrderStatus::Cancelled,
            note: None,
            expected_version: Some(order.version),
            now: Timestamp::from_millis(i64::try_from(now.as_millis()).unwrap()),
            identity: None,
        };
        store.set_status(cancel).await.unwrap();
        let views = store.orders_in_views(vec![order.order_id]).await.unwrap().remove(0).unwrap();
        assert_eq!((views.order.status, views.missing_from.len()), (OrderStatus::Cancelled, 0));
        let audit = MigrationTarget::audit_stock(store).await.unwrap();
        assert!(audit.drifts.is_empty(), "{:?}", audit.drifts);
        return;
    }
    panic!("no created order was migrated");
}
