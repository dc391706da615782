//! The Cassandra cluster that tests share: it starts while the earlier steps run, and ends with the run. Where the
//! environment variable names a running cluster, that one is used.

use crate::say;
use anyhow::{Context, Result, anyhow};
use mw_cassandra_testbed::{Cluster, ClusterOptions, TEST_VARIABLE};
use std::env;
use std::mem;
use std::thread::{self, JoinHandle};

const NODES: usize = 3;

/// The nodes share their cores with compilers and with the tests. The default timeouts of Cassandra would end writes that are
/// merely slow; tests of lost results and nodes start clusters of their own.
const PATIENT_NODES: [&str; 3] =
    ["read_request_timeout: 8s", "write_request_timeout: 8s", "cas_contention_timeout: 8s"];

pub(crate) struct TestCluster {
    state: State,
}

enum State {
    /// The developer's own.
    Given(String),
    Starting(JoinHandle<mw_cassandra_testbed::Result<Cluster>>),
    Running(Box<Cluster>),
    Failed,
}

impl TestCluster {
    /// Returns at once.
    pub(crate) fn begin() -> Self {
        let given = env::var(TEST_VARIABLE).ok().filter(|value| !value.is_empty());
        match given {
            Some(addresses) => Self::given(&addresses),
            None => Self { state: State::Starting(thread::spawn(start)) },
        }
    }

    pub(crate) fn given(addresses: &str) -> Self {
        Self { state: State::Given(addresses.to_owned()) }
    }

    /// The value of the tests' environment variable. Waits until the cluster is up.
    pub(crate) fn addresses(&mut self) -> Result<String> {
        self.state = match mem::replace(&mut self.state, State::Failed) {
            State::Starting(thread) => {
                let started =
                    thread.join().map_err(|_| anyhow!("the thread that starts the cluster panicked"))?;
                State::Running(Box::new(started.context("start the tests' Cassandra cluster")?))
            }
            other => other,
        };
        match &self.state {
            State::Given(addresses) => Ok(addresses.clone()),
            State::Running(cluster) => {
                let addresses: Vec<String> = cluster.nodes().map(|node| node.address().to_string()).collect();
                Ok(addresses.join(","))
            }
            State::Starting(_) | State::Failed => Err(anyhow!("the tests' Cassandra cluster did not start")),
        }
    }
}

impl Drop for TestCluster {
    /// A cluster that is still starting is not waited for: its nodes end with this process.
    fn drop(&mut self) {
        if let State::Starting(thread) = mem::replace(&mut self.state, State::Failed)
            && thread.is_finished()
        {
            drop(thread.join());
        }
    }
}

fn start() -> mw_cassandra_testbed::Result<Cluster> {
    Cluster::start(ClusterOptions {
        name: "tests".to_owned(),
        nodes: NODES,
        report: |line| say(format_args!("cassandra: {line}")),
        extra_yaml: PATIENT_NODES.map(str::to_owned).to_vec(),
        ..ClusterOptions::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_cluster_is_used() {
        let mut given = TestCluster::given("127.0.0.1,127.0.0.2");
        assert_eq!(given.addresses().unwrap(), "127.0.0.1,127.0.0.2");
    }

    #[test]
    fn a_failed_start_is_reported_each_time() {
        let refused = || Cluster::start(ClusterOptions { nodes: 0, ..ClusterOptions::default() });
        let mut cluster = TestCluster { state: State::Starting(thread::spawn(refused)) };
        let error = format!("{:#}", cluster.addresses().unwrap_err());
        assert!(
            error.starts_with("start the tests' Cassandra cluster: check cluster options: 0 nodes"),
            "{error}"
        );
        assert!(cluster.addresses().is_err());
    }
}
