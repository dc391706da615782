//! Conditional writes of one partition by many callers become one.
//!
//! Each caller's write has a condition on a row of its own. Per partition one conditional batch is under way; whatever
//! comes meanwhile waits and goes together in the next. A batch applies whole or not at all, so one that does not apply is
//! halved until the writes whose condition does not hold stand alone: with keys that are nearly always new that is rare.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::oneshot;

use crate::cql::{Cql, Row};
use crate::outcome::Verdict;

/// Writes of one batch at most.
const WRITES_MAX: usize = 128;
/// Writes that may wait for one partition.
const WAITING_MAX: usize = 16_384;

/// Statements of one caller, at least one of them conditional: all of them or none.
pub(crate) type Write = Vec<(Arc<PreparedStatement>, Row)>;

#[derive(Debug)]
pub(crate) struct Registers<K, R> {
    /// A partition is here while a write of it is under way.
    waiting: Arc<Mutex<HashMap<K, Vec<Job<R>>>>>,
}

struct Job<R> {
    /// The row that the condition is about. Two conditions on one row would both be held against what was there before.
    row: R,
    write: Write,
    answer: oneshot::Sender<Result<Verdict>>,
}

impl<R: std::fmt::Debug> std::fmt::Debug for Job<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("row", &self.row).finish_non_exhaustive()
    }
}

impl<K, R> Default for Registers<K, R> {
    fn default() -> Self {
        Self { waiting: Arc::default() }
    }
}

impl<K, R> Registers<K, R>
where
    K: Hash + Eq + Clone + Send + 'static,
    R: Hash + Eq + Clone + Send + 'static,
{
    /// Writes on the condition of `row`. `Err` is surely not applied.
    pub(crate) async fn cas(&self, cql: &Arc<Cql>, partition: K, row: R, write: Write) -> Result<Verdict> {
        let (answer, answered) = oneshot::channel();
        let job = Job { row, write, answer };
        let is_first = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            match waiting.get_mut(&partition) {
                Some(jobs) if jobs.len() >= WAITING_MAX => return Err(StoreError::Overloaded),
                Some(jobs) => {
                    jobs.push(job);
                    false
                }
                None => {
                    waiting.insert(partition.clone(), vec![job]);
                    true
                }
            }
        };
        if is_first {
            // A task of its own: a caller that goes away must not take the others' writes with it.
            tokio::spawn(work(Arc::clone(cql), Arc::clone(&self.waiting), partition));
        }
        answered.await.unwrap_or(Ok(Verdict::Unknown))
    }
}

async fn work<K, R>(cql: Arc<Cql>, waiting: Arc<Mutex<HashMap<K, Vec<Job<R>>>>>, partition: K)
where
    K: Hash + Eq + Send,
    R: Hash + Eq + Clone + Send,
{
    loop {
        let group = {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(jobs) = waiting.get_mut(&partition) else { return };
            if jobs.is_empty() {
                waiting.remove(&partition);
                return;
            }
            take_group(jobs, WRITES_MAX)
        };
        decide(&cql, group).await;
    }
}

/// The first writes that can go together: no two of one row.
fn take_group<R: Hash + Eq + Clone>(jobs: &mut Vec<Job<R>>, most: usize) -> Vec<Job<R>> {
    let mut rows = HashSet::new();
    let mut group = Vec::new();
    let mut rest = Vec::new();
    for job in jobs.drain(..) {
        if group.len() < most && rows.insert(job.row.clone()) {
            group.push(job);
        } else {
            rest.push(job);
        }
    }
    *jobs = rest;
    group
}

async fn decide<R>(cql: &Cql, group: Vec<Job<R>>) {
    let mut groups = vec![group];
    while let Some(mut group) = groups.pop() {
        let statements: Vec<(&PreparedStatement, &Row)> = group
            .iter()
            .flat_map(|job| job.write.iter().map(|(statement, row)| (statement.as_ref(), row)))
            .collect();
        let verdict = cql.cas_batch(&statements).await;
        if matches!(verdict, Ok(Verdict::NotApplied)) && group.len() > 1 {
            let later = group.split_off(group.len() / 2);
            groups.push(later);
            groups.push(group);
            continue;
        }
        for job in group {
            // A caller that has gone away needs no answer.
            let _ = job.answer.send(verdict.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(row: u8) -> Job<u8> {
        Job { row, write: Vec::new(), answer: oneshot::channel().0 }
    }

    fn rows(jobs: &[Job<u8>]) -> Vec<u8> {
        jobs.iter().map(|job| job.row).collect()
    }

    #[test]
    fn two_writes_of_one_row_never_go_together() {
        let mut jobs: Vec<_> = [1, 2, 1, 3, 2, 1].map(job).into();
        assert_eq!(rows(&take_group(&mut jobs, 9)), [1, 2, 3]);
        assert_eq!(rows(&take_group(&mut jobs, 9)), [1, 2]);
        assert_eq!(rows(&take_group(&mut jobs, 9)), [1]);
        assert!(jobs.is_empty());
    }

    #[test]
    fn a_group_is_bounded_and_whoever_came_first_goes_first() {
        let mut jobs: Vec<_> = (0..10).map(job).collect();
        assert_eq!(rows(&take_group(&mut jobs, 4)), [0, 1, 2, 3]);
        assert_eq!(rows(&jobs), [4, 5, 6, 7, 8, 9]);
    }
}
