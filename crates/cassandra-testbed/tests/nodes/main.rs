//! Real nodes: started, crashed and restarted; none outlives its test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in the functions that tests share")]

mod cql;

use mw_cassandra_testbed::{Cluster, ClusterError, ClusterOptions, SUPERUSER, SUPERUSER_PASSWORD};
use std::env;
use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Bounds every wait; the first run on a machine fetches Cassandra before it starts a node.
const TIMEOUT: Duration = Duration::from_mins(3);

/// Java processes that have `word` among their arguments.
fn nodes_with(word: &str) -> Vec<u32> {
    let numbers =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|it| it.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("CassandraDaemon") && line.contains(word)
        })
        .collect()
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !reached() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_node_with_password_and_tls_keeps_its_data_after_a_crash() {
    let options = ClusterOptions {
        name: "secured".to_owned(),
        auth: true,
        tls: true,
        // With periodic syncs a crash may take what was acknowledged in the last 100 ms.
        extra_yaml: ["commitlog_sync: batch", "commitlog_sync_period: 0ms"].map(str::to_owned).to_vec(),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(options).unwrap();
    let node = cluster.node(0);
    let (address, dir) = (node.address(), node.dir().to_owned());
    let ca_pem = cluster.ca_pem().unwrap().to_owned();

    let mut in_clear = cql::connect(address, Duration::from_secs(5)).unwrap();
    assert!(!matches!(in_clear.start(), Ok(cql::AUTHENTICATE)), "a client without TLS must be refused");
    assert!(!cql::connect_tls(address, &ca_pem).unwrap().log_in(SUPERUSER, "wrong").unwrap());
    let mut client = cql::connect_tls(address, &ca_pem).unwrap();
    assert!(client.log_in(SUPERUSER, SUPERUSER_PASSWORD).unwrap());
    for statement in [
        "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}",
        "CREATE TABLE shop.t (k int PRIMARY KEY, v text) WITH auto_repair = {'full_enabled': 'true'}",
        "INSERT INTO shop.t (k, v) VALUES (1, 'written before the crash') IF NOT EXISTS",
    ] {
        client.run(statement).unwrap();
    }

    let before = node.pid().unwrap();
    node.kill().unwrap();
    assert_eq!(node.pid(), None);
    assert!(TcpStream::connect((address, mw_cassandra_testbed::CQL_PORT)).is_err());
    node.restart().unwrap();
    assert_ne!(node.pid().unwrap(), before);
    let mut client = cql::connect_tls(address, &ca_pem).unwrap();
    assert!(client.log_in(SUPERUSER, SUPERUSER_PASSWORD).unwrap());
    assert!(client.run("SELECT v FROM shop.t WHERE k = 1").unwrap().contains("written before the crash"));

    let pid = node.pid().unwrap();
    assert_eq!(nodes_with(dir.to_str().unwrap()), [pid]);
    drop(cluster);
    assert_eq!(nodes_with(dir.to_str().unwrap()), [0; 0]);
    assert!(!dir.exists());
}

#[test]
fn data_centres_see_each_other_and_a_resumed_node_responds() {
    let options = ClusterOptions { name: "paired".to_owned(), nodes: 2, dcs: 2, ..ClusterOptions::default() };
    let cluster = Cluster::start(options).unwrap();
    let status = cluster.nodetool(&["status"]).unwrap();
    assert!(status.contains("Datacenter: dc1") && status.contains("Datacenter: dc2"), "{status}");
    for node in cluster.nodes() {
        assert!(status.contains(&format!("UN  {}", node.address())), "{status}");
    }

    let far = cluster.node(1);
    assert_eq!(far.dc(), "dc2");
    far.pause().unwrap();
    let brief = Duration::from_millis(300);
    let silent = cql::connect(far.address(), brief).and_then(|mut client| client.start());
    assert!(silent.is_err(), "{silent:?}");
    far.resume().unwrap();
    let response = cql::connect(far.address(), TIMEOUT).and_then(|mut client| client.start()).unwrap();
    assert_ne!(response, cql::ERROR);

    far.kill().unwrap();
    far.restart().unwrap();
    let status = far.nodetool(&["status"]).unwrap();
    assert_eq!(status.matches("UN  ").count(), 2, "{status}");
}

#[test]
fn a_failed_start_shows_the_log_and_leaves_no_process() {
    let options = ClusterOptions {
        name: "misspelt".to_owned(),
        extra_yaml: vec!["concurrent_raeds: 1".to_owned()],
        ..ClusterOptions::default()
    };
    let error = Cluster::start(options).unwrap_err();
    assert!(matches!(&error, ClusterError::Node { node, .. } if node == "1"), "{error:?}");
    let shown = error.to_string();
    assert!(shown.starts_with("node 1 did not start: it ended with exit status"), "{shown}");
    assert!(shown.contains("concurrent_raeds"), "{shown}");
    assert_eq!(nodes_with(&format!("misspelt-{}", std::process::id())), [0; 0]);
}

/// Set in the child process that the test below kills.
const VICTIM: &str = "MW_CLUSTER_TEST_VICTIM";

#[test]
fn nodes_end_with_a_process_that_is_killed() {
    if env::var_os(VICTIM).is_some() {
        let options = ClusterOptions { name: "orphaned".to_owned(), ..ClusterOptions::default() };
        let _cluster = Cluster::start(options);
        thread::sleep(TIMEOUT);
        panic!("this process was not killed");
    }
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--exact", "nodes_end_with_a_process_that_is_killed"])
        .env(VICTIM, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let directory = format!("orphaned-{}-", victim.id());
    wait_until("the victim starts a node", || !nodes_with(&directory).is_empty());
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_until("the node is gone", || nodes_with(&directory).is_empty());
}
