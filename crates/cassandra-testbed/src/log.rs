//! The lines of a node's log that waits look for.

pub(crate) use mw_testbed::log::{length, since, tails};
use std::net::Ipv4Addr;

/// Logged when a node accepts clients.
pub(crate) const LISTENING: &str = "Starting listening for CQL clients";
/// Logged when [`crate::SUPERUSER`] can log in.
pub(crate) const SUPERUSER_CREATED: &str = "Created default superuser role";

/// Whether the node that wrote `log` has marked this address up.
pub(crate) fn saw_up(log: &str, address: Ipv4Addr) -> bool {
    log.contains(&format!("InetAddress /{address}:7000 is now UP"))
}

/// Whether it has also learned the tokens of this address.
pub(crate) fn saw_normal(log: &str, address: Ipv4Addr) -> bool {
    log.contains(&format!("Node /{address}:7000 state NORMAL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_not_taken_for_a_longer_one() {
        let log = "INFO  InetAddress /127.0.0.2:7000 is now UP\n";
        assert!(saw_up(log, Ipv4Addr::new(127, 0, 0, 2)));
        assert!(!saw_up(log, Ipv4Addr::new(127, 0, 0, 20)));
    }
}
