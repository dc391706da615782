//! A shard joins a filled sharded cluster under load, with range and with hashed keys. `cargo xtask growth` runs this and prints
//! the table.
//!
//! A collection is filled while the balancer rests, so that what it moves is seen: first between the two shards that were there, then
//! to the one that joins. Reported are its bytes, the time until it calls the collection balanced, the latency of reads and inserts
//! meanwhile, and the share that the model of the balancer predicts.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed step ends the program")]

mod orders;
mod sharding;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::Client;
use mw_operate::chunks::balance;
use mw_testkit::mongodb::{
    Cluster, ClusterOptions, Layout, REPLICA_SET, SHARD_A, SHARD_B, start, start_sharded,
};
use mw_testkit::{Measured, Prober};

use orders::{Key, Orders};
use sharding::Sharding;

/// Names the file for the results, which `cargo xtask growth` reads.
const REPORT: &str = "MW_GROWTH_REPORT";
const NEW_SHARD: &str = "c";
/// Between two operations of the prober.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Operations before this time are not measured: connections are made, routes learned.
const WARM_UP: Duration = Duration::from_secs(3);
const MEASURED_BEFORE: Duration = Duration::from_secs(10);
/// The median and one of a hundred.
const QUANTILES: [usize; 2] = [500, 990];

/// A line of the report.
struct Line {
    key: Key,
    event: &'static str,
    stored: u64,
    moved: u64,
    predicted: u64,
    took: Duration,
    /// Of the shard with the most inserts.
    busiest_share: f64,
    before: Measured,
    during: Measured,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let cluster = start_sharded("growth").await;
    let joining = ClusterOptions {
        name: "growth-shard".to_owned(),
        layout: Layout::ReplicaSet { members: 1 },
        extra_arguments: vec!["--shardsvr".to_owned()],
        ..ClusterOptions::default()
    };
    let joining = start(joining).await;
    let client = Client::with_uri_str(cluster.uri()).await.unwrap();
    let sharding = Sharding::new(client.clone());
    sharding.start_balancer().await;

    let mut lines = Vec::new();
    let mut filled = Vec::new();
    for key in Key::ALL {
        let orders = Arc::new(Orders::new(&client, key));
        sharding.shard(&orders, key).await;
        sharding.set_balanced(&orders, false).await;
        orders.fill().await;
        // Where a collection lies on one shard, the balancer has to divide it before any shard joins.
        if sharding.data_of_shards(&orders).await.len() < 2 {
            lines.push(grow(&sharding, &cluster, &orders, "two shards even out").await);
        }
        filled.push(orders);
    }
    sharding.add_shard(NEW_SHARD, &format!("{REPLICA_SET}/{}", joining.member(0).address())).await;
    for orders in &filled {
        lines.push(grow(&sharding, &cluster, orders, "a shard joins two").await);
    }
    let report = std::env::var(REPORT).unwrap_or_else(|_| panic!("{REPORT} names no file"));
    std::fs::write(report, text(&lines)).unwrap();
}

/// Lets the balancer work on one collection, under load, until it is done.
async fn grow(sharding: &Sharding, cluster: &Cluster, orders: &Arc<Orders>, event: &'static str) -> Line {
    let shared = Arc::clone(orders);
    let prober = Prober::start(PROBE_INTERVAL, move |_| {
        let orders = Arc::clone(&shared);
        async move { orders.probe().await }
    });
    tokio::time::sleep(WARM_UP).await;
    drop(prober.take());
    let inserts = |set| inserted(cluster, set, orders);
    let (a, b) = (inserts(SHARD_A), inserts(SHARD_B));
    tokio::time::sleep(MEASURED_BEFORE).await;
    let inserts = [inserts(SHARD_A) - a, inserts(SHARD_B) - b];
    let before = prober.take();

    let mut shards = sharding.data_of_shards(orders).await;
    shards.resize(sharding.shards().await, 0);
    let known = sharding.moved_bytes(orders).await;
    let started = Instant::now();
    sharding.set_balanced(orders, true).await;
    sharding.await_balanced(orders).await;
    let (took, during) = (started.elapsed(), prober.take());
    sharding.set_balanced(orders, false).await;
    Line {
        key: orders.key(),
        event,
        stored: shards.iter().sum(),
        moved: sharding.moved_bytes(orders).await - known,
        predicted: balance(&shards, sharding::RANGE_BYTES).bytes,
        took,
        busiest_share: share(inserts.iter().max().copied().unwrap_or_default(), inserts.iter().sum()),
        before,
        during,
    }
}

/// The prober's inserts that lie on a shard.
fn inserted(cluster: &Cluster, set: &str, orders: &Orders) -> u64 {
    let reply = tokio::task::block_in_place(|| {
        cluster.primary(set).unwrap().command(orders::DATABASE, orders.count_probed())
    });
    u64::try_from(reply.unwrap().get_i32("n").unwrap()).unwrap()
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a test, far below 2^53")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn text(lines: &[Line]) -> String {
    let mut text = String::new();
    for Line { key, event, stored, moved, predicted, took, busiest_share, before, during } in lines {
        let predicted = share(*predicted, *stored);
        write!(text, "MongoDB\t{}\t{event}\t{stored}\t{moved}\t{predicted}", key.text()).unwrap();
        let failed = before.failed + during.failed;
        write!(text, "\t{}\t{busiest_share}\t{failed}", took.as_secs_f64()).unwrap();
        for measured in [before, during] {
            for permille in QUANTILES {
                write!(text, "\t{}", measured.quantile_ms(permille)).unwrap();
            }
        }
        text.push('\n');
    }
    text
}
