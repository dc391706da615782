//! Several processes on the same keyspaces: some die in the middle of orders, and all sell the same product.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mw_domain::OrderId;
use mw_store::{Orders, Refusal, Stock};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Options, Table};
use mw_testkit::builders::user_id;
use mw_testkit::cassandra::Lease;
use scylla::client::session::Session;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::changes::orders_in_the_feed;
use crate::fixtures::{
    TIMEOUT, assert_audit, eventually, exclusive, full_name, hold, import_stock, listed, order, stock_level,
};

/// The documented bound of recovery is ten seconds; test machines are slow at times.
const RECOVERED: Duration = Duration::from_secs(20);
/// Fewer units than are ordered, so that some orders are undone.
const FEW: u64 = 650;
const USER: &str = "u";

/// A process that places many orders at once.
struct Seller {
    runtime: Runtime,
    all: BTreeSet<OrderId>,
    acknowledged: Arc<Mutex<BTreeSet<OrderId>>>,
}

impl Seller {
    async fn start(options: Options, orders: usize) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = runtime.spawn(CassandraStore::open(options)).await.unwrap().unwrap();
        let acknowledged = Arc::default();
        let mut all = BTreeSet::new();
        for _ in 0..orders {
            let command = order(USER, &["many", "few"]);
            all.insert(command.order_id);
            let (store, acknowledged) = (Arc::clone(&store), Arc::<Mutex<BTreeSet<_>>>::clone(&acknowledged));
            runtime.spawn(async move {
                let placed = store.place_order(command).await;
                if let Ok(done) = placed {
                    acknowledged.lock().unwrap().insert(done.value.order_id);
                }
            });
        }
        Self { runtime, all, acknowledged }
    }

    /// Dies once `orders` orders are acknowledged. Returns all its orders, and the acknowledged ones.
    async fn die_after(self, orders: usize) -> (BTreeSet<OrderId>, BTreeSet<OrderId>) {
        let count = || self.acknowledged.lock().unwrap().len();
        let reached = async {
            while count() < orders {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, reached).await.unwrap();
        self.runtime.shutdown_background();
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        (self.all, acknowledged)
    }
}

/// The number of stored intents, and of processes with a heartbeat row.
async fn intents_and_processes(session: &Session, options: &Options) -> (i64, i64) {
    let count = async |table: Table| {
        let text = format!("SELECT count(*) FROM {}", full_name(options, table));
        let result = session.query_unpaged(text, ()).await.unwrap();
        result.into_rows_result().unwrap().first_row::<(i64,)>().unwrap().0
    };
    (count(Table::Intents).await, count(Table::Processes).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_dead_processes_are_completed_or_undone() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let survivor = lease.open().await;
    let session = connect(lease.options()).await.unwrap();
    import_stock(&survivor, "many", 10_000).await;
    import_stock(&survivor, "few", FEW).await;

    let (mut all, mut acknowledged) = (BTreeSet::new(), BTreeSet::new());
    for acknowledged_before in [1, 40, 120] {
        let seller = Seller::start(lease.options().clone(), 250).await;
        let (orders, of_seller) = seller.die_after(acknowledged_before).await;
        all.extend(orders);
        acknowledged.extend(of_seller);
    }
    let (intents, processes) = intents_and_processes(&session, lease.options()).await;
    assert!(intents > 0, "no process died in the middle of an order");
    assert_eq!(processes, 4);

    eventually("the intents of dead processes are recovered", RECOVERED, async || {
        (intents_and_processes(&session, lease.options()).await.0 == 0).then_some(())
    })
    .await;
    let of_user = listed(&survivor, Some(&user_id(USER))).await.unwrap();
    let of_zone = listed(&survivor, None).await.unwrap();
    let mut by_id = BTreeSet::new();
    for id in all {
        let order = survivor.order(id).await.unwrap();
        let events = survivor.order_events(id).await.unwrap();
        assert_eq!(order.is_some(), events.is_some_and(|events| events.len() == 1), "{id}");
        if order.is_some() {
            by_id.insert(id);
        }
    }
    assert_eq!(by_id, of_user);
    assert_eq!(by_id, of_zone);
    assert!(by_id.is_superset(&acknowledged), "an acknowledged order is lost");
    assert!(acknowledged.len() > 160);
    let other = lease.open().await;
    for store in [&survivor, &other] {
        let found = eventually("the feed has every order", RECOVERED, async || {
            let found = orders_in_the_feed(store).await;
            found.is_superset(&by_id).then_some(found)
        })
        .await;
        assert_eq!(found, by_id, "the feed has an order that does not exist");
    }
    let placed = by_id.len() as u64;
    assert_eq!(stock_level(&survivor, "few").await.unwrap(), (FEW, placed));
    assert_eq!(stock_level(&survivor, "many").await.unwrap(), (10_000, placed));
    assert_audit(&survivor).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_sell_every_unit_of_a_product_once() {
    const UNITS: u64 = 200;
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await, lease.open().await];
    import_stock(&stores[0], "hit", UNITS).await;
    let mut buyers = JoinSet::new();
    for (number, store) in (0..300).zip(stores.iter().cycle().cloned()) {
        buyers.spawn(async move {
            let bought = if number % 2 == 0 {
                store.place_order(order(USER, &["hit"])).await.map(drop)
            } else {
                store.reserve(hold("hit")).await.map(drop)
            };
            match bought {
                Ok(()) => (u64::from(number % 2 == 0), u64::from(number % 2 != 0)),
                Err(error) if matches!(error.refusal(), Some(Refusal::OutOfStock(_))) => (0, 0),
                Err(error) => unreachable!("{error:?}"),
            }
        });
    }
    let bought = tokio::time::timeout(TIMEOUT, buyers.join_all()).await.unwrap();
    let (orders, holds) = bought.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert_eq!(orders + holds, UNITS);
    for store in &stores {
        assert_eq!(stock_level(store, "hit").await.unwrap(), (UNITS, UNITS));
        assert_eq!(listed(store, Some(&user_id(USER))).await.unwrap().len() as u64, orders);
    }
    assert_audit(&stores[2]).await;
}
