//! Real members: started, crashed, paused, stepped down; none outlives its test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in the functions that tests share")]

use bson::{Document, doc};
use mw_mongodb_testbed::{
    Cluster, ClusterError, ClusterOptions, Layout, Member, REPLICA_SET, SHARD_A, SHARD_B,
};
use std::env;
use std::fs;
#[cfg(feature = "tls")]
use std::io::{Read as _, Write as _};
#[cfg(feature = "tls")]
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Bounds every wait; the first run on a machine fetches MongoDB before it starts a member.
const TIMEOUT: Duration = Duration::from_mins(4);

fn named(name: &str, layout: Layout) -> ClusterOptions {
    ClusterOptions { name: name.to_owned(), layout, ..ClusterOptions::default() }
}

/// Servers that have `word` among their arguments.
fn servers_with(word: &str) -> Vec<u32> {
    let numbers =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|it| it.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("--bind_ip") && line.contains(word)
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

fn insert(id: &str) -> Document {
    doc! { "insert": "t", "documents": [{ "_id": id }], "writeConcern": { "w": "majority" } }
}

fn ids(member: Member<'_>) -> Vec<String> {
    let read =
        doc! { "find": "t", "sort": { "_id": 1 }, "$readPreference": { "mode": "secondaryPreferred" } };
    let reply = member.command("shop", read).unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|it| it.as_document().unwrap().get_str("_id").unwrap().to_owned()).collect()
}

#[test]
fn a_majority_goes_on_after_a_crash_and_the_crashed_member_comes_back() {
    let cluster = Cluster::start(named("crashed", Layout::ReplicaSet { members: 3 })).unwrap();
    let first = cluster.primary(REPLICA_SET).unwrap();
    first.command("shop", insert("before")).unwrap();
    first.kill().unwrap();
    assert_eq!(first.pid(), None);
    let second = cluster.primary(REPLICA_SET).unwrap();
    assert_ne!(first.name(), second.name());
    second.command("shop", insert("meanwhile")).unwrap();
    first.restart().unwrap();
    wait_until("the crashed member has both documents", || ids(first) == ["before", "meanwhile"]);

    second.step_down().unwrap();
    let third = cluster.primary(REPLICA_SET).unwrap();
    assert_ne!(third.name(), second.name(), "it stands for no election for ten seconds");

    third.pause().unwrap();
    assert!(!third.is_primary(), "a paused member does not respond");
    let fourth = cluster.primary(REPLICA_SET).unwrap();
    assert_ne!(fourth.name(), third.name());
    third.resume().unwrap();
    wait_until("the resumed member follows", || third.command("admin", doc! { "hello": 1 }).is_ok());
    assert!(cluster.uri().ends_with("/?replicaSet=rs0"), "{}", cluster.uri());

    let dir = first.dir().parent().unwrap().to_owned();
    assert_eq!(servers_with(dir.to_str().unwrap()).len(), 3);
    drop(cluster);
    assert_eq!(servers_with(dir.to_str().unwrap()), [0; 0]);
    assert!(!dir.exists());
}

#[test]
fn a_sharded_cluster_spreads_a_collection_over_its_shards() {
    let cluster = Cluster::start(named("sharded", Layout::Sharded)).unwrap();
    let mongos = cluster.named("mongos");
    let shard = doc! { "shardCollection": "shop.t", "key": { "_id": "hashed" } };
    mongos.command("admin", shard).unwrap();
    for number in 0..40 {
        mongos.command("shop", insert(&format!("{number:02}"))).unwrap();
    }
    let counts: Vec<usize> = [SHARD_A, SHARD_B].map(|set| ids(cluster.primary(set).unwrap()).len()).to_vec();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), 40);
    assert_eq!(cluster.set(SHARD_A).count(), 3);
    cluster.named("b-1").restart().unwrap();
    cluster.primary(SHARD_B).unwrap();
    assert_eq!(ids(mongos).len(), 40);
}

#[cfg(feature = "tls")]
#[test]
fn members_with_password_and_tls_serve_the_testbed_and_refuse_a_client_in_clear() {
    let secured =
        ClusterOptions { auth: true, tls: true, ..named("secured", Layout::ReplicaSet { members: 2 }) };
    let cluster = Cluster::start(secured).unwrap();
    let primary = cluster.primary(REPLICA_SET).unwrap();
    primary.command("shop", insert("one")).unwrap();
    assert!(cluster.uri().starts_with("mongodb://admin:mobile-world@127.0.0.1:"), "{}", cluster.uri());
    assert!(cluster.uri().contains("&tls=true&tlsCAFile=%2F"), "{}", cluster.uri());
    assert!(cluster.ca_pem().unwrap().exists());
    primary.restart().unwrap();
    assert_eq!(ids(primary), ["one"]);

    let mut in_clear = TcpStream::connect(primary.address()).unwrap();
    in_clear.write_all(&hello_message()).unwrap();
    let mut reply = Vec::new();
    // Closed, with or without a reset.
    let _ = in_clear.read_to_end(&mut reply);
    assert_eq!(reply, []);
}

/// `hello` as `OP_MSG`.
#[cfg(feature = "tls")]
fn hello_message() -> Vec<u8> {
    let body = doc! { "hello": 1, "$db": "admin" }.to_vec().unwrap();
    let length = i32::try_from(21 + body.len()).unwrap();
    let numbers = [length, 1, 0, 2013, 0].map(i32::to_le_bytes).concat();
    [numbers, vec![0], body].concat()
}

#[test]
fn a_standalone_server_and_an_oplog_of_one_mebibyte_start() {
    let alone = Cluster::start(named("alone", Layout::Standalone)).unwrap();
    let hello = alone.member(0).command("admin", doc! { "hello": 1 }).unwrap();
    assert!(!hello.contains_key("setName"), "{hello}");
    drop(alone);
    let options = ClusterOptions { oplog_mib: Some(1), ..named("small", Layout::ReplicaSet { members: 1 }) };
    let small = Cluster::start(options).unwrap();
    let stats = small.member(0).command("local", doc! { "collStats": "oplog.rs" }).unwrap();
    let size = stats.get("maxSize").unwrap();
    assert_eq!(size.as_i64().or(size.as_i32().map(i64::from)), Some(1 << 20), "{stats}");
}

#[test]
fn a_failed_start_shows_the_log_and_leaves_no_process() {
    let options = ClusterOptions {
        extra_arguments: vec!["--no-such-option".to_owned()],
        ..named("misspelt", Layout::ReplicaSet { members: 2 })
    };
    let error = Cluster::start(options).unwrap_err();
    assert!(matches!(&error, ClusterError::Node { node, .. } if node == "rs0-1"), "{error:?}");
    assert!(error.to_string().contains("no-such-option"), "{error}");
    assert_eq!(servers_with(&format!("mongodb-misspelt-{}", std::process::id())), [0; 0]);
}

/// Set in the child process that the test below kills.
const VICTIM: &str = "MW_MONGODB_TEST_VICTIM";

#[test]
fn members_end_with_a_process_that_is_killed() {
    if env::var_os(VICTIM).is_some() {
        let _cluster = Cluster::start(named("orphaned", Layout::Sharded));
        thread::sleep(TIMEOUT);
        panic!("this process was not killed");
    }
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--exact", "members_end_with_a_process_that_is_killed"])
        .env(VICTIM, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let directory = format!("orphaned-{}-", victim.id());
    wait_until("the victim starts members", || servers_with(&directory).len() > 2);
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_until("the members are gone", || servers_with(&directory).is_empty());
}
