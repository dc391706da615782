//! A node joins a filled cluster of three nodes under load. `cargo xtask growth` runs this and prints the table.
//!
//! Reported are the bytes that stream to the node, the time until it serves, the latency of reads and writes meanwhile, and the share
//! that the simulated ring (`mw lab ring`) predicts from the same rows.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed step ends the program")]

mod rows;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_operate::ring::{Options as RingOptions, simulate};
use mw_store_cassandra::Options;
use mw_store_cassandra::connect::connect;
use mw_testkit::Prober;
use mw_testkit::cassandra::{Cluster, ClusterOptions, Network};

use rows::Rows;

/// Names the file for the results, which `cargo xtask growth` reads.
const REPORT: &str = "MW_GROWTH_REPORT";
/// The first three bytes of the nodes' addresses; not set: any that are free.
const NETWORK: &str = "MW_GROWTH_NETWORK";

const NODES: usize = 3;
/// As `mw lab ring` has them by default.
const RING: RingOptions = RingOptions { nodes: NODES, vnodes: 16, replicas: 3, rate: 50_000.0, seed: 1 };
/// A busy machine streams slowly.
const START_TIMEOUT: Duration = Duration::from_mins(8);
/// Between two operations of the prober.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Operations before this time are not measured: connections are made, statements prepared.
const WARM_UP: Duration = Duration::from_secs(5);
const MEASURED_BEFORE: Duration = Duration::from_secs(20);
/// The median and one of a hundred.
const QUANTILES: [usize; 2] = [500, 990];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let options = ClusterOptions {
        name: "growth".to_owned(),
        nodes: NODES,
        network: network(),
        heap_mib: 512,
        start_timeout: START_TIMEOUT,
        // No lightweight transaction is sent here, and on a busy machine the repair of their state times out again and again.
        extra_yaml: vec!["skip_paxos_repair_on_topology_change: true".to_owned()],
        ..ClusterOptions::default()
    };
    let mut cluster = tokio::task::spawn_blocking(|| Cluster::start(options)).await.unwrap().unwrap();
    let points: Vec<String> = cluster.contact_points().iter().map(ToString::to_string).collect();
    let options = Options::new(points, "dc1");
    let session = connect(&options).await.unwrap();
    options.schema().apply(&session, &|_| {}).await.unwrap();

    let rows = Arc::new(Rows::prepare(session, &options).await);
    nodetool(&cluster, &["disableautocompaction", rows.keyspace()]);
    let lines = rows.fill().await;
    nodetool(&cluster, &["flush", rows.keyspace()]);
    let of_nodes: Vec<u64> =
        cluster.nodes().map(|node| data_bytes(&node.dir().join("data").join(rows.keyspace()))).collect();
    let traced = mw_operate::ring::Trace::read(lines.as_bytes()).unwrap();
    let predicted = simulate(&[traced], &RING).unwrap().moved_by_a_node.share;

    let shared = Arc::clone(&rows);
    let prober = Prober::start(PROBE_INTERVAL, move |number| {
        let rows = Arc::clone(&shared);
        async move { rows.probe(number).await }
    });
    tokio::time::sleep(WARM_UP).await;
    drop(prober.take());
    tokio::time::sleep(MEASURED_BEFORE).await;
    let before = prober.take();
    let started = Instant::now();
    let joined = tokio::task::block_in_place(|| cluster.add_node("dc1").unwrap().dir().to_owned());
    let took = started.elapsed();
    let during = prober.take();
    drop(prober);

    // Whatever the node has on disk it received: what the prober wrote meanwhile is in memory.
    let moved = data_bytes(&joined.join("data").join(rows.keyspace()));
    let stored: u64 = of_nodes.iter().sum();
    let busiest = of_nodes.iter().max().copied().unwrap_or_default();
    let fields = [
        "Cassandra".to_owned(),
        "token of the key".to_owned(),
        "a node joins three".to_owned(),
        stored.to_string(),
        moved.to_string(),
        predicted.to_string(),
        took.as_secs_f64().to_string(),
        (as_f64(busiest) / as_f64(stored)).to_string(),
        (before.failed + during.failed).to_string(),
    ];
    let latencies = [&before, &during]
        .into_iter()
        .flat_map(|measured| QUANTILES.map(|permille| measured.quantile_ms(permille).to_string()));
    let line: Vec<String> = fields.into_iter().chain(latencies).collect();
    let report = std::env::var(REPORT).unwrap_or_else(|_| panic!("{REPORT} names no file"));
    fs::write(report, line.join("\t") + "\n").unwrap();
}

fn network() -> Network {
    let Ok(text) = std::env::var(NETWORK) else { return Network::Free };
    let bytes: Vec<u8> = text.split('.').map(|byte| byte.parse().unwrap()).collect();
    Network::At(bytes.try_into().unwrap())
}

/// Runs `nodetool` on every node.
fn nodetool(cluster: &Cluster, arguments: &[&str]) {
    for node in cluster.nodes() {
        tokio::task::block_in_place(|| node.nodetool(arguments).unwrap());
    }
}

/// The bytes of the rows below a directory of sstables.
fn data_bytes(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            bytes += data_bytes(&path);
        } else if path.to_string_lossy().ends_with("-Data.db") {
            // A compaction may have removed it by now.
            bytes += entry.metadata().map_or(0, |metadata| metadata.len());
        }
    }
    bytes
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a test, far below 2^53")]
const fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}
