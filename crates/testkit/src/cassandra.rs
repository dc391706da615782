//! Real Cassandra for tests: the cluster that all tests share, and clusters of their own for tests that stop nodes.
//!
//! Starting a cluster blocks: call it through `spawn_blocking` in async tests.

mod fresh;
mod statement_faults;

pub use fresh::{Lease, fresh};
pub use mw_cassandra_testbed::{
    CASSANDRA_VERSION, CQL_PORT, Cluster, ClusterError, ClusterOptions, JOLOKIA_PASSWORD, JOLOKIA_PORT,
    JOLOKIA_USER, Network, Node, SUPERUSER, SUPERUSER_PASSWORD, TEST_VARIABLE,
};
pub use statement_faults::{PausedStatement, StatementScript};

use std::env;
use std::net::{IpAddr, SocketAddr};

/// The cluster that `cargo xtask test` started: three nodes in `dc1`, without passwords and TLS. Each test uses keyspaces of
/// its own, and none disturbs a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    pub contact_points: Vec<SocketAddr>,
    pub local_dc: &'static str,
}

/// # Panics
///
/// If there is no shared cluster: a test that needs one must not pass without it.
#[expect(clippy::panic, reason = "a test that cannot run must fail")]
pub fn shared() -> Shared {
    let addresses = env::var(TEST_VARIABLE).unwrap_or_default();
    match parse(&addresses) {
        Some(shared) => shared,
        None => panic!(
            "find the Cassandra cluster of the tests: {TEST_VARIABLE} names none (`{addresses}`): run `cargo xtask \
             test`, or `cargo xtask cluster up --nodes 3` and set {TEST_VARIABLE}=127.0.0.1,127.0.0.2,127.0.0.3"
        ),
    }
}

/// Addresses separated by commas, each with or without a port.
fn parse(addresses: &str) -> Option<Shared> {
    let point = |text: &str| {
        let alone = || text.parse::<IpAddr>().map(|ip| SocketAddr::from((ip, CQL_PORT)));
        text.parse().or_else(|_| alone()).ok()
    };
    let contact_points = addresses.split(',').map(str::trim).map(point).collect::<Option<_>>()?;
    Some(Shared { contact_points, local_dc: "dc1" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_ports() {
        let shared = parse("127.0.0.1, 127.0.0.2:9142").unwrap();
        assert_eq!(shared.contact_points, ["127.0.0.1:9042", "127.0.0.2:9142"].map(|it| it.parse().unwrap()));
        assert_eq!(shared.local_dc, "dc1");
    }

    #[test]
    fn malformed_addresses_name_no_cluster() {
        for text in ["", ",", "localhost", "127.0.0.1,", "127.0.0.1;127.0.0.2"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
