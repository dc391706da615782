//! Loopback networks: the first three bytes of the nodes' addresses. Clusters that run at the same time have different
//! ones.

use crate::CQL_PORT;
use mw_testbed::cache::Lock;
use mw_testbed::{ClusterError, Result};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

/// For traffic between nodes; with [`CQL_PORT`] the only port that is equal on every node.
const STORAGE_PORT: u16 = 7000;

/// Networks that [`Network::Free`] chooses from.
const FIRST_FREE: u8 = 100;
const LAST_FREE: u8 = 199;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// These three bytes; it is an error if something listens there.
    At([u8; 3]),
    /// One that is not in use.
    Free,
}

/// A network that this process has claimed until this is dropped.
#[derive(Debug)]
pub(crate) struct ClaimedNetwork {
    pub(crate) bytes: [u8; 3],
    _lock: Lock,
}

/// `locks` is the directory of lock files by which processes share the networks: a starting cluster does not listen yet.
pub(crate) fn claim(network: Network, nodes: usize, locks: &Path) -> Result<ClaimedNetwork> {
    match network {
        Network::At(bytes) => {
            let lock = lock(bytes, locks)?.ok_or_else(|| {
                let [a, b, c] = bytes;
                ClusterError::Options(format!("another cluster has claimed the network {a}.{b}.{c}"))
            })?;
            check_free(bytes, nodes)?;
            Ok(ClaimedNetwork { bytes, _lock: lock })
        }
        Network::Free => {
            for third in FIRST_FREE..=LAST_FREE {
                let bytes = [127, 0, third];
                if let Some(lock) = lock(bytes, locks)?
                    && check_free(bytes, nodes).is_ok()
                {
                    return Ok(ClaimedNetwork { bytes, _lock: lock });
                }
            }
            Err(ClusterError::NoNetwork { first: FIRST_FREE, last: LAST_FREE })
        }
    }
}

fn lock([a, b, c]: [u8; 3], locks: &Path) -> Result<Option<Lock>> {
    Lock::try_take(&locks.join(format!("{a}.{b}.{c}")))
}

fn check_free([a, b, c]: [u8; 3], nodes: usize) -> Result<()> {
    (1_u8..).zip(0..nodes).try_for_each(|(last, _)| check_node_free(Ipv4Addr::new(a, b, c, last)))
}

/// Nothing listens where a node of this address is to listen.
pub(crate) fn check_node_free(node: Ipv4Addr) -> Result<()> {
    for port in [CQL_PORT, STORAGE_PORT] {
        let address = SocketAddr::from((node, port));
        match TcpListener::bind(address) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                return Err(ClusterError::Missing(format!(
                    "listen on {address}: clusters need a system on which all of 127.0.0.0/8 is the machine \
                     itself, as on Linux"
                )));
            }
            Err(cause) => return Err(ClusterError::InUse { address, cause }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starting_clusters_claim_different_networks() {
        let locks = tempfile::tempdir().unwrap();
        let one = claim(Network::Free, 3, locks.path()).unwrap();
        let other = claim(Network::Free, 3, locks.path()).unwrap();
        assert_ne!(one.bytes, other.bytes);
        let error = claim(Network::At(one.bytes), 1, locks.path()).unwrap_err();
        assert!(error.to_string().contains("another cluster has claimed the network"), "{error}");
    }

    #[test]
    fn an_address_in_use_is_named() {
        let locks = tempfile::tempdir().unwrap();
        let _listener = TcpListener::bind("127.0.99.2:9042").unwrap();
        let error = claim(Network::At([127, 0, 99]), 2, locks.path()).unwrap_err().to_string();
        assert!(error.starts_with("listen on 127.0.99.2:9042: "), "{error}");
        claim(Network::At([127, 0, 99]), 1, locks.path()).unwrap();
    }
}
