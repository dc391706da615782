//! Hinted handoff, read repair and anti-entropy repair, each shown at work alone on a real cluster of three nodes.
//! `cargo xtask integrity` runs this and prints the table.
//!
//! Two outages of one replica. In the first the others keep hints; they are replayed once the divergence is proved. The second is
//! longer than the hint window: no hints are kept, then some rows are read at QUORUM, then auto-repair is switched on. Divergence is
//! proved by reading every replica directly, through a session that talks to that node alone, at ONE.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed step ends the program"
)]

mod replicas;
mod rows;

use std::time::{Duration, Instant};

use mw_store_cassandra::connect::connect;
use mw_store_cassandra::policy::{Policy, ReadRepair};
use mw_store_cassandra::{Options, Table};
use mw_testkit::cassandra::{Cluster, ClusterOptions, Network};

use replicas::Replicas;
use rows::RowSet;

/// Names the file for the results, which `cargo xtask integrity` reads.
const REPORT: &str = "MW_INTEGRITY_REPORT";
/// The first three bytes of the nodes' addresses; not set: any that are free.
const NETWORK: &str = "MW_INTEGRITY_NETWORK";

/// One table of each class with read repair and repair, and two whose policy turns both off.
const TABLES: [Table; 6] = [
    Table::OrdersByCustomer,
    Table::OrdersByDay,
    Table::ProductsByCategory,
    Table::SessionsByUser,
    Table::CartChanges,
    Table::PartitionStats,
];

/// Rows of a table in a set.
const ROWS: usize = 60;
/// The replica that is down.
const VICTIM: usize = 2;
const LONG_WINDOW_MS: &str = "10800000";
const SHORT_WINDOW_MS: &str = "1000";
/// How long a strategy may take to heal.
const HEAL_TIMEOUT: Duration = Duration::from_mins(4);
/// How long auto-repair may take for all tables on every node, on a busy machine.
const AUTO_REPAIR_TIMEOUT: Duration = Duration::from_mins(10);
/// How long a strategy that must not heal is watched: hints are replayed every ten seconds.
const WATCH: Duration = Duration::from_secs(25);

/// Auto-repair is configured and switched off; the last phase switches it on.
const AUTO_REPAIR: &str = "\
auto_repair:
  enabled: true
  repair_check_interval: 5s
  repair_task_min_duration: 1s
  repair_type_overrides:
    full:
      enabled: false
      initial_scheduler_delay: 1s
      min_repair_interval: 1s
      parallel_repair_count: 3
      allow_parallel_replica_repair: true";

#[derive(Clone, Copy)]
struct Outcome {
    strategy: &'static str,
    table: Table,
    diverged: usize,
    healed: usize,
    took: Duration,
    expected: usize,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let options = ClusterOptions {
        name: "integrity".to_owned(),
        nodes: 3,
        network: network(),
        heap_mib: 512,
        // A replica answers for itself, and no read asks a second one.
        extra_yaml: vec![
            "dynamic_snitch: false".to_owned(),
            "hinted_handoff_throttle: 10MiB".to_owned(),
            AUTO_REPAIR.to_owned(),
        ],
        ..ClusterOptions::default()
    };
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(options)).await.unwrap().unwrap();
    let points: Vec<String> = cluster.contact_points().iter().map(ToString::to_string).collect();
    let options = Options::new(points, "dc1");
    let session = connect(&options).await.unwrap();
    options.schema().apply(&session, &|_| {}).await.unwrap();
    for table in TABLES {
        // Reads at ONE must not ask another replica when the first is slow.
        let alter =
            format!("ALTER TABLE {} WITH speculative_retry = 'NEVER'", rows::full_name(&options, table));
        session.query_unpaged(alter, ()).await.unwrap();
    }
    drop(session);

    let policy = options.policy.clone();
    let mut outcomes = Outcomes::default();
    short_outage(&cluster, &options, &mut outcomes).await;
    long_outage(&cluster, &options, &policy, &mut outcomes).await;
    let report = std::env::var(REPORT).unwrap_or_else(|_| panic!("{REPORT} names no file"));
    std::fs::write(report, outcomes.lines()).unwrap();
}

