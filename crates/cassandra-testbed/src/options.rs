//! The options of a cluster, and the plan of its nodes: address, data centre, tokens.

use crate::network::Network;
use mw_testbed::{ClusterError, Result, check_name};
use std::net::Ipv4Addr;
use std::time::Duration;

pub(crate) const MAX_NODES: usize = 6;
const MAX_DCS: usize = 2;
const MIN_HEAP_MIB: u32 = 256;

/// Tokens of a node. Few make an even ring, because they are not random.
pub(crate) const TOKENS: usize = 16;

/// Between tokens of different data centres; more than the rounding error.
const DC_SHIFT: i64 = 1000;

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each switches one thing of the cluster on or off")]
pub struct ClusterOptions {
    /// The name of the cluster, and a part of its directory's name.
    pub name: String,
    /// Up to six, in all data centres together.
    pub nodes: usize,
    /// One or two, `dc1` and `dc2`. The first of them gets the odd node.
    pub dcs: usize,
    pub network: Network,
    /// Password authentication and authorisation, with [`crate::SUPERUSER`].
    pub auth: bool,
    /// Clients must speak TLS; the authority to trust is [`crate::Cluster::ca_pem`].
    pub tls: bool,
    pub heap_mib: u32,
    /// JMX over HTTP (Jolokia) at the address of each node and [`crate::JOLOKIA_PORT`], with [`crate::JOLOKIA_USER`].
    pub jolokia: bool,
    /// Limits the JIT compiler: half the work at startup, less throughput later. For tests.
    pub quick: bool,
    /// Lines appended to cassandra.yaml; of a duplicate setting the last one counts.
    pub extra_yaml: Vec<String>,
    /// How long a node may take to start, or to see the others.
    pub start_timeout: Duration,
    /// Called with lines of progress.
    pub report: fn(&str),
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            name: "test".to_owned(),
            nodes: 1,
            dcs: 1,
            network: Network::Free,
            auth: false,
            tls: false,
            heap_mib: 640,
            jolokia: false,
            quick: true,
            extra_yaml: Vec::new(),
            start_timeout: Duration::from_mins(3),
            report: |line| eprintln!("cassandra: {line}"),
        }
    }
}

impl ClusterOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(ClusterError::Options(what));
        check_name(&self.name)?;
        if !(1..=MAX_NODES).contains(&self.nodes) {
            return wrong(format!("{} nodes: there may be 1 to {MAX_NODES}", self.nodes));
        }
        if !(1..=MAX_DCS).contains(&self.dcs) || self.dcs > self.nodes {
            return wrong(format!(
                "{} data centres for {} nodes: there may be 1 or {MAX_DCS}, and no empty one",
                self.dcs, self.nodes
            ));
        }
        if self.heap_mib < MIN_HEAP_MIB {
            return wrong(format!("a heap of {} MiB: it takes at least {MIN_HEAP_MIB}", self.heap_mib));
        }
        Ok(())
    }

    /// The replication factor of the system keyspaces.
    pub(crate) fn system_replicas(&self) -> usize {
        self.nodes.min(3)
    }
}

/// The plan of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Counted from 1; also the last byte of its address.
    pub(crate) number: usize,
    pub(crate) address: Ipv4Addr,
    pub(crate) dc: String,
    /// None of a node that joins a running cluster: it allocates them itself and bootstraps.
    pub(crate) tokens: Vec<i64>,
}

pub(crate) fn plans(options: &ClusterOptions, network: [u8; 3]) -> Vec<Plan> {
    let [a, b, c] = network;
    let first_dc = options.nodes.div_ceil(options.dcs);
    (1_u8..)
        .zip(0..options.nodes)
        .map(|(last, index)| {
            let (dc, index_in_dc, size) = if index < first_dc {
                (1, index, first_dc)
            } else {
                (2, index - first_dc, options.nodes - first_dc)
            };
            Plan {
                number: index + 1,
                address: Ipv4Addr::new(a, b, c, last),
                dc: format!("dc{dc}"),
                tokens: tokens(dc, index_in_dc, size),
            }
        })
        .collect()
}

