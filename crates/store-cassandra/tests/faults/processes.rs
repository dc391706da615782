//! Several processes on the same keyspaces: those that die, and those that sell the same.

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

use crate::given::{PATIENCE, alone, audited, eventually, hold, listed, name, order, stocked, units};

/// Ten seconds are promised; machines are slow at times.
const RECOVERED: Duration = Duration::from_secs(20);
/// Fewer than are asked for, so that there is something to undo as well.
const FEW: u64 = 650;
const CUSTOMER: &str = "u";

/// A process that places many orders at once.
struct Seller {
    runtime: Runtime,
    all: BTreeSet<OrderId>,
    acknowledged: Arc<Mutex<BTreeSet<OrderId>>>,
}

impl Seller {
    async fn begin(options: Options, orders: usize) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = runtime.spawn(CassandraStore::open(options)).await.unwrap().unwrap();
        let acknowledged = Arc::default();
        let mut all = BTreeSet::new();
        for _ in 0..orders {
            let command = order(CUSTOMER, &["many", "few"]);
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

    /// Dies after so many of its orders were acknowledged; answers all of them, and those acknowledged.
    async fn die_after(self, orders: usize) -> (BTreeSet<OrderId>, BTreeSet<OrderId>) {
        let count = || self.acknowledged.lock().unwrap().len();
        let reached = async {
            while count() < orders {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap();
        self.runtime.shutdown_background();
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        (self.all, acknowledged)
    }
}

/// Intents that lie there, and processes that are thought to live.
async fn begun(session: &Session, options: &Options) -> (i64, i64) {
    let count = async |table: Table| {
        let text = format!("SELECT count(*) FROM {}", name(options, table));
        let result = session.query_unpaged(text, ()).await.unwrap();
        result.into_rows_result().unwrap().first_row::<(i64,)>().unwrap().0
    };
    (count(Table::Intents).await, count(Table::Processes).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_processes_that_died_are_brought_to_their_end() {
    let _turn = alone().await;
    let lease = Lease::empty().await;
    let survivor = lease.open().await;
    let session = connect(lease.options()).await.unwrap();
    stocked(&survivor, "many", 10_000).await;
    stocked(&survivor, "few", FEW).await;

    let (mut all, mut acknowledged) = (BTreeSet::new(), BTreeSet::new());
    for deaths_after in [1, 40, 120] {
        let seller = Seller::begin(lease.options().clone(), 250).await;
        let (orders, told) = seller.die_after(deaths_after).await;
        all.extend(orders);
        acknowledged.extend(told);
    }
    let (intents, processes) = begun(&session, lease.options()).await;
    assert!(intents > 0, "nobody died in the middle of anything");
    assert_eq!(processes, 4);

    eventually("what the dead began is brought to its end", RECOVERED, async || {
        (begun(&session, lease.options()).await == (0, 1)).then_some(())
    })
    .await;
    let of_customer = listed(&survivor, Some(&user_id(CUSTOMER))).await.unwrap();
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
    assert_eq!(by_id, of_customer);
    assert_eq!(by_id, of_zone);
    assert!(by_id.is_superset(&acknowledged), "what was acknowledged is lost");
    assert!(acknowledged.len() > 160);
    let placed = by_id.len() as u64;
    assert_eq!(units(&survivor, "few").await.unwrap(), (FEW, placed));
    assert_eq!(units(&survivor, "many").await.unwrap(), (10_000, placed));
    audited(&survivor).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_sell_every_unit_of_a_product_once() {
    const UNITS: u64 = 200;
    let _turn = alone().await;
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await, lease.open().await];
    stocked(&stores[0], "hit", UNITS).await;
    let mut buyers = JoinSet::new();
    for (number, store) in (0..300).zip(stores.iter().cycle().cloned()) {
        buyers.spawn(async move {
            let bought = if number % 2 == 0 {
                store.place_order(order(CUSTOMER, &["hit"])).await.map(drop)
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
    let bought = tokio::time::timeout(PATIENCE, buyers.join_all()).await.unwrap();
    let (orders, holds) = bought.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert_eq!(orders + holds, UNITS);
    for store in &stores {
        assert_eq!(units(store, "hit").await.unwrap(), (UNITS, UNITS));
        assert_eq!(listed(store, Some(&user_id(CUSTOMER))).await.unwrap().len() as u64, orders);
    }
    audited(&stores[2]).await;
}
