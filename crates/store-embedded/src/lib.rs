//! The storage contract on an embedded LSM engine: a whole shop on one machine, with nothing else to run.
//!
//! One writer thread commits what is waiting as one batch with one sync (`writer.rs`); readers look at a snapshot and
//! never wait for it (`view.rs`). A command is a function over a [`tx::Tx`], so it is atomic by construction. One file a
//! noun.

mod audit;
mod carts;
mod compaction;
mod housekeeping;
mod keys;
mod once;
mod open;
mod orders;
mod products;
mod recent;
mod records;
mod sessions;
mod shelf;
mod space;
mod stock;
mod tables;
mod tx;
mod view;
mod writer;

use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use fjall::{Database, PersistMode};
use mw_domain::Timestamp;
use mw_store::{Result, StoreError, Upkeep};

pub use open::{OpenError, Options};

use housekeeping::Housekeeping;
use recent::Recent;
use shelf::Shelf;
use space::FreeSpace;
use stock::{Figures, HeldUnits};
use tables::Tables;
use tx::Tx;
use view::View;
use writer::{Progress, Writer};

/// A store in a directory of this machine. Dropping or closing it finishes what waits.
pub struct EmbeddedStore {
    writer: Writer,
    db: Database,
    tables: Tables,
    progress: Arc<Progress>,
    shelf: Arc<Shelf>,
    options: Options,
    /// Where the next round of cleaning goes on.
    cleaned_to: Mutex<Vec<u8>>,
    _lock: File,
}

impl std::fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedStore").field("path", &self.options.path).finish_non_exhaustive()
    }
}

impl EmbeddedStore {
    /// Opens the store, making it where there is none.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let open::Opened { db, tables, groups, due, now_ms, pace, lock } = open::open(&options)?;
        let progress = Arc::new(Progress::new(due, now_ms));
        let recent_bytes = options.shelf_bytes / 3;
        let shelf_bytes = options.shelf_bytes - recent_bytes;
        let shelf = Arc::new(Shelf::new(db.clone(), tables.clone(), shelf_bytes));
        let space = FreeSpace::new(options.path.clone(), options.min_free_bytes);
        let io_error = |source| OpenError::Io { path: options.path.clone(), source };
        let housekeeping = Housekeeping::start(db.clone(), tables.clone(), pace).map_err(io_error)?;
        let writer = Writer::start(
            db.clone(),
            tables.clone(),
            (groups, due),
            (Arc::clone(&progress), Arc::clone(&shelf), Recent::new(recent_bytes)),
            (space, housekeeping),
            options.write_queue,
        )
        .map_err(io_error)?;
        Ok(Self { writer, db, tables, progress, shelf, options, cleaned_to: Mutex::default(), _lock: lock })
    }

    /// Finishes what waits and takes no more writes; readers go on.
    pub fn close(&self) {
        self.writer.stop();
        let closed = self.db.persist(PersistMode::SyncAll).and_then(|()| {
            let groups = open::committed_groups(&self.tables)?;
            open::note_groups(&self.options.path, groups).map_err(fjall::Error::Io)
        });
        if let Err(error) = closed {
            tracing::error!(?error, "sync the store while closing it");
        }
    }

    fn view(&self) -> View {
        View::new(&self.db, &self.tables)
    }

    /// A view, and the units of holds that ended by `now` and are still counted as reserved in it.
    fn view_with_expired_holds(&self, now: Timestamp) -> Result<(HeldUnits, View)> {
        // Asked before the view is taken: once holds are no longer due, every later view has them settled.
        let due = self.progress.hold_due();
        let view = self.view();
        let expired = if due <= now { stock::held_units(&view, due, now)? } else { HeldUnits::new() };
        Ok((expired, view))
    }

    /// Where to read the figures of single places, as of `now`.
    fn figures(&self, now: Timestamp) -> Result<Figures<'_>> {
        if now < self.progress.hold_due() {
            return Ok(Figures::Shelf(&self.shelf));
        }
        let (expired, view) = self.view_with_expired_holds(now)?;
        Ok(Figures::View { view, expired })
    }

    async fn write<T: Send + 'static>(
        &self,
        now: Timestamp,
        command: impl FnOnce(&mut Tx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // Not the latest of all: after a clock that was set forward for a moment, rows would be dropped that are still alive.
        self.progress.now_ms.store(now.as_millis(), Ordering::Relaxed);
        self.writer.write(command).await
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.writer.stop();
    }
}

#[async_trait]
impl Upkeep for EmbeddedStore {
    async fn ready(&self) -> Result<()> {
        if let Some(why) = self.progress.failure() {
            return Err(StoreError::Unavailable(why));
        }
        if !self.writer.is_running() {
            return Err(StoreError::Unavailable("the store takes no writes".into()));
        }
        FreeSpace::new(self.options.path.clone(), self.options.min_free_bytes)
            .check()
            .map_err(StoreError::Unavailable)
    }

    async fn clean(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let from = self.cleaned_to.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (removed, next) = self.write(now, move |tx| carts::clean(tx, from, now, limit)).await?;
        *self.cleaned_to.lock().unwrap_or_else(PoisonError::into_inner) = next.unwrap_or_default();
        Ok(removed)
    }
}
