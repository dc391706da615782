//! Ports of members, each claimed by a lock file for as long as the cluster runs: a starting member does not listen yet, and
//! a killed one needs its port again. They lie below the range from which the system takes ports of its own.

use mw_testbed::cache::Lock;
use mw_testbed::{ClusterError, Result};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

const FIRST: u16 = 22_000;
const COUNT: u16 = 8_000;

#[derive(Debug)]
pub(crate) struct ClaimedPort {
    pub(crate) port: u16,
    _lock: Lock,
}

/// `locks` is the directory of lock files.
pub(crate) fn claim(locks: &Path, wanted: usize) -> Result<Vec<ClaimedPort>> {
    let mut claimed = Vec::new();
    for port in FIRST..FIRST + COUNT {
        if claimed.len() == wanted {
            break;
        }
        if let Some(lock) = Lock::try_take(&locks.join(port.to_string()))?
            && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
        {
            claimed.push(ClaimedPort { port, _lock: lock });
        }
    }
    if claimed.len() < wanted {
        let what = format!("find {wanted} free ports: all of {FIRST} to {} are in use", FIRST + COUNT - 1);
        return Err(ClusterError::Options(what));
    }
    Ok(claimed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starting_clusters_claim_different_ports() {
        let locks = tempfile::tempdir().unwrap();
        let ports = |claimed: &[ClaimedPort]| claimed.iter().map(|it| it.port).collect::<Vec<_>>();
        let one = claim(locks.path(), 3).unwrap();
        let other = claim(locks.path(), 2).unwrap();
        assert_eq!((one.len(), other.len()), (3, 2));
        assert!(ports(&one).iter().all(|port| !ports(&other).contains(port)));
        let first = ports(&one);
        drop(one);
        assert_eq!(ports(&claim(locks.path(), 3).unwrap()), first);
    }

    #[test]
    fn a_port_in_use_is_left_out() {
        let locks = tempfile::tempdir().unwrap();
        let free = claim(locks.path(), 1).unwrap().remove(0).port;
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free)).unwrap();
        assert_ne!(claim(locks.path(), 1).unwrap().remove(0).port, free);
    }
}