/// The plan of a node that joins the running nodes of a data centre.
pub(crate) fn joining_plan(running: &[Plan], dc: &str) -> Result<Plan> {
    let number = running.len() + 1;
    let (Some(first), Ok(last), true) = (running.first(), u8::try_from(number), number <= MAX_NODES) else {
        return Err(ClusterError::Options(format!("{number} nodes: there may be 1 to {MAX_NODES}")));
    };
    if !running.iter().any(|plan| plan.dc == dc) {
        return Err(ClusterError::Options(format!("a node of {dc}: there is no such data centre")));
    }
    let [a, b, c, _] = first.address.octets();
    Ok(Plan { number, address: Ipv4Addr::new(a, b, c, last), dc: dc.to_owned(), tokens: Vec::new() })
}

/// Every node of a data centre owns each `size`-th of equal slices of the ring. The data centres are a little shifted,
/// since no token may be there twice.
fn tokens(dc: i64, index_in_dc: usize, size: usize) -> Vec<i64> {
    let slices = (TOKENS * size) as u64;
    let width = u64::MAX / slices;
    (0..TOKENS)
        .map(|round| {
            let slice = (round * size + index_in_dc) as u64;
            i64::MIN.wrapping_add_unsigned(slice * width).wrapping_add(dc * DC_SHIFT)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn of(nodes: usize, dcs: usize) -> ClusterOptions {
        ClusterOptions { nodes, dcs, ..ClusterOptions::default() }
    }

    #[test]
    fn nodes_have_addresses_in_a_row_and_the_first_dc_the_odd_one() {
        let plans = plans(&of(5, 2), [127, 0, 9]);
        let shown: Vec<_> =
            plans.iter().map(|it| format!("{} {} {}", it.number, it.address, it.dc)).collect();
        assert_eq!(
            shown,
            ["1 127.0.9.1 dc1", "2 127.0.9.2 dc1", "3 127.0.9.3 dc1", "4 127.0.9.4 dc2", "5 127.0.9.5 dc2"]
        );
    }

    #[test]
    fn every_token_is_there_once_and_the_ring_is_even() {
        for (nodes, dcs) in [(1, 1), (2, 1), (3, 1), (6, 1), (6, 2), (5, 2)] {
            let plans = plans(&of(nodes, dcs), [127, 0, 0]);
            let all: BTreeSet<i64> = plans.iter().flat_map(|plan| plan.tokens.clone()).collect();
            assert_eq!(all.len(), nodes * TOKENS, "{nodes} nodes, {dcs} dcs");
            assert!(!all.contains(&i64::MIN), "the least token is reserved");
            let of_dc1: BTreeSet<i64> =
                plans.iter().filter(|plan| plan.dc == "dc1").flat_map(|plan| plan.tokens.clone()).collect();
            let sorted: Vec<i64> = of_dc1.into_iter().collect();
            let widths: BTreeSet<u64> = sorted.windows(2).map(|pair| pair[0].abs_diff(pair[1])).collect();
            assert_eq!(widths.len(), 1, "{nodes} nodes, {dcs} dcs: {widths:?}");
        }
    }

    #[test]
    fn a_joining_node_has_the_next_address_and_no_tokens() {
        let running = plans(&of(3, 1), [127, 0, 9]);
        let plan = joining_plan(&running, "dc1").unwrap();
        let shown = (plan.number, plan.address.to_string(), plan.tokens.len());
        assert_eq!(shown, (4, "127.0.9.4".to_owned(), 0));
        let refused = |running: &[Plan], dc| joining_plan(running, dc).unwrap_err().to_string();
        assert!(refused(&running, "dc2").contains("a node of dc2: there is no such data centre"));
        assert!(refused(&plans(&of(6, 1), [127, 0, 9]), "dc1").contains("7 nodes: there may be 1 to 6"));
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let refused = |options: ClusterOptions| options.check().unwrap_err().to_string();
        assert!(refused(of(0, 1)).contains("0 nodes: there may be 1 to 6"));
        assert!(refused(of(7, 1)).contains("7 nodes"));
        assert!(refused(of(3, 3)).contains("3 data centres"));
        assert!(refused(of(1, 2)).contains("no empty one"));
        let name = ClusterOptions { name: "../x".to_owned(), ..of(1, 1) };
        assert!(refused(name).contains("the name `../x`"));
        let heap = ClusterOptions { heap_mib: 64, ..of(1, 1) };
        assert!(refused(heap).contains("a heap of 64 MiB"));
        of(6, 2).check().unwrap();
    }
}
