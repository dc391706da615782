//! The servers that tests share, a Cassandra cluster and a MongoDB replica set: each starts while the earlier steps run, and
//! ends with the run. Where the environment variable names running servers, those are used.

use crate::{mongo, say};
use anyhow::{Context, Result, anyhow};
use mw_cassandra_testbed as cassandra;
use mw_mongodb_testbed as mongodb;
use std::env;
use std::mem;
use std::thread::{self, JoinHandle};

const NODES: usize = 3;
const MEMBERS: usize = 3;

/// The nodes share their cores with compilers and with the tests. The default timeouts of Cassandra would end writes that are
/// merely slow; tests of lost results and nodes start clusters of their own.
const PATIENT_NODES: [&str; 3] =
    ["read_request_timeout: 8s", "write_request_timeout: 8s", "cas_contention_timeout: 8s"];

pub(crate) struct TestCluster<C> {
    /// For errors, such as `Cassandra cluster`.
    what: &'static str,
    /// The value of the tests' environment variable.
    value: fn(&C) -> String,
    state: State<C>,
}

enum State<C> {
    /// The developer's own.
    Given(String),
    Starting(JoinHandle<mw_testbed::Result<C>>),
    Running(Box<C>),
    Failed,
}

pub(crate) type CassandraCluster = TestCluster<cassandra::Cluster>;
pub(crate) type MongodbCluster = TestCluster<mongodb::Cluster>;

impl CassandraCluster {
    /// Returns at once.
    pub(crate) fn begin() -> Self {
        Self::new("Cassandra cluster", cassandra_addresses, cassandra::TEST_VARIABLE, start_cassandra)
    }
}

impl MongodbCluster {
    /// Returns at once.
    pub(crate) fn begin() -> Self {
        Self::new("MongoDB replica set", mongodb::Cluster::uri, mongodb::TEST_VARIABLE, start_mongodb)
    }
}

impl<C: Send + 'static> TestCluster<C> {
    fn new(
        what: &'static str,
        value: fn(&C) -> String,
        variable: &str,
        start: fn() -> mw_testbed::Result<C>,
    ) -> Self {
        let given = env::var(variable).ok().filter(|value| !value.is_empty());
        let state = given.map_or_else(|| State::Starting(thread::spawn(start)), State::Given);
        Self { what, value, state }
    }

    /// The value of the tests' environment variable. Waits until the servers are up.
    pub(crate) fn value(&mut self) -> Result<String> {
        let what = self.what;
        self.state = match mem::replace(&mut self.state, State::Failed) {
            State::Starting(thread) => {
                let started =
                    thread.join().map_err(|_| anyhow!("the thread that starts the {what} panicked"))?;
                State::Running(Box::new(started.with_context(|| format!("start the tests' {what}"))?))
            }
            other => other,
        };
        match &self.state {
            State::Given(value) => Ok(value.clone()),
            State::Running(cluster) => Ok((self.value)(cluster)),
            State::Starting(_) | State::Failed => Err(anyhow!("the tests' {what} did not start")),
        }
    }
}

impl<C> Drop for TestCluster<C> {
    /// A cluster that is still starting is not waited for: its processes end with this one.
    fn drop(&mut self) {
        if let State::Starting(thread) = mem::replace(&mut self.state, State::Failed)
            && thread.is_finished()
        {
            drop(thread.join());
        }
    }
}

fn start_cassandra() -> mw_testbed::Result<cassandra::Cluster> {
    cassandra::Cluster::start(cassandra::ClusterOptions {
        name: "tests".to_owned(),
        nodes: NODES,
        report: |line| say(format_args!("cassandra: {line}")),
        extra_yaml: PATIENT_NODES.map(str::to_owned).to_vec(),
        ..cassandra::ClusterOptions::default()
    })
}

fn cassandra_addresses(cluster: &cassandra::Cluster) -> String {
    let addresses: Vec<String> = cluster.nodes().map(|node| node.address().to_string()).collect();
    addresses.join(",")
}

fn start_mongodb() -> mw_testbed::Result<mongodb::Cluster> {
    mongodb::Cluster::start(mongodb::ClusterOptions {
        name: "tests".to_owned(),
        layout: mongodb::Layout::ReplicaSet { members: MEMBERS },
        election_timeout: mongo::PATIENT_ELECTION,
        report: |line| say(format_args!("mongodb: {line}")),
        ..mongodb::ClusterOptions::default()
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn given<C>(value: &str) -> TestCluster<C> {
        TestCluster { what: "cluster", value: |_| String::new(), state: State::Given(value.to_owned()) }
    }

    #[test]
    fn a_given_cluster_is_used() {
        let mut cluster: CassandraCluster = given("127.0.0.1,127.0.0.2");
        assert_eq!(cluster.value().unwrap(), "127.0.0.1,127.0.0.2");
    }

    #[test]
    fn a_failed_start_is_reported_each_time() {
        let refused = || {
            let options = cassandra::ClusterOptions { nodes: 0, ..cassandra::ClusterOptions::default() };
            cassandra::Cluster::start(options)
        };
        let state = State::Starting(thread::spawn(refused));
        let mut cluster = TestCluster { what: "Cassandra cluster", value: cassandra_addresses, state };
        let error = format!("{:#}", cluster.value().unwrap_err());
        assert!(
            error.starts_with("start the tests' Cassandra cluster: check cluster options: 0 nodes"),
            "{error}"
        );
        assert!(cluster.value().is_err());
    }
}
