//! Two data centres: each class has its copies where the configuration says, and a process starts only where it has some.

use std::collections::BTreeMap;

use mw_domain::Currency;
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Class, Options, StartError};
use mw_testkit::cassandra::{Cluster, ClusterOptions};

#[tokio::test]
async fn copies_are_where_they_were_asked_for_and_processes_where_copies_are() {
    let options = ClusterOptions { name: "places".to_owned(), nodes: 2, dcs: 2, ..ClusterOptions::default() };
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(options)).await.unwrap().unwrap();
    let points: Vec<String> = cluster.contact_points().iter().map(ToString::to_string).collect();
    let factors =
        |dcs: &[&str]| -> BTreeMap<String, u32> { dcs.iter().map(|dc| ((*dc).to_owned(), 1)).collect() };
    let both = Class::ALL.into_iter().map(|class| (class, factors(&["dc1", "dc2"]))).collect();
    let of = |local_dc: &str| Options { replication: both, ..Options::new(points.clone(), local_dc) };

    let first = of("dc1");
    let session = connect(&first).await.unwrap();
    first.schema().apply(&session, &|_| {}).await.unwrap();
    assert_eq!(first.schema().drift(&session).await.unwrap(), []);

    let second = Options { local_dc: "dc2".to_owned(), ..first.clone() };
    let rouble = Currency::parse("RUB").unwrap();
    let [here, there] = [
        CassandraStore::open(first.clone()).await.unwrap(),
        CassandraStore::open(second.clone()).await.unwrap(),
    ];
    here.keep_currency(rouble).await.unwrap();
    there.keep_currency(rouble).await.unwrap();
    assert_eq!(here.cluster_name(), there.cluster_name());

    let mut at_home = second.clone();
    at_home.replication.replace(Class::Carts, factors(&["dc1"]));
    let refused = connect(&at_home).await.unwrap_err();
    assert!(matches!(refused, StartError::Unsafe(_)), "{refused}");
    let said = "store.cassandra.replication.carts.dc2: carts_by_owner is used at LOCAL_QUORUM, which counts copies in dc2";
    assert!(refused.to_string().contains(said), "{refused}");

    let mut fewer = first.clone();
    fewer.replication.replace(Class::Core, factors(&["dc1"]));
    let refused = CassandraStore::open(fewer).await.unwrap_err().to_string();
    let said = "store.cassandra.replication.core.dc2: keyspace mobile_world has 1 copies in dc2, and the configuration says 0";
    assert!(refused.starts_with(said), "{refused}");
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}
