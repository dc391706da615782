//! A simulated ring: traced statements of a few processes, laid on a cluster of any size.
//!
//! A machine with three nodes hides hot partitions: every node has every row. The simulation places each traced statement on the
//! replicas of its token in a larger ring and compresses time to the request rate of interest, so that uneven keys show as uneven
//! nodes before a real ring shows them.

mod load;
mod topology;
mod trace;

use serde::Serialize;
use std::collections::BTreeMap;

pub use topology::Topology;
pub use trace::{Trace, TraceError};

/// The ring and the load to simulate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    pub nodes: usize,
    /// Token ranges of each node.
    pub vnodes: usize,
    /// Replication factor.
    pub replicas: usize,
    /// Requests a second that time is compressed to.
    pub rate: f64,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("replicas: {replicas} need as many nodes, and there are {nodes}")]
    TooFewNodes { replicas: usize, nodes: usize },
    #[error("{0}: at least 1")]
    Zero(&'static str),
    #[error("rate: more than 0 requests a second")]
    Rate,
}

impl Options {
    pub fn check(&self) -> Result<(), OptionsError> {
        for (name, value) in [("nodes", self.nodes), ("vnodes", self.vnodes), ("replicas", self.replicas)] {
            if value == 0 {
                return Err(OptionsError::Zero(name));
            }
        }
        if self.replicas > self.nodes {
            return Err(OptionsError::TooFewNodes { replicas: self.replicas, nodes: self.nodes });
        }
        if self.rate.is_finite() && self.rate > 0.0 { Ok(()) } else { Err(OptionsError::Rate) }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub requests: u64,
    pub statements_per_request: f64,
    /// The busiest node's operations in a window of 100 ms, divided by the mean of all nodes.
    pub node_max_over_mean: Quantiles,
    /// By `keyspace.table`.
    pub tables: BTreeMap<String, TableReport>,
    pub moved_by_a_node: Moved,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TableReport {
    pub statements_per_request: f64,
    /// Share of the table's writes, in its busiest second, that the hottest partition takes.
    pub hottest_partition_share: f64,
    /// Writes of one partition in a second, lightweight transactions included.
    pub writes_per_second_max: f64,
    /// Lightweight transactions of one partition in a second.
    pub cas_per_second_max: f64,
    pub rows_per_day_max: f64,
    pub bytes_per_day_max: f64,
    /// Share of writes that meet a write of another process in the same partition within one second, at true speed.
    pub meeting_share: f64,
}

/// What streams to a node that joins the ring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Moved {
    /// Of all replicated bytes.
    pub share: f64,
    /// Of the rows that one day writes at the simulated rate.
    pub bytes: f64,
}

/// Lays traces, one a process, on the ring.
pub fn simulate(traces: &[Trace], options: &Options) -> Result<Report, OptionsError> {
    options.check()?;
    Ok(load::report(traces, options))
}
