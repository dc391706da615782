//! Opening the store that the configuration names.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use mw_store_embedded::{EmbeddedStore, OpenError, Options};

use crate::config::Config;

/// Opens the store, making it where there is none.
pub(crate) fn open(config: &Config) -> Result<Arc<EmbeddedStore>> {
    let embedded = &config.embedded;
    let options = Options {
        path: embedded.path.clone(),
        block_cache_bytes: embedded.block_cache_bytes,
        memtable_bytes: embedded.memtable_bytes,
        min_free_bytes: embedded.min_free_bytes,
        write_queue: embedded.write_queue,
        currency: config.shop.currency,
    };
    EmbeddedStore::open(options).map(Arc::new).map_err(|error| match error {
        OpenError::Locked(_) => anyhow!("{error}: stop that process, or name another directory with --data"),
        other => other.into(),
    })
}

/// Opens the store for a command that makes no sense without one.
pub(crate) fn open_existing(config: &Config) -> Result<Arc<EmbeddedStore>> {
    let path = &config.embedded.path;
    ensure!(
        has_entries(path),
        "open data directory {}: there is no store in it; name the right one with --data",
        path.display()
    );
    open(config)
}

fn has_entries(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
}
