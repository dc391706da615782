//! Where stale reads go: to a secondary that is fresh enough, and to the primary where there is none.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mw_store::Freshness;
use mw_store::products::Products;
use mw_store_mongodb::MongoStore;
use mw_store_mongodb::policy::Policy;
use mw_testkit::builders::{product, product_id};
use mw_testkit::mongodb::{Cluster, Lease, Member, REPLICA_SET, start_replica_set};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Finds that this member has run.
fn finds(member: &Member<'_>) -> i64 {
    let status = member.command("admin", doc! { "serverStatus": 1 }).unwrap();
    let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
    commands.get_document("find").unwrap().get_i64("total").unwrap()
}

/// Reads until the primary served none of ten reads (`on_secondary`), or all of them.
async fn wait_until(cluster: &Cluster, store: &MongoStore, on_secondary: bool) {
    let primary = cluster.primary(REPLICA_SET).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let before = finds(&primary);
        for _ in 0..10 {
            store.product(&product_id("p1"), Freshness::StaleOk).await.unwrap();
        }
        let on_primary = finds(&primary) - before;
        if (on_primary < 10) == on_secondary {
            return;
        }
        assert!(Instant::now() < deadline, "{on_primary} of 10 reads on the primary");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_reads_go_to_fresh_secondaries_and_back_to_the_primary() {
    let cluster = start_replica_set("stale", 3).await;
    let staleness = Duration::from_secs(8);
    let lease = Lease::on(&cluster.uri(), |options| {
        options.policy = Policy::default();
        options.policy.set_max_staleness("product", staleness).unwrap();
    })
    .await;
    let store = lease.open().await;
    store.put_product(product("p1").build()).await.unwrap();
    assert!(store.product(&product_id("p1"), Freshness::StaleOk).await.unwrap().is_some(), "its own write");
    // Another process, which has written nothing, reads on a secondary.
    let reader = lease.open().await;
    wait_until(&cluster, &reader, true).await;
    assert!(reader.product(&product_id("p1"), Freshness::Latest).await.unwrap().is_some());
    // Own writes are read on the primary for as long as a secondary may lag.
    reader.put_product(product("p2").build()).await.unwrap();
    let written = Instant::now();
    let primary = cluster.primary(REPLICA_SET).unwrap();
    let before = finds(&primary);
    for _ in 0..10 {
        reader.product(&product_id("p2"), Freshness::StaleOk).await.unwrap().unwrap();
    }
    if written.elapsed() < staleness {
        assert!(finds(&primary) - before >= 10);
    }
    wait_until(&cluster, &reader, true).await;
    // Secondaries that stop are too stale soon.
    let secondaries: Vec<_> = cluster.set(REPLICA_SET).filter(|member| !member.is_primary()).collect();
    for secondary in &secondaries[..1] {
        secondary.pause().unwrap();
    }
    for _ in 0..5 {
        assert!(reader.product(&product_id("p1"), Freshness::StaleOk).await.unwrap().is_some());
    }
    secondaries[0].resume().unwrap();
    reader.close().await;
    store.close().await;
}
