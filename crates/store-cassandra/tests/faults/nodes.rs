//! A cluster of three that loses a node, and then another.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::{OrderId, ReservationId};
use mw_store::{Freshness, Orders, Products, Result, Stock, StoreError, Upkeep};
use mw_store_cassandra::{CassandraStore, Replication};
use mw_testkit::builders::{product_id, user, user_id, zone};
use mw_testkit::cassandra::ClusterOptions;

use crate::given::{
    NOW, PATIENCE, ZONE, alone, apply_schema, audited, eventually, hold, lines, listed, options, order,
    set_line, start, stocked, units, with,
};
use crate::traffic::{Goods, Traffic};

/// What needs more nodes than there are is refused in this time, once that is known.
const AT_ONCE: Duration = Duration::from_secs(2);

const PAUSED: Goods = Goods { hit: "hit-paused", plenty: "plenty" };
const KILLED: Goods = Goods { hit: "hit-killed", plenty: "plenty" };
const LATER: Goods = Goods { hit: "hit-later", plenty: "plenty" };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_fails_no_request_and_two_lost_nodes_are_told_at_once() {
    let _turn = alone().await;
    let name = "faults".to_owned();
    let cluster = start(ClusterOptions { name, nodes: 3, ..ClusterOptions::default() }).await;
    let options = options(&cluster, "dc1");
    apply_schema(&options).await;
    let store = CassandraStore::open(options.clone()).await.unwrap();
    stocked(&store, "plenty", 1_000_000).await;
    for goods in [PAUSED, KILLED, LATER] {
        stocked(&store, goods.hit, 150).await;
    }

    let mut single = options.clone();
    single.keyspace = "single".to_owned();
    single.replication = Replication::even("dc1", 1);
    apply_schema(&single).await;
    let single = CassandraStore::open(single).await.unwrap();
    single.ready().await.unwrap();

    // A node that stands still keeps its connections.
    let traffic = Traffic::begin(&store, "paused", PAUSED);
    traffic.go_on(3).await;
    with(&cluster, |cluster| cluster.node(2).pause().unwrap()).await;
    traffic.go_on(8).await;
    let while_paused = traffic.end().await;
    while_paused.check(&store).await;
    with(&cluster, |cluster| cluster.node(2).resume().unwrap()).await;
    while_paused.check(&store).await;

    let traffic = Traffic::begin(&store, "killed", KILLED);
    traffic.go_on(3).await;
    with(&cluster, |cluster| cluster.node(2).kill().unwrap()).await;
    traffic.go_on(8).await;
    let while_killed = traffic.end().await;
    while_killed.check(&store).await;
    store.ready().await.unwrap();
    // What the lost node alone had is out of reach, whatever can still be read of the others.
    eventually("a shop with one copy knows that some of its rows are lost", PATIENCE, async || {
        let error = single.ready().await.err()?.to_string();
        error.contains(" token ranges of single have too few replicas for LOCAL_QUORUM: ").then_some(())
    })
    .await;

    with(&cluster, |cluster| cluster.node(1).kill().unwrap()).await;
    let refused = without_a_quorum(&store).await;

    with(&cluster, |cluster| [1, 2].map(|index| cluster.node(index).restart().unwrap())).await;
    eventually("the cluster serves again", PATIENCE, async || store.ready().await.ok()).await;
    eventually("so does the shop with one copy", PATIENCE, async || single.ready().await.ok()).await;
    let traffic = Traffic::begin(&store, "later", LATER);
    traffic.go_on(3).await;
    let afterwards = traffic.end().await;
    // Also somebody who has only just come sees everything.
    let newcomer = CassandraStore::open(options).await.unwrap();
    for memory in [while_paused, while_killed, afterwards] {
        memory.check(&newcomer).await;
    }
    refused.check(&newcomer).await;
    audited(&newcomer).await;
}

/// What was refused, and so was never done.
struct Refused {
    customer: &'static str,
    order_id: OrderId,
    reservation_id: ReservationId,
}

async fn without_a_quorum(store: &Arc<CassandraStore>) -> Refused {
    // Until the nodes take a silent one for dead, a request waits for it.
    eventually("the last node knows that it is alone", PATIENCE, async || {
        let started = Instant::now();
        (units(store, "plenty").await.is_err() && started.elapsed() < AT_ONCE).then_some(())
    })
    .await;
    let customer = "refused";
    let command = order(customer, &["plenty"]);
    let hold = hold("plenty");
    let refused = Refused { customer, order_id: command.order_id, reservation_id: hold.reservation_id };
    at_once("read stock", units(store, "plenty")).await;
    at_once("read a cart", lines(store, customer)).await;
    at_once("read a card", store.product(&product_id("plenty"), Freshness::Full)).await;
    at_once("read an order", store.order(refused.order_id)).await;
    at_once("list orders", listed(store, Some(&user_id(customer)))).await;
    at_once("set a line", set_line(store, user(customer), "plenty", 1)).await;
    at_once("order", store.place_order(command)).await;
    at_once("reserve", store.reserve(hold)).await;
    at_once("say that it is ready", store.ready()).await;

    let card = store.product(&product_id("plenty"), Freshness::Showcase).await.unwrap();
    assert!(card.is_some());
    let stock = store.zone_stock(&product_id("plenty"), &zone(ZONE), Freshness::Showcase, NOW).await.unwrap();
    assert!(stock.is_some_and(|stock| stock.level.on_hand == 1_000_000));
    refused
}

async fn at_once<T: Debug>(what: &str, request: impl Future<Output = Result<T>>) {
    let started = Instant::now();
    let answer = request.await;
    let took = started.elapsed();
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{what}: {answer:?}");
    assert!(took < AT_ONCE, "{what}: took {took:?}");
}

impl Refused {
    async fn check(&self, store: &CassandraStore) {
        assert_eq!(lines(store, self.customer).await.unwrap(), []);
        assert_eq!(store.order(self.order_id).await.unwrap(), None);
        assert!(listed(store, Some(&user_id(self.customer))).await.unwrap().is_empty());
        assert_eq!(store.reservation(self.reservation_id, NOW).await.unwrap(), None);
    }
}
