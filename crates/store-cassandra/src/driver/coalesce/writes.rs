//! Write coalescing: rows of one partition that many callers write at the same time become one mutation.

use std::hash::Hash;
use std::sync::Arc;

use mw_store::{Result, StoreError};
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;

use super::{Coalescer, Execute, Job, take_first};
use crate::driver::statements::Cql;

/// Callers whose rows become one mutation at most; each has a row or two.
const CALLERS_MAX: usize = 128;

/// Rows `V` of one statement, by partition `K`.
#[derive(Debug)]
pub(crate) struct CoalescedWrites<K, V> {
    coalescer: Coalescer<K, Vec<V>, Result<()>>,
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
        self.write_all(cql, partition, vec![row]).await
    }

    /// Writes rows of the partition, all of them in the same mutation; returns when they are written.
    pub(crate) async fn write_all(&self, cql: &Arc<Cql>, partition: K, rows: Vec<V>) -> Result<()> {
        let written = self.coalescer.submit(&self.statement, cql, partition, rows)?;
        let dropped = |_| Err(StoreError::Ambiguous("a coalesced write was dropped".to_owned()));
        written.await.unwrap_or_else(dropped)
    }
}

type RowsJob<V> = Job<Vec<V>, Result<()>>;

#[derive(Debug)]
struct RowWrite(PreparedStatement);

impl<K, V> Execute<K, Vec<V>, Result<()>> for RowWrite
where
    K: Sync,
    V: SerializeRow + Send + Sync,
{
    type Context = Cql;

    const WAITING_MAX: usize = 16_384;

    fn take_group(waiting: &mut Vec<RowsJob<V>>) -> Vec<RowsJob<V>> {
        take_first(waiting, CALLERS_MAX)
    }

    async fn execute(&self, cql: &Cql, _: &K, group: Vec<RowsJob<V>>) {
        let (rows, callers): (Vec<Vec<V>>, Vec<_>) =
            group.into_iter().map(|job| (job.request, job.caller)).unzip();
        let rows: Vec<V> = rows.into_iter().flatten().collect();
        let written = cql.write_rows(&self.0, &rows).await;
        for caller in callers {
            caller.respond(written.clone());
        }
    }
}
