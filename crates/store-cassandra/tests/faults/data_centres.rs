//! Two data centres: a write in one is read in the other, one serves without the other, both sell the same stock where sales are
//! decided across them, and one of them where they are not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::{Order, OrderStatus};
use mw_store::orders::SetStatus;
use mw_store::products::{CategoryQuery, ImportProduct};
use mw_store::stock::SetOnHand;
use mw_store::{Freshness, Maintenance, Orders, PageRequest, Products, Refusal, Result, Stock, StoreError};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::selling::{Relocation, RelocationError, Selling};
use mw_store_cassandra::{CassandraStore, Class, Options, Replication, Table};
use mw_testkit::builders::{category, product, product_id, user, user_id, zone};
use mw_testkit::cassandra::{Cluster, ClusterOptions};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::fixtures::{
    NOW, TIMEOUT, ZONE, apply_schema, assert_audit, cart_lines, eventually, exclusive, hold, import_stock,
    listed, options, order, set_line, start, stock_level, with,
};

/// The longest a request may take while the other data centre is down.
const LATENCY_MAX: Duration = Duration::from_secs(15);

/// Two data centres of one node, replication factor 1 in each, and the options of each.
async fn two_data_centres(name: &str) -> (Arc<Cluster>, [Options; 2]) {
    let cluster = start(ClusterOptions {
        name: name.to_owned(),
        nodes: 2,
        dcs: 2,
        // A single replica must sync each write before it acknowledges it.
        extra_yaml: ["commitlog_sync: batch", "commitlog_sync_period: 0ms"].map(str::to_owned).to_vec(),
        ..ClusterOptions::default()
    })
    .await;
    let mut replication = Replication::even("dc1", 1);
    for class in Class::ALL {
        replication.set(class, "dc2", 1);
    }
    let options = ["dc1", "dc2"].map(|dc| {
        let mut options = options(&cluster, dc);
        options.replication = replication.clone();
        options
    });
    (cluster, options)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_data_centres_sell_every_unit_of_a_product_once() {
    const UNITS: u64 = 200;
    let _exclusive = exclusive().await;
    let (_cluster, mut options) = two_data_centres("selling").await;
    for options in &mut options {
        for table in Table::ALL.iter().filter(|table| table.traits().has_lwt) {
            for (rule, level) in [("serial", "SERIAL"), ("write", "QUORUM"), ("read", "QUORUM")] {
                options.policy.set(table.name(), rule, level).unwrap();
            }
        }
    }
    apply_schema(&options[0]).await;
    let [here, there] = options;
    let stores = [CassandraStore::open(here).await.unwrap(), CassandraStore::open(there).await.unwrap()];
    import_stock(&stores[0], "hit", UNITS).await;
    let mut buyers = JoinSet::new();
    for (number, store) in (0..300).zip(stores.iter().cycle().cloned()) {
        buyers.spawn(async move {
            let started = Instant::now();
            let bought = if number % 3 == 0 {
                store.reserve(hold("hit")).await.map(drop)
            } else {
                store.place_order(order("buyer", &["hit"])).await.map(drop)
            };
            let sold = match bought {
                Ok(()) => true,
                Err(error) if matches!(error.refusal(), Some(Refusal::OutOfStock(_))) => false,
                Err(error) => unreachable!("{error:?} after {:?}", started.elapsed()),
            };
            (sold, started.elapsed())
        });
    }
    let results = tokio::time::timeout(TIMEOUT, buyers.join_all()).await.unwrap();
    eprintln!("the slowest of {} took {:?}", results.len(), results.iter().map(|(_, took)| took).max());
    assert_eq!(results.iter().filter(|(sold, _)| *sold).count() as u64, UNITS);
    for store in &stores {
        assert_eq!(stock_level(store, "hit").await.unwrap(), (UNITS, UNITS));
        assert_audit(store).await;
    }
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T>, reason: &str) {
    match result {
        Err(StoreError::NotServing(found)) => assert!(found.contains(reason), "{found}"),
        other => unreachable!("{other:?}"),
    }
}

/// Sets the stock of the first product to what it is.
async fn count_again(store: &CassandraStore) -> Result<()> {
    let (product_id, geo_zone, op) = (product_id("of-first"), zone(ZONE), Uuid::now_v7());
    let set = SetOnHand { product_id, geo_zone, on_hand: 10, expected_on_hand: None, op, now: NOW };
    store.set_on_hand(set).await.map(drop)
}

/// A process whose data centre does not sell refuses every change of stock, fires no timer, and serves the rest.
async fn assert_sells_nothing(store: &CassandraStore, placed: &Order, reason: &str) {
    let import = |stock| {
        let product = product("plain").build();
        store.import_product(ImportProduct { product, stock, op: Uuid::now_v7(), now: NOW, identity: None })
    };
    assert_refused(store.place_order(order("traveller", &["of-first"])).await, reason);
    assert_refused(store.reserve(hold("of-first")).await, reason);
    assert_refused(import(vec![(zone(ZONE), 1)]).await, reason);
    assert_refused(count_again(store).await, reason);
    let pay = SetStatus {
        order_id: placed.order_id,
        of_user: None,
        to: OrderStatus::Paid,
        note: None,
        expected_version: None,
        now: NOW,
        identity: None,
    };
    assert_refused(store.set_status(pay).await, reason);
    assert_eq!(store.cancel_unpaid(placed.pay_by, "not paid", 10).await.unwrap(), 0);
    assert_eq!(store.order(placed.order_id).await.unwrap().as_ref(), Some(placed));

    import(Vec::new()).await.unwrap();
    set_line(store, user("visitor"), "of-first", 1).await.unwrap();
    store.ready().await.unwrap();
}

/// Moves selling to the data centre of `options`, and sees that a process of the other one has stopped before.
async fn move_selling(options: &Options, old: &CassandraStore) {
    // Processes read the setting every second, and nothing is in flight.
    const WAIT: Duration = Duration::from_secs(5);
    let session = connect(options).await.unwrap();
    let relocation = Relocation::on(session, options.clone()).await.unwrap();
    assert_eq!(relocation.setting().await.unwrap().selling, Selling::In("dc1".to_owned()));
    let unknown = relocation.run("dc3", WAIT, &|_| {}).await;
    assert!(matches!(unknown, Err(RelocationError::NoReplicas { .. })), "{unknown:?}");
    let (moved, ()) = tokio::join!(relocation.run("dc2", WAIT, &|_| {}), async {
        eventually("the old data centre has stopped", TIMEOUT, async || {
            matches!(count_again(old).await, Err(StoreError::NotServing(_))).then_some(())
        })
        .await;
    });
    moved.unwrap();
    assert_eq!(relocation.setting().await.unwrap().selling, Selling::In("dc2".to_owned()));
    relocation.run("dc2", WAIT, &|_| {}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_centre_sees_the_orders_of_the_other_and_serves_without_it() {
    let _exclusive = exclusive().await;
    let (cluster, [here, there]) = two_data_centres("centres").await;
    apply_schema(&here).await;
    let first = CassandraStore::open(here).await.unwrap();
    let second = CassandraStore::open(there.clone()).await.unwrap();

    import_stock(&first, "of-first", 10).await;
    import_stock(&first, "of-second", 1_000_000).await;
    let placed = first.place_order(order("traveller", &["of-first"])).await.unwrap().value;
    let found = eventually("the order is read in the other data centre", TIMEOUT, async || {
        second.order(placed.order_id).await.unwrap()
    })
    .await;
    assert_eq!(found, placed);
    eventually("the order is listed in the other data centre", TIMEOUT, async || {
        let list = listed(&second, Some(&user_id("traveller"))).await.unwrap();
        let is_whole = listed(&second, None).await.unwrap() == list && list.contains(&placed.order_id);
        is_whole.then_some(())
    })
    .await;
    eventually("the stock level is read in the other data centre", TIMEOUT, async || {
        (stock_level(&second, "of-first").await.unwrap() == (10, 1)).then_some(())
    })
    .await;

    assert_sells_nothing(&second, &placed, "dc1 sells").await;
    move_selling(&there, &first).await;
    eventually("the other data centre sells", TIMEOUT, async || second.reserve(hold("of-second")).await.ok())
        .await;
    // It may not have read yet that the move is done.
    assert_sells_nothing(&first, &placed, "dc2").await;
    drop(first);
    with(&cluster, |cluster| cluster.node(0).kill().unwrap()).await;
    let mut held = 1;
    let killed = Instant::now();
    // For longer than the nodes and the driver need to mark the lost node down.
    for round in 1.. {
        let started = Instant::now();
        set_line(&second, user("local"), "of-second", round).await.unwrap();
        assert_eq!(cart_lines(&second, "local").await.unwrap(), [("of-second".to_owned(), round)]);
        let placed = second.place_order(order("local", &["of-second"])).await.unwrap().value;
        assert_eq!(second.order(placed.order_id).await.unwrap(), Some(placed));
        second.reserve(hold("of-second")).await.unwrap();
        held += 2;
        let latest = Freshness::Latest;
        assert!(second.product(&product_id("of-first"), latest).await.unwrap().is_some());
        let query = CategoryQuery {
            category: category("phones"),
            min_price: None,
            max_price: None,
            descending: false,
            geo_zone: None,
            in_stock: false,
        };
        let products = second.category(&query, latest, NOW, PageRequest::first(10)).await.unwrap();
        assert_eq!(products.items.len(), 3);
        second.ready().await.unwrap();
        assert!(started.elapsed() < LATENCY_MAX, "round {round} took {:?}", started.elapsed());
        if killed.elapsed() > LATENCY_MAX && round >= 10 {
            break;
        }
    }
    assert_eq!(stock_level(&second, "of-second").await.unwrap(), (1_000_000, held));
    assert_eq!(listed(&second, Some(&user_id("local"))).await.unwrap().len() as u64, held / 2);
    assert_eq!(second.order(placed.order_id).await.unwrap(), Some(placed));
    assert_audit(&second).await;
}