fn network() -> Network {
    let Ok(text) = std::env::var(NETWORK) else { return Network::Free };
    let bytes: Vec<u8> = text.split('.').map(|byte| byte.parse().unwrap()).collect();
    Network::At([bytes[0], bytes[1], bytes[2]])
}

/// What was shown so far. Each is also a line of progress: the whole takes minutes, and a step that fails ends it.
#[derive(Default)]
struct Outcomes(Vec<Outcome>);

impl Outcomes {
    #[expect(clippy::print_stderr, reason = "progress of a program that people wait for")]
    fn record(&mut self, outcome: Outcome) {
        eprintln!("integrity: {}", outcome.line().replace('\t', " | "));
        self.0.push(outcome);
    }

    fn lines(&self) -> String {
        self.0.iter().map(|outcome| outcome.line() + "\n").collect()
    }
}

impl Outcome {
    /// As `cargo xtask integrity` reads it.
    fn line(&self) -> String {
        let Self { strategy, table, diverged, healed, took, expected } = self;
        format!("{strategy}\t{table}\t{diverged}\t{healed}\t{:.1}\t{expected}", took.as_secs_f64())
    }
}

/// Runs `nodetool` on a node.
fn nodetool(cluster: &Cluster, node: usize, arguments: &[&str]) {
    let output = tokio::task::block_in_place(|| cluster.node(node).nodetool(arguments));
    output.unwrap_or_else(|error| panic!("nodetool {arguments:?} on node {node}: {error}"));
}

fn nodetool_on_others(cluster: &Cluster, arguments: &[&str]) {
    for node in (0..3).filter(|node| *node != VICTIM) {
        nodetool(cluster, node, arguments);
    }
}

/// The row sets of one phase, one a table.
async fn write_sets(replicas: &Replicas, options: &Options, name: &str) -> Vec<RowSet> {
    let mut sets = Vec::new();
    for table in TABLES {
        let set = RowSet::new(replicas.any(), options, table, name, ROWS).await;
        set.write(replicas.any()).await;
        sets.push(set);
    }
    sets
}

