//! The settings of the HTTP server, with their defaults.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use mw_store::request::RequestObserver;

/// Limits and timeouts of the server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Requests in flight; one more is 503 `overloaded` at once.
    pub max_in_flight: usize,
    /// Streams of the change feed and requests that wait for changes; one more is 503 `overloaded` at once.
    pub max_streams: usize,
    /// Open connections; one more is refused with 503 and closed.
    pub max_connections: usize,
    /// Bytes of a JSON body, and of one line of an NDJSON body.
    pub body_limit_bytes: usize,
    /// Bytes of a request line with its headers; at least 8 KiB.
    pub header_limit_bytes: usize,
    /// From the request's headers to the response. A read that takes longer is 503, a write 504.
    pub request_timeout: Duration,
    /// For a body to arrive; in an NDJSON import, for its next chunk.
    pub body_timeout: Duration,
    /// From the first byte of a request to the end of its headers; also for the TLS handshake.
    pub header_timeout: Duration,
    /// A connection that sends no request, or does not read its response, for this long is closed.
    pub idle_timeout: Duration,
    /// After the signal to stop, for requests in flight to finish.
    pub shutdown_grace: Duration,
    /// Certificate and key, if the server speaks TLS itself.
    pub tls: Option<TlsFiles>,
    /// The key of the pseudonyms that auditors see; `None`: derived from the tokens of the other roles.
    pub pseudonym_key: Option<String>,
    /// Is told of every request.
    pub request_observer: Option<Arc<dyn RequestObserver>>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            max_in_flight: 4_096,
            max_streams: 256,
            max_connections: 10_000,
            body_limit_bytes: 1024 * 1024,
            header_limit_bytes: 32 * 1024,
            request_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            shutdown_grace: Duration::from_secs(20),
            tls: None,
            pseudonym_key: None,
            request_observer: None,
        }
    }
}

/// PEM files: the certificate with its chain, and its private key.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// What a caller may do. Storefront, back office and operator: each includes the one before it. An auditor may read what an
/// operator may, with personal data masked, and change nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Storefront,
    Backoffice,
    Operator,
    Auditor,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Storefront, Self::Backoffice, Self::Operator, Self::Auditor];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Storefront => "storefront",
            Self::Backoffice => "backoffice",
            Self::Operator => "operator",
            Self::Auditor => "auditor",
        }
    }

    /// Whether a caller of this role may do what needs `role`; `is_read`: it changes nothing and ends by itself.
    pub(crate) const fn includes(self, role: Self, is_read: bool) -> bool {
        const fn rank(role: Role) -> u8 {
            match role {
                Role::Storefront => 0,
                Role::Backoffice => 1,
                Role::Operator | Role::Auditor => 2,
            }
        }
        match self {
            Self::Auditor => is_read,
            Self::Storefront | Self::Backoffice | Self::Operator => rank(self) >= rank(role),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a role is storefront, backoffice, operator or auditor")]
pub struct UnknownRole;

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or(UnknownRole)
    }
}

/// A service of the shop, known by its secret.
#[derive(Clone)]
pub struct Token {
    pub role: Role,
    pub secret: String,
    /// Requests a second, with bursts of as many; `None`: no limit.
    pub rate_limit: Option<u32>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("role", &self.role)
            .field("rate_limit", &self.rate_limit)
            .finish_non_exhaustive()
    }
}

/// The tokens of all callers. Empty: every caller is an operator; `mw` allows that on loopback only.
#[derive(Debug, Clone, Default)]
pub struct Tokens(pub Vec<Token>);
