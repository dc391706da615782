//! What can go wrong with a cluster. A node that does not start brings the end of its log along: the cause is there.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    #[error("choose options: {0}")]
    Options(String),
    /// Says what to install, and how.
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
    Node { node: usize, what: String, log: String },
    #[error("{0}")]
    Background(String),
}

pub type Result<T, E = ClusterError> = std::result::Result<T, E>;

/// Names what was being done when the operating system refused.
pub(crate) trait Doing<T> {
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
