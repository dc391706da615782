//! The target of the load: its address, the base path of every call, and the headers of every request.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::error::LoadError;

const DEFAULT_PORT: u16 = 80;

/// A server under test, over plain HTTP/1.1.
#[derive(Debug, Clone)]
pub struct Target {
    pub(crate) address: SocketAddr,
    /// The base path, without a slash at its end.
    pub(crate) base: String,
    /// Header lines of every request, each with its line end.
    pub(crate) headers: String,
    url: String,
}

impl Target {
    /// `http://host[:port][/path]`; the token is sent as a bearer token.
    pub fn new(url: &str, token: Option<&str>) -> Result<Self, LoadError> {
        let refuse = |why: &str| LoadError::Url { url: url.to_owned(), why: why.to_owned() };
        if url.starts_with("https://") {
            return Err(refuse(
                "the generator supports plain http only; address the server behind TLS termination",
            ));
        }
        let rest = url.strip_prefix("http://").ok_or_else(|| refuse("it does not begin with http://"))?;
        let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if host.is_empty() || path.contains(['?', '#', ' ']) {
            return Err(refuse("expected http://host:port, with a path after it at most"));
        }
        if token.is_some_and(|token| token.is_empty() || !token.bytes().all(|it| it.is_ascii_graphic())) {
            return Err(LoadError::Token);
        }
        let has_port = host.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok())
            && (host.matches(':').count() == 1 || host.contains("]:"));
        let named = if has_port { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") };
        let mut addresses = named.to_socket_addrs().map_err(|source| refuse(&source.to_string()))?;
        let address = addresses.next().ok_or_else(|| refuse("the name has no address"))?;
        let authorization =
            token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        Ok(Self {
            address,
            base: path.trim_end_matches('/').to_owned(),
            headers: format!("host: {host}\r\n{authorization}"),
            url: url.trim_end_matches('/').to_owned(),
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_into_address_and_base_path() {
        let target = Target::new("http://127.0.0.1:8080/shop/", Some("secret")).unwrap();
        assert_eq!(target.address, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(target.base, "/shop");
        assert_eq!(target.headers, "host: 127.0.0.1:8080\r\nauthorization: Bearer secret\r\n");
        assert_eq!(Target::new("http://127.0.0.1", None).unwrap().address.port(), 80);
        assert_eq!(Target::new("http://[::1]:81", None).unwrap().address, "[::1]:81".parse().unwrap());
        assert_eq!(Target::new("http://[::1]", None).unwrap().address, "[::1]:80".parse().unwrap());
    }

    #[test]
    fn an_unusable_url_is_refused_with_the_reason() {
        let message = |url: &str| Target::new(url, None).unwrap_err().to_string();
        assert!(message("https://shop").contains("plain http only"));
        assert!(message("shop:8080").contains("does not begin with http://"));
        assert!(message("http://").contains("expected http://host:port"));
        assert!(message("http://127.0.0.1:1/?a=b").contains("expected http://host:port"));
        assert!(Target::new("http://127.0.0.1", Some("a\r\nb")).is_err());
    }
}
