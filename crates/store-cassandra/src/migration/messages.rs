//! Messages between the process that runs the migration and the commands of operators.

use async_trait::async_trait;
use mw_store::Result;
use mw_store::migration::{Mailbox, StateRow};

use super::state::end_of;
use crate::CassandraStore;

const PART: &str = "messages";

#[async_trait]
impl Mailbox for CassandraStore {
    async fn has_reader(&self) -> Result<bool> {
        Ok(self.read_run().await?.is_some())
    }

    async fn put(&self, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
        self.cql.write(&self.migration().await?.put_message, (PART, key, value)).await
    }

    async fn take_away(&self, key: Vec<u8>) -> Result<()> {
        self.cql.write(&self.migration().await?.delete_message, (PART, key)).await
    }

    async fn list(&self, prefix: Vec<u8>, limit: usize) -> Result<Vec<StateRow>> {
        self.read_range(PART, prefix.clone(), end_of(&prefix), limit).await
    }
}
