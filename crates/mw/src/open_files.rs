//! The limit of open files of this process. No other crate changes it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit. Every connection and every table on disk is an open file, and the usual soft limit of
/// 1024 is low for historical reasons only.
pub(crate) fn raise_limit() {
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: files.maximum, maximum: files.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "raise the limit of open files");
    }
}
