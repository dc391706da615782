//! The tokio runtimes of the commands.

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

/// For a command without concurrency.
pub(crate) fn single() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("start the runtime")
}

/// For serving requests; `None`: one thread a core.
pub(crate) fn serving(workers: Option<usize>) -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    builder.enable_all().build().context("start the runtime")
}
