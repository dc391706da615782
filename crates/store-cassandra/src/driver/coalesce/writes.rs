//! Write coalescing: rows of one partition that many callers write at the same time become one mutation.

use std::hash::Hash;
use std::sync::Arc;

use mw_store::{Result, StoreError};
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;

use super::{Coalescer, Execute, Job, take_first};
use crate::driver::statements::Cql;

/// Rows of one mutation at most.
const ROWS_MAX: usize = 128;

/// Rows `V` of one statement, by partition `K`.
#[derive(Debug)]
pub(crate) struct CoalescedWrites<K, V> {
    coalescer: Coalescer<K, V, Result<()>>,
    statement: Arc<RowWrite>,
}

impl<K, V> CoalescedWrites<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: SerializeRow + Send + Sync + 'static,
{
    pub(crate) fn new(statement: PreparedStatement) -> Self {
        Self { coalescer: Coalescer::default(), statement: Arc::new(RowWrite(statement)) }
    }

    /// Writes a row of the partition; returns when it is written.
    pub(crate) async fn write(&self, cql: &Arc<Cql>, partition: K, row: V) -> Result<()> {
        let written = self.coalescer.submit(&self.statement, cql, partition, row)?;
        let dropped = |_| Err(StoreError::Ambiguous("a coalesced write was dropped".to_owned()));
        written.await.unwrap_or_else(dropped)
    }
}

#[derive(Debug)]
struct RowWrite(PreparedStatement);

impl<K, V> Execute<K, V, Result<()>> for RowWrite
where
    K: Sync,
    V: SerializeRow + Send + Sync,
{
    type Context = Cql;

    const WAITING_MAX: usize = 16_384;

    fn take_group(waiting: &mut Vec<Job<V, Result<()>>>) -> Vec<Job<V, Result<()>>> {
        take_first(waiting, ROWS_MAX)
    }

    async fn execute(&self, cql: &Cql, _: &K, group: Vec<Job<V, Result<()>>>) {
        let (rows, callers): (Vec<V>, Vec<_>) =
            group.into_iter().map(|job| (job.request, job.caller)).unzip();
        let written = cql.write_rows(&self.0, &rows).await;
        for caller in callers {
            caller.respond(written.clone());
        }
    }
}
