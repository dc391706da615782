//! Why a process cannot start on a cluster; each error names the setting to change.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use mw_domain::Currency;
use mw_store::StoreError;
use rustls::CertificateError;
use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind, DbError, MetadataError,
    NewSessionError,
};

use super::Options;
use crate::policy::PolicyViolation;
use crate::schema::SchemaError;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("store.cassandra.contact_points: none of {points} can be reached: {cause}")]
    Unreachable { points: String, cause: String },

    #[error("store.cassandra.contact_points: none of {points} is an address or a name that can be found")]
    UnknownHosts { points: String },

    #[error("store.cassandra.username: the cluster requires a password: set username and password")]
    NoCredentials,

    #[error("store.cassandra.password: the cluster rejected it for user {username:?}: {cause}")]
    WrongPassword { username: String, cause: String },

    #[error("{key}: read {}: {cause}", .path.display())]
    TlsFile { key: &'static str, path: PathBuf, cause: String },

    #[error(
        "store.cassandra.tls.ca: a node of {points} did not speak Cassandra's protocol ({cause}): if the nodes demand \
         TLS, set it; if not, look whether store.cassandra.contact_points is right"
    )]
    PerhapsTls { points: String, cause: String },

    #[error("store.cassandra.tls.ca: the certificate of a node of {points} is not trusted: {cause}")]
    Untrusted { points: String, cause: String },

    #[error("store.cassandra.tls: the nodes of {points} do not speak TLS: remove it ({cause})")]
    NotTls { points: String, cause: String },

    #[error("store.cassandra.tls.certificate: a node of {points} rejected the client certificate: {cause}")]
    ClientRefused { points: String, cause: String },

    #[error("{key}: the cluster has no data centre {dc:?}; it has {exist}")]
    NoSuchDc { key: String, dc: String, exist: String },

    #[error(
        "{key}: replication factor {replication_factor} needs {replication_factor} nodes, and {dc} has {nodes}"
    )]
    TooFewNodes { key: String, dc: String, replication_factor: u32, nodes: u32 },

    #[error("the policy may lose data:{}", lines(.0))]
    PolicyViolation(Vec<PolicyViolation>),

    #[error(
        "store.cassandra.max_clock_skew: the clock of this machine is {} s {} the cluster's, and {} s is the most that \
         may be: set the clocks right (NTP)",
        seconds(.skew_millis.unsigned_abs().into()), if *.skew_millis > 0 { "ahead of" } else { "behind" },
        seconds(.max.as_millis())
    )]
    ClockSkew { skew_millis: i64, max: Duration },

    #[error("shop.currency: the amounts in the cluster are in {stored}, and it is {configured}")]
    OtherCurrency { stored: String, configured: Currency },

    #[error("store.cassandra.internal_listen: listen on {address}: {cause}")]
    InternalListen { address: SocketAddr, cause: std::io::Error },

    #[error("ask the cluster for its time: {cause}")]
    Clock { cause: String },

    #[error(transparent)]
    Schema(#[from] SchemaError),

    #[error(transparent)]
    Store(#[from] StoreError),
}

fn lines(found: &[PolicyViolation]) -> String {
    let line = |it: &PolicyViolation| format!("\n  {}: {it}", it.keys().first().map_or("", String::as_str));
    let lines: Vec<String> = found.iter().map(line).collect();
    lines.concat()
}

/// Milliseconds, shown as seconds.
pub(crate) fn seconds(millis: u128) -> String {
    format!("{}.{:03}", millis / 1_000, millis % 1_000).trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl StartError {
    pub(super) fn of_connecting(options: &Options, error: NewSessionError) -> Self {
        let points = options.contact_points.join(", ");
        match error {
            NewSessionError::FailedToResolveAnyHostname(_) => Self::UnknownHosts { points },
            NewSessionError::MetadataError(MetadataError::ConnectionPoolError(
                ConnectionPoolError::Broken { last_connection_error },
            )) => Self::of_connection(options, points, &last_connection_error),
            other => Self::Unreachable { points, cause: other.to_string() },
        }
    }

    fn of_connection(options: &Options, points: String, error: &ConnectionError) -> Self {
        let cause = error.to_string();
        match error {
            ConnectionError::IoError(io) => {
                match io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                    Some(error) => Self::of_tls(points, error),
                    // A node that wants TLS may simply hang up.
                    None if options.tls.is_none() && is_hang_up(io) => Self::PerhapsTls { points, cause },
                    None => Self::Unreachable { points, cause },
                }
            }
            ConnectionError::ConnectionSetupRequestError(setup) => match &setup.error {
                ConnectionSetupRequestErrorKind::MissingAuthentication => Self::NoCredentials,
                ConnectionSetupRequestErrorKind::DbError(DbError::AuthenticationError, cause) => {
                    let username =
                        options.credentials.as_ref().map_or("", |it| it.username.as_str()).to_owned();
                    Self::WrongPassword { username, cause: cause.clone() }
                }
                ConnectionSetupRequestErrorKind::BrokenConnection(broken) => {
                    Self::of_hang_up(options, points, broken.to_string())
                }
                _ => Self::Unreachable { points, cause },
            },
            ConnectionError::BrokenConnection(broken) => {
                Self::of_hang_up(options, points, broken.to_string())
            }
            _ => Self::Unreachable { points, cause },
        }
    }

    fn of_hang_up(options: &Options, points: String, cause: String) -> Self {
        match &options.tls {
            None => Self::PerhapsTls { points, cause },
            Some(tls) if tls.client.is_none() => Self::ClientRefused { points, cause },
            Some(_) => Self::Unreachable { points, cause },
        }
    }

    fn of_tls(points: String, error: &rustls::Error) -> Self {
        let cause = error.to_string();
        match error {
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                Self::Untrusted { points, cause: "it was signed by another authority".to_owned() }
            }
            rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
                Self::Untrusted { points, cause }
            }
            rustls::Error::InvalidMessage(_) => Self::NotTls { points, cause },
            rustls::Error::AlertReceived(_) => Self::ClientRefused { points, cause },
            _ => Self::Unreachable { points, cause },
        }
    }
}

fn is_hang_up(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionReset | UnexpectedEof | BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_skew_is_reported_with_its_direction() {
        let message =
            |skew_millis| StartError::ClockSkew { skew_millis, max: Duration::from_secs(2) }.to_string();
        assert_eq!(
            message(4_250),
            "store.cassandra.max_clock_skew: the clock of this machine is 4.25 s ahead of the cluster's, and 2 s is the \
             most that may be: set the clocks right (NTP)"
        );
        assert!(message(-60_000).contains("is 60 s behind the cluster's"), "{}", message(-60_000));
    }
}
