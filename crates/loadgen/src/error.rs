//! Why a run could not be made. Failed requests of a run are not errors here: they are counted and reported.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum LoadError {
    #[error("use {url}: {why}")]
    Url { url: String, why: String },
    #[error("use the token: it is empty or has characters that a header cannot carry")]
    Token,
    #[error("connect to {url}: {source}; is the server running?")]
    Unreachable { url: String, source: io::Error },
    #[error(
        "set up data at {url}: the server wants {wanted}; give one of role backoffice with --token or MWBENCH_TOKEN"
    )]
    Refused { url: String, wanted: &'static str },
    #[error("set up {what}: {why}")]
    Setup { what: &'static str, why: String },
    #[error("find workload `{name}`: {known}, or the path of a file")]
    UnknownWorkload { name: String, known: String },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("workload {name}: {why}")]
    Workload { name: String, why: String },
    #[error("{0}")]
    Options(String),
    #[error("interrupted before anything was measured")]
    Interrupted,
    #[error("wait for responses: {0}")]
    Poll(io::Error),
    #[error("compare {a} with {b}: {why}")]
    Compare { a: String, b: String, why: String },
    #[error("read {file}: {why}")]
    Report { file: String, why: String },
}
