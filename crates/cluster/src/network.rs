//! Loopback networks: the first three bytes of the nodes' addresses. Clusters beside each other have different ones.

use crate::CQL_PORT;
use crate::cache::Lock;
use crate::error::{ClusterError, Result};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

/// Between the nodes; beside [`CQL_PORT`] the only port that is the same on each.
const STORAGE_PORT: u16 = 7000;

/// Networks that [`Network::Free`] chooses from.
const FIRST_FREE: u8 = 100;
const LAST_FREE: u8 = 199;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// These three bytes; it is an error if something listens there.
    At([u8; 3]),
    /// One that nobody uses.
    Free,
}

/// A network that is ours as long as this lives.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) bytes: [u8; 3],
    _lock: Lock,
}

/// `locks` is where processes of this user agree on who has which network: one that starts does not listen yet.
pub(crate) fn take(network: Network, nodes: usize, locks: &Path) -> Result<Taken> {
    match network {
        Network::At(bytes) => {
            let lock = lock(bytes, locks)?.ok_or_else(|| {
                let [a, b, c] = bytes;
                ClusterError::Options(format!("another cluster is about to use {a}.{b}.{c}.1"))
            })?;
            check_free(bytes, nodes)?;
            Ok(Taken { bytes, _lock: lock })
        }
        Network::Free => {
            for third in FIRST_FREE..=LAST_FREE {
                let bytes = [127, 0, third];
                if let Some(lock) = lock(bytes, locks)?
                    && check_free(bytes, nodes).is_ok()
                {
                    return Ok(Taken { bytes, _lock: lock });
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
    for (last, _) in (1_u8..).zip(0..nodes) {
        for port in [CQL_PORT, STORAGE_PORT] {
            let address = SocketAddr::from((Ipv4Addr::new(a, b, c, last), port));
            match TcpListener::bind(address) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                    return Err(ClusterError::Missing(format!(
                        "{address} cannot be listened on: clusters need a system on which all of 127.0.0.0/8 is \
                         the machine itself, as on Linux"
                    )));
                }
                Err(cause) => return Err(ClusterError::InUse { address, cause }),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_start_do_not_get_the_same_network() {
        let locks = tempfile::tempdir().unwrap();
        let one = take(Network::Free, 3, locks.path()).unwrap();
        let other = take(Network::Free, 3, locks.path()).unwrap();
        assert_ne!(one.bytes, other.bytes);
        let error = take(Network::At(one.bytes), 1, locks.path()).unwrap_err();
        assert!(error.to_string().contains("another cluster is about to use"), "{error}");
    }

    #[test]
    fn an_address_in_use_is_named() {
        let locks = tempfile::tempdir().unwrap();
        let _listener = TcpListener::bind("127.0.99.2:9042").unwrap();
        let error = take(Network::At([127, 0, 99]), 2, locks.path()).unwrap_err().to_string();
        assert!(error.starts_with("listen on 127.0.99.2:9042: "), "{error}");
        take(Network::At([127, 0, 99]), 1, locks.path()).unwrap();
    }
}
