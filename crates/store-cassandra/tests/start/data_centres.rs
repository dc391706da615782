//! Two data centres: each class is replicated as configured, and a process starts only where it has local replicas.

use std::collections::BTreeMap;

use mw_domain::Currency;
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Class, Options, StartError};
use mw_testkit::cassandra::{Cluster, ClusterOptions};

#[tokio::test]
async fn a_process_starts_only_in_a_data_centre_with_replicas() {
    let options =
        ClusterOptions { name: "replicas".to_owned(), nodes: 2, dcs: 2, ..ClusterOptions::default() };
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
    let [in_dc1, in_dc2] = [
        CassandraStore::open(first.clone()).await.unwrap(),
        CassandraStore::open(second.clone()).await.unwrap(),
    ];
    in_dc1.keep_currency(rouble).await.unwrap();
    in_dc2.keep_currency(rouble).await.unwrap();
    assert_eq!(in_dc1.cluster_name(), in_dc2.cluster_name());

    let mut without_dc2 = second.clone();
    without_dc2.replication.replace(Class::Carts, factors(&["dc1"]));
    let refused = connect(&without_dc2).await.unwrap_err();
    assert!(matches!(refused, StartError::PolicyViolation(_)), "{refused}");
    let wanted =
        "store.cassandra.replication.carts.dc2: carts_by_owner is used at consistency level LOCAL_QUORUM";
    assert!(refused.to_string().contains(wanted), "{refused}");

    let mut fewer = first.clone();
    fewer.replication.replace(Class::Core, factors(&["dc1"]));
    let refused = CassandraStore::open(fewer).await.unwrap_err().to_string();
    let wanted = "store.cassandra.replication.core.dc2: keyspace mobile_world has replication factor 1 in dc2, the configuration says 0";
    assert!(refused.starts_with(wanted), "{refused}");
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}
