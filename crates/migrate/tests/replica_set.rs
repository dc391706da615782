//! Migrations from a real replica set to the embedded engine, while the shop's programs write.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mw_domain::carts::CartLifetime;
use mw_domain::{Currency, OrderStatus};
use mw_migrate::control::{Listener, Request, Response, ask};
use mw_migrate::{
    CutOver, Cutover, Ended, Kind, Parts, Phase, RunOptions, Settings, Source, Status, run, status,
};
use mw_store::migration::{Change, MigrationTarget};
use mw_store::{Orders, Stock};
use mw_store_embedded::{EmbeddedStore, Options};
use mw_store_mongodb::Options as MongoOptions;
use mw_store_mongodb::statuses::Statuses;
use mw_testkit::mongodb::start_replica_set;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Shape, Shop, Writers, add_unacceptable};

const DAY_MS: i64 = 86_400_000;
/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_mins(2);

fn settings() -> Settings {
    Settings {
        statuses: Statuses::default(),
        zones: [("Казань".to_owned(), "kazan".to_owned())].into(),
        cart_lifetime: CartLifetime { user_ms: 30 * DAY_MS, guest_ms: DAY_MS },
    }
}

fn open(folder: &Path) -> Arc<EmbeddedStore> {
    let options = Options::new(folder, Currency::parse("RUB").unwrap());
    Arc::new(EmbeddedStore::open(options).unwrap())
}

/// A migrator of its own, as a process is: it opens the target and goes on from there.
struct Migrator {
    store: Arc<EmbeddedStore>,
    task: tokio::task::JoinHandle<mw_migrate::Result<Ended>>,
}

impl Migrator {
    async fn start(uri: &str, database: &str, folder: &Path) -> Self {
        let store = open(folder);
        let options = MongoOptions { database: database.to_owned(), ..MongoOptions::new(uri) };
        let source = Arc::new(Source::connect(&options).await.unwrap());
        let parts = Parts {
            source,
            target: Arc::clone(&store) as Arc<dyn MigrationTarget>,
            settings: settings(),
            listener: Some(Listener::bind(folder).unwrap()),
        };
        let options = RunOptions { rate: Some(2_000), recopy: false };
        let task = tokio::spawn(async move { run(parts, options, &|_| {}, std::future::pending()).await });
        Self { store, task }
    }