/// Waits until a set is healed, or the time is over; returns how many rows were healed, and when.
async fn watch(
    replicas: &Replicas,
    set: &RowSet,
    diverged: usize,
    started: Instant,
    until: Duration,
) -> (usize, Duration) {
    loop {
        let missing = set.missing(replicas.of(VICTIM)).await;
        let healed = diverged.saturating_sub(missing);
        if missing == 0 || started.elapsed() > until {
            return (healed, started.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Hints alone: every row that the replica missed is replayed, whatever the policy of the table.
async fn short_outage(cluster: &Cluster, options: &Options, outcomes: &mut Outcomes) {
    nodetool_on_others(cluster, &["setmaxhintwindow", LONG_WINDOW_MS]);
    tokio::task::block_in_place(|| cluster.node(VICTIM).kill().unwrap());
    let replicas = Replicas::connect(cluster, options, Some(VICTIM)).await;
    replicas.wait_down(VICTIM).await;
    let sets = write_sets(&replicas, options, "hints").await;
    // Hints wait until the divergence is proved.
    nodetool_on_others(cluster, &["pausehandoff"]);
    tokio::task::block_in_place(|| cluster.node(VICTIM).restart().unwrap());
    let replicas = Replicas::connect(cluster, options, None).await;
    let mut diverged = Vec::new();
    for set in &sets {
        replicas.check_others_have(set, VICTIM).await;
        diverged.push(set.missing(replicas.of(VICTIM)).await);
    }
    let started = Instant::now();
    nodetool_on_others(cluster, &["resumehandoff"]);
    for (set, diverged) in sets.iter().zip(diverged) {
        let (healed, took) = watch(&replicas, set, diverged, started, HEAL_TIMEOUT).await;
        outcomes.record(Outcome {
            strategy: "hints",
            table: set.table,
            diverged,
            healed,
            took,
            expected: diverged,
        });
    }
}

/// An outage longer than the hint window: no hints, then read repair of what is read, then repair of the rest.
async fn long_outage(cluster: &Cluster, options: &Options, policy: &Policy, outcomes: &mut Outcomes) {
    nodetool_on_others(cluster, &["setmaxhintwindow", SHORT_WINDOW_MS]);
    tokio::task::block_in_place(|| cluster.node(VICTIM).kill().unwrap());
    let replicas = Replicas::connect(cluster, options, Some(VICTIM)).await;
    replicas.wait_down(VICTIM).await;
    // The window is over: it counts from when the others saw the node go down.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let read = write_sets(&replicas, options, "read").await;
    let unread = write_sets(&replicas, options, "unread").await;
    tokio::task::block_in_place(|| cluster.node(VICTIM).restart().unwrap());
    let replicas = Replicas::connect(cluster, options, None).await;
    let started = Instant::now();
    let mut diverged = Vec::new();
    for set in read.iter().chain(&unread) {
        replicas.check_others_have(set, VICTIM).await;
        diverged.push(set.missing(replicas.of(VICTIM)).await);
    }
    let (diverged_read, diverged_unread) = diverged.split_at(read.len());

    tokio::time::sleep(WATCH.saturating_sub(started.elapsed())).await;
    let strategy = "hints after their window";
    for (set, diverged) in unread.iter().zip(diverged_unread) {
        let healed = diverged.saturating_sub(set.missing(replicas.of(VICTIM)).await);
        let (table, diverged) = (set.table, *diverged);
        outcomes.record(Outcome { strategy, table, diverged, healed, took: started.elapsed(), expected: 0 });
    }

    for (set, diverged) in read.iter().zip(diverged_read) {
        let started = Instant::now();
        // The replica that missed the rows coordinates, so it is one of those that are read.
        set.read_at_quorum(replicas.of(VICTIM)).await;
        let is_on = policy.of(set.table).read_repair == ReadRepair::Blocking;
        let until = if is_on { HEAL_TIMEOUT } else { Duration::from_secs(3) };
        let (healed, took) = watch(&replicas, set, *diverged, started, until).await;
        let (table, diverged) = (set.table, *diverged);
        let expected = if is_on { diverged } else { 0 };
        outcomes.record(Outcome { strategy: "read repair", table, diverged, healed, took, expected });
    }
    let strategy = "read repair of what is not read";
    let mut still = Vec::new();
    for (set, diverged) in unread.iter().zip(diverged_unread) {
        let missing = set.missing(replicas.of(VICTIM)).await;
        let healed = diverged.saturating_sub(missing);
        let (table, diverged) = (set.table, *diverged);
        outcomes.record(Outcome { strategy, table, diverged, healed, took: Duration::ZERO, expected: 0 });
        still.push(missing);
    }

    repair(cluster, &replicas, policy, (&unread, &still), outcomes).await;
}

/// Auto-repair alone: it compares all replicas of the tables whose policy includes them, and of no other.
async fn repair(
    cluster: &Cluster,
    replicas: &Replicas,
    policy: &Policy,
    (sets, diverged): (&[RowSet], &[usize]),
    outcomes: &mut Outcomes,
) {
    let started = Instant::now();
    for node in 0..3 {
        nodetool(cluster, node, &["setautorepairconfig", "-t", "FULL", "enabled", "true"]);
    }
    let is_on = |set: &RowSet| policy.of(set.table).repair.is_some();
    let pairs: Vec<(&RowSet, usize)> = sets.iter().zip(diverged.iter().copied()).collect();
    for (set, diverged) in pairs.iter().filter(|(set, _)| is_on(set)) {
        let (healed, took) = watch(replicas, set, *diverged, started, HEAL_TIMEOUT).await;
        let (table, diverged) = (set.table, *diverged);
        outcomes.record(Outcome { strategy: "repair", table, diverged, healed, took, expected: diverged });
    }
    // Every node has finished a run, so that the tables that are left out were left out of all of them.
    replicas.wait_auto_repaired(started + AUTO_REPAIR_TIMEOUT).await;
    for (set, diverged) in pairs.iter().filter(|(set, _)| !is_on(set)) {
        let healed = diverged.saturating_sub(set.missing(replicas.of(VICTIM)).await);
        let (table, diverged, took) = (set.table, *diverged, started.elapsed());
        outcomes.record(Outcome { strategy: "repair", table, diverged, healed, took, expected: 0 });
    }
}
