//! The change feed, which this engine does not write: every topic is refused as not written.

use async_trait::async_trait;
use mw_store::changes::{Changes, ChangesPage, FeedSettings, ReadChanges, Topics, empty_page};
use mw_store::{Position, Result};

use crate::CassandraStore;

#[async_trait]
impl Changes for CassandraStore {
    fn feed(&self) -> FeedSettings {
        FeedSettings { topics: Topics::NONE, ..FeedSettings::default() }
    }

    async fn changes(&self, request: ReadChanges) -> Result<ChangesPage> {
        empty_page(&request)
    }

    async fn changes_after(&self, _: &Position) -> Result<()> {
        std::future::pending().await
    }
}
