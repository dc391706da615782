//! The target of a migration: how the commands reach the process that runs it, and its state where none does.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use mw_migrate::control::{Listener, Request, Response, ask, ask_through};
use mw_store::migration::MigrationTarget;

use crate::config::{Config, Engine};
use crate::storage::Storage;

/// A target that this process has opened.
pub(super) struct Target {
    storage: Storage,
    pub(super) store: Arc<dyn MigrationTarget>,
}

/// What came of asking.
pub(super) enum Reached {
    Running(Response),
    /// No process runs the migration: the target itself.
    Stopped(Target),
}

impl Target {
    /// Opens it to run a migration into it. An embedded one is created.
    pub(super) async fn open(config: &Config) -> Result<Self> {
        Self::of(Storage::open(config).await?)
    }

    fn of(storage: Storage) -> Result<Self> {
        let store: Arc<dyn MigrationTarget> = match &storage {
            Storage::Embedded { store, .. } => Arc::clone(store) as _,
            Storage::Cassandra { store, .. } => Arc::clone(store) as _,
            Storage::Mongodb { .. } => bail!("the target of a migration is the embedded engine or Cassandra"),
        };
        Ok(Self { storage, store })
    }

    /// What the commands reach this process by, where the target is a directory.
    pub(super) fn listener(&self) -> Result<Option<Listener>> {
        let Storage::Embedded { path, .. } = &self.storage else { return Ok(None) };
        let listener = Listener::bind(path).with_context(|| {
            format!("listen in {} for the other commands of the migration", path.display())
        })?;
        Ok(Some(listener))
    }

    pub(super) async fn close(self) {
        drop(self.store);
        self.storage.close().await;
    }
}

/// Asks the process that runs the migration, or else opens the target.
pub(super) async fn ask_or_open(config: &Config, request: Request) -> Result<Reached> {
    if config.engine == Engine::Embedded
        && let Some(answer) = ask(&config.embedded.path, request).await?
    {
        return answered(answer);
    }
    let target = Target::of(Storage::open_existing(config).await?)?;
    let asked = match target.store.mailbox() {
        Some(mailbox) => ask_through(mailbox, request).await,
        None => Ok(None),
    };
    match asked {
        Ok(None) => Ok(Reached::Stopped(target)),
        Ok(Some(answer)) => {
            target.close().await;
            answered(answer)
        }
        Err(error) => {
            target.close().await;
            Err(error.into())
        }
    }
}

fn answered(answer: Response) -> Result<Reached> {
    match answer {
        Response::Failed(why) => bail!("{why}"),
        answer => Ok(Reached::Running(answer)),
    }
}

/// What is free where the target is, or will be; unknown for a cluster.
pub(super) fn free_bytes(config: &Config) -> Option<u64> {
    if config.engine != Engine::Embedded {
        return None;
    }
    let existing = config.embedded.path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(existing).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
