//! Single statements, each within the request timeout.

use futures_util::TryStreamExt;
use mongodb::action::{Aggregate, Find};
use mongodb::bson::Document;
use mongodb::error::Error;
use mw_store::{Result, StoreError};
use tokio::time::timeout;

use super::certainty;
use crate::MongoStore;

impl MongoStore {
    /// Runs a read.
    pub(crate) async fn read<T>(
        &self,
        statement: impl IntoFuture<Output = Result<T, Error>, IntoFuture: Send>,
    ) -> Result<T> {
        match timeout(self.options.request_timeout, statement.into_future()).await {
            Ok(answer) => answer.map_err(|error| certainty::of_read(&error)),
            Err(_) => Err(StoreError::Unavailable("no answer within the request timeout".to_owned())),
        }
    }

    /// Runs a write of one document.
    pub(crate) async fn write<T>(
        &self,
        statement: impl IntoFuture<Output = Result<T, Error>, IntoFuture: Send>,
    ) -> Result<T> {
        match timeout(self.options.request_timeout, statement.into_future()).await {
            Ok(answer) => answer.map_err(|error| certainty::of_write(&error)),
            Err(_) => {
                Err(StoreError::Ambiguous("no answer to a write within the request timeout".to_owned()))
            }
        }
    }

    /// The documents of a query, up to `limit`.
    pub(crate) async fn read_all(&self, find: Find<'_, Document>, limit: usize) -> Result<Vec<Document>> {
        let find = find.limit(i64::try_from(limit).unwrap_or(i64::MAX));
        self.read(async { find.await?.try_collect().await }).await
    }

    /// The documents of a pipeline, which bounds their number.
    pub(crate) async fn read_pipeline(&self, aggregate: Aggregate<'_>) -> Result<Vec<Document>> {
        self.read(async { aggregate.await?.try_collect().await }).await
    }
}
