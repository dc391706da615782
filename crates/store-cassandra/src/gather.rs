//! Rows of one partition that many callers write at the same time become one mutation.
//!
//! Per partition one write is under way; whatever comes meanwhile waits and goes together in the next.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use mw_store::{Result, StoreError};
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::oneshot;

use crate::cql::Cql;

/// Rows of one mutation at most.
const ROWS_MAX: usize = 128;
/// Rows that may wait for one partition.
const WAITING_MAX: usize = 16_384;

type Waiting<V> = Vec<(V, oneshot::Sender<Result<()>>)>;

/// Clones share what is under way.
#[derive(Debug)]
pub(crate) struct Gather<K, V> {
    statement: Arc<PreparedStatement>,
    /// A partition is here while a write of it is under way.
    waiting: Arc<Mutex<HashMap<K, Waiting<V>>>>,
}

impl<K, V> Gather<K, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: SerializeRow + Send + Sync + 'static,
{
    pub(crate) fn new(statement: PreparedStatement) -> Self {
        Self { statement: Arc::new(statement), waiting: Arc::default() }
    }

    /// Writes a row of the partition; returns when it is written.
    pub(crate) async fn write(&self, cql: &Arc<Cql>, partition: K, row: V) -> Result<()> {
        let (sender, receiver) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            match waiting.get_mut(&partition) {
                Some(rows) if rows.len() >= WAITING_MAX => return Err(StoreError::Overloaded),
                Some(rows) => {
                    rows.push((row, sender));
                    false
                }
                None => {
                    waiting.insert(partition.clone(), vec![(row, sender)]);
                    true
                }
            }
        };
        if is_first {
            // A task of its own: a caller that goes away must not take the others' rows with it.
            tokio::spawn(flush(
                Arc::clone(cql),
                Arc::clone(&self.statement),
                Arc::clone(&self.waiting),
                partition,
            ));
        }
        receiver
            .await
            .unwrap_or_else(|_| Err(StoreError::Ambiguous("a grouped write was dropped".to_owned())))
    }
}

async fn flush<K, V>(
    cql: Arc<Cql>,
    statement: Arc<PreparedStatement>,
    waiting: Arc<Mutex<HashMap<K, Waiting<V>>>>,
    partition: K,
) where
    K: Hash + Eq + Send,
    V: SerializeRow + Send + Sync,
{
    loop {
        let group: Waiting<V> = {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(rows) = waiting.get_mut(&partition) else { return };
            if rows.is_empty() {
                waiting.remove(&partition);
                return;
            }
            let count = rows.len().min(ROWS_MAX);
            rows.drain(..count).collect()
        };
        let (rows, answers): (Vec<V>, Vec<_>) = group.into_iter().unzip();
        let written = cql.write_rows(&statement, &rows).await;
        for answer in answers {
            // A caller that has gone away needs no answer.
            let _ = answer.send(written.clone());
        }
    }
}
