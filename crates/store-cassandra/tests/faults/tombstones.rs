//! Tombstones of a hit product: thousands of compacted ledger rows do not slow or stop its sale.

use std::sync::Arc;

use mw_domain::Timestamp;
use mw_store::stock::Reserve;
use mw_store::{Freshness, Maintenance, Stock};
use mw_store_cassandra::{CassandraStore, Options, Replication};
use mw_testkit::builders::{product_id, zone};
use mw_testkit::cassandra::ClusterOptions;
use tokio::task::JoinSet;

use crate::fixtures::{NOW, ZONE, apply_schema, exclusive, hold, import_stock, options, start};

/// A read that passes more tombstones fails.
const TOMBSTONES_MAX: usize = 1_000;
const RELEASED: usize = 1_500;
const HOUR: i64 = 3_600;

/// A reservation for a quarter of an hour.
fn hold_at(now: Timestamp) -> Reserve {
    Reserve { now, expires_at: now.plus_seconds(900), ..hold("hit") }
}

/// Reserves a unit and releases it, many times at once.
async fn hold_and_release(store: &Arc<CassandraStore>, now: Timestamp) {
    let mut buyers = JoinSet::new();
    for _ in 0..RELEASED {
        let store = Arc::clone(store);
        buyers.spawn(async move {
            let held = store.reserve(hold_at(now)).await.unwrap().value;
            store.release(held.reservation_id, now).await.unwrap();
        });
    }
    buyers.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compacted_holds_of_a_hit_product_do_not_stop_its_sale() {
    let _exclusive = exclusive().await;
    let limits = [
        format!("tombstone_warn_threshold: {}", TOMBSTONES_MAX / 2),
        format!("tombstone_failure_threshold: {TOMBSTONES_MAX}"),
    ];
    let cluster = start(ClusterOptions {
        name: "tombstones".to_owned(),
        extra_yaml: limits.to_vec(),
        ..ClusterOptions::default()
    })
    .await;
    let options = Options { replication: Replication::even("dc1", 1), ..options(&cluster, "dc1") };
    apply_schema(&options).await;
    let store = CassandraStore::open(options.clone()).await.unwrap();
    import_stock(&store, "hit", 10_000).await;
    for round in 0..2 {
        let now = NOW.plus_seconds(round * 3 * HOUR);
        hold_and_release(&store, now).await;
        // The second run begins behind the tombstones of the first.
        let compacted = store.purge_expired(now.plus_seconds(2 * HOUR), 10_000).await.unwrap();
        assert_eq!(compacted, RELEASED, "in round {round}");
    }

    let now = NOW.plus_seconds(9 * HOUR);
    // Another process has no copy of the header, and one that sells again reads only when it must.
    for store in [CassandraStore::open(options).await.unwrap(), store] {
        for _ in 0..3 {
            store.reserve(hold_at(now)).await.unwrap();
        }
        let later = now.plus_seconds(900);
        let stock = store.zone_stock(&product_id("hit"), &zone(ZONE), Freshness::Latest, later).await;
        assert_eq!(stock.unwrap().unwrap().level.reserved, 0, "the holds have ended");
        store.expire_reservations(later, 100).await.unwrap();
    }
}
