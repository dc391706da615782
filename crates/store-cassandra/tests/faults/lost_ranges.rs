//! A cluster of six nodes that loses two: the keys whose ranges have no quorum are lost, the others are served.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use mw_domain::Period;
use mw_store::orders::PlaceOrder;
use mw_store::{Maintenance, Orders, PageRequest, Stock};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Options, Table};
use mw_testkit::builders::{identity, zone};
use mw_testkit::cassandra::ClusterOptions;
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;

use crate::fixtures::{
    NOW, ZONE, apply_schema, eventually, exclusive, full_name, hold, import_stock, options, order, start,
    with,
};

const ORDERS: usize = 40;
/// Nodes of one machine take long to start and to be seen again.
const RESTARTED: Duration = Duration::from_mins(5);
/// Until a lost node is marked down, a statement may wait for it in vain.
const ATTEMPTS: usize = 3;
const LOST: [usize; 2] = [1, 4];

/// Tells from outside the store which partitions have two of three replicas.
struct Ranges {
    session: Session,
    options: Options,
    lost: HashSet<IpAddr>,
}

impl Ranges {
    async fn has_quorum(&self, table: Table, key: &str, values: impl SerializeRow) -> bool {
        let full_name = full_name(&self.options, table);
        let statement = self.session.prepare(format!("SELECT * FROM {full_name} WHERE {key}")).await.unwrap();
        let token = statement.calculate_token(&values).unwrap().unwrap();
        let (keyspace, table) = full_name.split_once('.').unwrap();
        let state = self.session.get_cluster_state();
        let replicas = state.get_token_endpoints(keyspace, table, token);
        assert_eq!(replicas.len(), 3);
        replicas.iter().filter(|(node, _)| !self.lost.contains(&node.address.ip())).count() >= 2
    }

    /// Whether the product, its stock, the customer and the key of an order have their quorum.
    async fn can_order(&self, name: &str, user: &str, key: &str) -> bool {
        let (stock, customer) = ("product_id = ? AND geo_zone = ?", "user_id = ? AND bucket = ?");
        let month = NOW.to_string()[..7].to_owned();
        let listed = (Table::OrdersByCustomer.name(), user);
        self.has_quorum(Table::ProductById, "product_id = ?", (name,)).await
            && self.has_quorum(Table::Stock, stock, (name, ZONE)).await
            && self.has_quorum(Table::OrdersByCustomer, customer, (user, month)).await
            && self.has_quorum(Table::Buckets, "table_name = ? AND key = ?", listed).await
            && self.has_quorum(Table::IdempotencyKeys, "key = ?", (key,)).await
    }
}

async fn place(store: &CassandraStore, command: PlaceOrder) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match store.place_order(command.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_two_of_six_nodes_lost_an_order_is_placed_whenever_its_own_keys_have_a_quorum() {
    let _exclusive = exclusive().await;
    let cluster = start(ClusterOptions {
        name: "lost-ranges".to_owned(),
        nodes: 6,
        heap_mib: 320,
        start_timeout: RESTARTED,
        ..ClusterOptions::default()
    })
    .await;
    let options = options(&cluster, "dc1");
    apply_schema(&options).await;
    let store = CassandraStore::open(options.clone()).await.unwrap();
    let names: Vec<String> = (0..ORDERS).map(|number| format!("p{number}")).collect();
    for name in &names {
        import_stock(&store, name, 10).await;
    }
    let lost = LOST.map(|index| IpAddr::V4(cluster.node(index).address()));
    let session = connect(&options).await.unwrap();
    let ranges = Ranges { session, options: options.clone(), lost: lost.into_iter().collect() };

    with(&cluster, |cluster| LOST.map(|index| cluster.node(index).kill().unwrap())).await;
    let share = eventually("readiness tells the lost share", RESTARTED, async || {
        let readiness = store.ready().await.ok()?;
        (readiness.lost_share > 0.0).then_some(readiness.lost_share)
    })
    .await;
    assert!(share < 0.5, "{share}");
    let (mut placed, mut possible) = (Vec::new(), 0);
    for (number, name) in names.iter().enumerate() {
        let (user, key) = (format!("u{number}"), format!("key-{number}"));
        let mut command = order(&user, &[name]);
        command.identity = Some(identity(&key, &key, NOW));
        let result = place(&store, command).await;
        if ranges.can_order(name, &user, &key).await {
            possible += 1;
            assert_eq!(result, Ok(()), "order {number} of {name}");
            placed.push((user, name.clone()));
        } else {
            assert!(result.is_err(), "order {number} of {name} needs a lost range");
        }
    }
    assert!((5..ORDERS).contains(&possible), "{possible} orders were possible, {share} of the ranges lost");
    for (_, name) in &placed {
        store.reserve(hold(name)).await.unwrap();
    }
    assert!(store.ready().await.unwrap().lost_share > 0.0, "the shop is ready all the time");

    with(&cluster, |cluster| LOST.map(|index| cluster.node(index).restart().unwrap())).await;
    eventually("no range is lost", RESTARTED, async || {
        let readiness = store.ready().await.ok()?;
        (readiness.lost_share == 0.0).then_some(())
    })
    .await;
    let (zone, period) = (zone(ZONE), Period::day(NOW.date()));
    let of_zone = store.orders(Some(&zone), period, PageRequest::first(100)).await.unwrap();
    let listed: HashSet<String> = of_zone.items.iter().map(|order| order.user_id.to_string()).collect();
    assert!(placed.iter().all(|(user, _)| listed.contains(user)), "{listed:?}");
    eventually("what failed is finished or undone", RESTARTED, async || {
        let audit = store.audit(&|_| {}).await.ok()?;
        audit.drifts.is_empty().then_some(())
    })
    .await;
}
