//! Batched CAS: conditional writes of one partition by many callers become one conditional batch.
//!
//! The write of each caller has a condition on a row of its own. A batch applies whole or not at all, so one that does not
//! apply is halved until the writes whose condition does not hold are alone. That is rare, since the keys are nearly always
//! new.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use mw_store::Result;
use scylla::statement::prepared::PreparedStatement;

use super::{Coalescer, Execute, Job};
use crate::driver::certainty::CasResult;
use crate::driver::statements::{Cql, Row};

/// Writes of one batch at most.
const WRITES_MAX: usize = 128;

/// Statements of one caller, at least one of them conditional: all of them or none.
pub(crate) type Write = Vec<(Arc<PreparedStatement>, Row)>;

/// Conditional writes by partition `K`, each with a condition on a row `R`.
#[derive(Debug)]
pub(crate) struct BatchedCas<K, R> {
    coalescer: Coalescer<K, ConditionalWrite<R>, Result<CasResult>>,
    batch: Arc<CasBatch>,
}

impl<K, R> Default for BatchedCas<K, R> {
    fn default() -> Self {
        Self { coalescer: Coalescer::default(), batch: Arc::new(CasBatch) }
    }
}

impl<K, R> BatchedCas<K, R>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    R: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Writes on the condition of `row`. `Err` is certainly not applied.
    pub(crate) async fn cas(&self, cql: &Arc<Cql>, partition: K, row: R, write: Write) -> Result<CasResult> {
        let result = self.coalescer.submit(&self.batch, cql, partition, ConditionalWrite { row, write })?;
        result.await.unwrap_or(Ok(CasResult::Unknown))
    }
}

struct ConditionalWrite<R> {
    /// The row of the condition. Cassandra checks all conditions of a batch against the state before it, so a batch must not
    /// hold two conditions on one row.
    row: R,
    write: Write,
}

type CasJob<R> = Job<ConditionalWrite<R>, Result<CasResult>>;

#[derive(Debug)]
struct CasBatch;

impl<K, R> Execute<K, ConditionalWrite<R>, Result<CasResult>> for CasBatch
where
    K: Sync,
    R: Hash + Eq + Clone + Send + Sync,
{
    type Context = Cql;

    const WAITING_MAX: usize = 16_384;

    fn take_group(waiting: &mut Vec<CasJob<R>>) -> Vec<CasJob<R>> {
        take_distinct(waiting, WRITES_MAX, |job| job.request.row.clone())
    }

    async fn execute(&self, cql: &Cql, _: &K, group: Vec<CasJob<R>>) {
        let mut groups = vec![group];
        while let Some(mut group) = groups.pop() {
            let statements: Vec<(&PreparedStatement, &Row)> = group
                .iter()
                .flat_map(|job| job.request.write.iter().map(|(statement, row)| (statement.as_ref(), row)))
                .collect();
            let result = cql.cas_batch(&statements).await;
            if matches!(result, Ok(CasResult::NotApplied)) && group.len() > 1 {
                let second_half = group.split_off(group.len() / 2);
                groups.push(second_half);
                groups.push(group);
                continue;
            }
            for job in group {
                job.caller.respond(result.clone());
            }
        }
    }
}

/// The first jobs that can go together, at most so many: no two of one row.
fn take_distinct<J, R: Hash + Eq>(jobs: &mut Vec<J>, most: usize, row: impl Fn(&J) -> R) -> Vec<J> {
    let mut rows = HashSet::new();
    let mut group = Vec::new();
    let mut rest = Vec::new();
    for job in jobs.drain(..) {
        if group.len() < most && rows.insert(row(&job)) {
            group.push(job);
        } else {
            rest.push(job);
        }
    }
    *jobs = rest;
    group
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_group(jobs: &mut Vec<u8>, most: usize) -> Vec<u8> {
        take_distinct(jobs, most, |row| *row)
    }

    #[test]
    fn two_writes_of_one_row_never_share_a_batch() {
        let mut jobs = vec![1, 2, 1, 3, 2, 1];
        assert_eq!(take_group(&mut jobs, 9), [1, 2, 3]);
        assert_eq!(take_group(&mut jobs, 9), [1, 2]);
        assert_eq!(take_group(&mut jobs, 9), [1]);
        assert!(jobs.is_empty());
    }

    #[test]
    fn group_is_bounded_and_keeps_the_order_of_arrival() {
        let mut jobs: Vec<u8> = (0..10).collect();
        assert_eq!(take_group(&mut jobs, 4), [0, 1, 2, 3]);
        assert_eq!(jobs, [4, 5, 6, 7, 8, 9]);
    }
}