    /// Ends it in the middle of whatever it does.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        // Its tasks end at their next await; only then is the directory free for the next one.
        let started = Instant::now();
        while Arc::strong_count(&self.store) > 1 {
            assert!(started.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.store.close();
    }
}

async fn status_of(folder: &Path) -> Status {
    match ask(folder, Request::Status).await.unwrap() {
        Some(Response::Status(status)) => status,
        other => panic!("{other:?}"),
    }
}

async fn wait_until(folder: &Path, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
    let started = Instant::now();
    loop {
        let status = status_of(folder).await;
        if is_so(&status) {
            return status;
        }
        assert!(started.elapsed() < PATIENCE, "wait until {what}: {status:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn verified(folder: &Path, repair: bool) -> mw_migrate::Verified {
    match ask(folder, Request::Verify { repair }).await.unwrap() {
        Some(Response::Verified(verified)) => verified,
        other => panic!("{other:?}"),
    }
}

async fn cut_over(folder: &Path, accept_rejected: bool) -> CutOver {
    let cutover = Cutover { timeout: Duration::from_secs(30), block: true, accept_rejected };
    match ask(folder, Request::CutOver(cutover)).await.unwrap() {
        Some(Response::CutOver(done)) => done,
        other => panic!("{other:?}"),
    }
}

/// Ids of a collection of the source, as the target shows them.
async fn source_orders(shop: &Shop) -> BTreeSet<String> {
    let mut found = shop.collection("orders").find(doc! {}).await.unwrap();
    let mut ids = BTreeSet::new();
    while found.advance().await.unwrap() {
        ids.insert(found.deserialize_current().unwrap().get_object_id("_id").unwrap().to_hex());
    }
    ids
}

async fn rejected_ids(store: &EmbeddedStore) -> BTreeSet<(String, String)> {
    let rejected = status::rejected(store).await.unwrap().into_iter().filter(|it| it.blocking);
    rejected.map(|it| (it.collection, it.id)).collect()
}

/// The target holds exactly the orders of the source that can be taken, each as its document says, and its stock is explained.
async fn check_orders(shop: &Shop, store: &EmbeddedStore, rejected: &BTreeSet<(String, String)>) {
    let mut expected = source_orders(shop).await;
    expected.retain(|id| !rejected.contains(&("orders".to_owned(), id.clone())));
    let mut found = BTreeSet::new();
    let export = mw_store::ExportImport::export(store).await.unwrap();
    let mut after = None;
    loop {
        let page = export.page(mw_store::PageRequest { after, limit: 500 }).await.unwrap();
        for record in page.items {
            if let mw_store::export::Record::Order { order, .. } = record {
                found.insert(order.order_id.object_id().unwrap());
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);
    let audit = store.audit(&|_| {}).await.unwrap();
    assert!(audit.drifts.is_empty(), "{:?}", audit.drifts);
}

async fn migrate(shape: Shape) {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let name = if shape == Shape::Customer { "migrate_customer" } else { "migrate_user" };
    let cluster = start_replica_set(name, 1).await;
    let uri = cluster.uri();
    let shop = Arc::new(Shop::new(&uri, "mobile_world", shape).await);
    shop.fill(&mut random, 1_500, 300).await;
    let rejected = add_unacceptable(&shop, &mut random).await;
    let writers = Writers::start(&shop, seed, 4);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for _ in 0..4 {
        let migrator = Migrator::start(&uri, "mobile_world", folder).await;
        tokio::time::sleep(Duration::from_millis(random.random_range(50..1_500))).await;
        migrator.kill().await;
    }
    let migrator = Migrator::start(&uri, "mobile_world", folder).await;
    wait_until(folder, "everything is equal", |status| status.verified_up_to.is_some()).await;
    assert_eq!(rejected_ids(&migrator.store).await, rejected);

    check_faults(&shop, &migrator.store, folder).await;
    check_acceptance(&shop, folder, &rejected).await;

    let CutOver::Refused(reasons) = cut_over(folder, false).await else {
        panic!("rejected documents block it")
    };
    assert!(reasons.iter().any(|reason| reason.contains("rejected")), "{reasons:?}");
    let CutOver::Done { pause } = cut_over(folder, true).await else { panic!("the cutover must succeed") };
    assert!(pause < Duration::from_secs(20), "{pause:?}");
    assert_eq!(migrator.task.await.unwrap().unwrap(), Ended::CutOver);
    eprintln!("{} writes, pause {pause:?}", writers.writes.load(std::sync::atomic::Ordering::Relaxed));
    writers.end().await;
    let refused = shop.collection("orders").insert_one(shop.order(&mut random, "new")).await;
    assert!(refused.is_err(), "the source takes no writes after the cutover");
    check_orders(&shop, &migrator.store, &rejected).await;

    let options = MongoOptions { database: "mobile_world".to_owned(), ..MongoOptions::new(&uri) };
    let source = Source::connect(&options).await.unwrap();
    mw_migrate::finish(&source, &*migrator.store).await.unwrap();
    shop.collection("orders").insert_one(shop.order(&mut random, "new")).await.unwrap();
    let status = status::stopped(&*migrator.store).await.unwrap().unwrap();
    assert_eq!((status.phase, status.counts.of(Kind::Orders).mismatched), (Phase::Done, 0));
}

/// What someone did to the target behind the migration's back is found, and mended.
async fn check_faults(shop: &Shop, store: &EmbeddedStore, folder: &Path) {
    let mut random = StdRng::seed_from_u64(7);
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut order = shop.order(&mut random, "done");
        order.insert("keep", true);
        kept.push(order.get_object_id("_id").unwrap().to_hex());
        shop.collection("orders").insert_one(order).await.unwrap();
    }
    let ids: Vec<_> = kept.iter().map(|id| mw_domain::OrderId::parse(id).unwrap()).collect();
    let [removed, changed, resurrected, added] = ids.try_into().unwrap();
    let started = Instant::now();
    let read = async |id| store.order(id).await.ok().flatten();
    while read(added).await.is_none() {
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let source_id = |id: mw_domain::OrderId| {
        doc! { "_id": mongodb::bson::oid::ObjectId::parse_str(id.object_id().unwrap()).unwrap() }
    };
    let views = store.orders_in_views(vec![changed, resurrected, added]).await.unwrap();
    let [other, old, model] = views.try_into().unwrap();
    shop.collection("orders").delete_one(source_id(resurrected)).await.unwrap();
    while read(resurrected).await.is_some() {
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (mut other, old, mut extra) = (other.unwrap(), old.unwrap(), model.unwrap());
    other.order.status = OrderStatus::Returned;
    extra.order.order_id = mw_domain::OrderId::parse("507f1f77bcf86cd799439011").unwrap();
    let faults = vec![
        Change::RemoveOrder(removed),
        Change::Order { order: other.order, events: other.events },
        Change::Order { order: old.order, events: old.events },
        Change::Order { order: extra.order.clone(), events: extra.events },
    ];
    store.apply(faults).await.unwrap();
    let wanted: BTreeSet<String> =
        [removed, changed, resurrected, extra.order.order_id].map(|id| id.object_id().unwrap()).into();
    let found = verified(folder, false).await;
    let ids: BTreeSet<String> = found.differences.iter().map(|it| it.id.clone()).collect();
    assert_eq!(ids, wanted, "{:?}", found.differences);
    let mended = verified(folder, true).await;
    assert!(mended.is_equal() && mended.repaired == 4, "{mended:?}");
}

/// A document that was taken and becomes unacceptable leaves the target; one that becomes acceptable arrives.
async fn check_acceptance(shop: &Shop, folder: &Path, rejected: &BTreeSet<(String, String)>) {
    let before = rejected.len() as u64;
    let sum =
        |status: &Status| -> u64 { Kind::ALL.iter().map(|kind| status.counts.of(*kind).rejected).sum() };
    wait_until(folder, "the list is complete", |status| sum(status) == before).await;
    let id = doc! { "_id": "p-0-extra" };
    let mut product = shop.product(0, 5);
    product.insert("_id", "p-0-extra");
    let products = shop.collection("products");
    products.insert_one(product).await.unwrap();
    products.update_one(id.clone(), doc! { "$set": { "price": 1.005 } }).await.unwrap();
    wait_until(folder, "the product is rejected", |status| sum(status) == before + 1).await;
    products.update_one(id.clone(), doc! { "$set": { "price": 1.5 } }).await.unwrap();
    wait_until(folder, "the product is taken", |status| sum(status) == before).await;
    products.update_one(id.clone(), doc! { "$set": { "price": "much" } }).await.unwrap();
    wait_until(folder, "the product is rejected again", |status| sum(status) == before + 1).await;
    products.delete_one(id).await.unwrap();
    wait_until(folder, "a deleted product leaves the list", |status| sum(status) == before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_of_shape_customer_moves_under_live_writes_and_kills() {
    migrate(Shape::Customer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_of_shape_user_moves_under_live_writes_and_kills() {
    migrate(Shape::User).await;
}
