//! Without tokens every client of the machine has all rights. A browser on it must not lend them to a web site: a request that
//! came through another name (DNS rebinding), or from a page of another site, is refused.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{HOST, ORIGIN};
use http::uri::Uri;

use crate::error::{Code, Problem};

pub(crate) fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    // HTTP/2 names the host in the request line.
    let host = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(HOST).map(|value| value.to_str().unwrap_or_default()),
    };
    if host.is_some_and(|host| !is_loopback(host)) {
        return Err(refused("Host", "the name of this machine on itself, such as localhost or 127.0.0.1"));
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    match origin.to_str().unwrap_or_default().split_once("://") {
        Some(("http" | "https", host)) if is_loopback(host) => Ok(()),
        _ => Err(refused("Origin", "a page of this machine")),
    }
}

fn refused(header: &str, wanted: &str) -> Problem {
    Problem::new(
        Code::Forbidden,
        format!(
            "no tokens are configured here, so {header} must be {wanted}; configure [[tokens]] for other clients"
        ),
    )
}

/// Of a host with or without a port.
fn is_loopback(host: &str) -> bool {
    let (name, is_address) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _port)) => (address, true),
        None => (host.split_once(':').map_or(host, |(name, _port)| name), false),
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_local_name = !is_address
        && name.len().checked_sub(LOCALHOST.len()).and_then(|at| name.split_at_checked(at)).is_some_and(
            |(above, last)| {
                last.eq_ignore_ascii_case(LOCALHOST) && (above.is_empty() || above.ends_with('.'))
            },
        );
    is_local_name || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

const LOCALHOST: &str = "localhost";

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(uri: &str, headers: &[(http::HeaderName, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        check(&uri.parse().unwrap(), &headers).is_ok()
    }

    #[test]
    fn hosts_and_origins_of_this_machine_are_allowed() {
        assert!(is_allowed("/v1", &[]));
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "shop.localhost",
            "localhost.",
        ] {
            assert!(is_allowed("/v1", &[(HOST, host)]), "{host}");
        }
        assert!(is_allowed("http://127.0.0.1:8080/v1", &[]));
        for origin in ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443"] {
            assert!(is_allowed("/v1", &[(HOST, "localhost"), (ORIGIN, origin)]), "{origin}");
        }
    }

    #[test]
    fn hosts_and_origins_of_other_sites_are_refused() {
        for host in ["evil.example", "192.168.0.1", "localhost.evil.example", "10.0.0.1:8080", "", "a b"] {
            assert!(!is_allowed("/v1", &[(HOST, host)]), "{host}");
        }
        assert!(!is_allowed("http://evil.example/v1", &[]));
        for origin in ["https://evil.example", "null", "http://localhost.evil.example", "file://"] {
            assert!(!is_allowed("/v1", &[(HOST, "localhost"), (ORIGIN, origin)]), "{origin}");
        }
    }
}
