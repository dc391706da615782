//! What the testbeds of the servers have in common: a cache of what is fetched once, file locks, directories that are removed
//! with their owner, and processes that end with the process that started them.
//!
//! Linux only; all calls block.

pub mod apt;
pub mod cache;
mod error;
pub mod log;
mod process;
mod run_dir;
mod watchdog;

pub use error::{ClusterError, Doing, Result};
pub use process::Process;
pub use run_dir::RunDir;
pub use watchdog::Watchdog;

use std::net::{Ipv4Addr, TcpListener};

/// A port of the loopback address on which nothing listens now.
pub fn free_port() -> Result<u16> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .doing(|| "find a free port".to_owned())
}

/// The name of a cluster is also the name of a directory.
pub fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(plain) {
        return Ok(());
    }
    Err(ClusterError::Options(format!("the name `{name}` is not made of letters, digits, `-` and `_`")))
}
