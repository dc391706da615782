//! Errors of a cluster. The error of a node contains the end of its log, where the cause is.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    #[error("check cluster options: {0}")]
    Options(String),
    /// What to install, and how.
    #[error("{0}")]
    Missing(String),
    #[error("listen on {address}: {cause}; stop what runs there, or choose another network")]
    InUse { address: SocketAddr, cause: io::Error },
    #[error("find a free network: every one of 127.0.{first} to 127.0.{last} is in use")]
    NoNetwork { first: u8, last: u8 },
    #[error("{doing}: {cause}")]
    Io { doing: String, cause: io::Error },
    #[error("run {command}: {status}\n{output}")]
    Command { command: String, status: ExitStatus, output: String },
    #[error("node {node} {what}\n{log}")]
    Node { node: String, what: String, log: String },
    #[error("{0}")]
    Detached(String),
}

pub type Result<T, E = ClusterError> = std::result::Result<T, E>;

/// Adds what was being done to an error of the operating system.
pub trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;

    fn at(self, verb: &str, path: &Path) -> Result<T>
    where
        Self: Sized,
    {
        self.doing(|| format!("{verb} {}", path.display()))
    }
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| ClusterError::Io { doing: what(), cause: error.into() })
    }
}
