//! The change feed of the model: every change ever recorded, in order. A position is the number of a change.

use mw_domain::Timestamp;
use tokio::sync::watch;

use super::{Model, State};
use crate::changes::{ChangeEvent, Changed, Changes, ChangesPage, FeedSettings, FeedStart, ReadChanges};
use crate::{Position, Refusal, Result};

/// The recorded changes; the first one has number 1.
#[derive(Debug, Default)]
pub(super) struct Feed {
    settings: FeedSettings,
    changes: Vec<RecordedChange>,
    /// The number of the newest change.
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct RecordedChange {
    at: Timestamp,
    /// Never before that of the change before it, so that changes leave the feed in their order.
    kept_since: Timestamp,
    changed: Changed,
}

impl Feed {
    pub(super) fn new(settings: FeedSettings) -> Self {
        Self { settings, ..Self::default() }
    }
}

impl State {
    /// Records a change of a topic that is written.
    pub(super) fn record(&mut self, at: Timestamp, changed: Changed) {
        let feed = &mut self.feed;
        if feed.settings.topics.contains(changed.topic()) {
            let before = feed.changes.last().map_or(at, |last| last.kept_since);
            feed.changes.push(RecordedChange { at, kept_since: before.max(at), changed });
            feed.newest.send_replace(feed.changes.len() as u64);
        }
    }
}

impl RecordedChange {
    fn event(&self, number: u64) -> ChangeEvent {
        let version = match &self.changed {
            Changed::OrderCreated(order) | Changed::OrderStatus(order) => order.version,
            Changed::Cart(cart) | Changed::CartClosed(cart) => cart.version,
            _ => number,
        };
        ChangeEvent {
            id: number.to_string(),
            position: position(number),
            at: self.at,
            version,
            changed: self.changed.clone(),
        }
    }
}

fn position(number: u64) -> Position {
    Position(number.to_be_bytes().to_vec())
}

/// The number of the change at a position.
fn number(Position(bytes): &Position, newest: u64) -> Result<u64> {
    let number = <[u8; 8]>::try_from(bytes.as_slice()).map(u64::from_be_bytes).ok();
    number.filter(|number| *number <= newest).ok_or_else(|| Refusal::InvalidCursor.into())
}

#[async_trait::async_trait]
impl Changes for Model {
    fn feed(&self) -> FeedSettings {
        self.state().feed.settings
    }

    async fn changes(&self, request: ReadChanges) -> Result<ChangesPage> {
        let feed = &self.state().feed;
        let newest = feed.changes.len() as u64;
        let cutoff = request.now.plus_millis(-feed.settings.retention_ms);
        let gone = feed.changes.iter().take_while(|change| change.kept_since <= cutoff).count() as u64;
        let after = match &request.start {
            FeedStart::Oldest => gone,
            FeedStart::Now => newest,
            FeedStart::After(at) => number(at, newest)?,
        };
        if after < gone {
            return Err(Refusal::CursorExpired.into());
        }
        let mut page = ChangesPage { items: Vec::new(), next: position(after) };
        for (number, change) in (1_u64..).zip(&feed.changes).filter(|(number, _)| *number > after) {
            if page.items.len() == request.limit {
                break;
            }
            if request.topics.contains(change.changed.topic()) {
                page.items.push(change.event(number));
            }
            page.next = position(number);
        }
        Ok(page)
    }

    async fn changes_after(&self, at: &Position) -> Result<()> {
        let after = number(at, u64::MAX)?;
        let mut newest = self.state().feed.newest.subscribe();
        // The sender lives as long as the model.
        let _ = newest.wait_for(|newest| *newest > after).await;
        Ok(())
    }
}
