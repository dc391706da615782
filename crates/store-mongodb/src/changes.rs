//! The change feed: numbered rows of changes in `changes`.
//!
//! Invariants: a transaction notes its changes in `pending_changes`, so they are there if and only if it is committed. A second
//! transaction ([`sequencer`]) moves pending changes into numbered rows and raises the last number, which is one document: of
//! two processes that number at once one begins again. So numbers have no gaps, and a reader up to a number has missed
//! nothing below it, also what commits later. The changes of a subject are numbered in the order of their commits
//! ([`record`]).

mod read;
pub(crate) mod record;
pub(crate) mod sequencer;

use std::sync::OnceLock;

use async_trait::async_trait;
use mongodb::bson::{Document, doc};
use mongodb::{Collection, Database};
use mw_store::changes::{Changes, ChangesPage, FeedSettings, FeedStart, ReadChanges, Topic};
use mw_store::{Position, Refusal, Result};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::MongoStore;
use crate::collections::{IndexSpec, named};

/// Changes that have a number: rows of consecutive ones, `_id` is the number of the last.
pub const CHANGES: &str = "changes";
/// Changes that have none yet: a document per transaction.
pub const PENDING_CHANGES: &str = "pending_changes";
/// The document of `settings` with the last number.
const FEED: &str = "feed";

/// What the writers, the sequencer and the readers of the feed share in one process.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) settings: FeedSettings,
    pending: Collection<Document>,
    changes: Collection<Document>,
    /// The newest number that this process knows of.
    newest: watch::Sender<u64>,
    /// Told when this process has noted a change.
    noted: Notify,
    /// One round of this process at a time: two would conflict.
    round: tokio::sync::Mutex<()>,
    sequencing: OnceLock<AbortHandle>,
}

impl Feed {
    pub(crate) fn new(database: &Database, settings: FeedSettings) -> Self {
        Self {
            settings,
            pending: named(database, PENDING_CHANGES),
            changes: named(database, CHANGES),
            newest: watch::Sender::new(0),
            noted: Notify::new(),
            round: tokio::sync::Mutex::default(),
            sequencing: OnceLock::new(),
        }
    }

    pub(crate) fn writes(&self, topic: Topic) -> bool {
        self.settings.topics.contains(topic)
    }

    pub(crate) const fn numbered(&self) -> &Collection<Document> {
        &self.changes
    }

    fn stop_with(&self, sequencing: AbortHandle) {
        // A store starts one task.
        let _ = self.sequencing.set(sequencing);
    }

    pub(crate) fn stop(&self) {
        if let Some(sequencing) = self.sequencing.get() {
            sequencing.abort();
        }
    }

    fn publish(&self, newest: u64) {
        self.newest.send_if_modified(|known| {
            let is_newer = *known < newest;
            *known = newest.max(*known);
            is_newer
        });
    }
}

pub fn indexes() -> Vec<IndexSpec> {
    vec![
        IndexSpec::plain(PENDING_CHANGES, "since", doc! { "since": 1 }),
        IndexSpec::ttl(CHANGES, "purge_at", "purge_at"),
    ]
}

fn position(number: u64) -> Position {
    Position(number.to_be_bytes().to_vec())
}

fn number_of(Position(bytes): &Position) -> Result<u64> {
    let number = bytes.as_slice().try_into().map(u64::from_be_bytes).ok();
    // BSON has no larger one.
    let number = number.filter(|number| i64::try_from(*number).is_ok());
    number.ok_or_else(|| Refusal::InvalidCursor.into())
}

#[async_trait]
impl Changes for MongoStore {
    fn feed(&self) -> FeedSettings {
        self.feed.settings
    }

    async fn changes(&self, request: ReadChanges) -> Result<ChangesPage> {
        if request.start == FeedStart::Now {
            self.number_pending().await?;
            let newest = self.newest_change().await?;
            return Ok(ChangesPage { items: Vec::new(), next: position(newest) });
        }
        let page = self.page_of_changes(&request).await?;
        if !page.items.is_empty() {
            return Ok(page);
        }
        // What is acknowledged is in the feed: a reader at the end numbers what is pending, and reads on.
        self.number_pending().await?;
        let has_more = self.newest_change().await? > number_of(&page.next)?;
        if has_more { self.page_of_changes(&request).await } else { Ok(page) }
    }

    async fn changes_after(&self, after: &Position) -> Result<()> {
        let after = number_of(after)?;
        let mut newest = self.feed.newest.subscribe();
        // The sender lives as long as the store.
        let _ = newest.wait_for(|newest| *newest > after).await;
        Ok(())
    }
}
