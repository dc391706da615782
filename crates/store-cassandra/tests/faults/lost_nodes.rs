//! A cluster of three nodes that loses one, and then a second.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::{OrderId, ReservationId};
use mw_store::{Freshness, Maintenance, Orders, Products, Result, Stock, StoreError};
use mw_store_cassandra::{CassandraStore, Replication};
use mw_testkit::builders::{product_id, user, user_id, zone};
use mw_testkit::cassandra::ClusterOptions;

use crate::background_load::{BackgroundLoad, TestProducts};
use crate::fixtures::{
    NOW, TIMEOUT, ZONE, apply_schema, assert_audit, cart_lines, eventually, exclusive, hold, import_stock,
    listed, options, order, set_line, start, stock_level, with,
};

/// Without a quorum a request fails within this time, once the nodes are marked down.
const FAIL_FAST: Duration = Duration::from_secs(2);

const PAUSED: TestProducts = TestProducts { hit: "hit-paused", plenty: "plenty" };
const KILLED: TestProducts = TestProducts { hit: "hit-killed", plenty: "plenty" };
const LATER: TestProducts = TestProducts { hit: "hit-later", plenty: "plenty" };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_fails_no_request_and_two_lost_nodes_fail_fast() {
    let _exclusive = exclusive().await;
    let name = "faults".to_owned();
    let cluster = start(ClusterOptions { name, nodes: 3, ..ClusterOptions::default() }).await;
    let options = options(&cluster, "dc1");
    apply_schema(&options).await;
    let store = CassandraStore::open(options.clone()).await.unwrap();
    import_stock(&store, "plenty", 1_000_000).await;
    for products in [PAUSED, KILLED, LATER] {
        import_stock(&store, products.hit, 150).await;
    }

    let mut single = options.clone();
    single.keyspace = "single".to_owned();
    single.replication = Replication::even("dc1", 1);
    apply_schema(&single).await;
    let single = CassandraStore::open(single).await.unwrap();
    single.ready().await.unwrap();

    // A paused node keeps its connections open.
    let load = BackgroundLoad::start(&store, "paused", PAUSED);
    load.continue_for(3).await;
    with(&cluster, |cluster| cluster.node(2).pause().unwrap()).await;
    load.continue_for(8).await;
    let while_paused = load.stop().await;
    while_paused.check(&store).await;
    with(&cluster, |cluster| cluster.node(2).resume().unwrap()).await;
    while_paused.check(&store).await;

    let load = BackgroundLoad::start(&store, "killed", KILLED);
    load.continue_for(3).await;
    with(&cluster, |cluster| cluster.node(2).kill().unwrap()).await;
    load.continue_for(8).await;
    let while_killed = load.stop().await;
    while_killed.check(&store).await;
    store.ready().await.unwrap();
    // At replication factor 1 the ranges of the lost node are unavailable. The others are served, and readiness tells the share.
    eventually("a shop at replication factor 1 reports the ranges without quorum", TIMEOUT, async || {
        let readiness = single.ready().await.ok()?;
        let reason = readiness.reason?;
        let is_reason = reason.contains(" token ranges of single") && reason.contains("for LOCAL_QUORUM: ");
        ((0.1..0.5).contains(&readiness.lost_share) && is_reason).then_some(())
    })
    .await;

    with(&cluster, |cluster| cluster.node(1).kill().unwrap()).await;
    let refused = without_a_quorum(&store).await;

    with(&cluster, |cluster| [1, 2].map(|index| cluster.node(index).restart().unwrap())).await;
    eventually("the cluster serves again", TIMEOUT, async || store.ready().await.ok()).await;
    eventually("the shop at replication factor 1 serves again", TIMEOUT, async || single.ready().await.ok())
        .await;
    let load = BackgroundLoad::start(&store, "later", LATER);
    load.continue_for(3).await;
    let afterwards = load.stop().await;
    // A process that starts only now sees everything too.
    let late_process = CassandraStore::open(options).await.unwrap();
    for acknowledged in [while_paused, while_killed, afterwards] {
        acknowledged.check(&late_process).await;
    }
    refused.check(&late_process).await;
    assert_audit(&late_process).await;
}

/// Requests that were refused, and so had no effect.
struct Refused {
    user_name: &'static str,
    order_id: OrderId,
    reservation_id: ReservationId,
}

async fn without_a_quorum(store: &Arc<CassandraStore>) -> Refused {
    // Until a node that is down is marked down, a request waits for it.
    eventually("the remaining node marks the others down", TIMEOUT, async || {
        let started = Instant::now();
        (stock_level(store, "plenty").await.is_err() && started.elapsed() < FAIL_FAST).then_some(())
    })
    .await;
    let user_name = "refused";
    let command = order(user_name, &["plenty"]);
    let hold = hold("plenty");
    let refused = Refused { user_name, order_id: command.order_id, reservation_id: hold.reservation_id };
    fails_fast("read stock", stock_level(store, "plenty")).await;
    fails_fast("read a cart", cart_lines(store, user_name)).await;
    fails_fast("read a product", store.product(&product_id("plenty"), Freshness::Latest)).await;
    fails_fast("read an order", store.order(refused.order_id)).await;
    fails_fast("list orders", listed(store, Some(&user_id(user_name)))).await;
    fails_fast("set a line", set_line(store, user(user_name), "plenty", 1)).await;
    fails_fast("order", store.place_order(command)).await;
    fails_fast("reserve", store.reserve(hold)).await;
    fails_fast("check readiness", store.ready()).await;

    let product = store.product(&product_id("plenty"), Freshness::StaleOk).await.unwrap();
    assert!(product.is_some());
    let stock = store.zone_stock(&product_id("plenty"), &zone(ZONE), Freshness::StaleOk, NOW).await.unwrap();
    assert!(stock.is_some_and(|stock| stock.level.on_hand == 1_000_000));
    refused
}

async fn fails_fast<T: Debug>(what: &str, request: impl Future<Output = Result<T>>) {
    let started = Instant::now();
    let result = request.await;
    let took = started.elapsed();
    assert!(matches!(result, Err(StoreError::Unavailable(_))), "{what}: {result:?}");
    assert!(took < FAIL_FAST, "{what}: took {took:?}");
}

impl Refused {
    async fn check(&self, store: &CassandraStore) {
        assert_eq!(cart_lines(store, self.user_name).await.unwrap(), []);
        assert_eq!(store.order(self.order_id).await.unwrap(), None);
        assert!(listed(store, Some(&user_id(self.user_name))).await.unwrap().is_empty());
        assert_eq!(store.reservation(self.reservation_id, NOW).await.unwrap(), None);
    }
}
