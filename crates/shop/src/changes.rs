//! The change feed: what has changed, for systems beside the shop.

use std::time::Duration;

use mw_domain::Timestamp;
use mw_store::changes::{ChangesPage, FeedSettings, FeedStart, ReadChanges, Topics};
use mw_store::{Position, Result};
use tokio::time::Instant;

use crate::Shop;

impl Shop {
    /// Which topics are written, and for how long their changes are kept.
    pub fn feed(&self) -> FeedSettings {
        self.store.feed()
    }

    /// A page of the changes of some topics. Without any yet it waits for the first, at most for `wait`.
    pub async fn changes(
        &self,
        start: FeedStart,
        topics: Topics,
        limit: usize,
        wait: Duration,
    ) -> Result<ChangesPage> {
        let deadline = Instant::now() + wait;
        let mut start = start;
        loop {
            let request = ReadChanges { start: start.clone(), topics, limit, now: self.now() };
            let page = self.store.changes(request).await?;
            if !page.items.is_empty() || Instant::now() >= deadline {
                return Ok(page);
            }
            let next = FeedStart::After(page.next.clone());
            // A page that has moved on may have more behind it.
            if start == next && !self.changes_before(deadline, &page.next).await? {
                return Ok(page);
            }
            start = next;
        }
    }

    /// Whether there may be changes after a position before the deadline.
    async fn changes_before(&self, deadline: Instant, position: &Position) -> Result<bool> {
        match tokio::time::timeout_at(deadline, self.store.changes_after(position)).await {
            Ok(changed) => changed.map(|()| true),
            Err(_elapsed) => Ok(false),
        }
    }

    /// How many seconds ago something happened.
    pub fn seconds_since(&self, at: Timestamp) -> i64 {
        (self.now().as_millis() - at.as_millis()).max(0) / 1_000
    }
}
