//! Coalescing: requests of many callers for one key become one statement.
//!
//! Per key at most one statement is in flight; requests that arrive meanwhile wait and go into the next group together. A
//! request is therefore never part of a statement that was sent before it arrived. Each use says what a group is and what it
//! executes ([`Execute`]): plain writes ([`writes`]), batched CAS ([`cas`]) and single-flight reads (`products/offers.rs`).

pub(crate) mod cas;
pub(crate) mod writes;

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mw_store::request::{self, RequestLabel};
use mw_store::{Result, StoreError};
use tokio::sync::oneshot;

/// One use of coalescing: requests `Q` by key `K`, each with a response `R`.
pub(crate) trait Execute<K, Q, R>: Send + Sync + 'static {
    /// What a group needs besides its requests.
    type Context: Send + Sync + 'static;

    /// Requests that may wait for one key; more are refused as `Overloaded`.
    const WAITING_MAX: usize;

    /// Takes the next group out of the waiting requests, which are in the order of their arrival. Not empty.
    fn take_group(waiting: &mut Vec<Job<Q, R>>) -> Vec<Job<Q, R>>;

    /// Executes a group and responds to each of its jobs.
    fn execute(
        &self,
        context: &Self::Context,
        key: &K,
        group: Vec<Job<Q, R>>,
    ) -> impl Future<Output = ()> + Send;
}

/// A request with its caller.
#[derive(Debug)]
pub(crate) struct Job<Q, R> {
    pub(crate) request: Q,
    pub(crate) caller: Caller<R>,
    label: Option<RequestLabel>,
}

#[derive(Debug)]
pub(crate) struct Caller<R>(oneshot::Sender<R>);

impl<R> Caller<R> {
    pub(crate) fn respond(self, response: R) {
        // A caller that was cancelled does not need its response.
        let _ = self.0.send(response);
    }
}

/// The waiting requests of a key. A key is here exactly while a task executes its groups.
type Waiting<K, Q, R> = HashMap<K, Vec<Job<Q, R>>>;

pub(crate) struct Coalescer<K, Q, R> {
    waiting: Arc<Mutex<Waiting<K, Q, R>>>,
}

impl<K, Q, R> Default for Coalescer<K, Q, R> {
    fn default() -> Self {
        Self { waiting: Arc::default() }
    }
}

impl<K, Q, R> fmt::Debug for Coalescer<K, Q, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer").finish_non_exhaustive()
    }
}

impl<K, Q, R> Coalescer<K, Q, R>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Q: Send + 'static,
    R: Send + 'static,
{
    /// Queues a request for the next group of its key. The response is an error where the group was dropped before it
    /// responded, as when the runtime stops.
    pub(crate) fn submit<E: Execute<K, Q, R>>(
        &self,
        executor: &Arc<E>,
        context: &Arc<E::Context>,
        key: K,
        request: Q,
    ) -> Result<oneshot::Receiver<R>> {
        let (sender, response) = oneshot::channel();
        let job = Job { request, caller: Caller(sender), label: request::current() };
        let is_idle = {
            let mut waiting = lock(&self.waiting);
            match waiting.get_mut(&key) {
                Some(jobs) if jobs.len() >= E::WAITING_MAX => return Err(StoreError::Overloaded),
                Some(jobs) => {
                    jobs.push(job);
                    false
                }
                None => {
                    waiting.insert(key.clone(), vec![job]);
                    true
                }
            }
        };
        if is_idle {
            // A task of its own: a cancelled caller must not take the requests of others with it.
            tokio::spawn(run(Arc::clone(executor), Arc::clone(context), Arc::clone(&self.waiting), key));
        }
        Ok(response)
    }
}

/// Executes groups of a key until none of its requests waits.
async fn run<E, K, Q, R>(
    executor: Arc<E>,
    context: Arc<E::Context>,
    waiting: Arc<Mutex<Waiting<K, Q, R>>>,
    key: K,
) where
    E: Execute<K, Q, R>,
    K: Hash + Eq + Send + Sync,
    Q: Send,
    R: Send,
{
    loop {
        let group = {
            let mut waiting = lock(&waiting);
            let Some(jobs) = waiting.get_mut(&key) else { return };
            if jobs.is_empty() {
                waiting.remove(&key);
                return;
            }
            E::take_group(jobs)
        };
        let label = group.first().and_then(|job| job.label);
        request::scope(label, executor.execute(&context, &key, group)).await;
    }
}

fn lock<T>(waiting: &Mutex<T>) -> MutexGuard<'_, T> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first jobs, at most so many.
fn take_first<J>(waiting: &mut Vec<J>, most: usize) -> Vec<J> {
    let count = waiting.len().min(most);
    waiting.drain(..count).collect()
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// Records the groups it executes, each with one permit of the context.
    #[derive(Default)]
    struct Recorded(Mutex<Vec<Vec<u8>>>);

    impl Execute<&'static str, u8, usize> for Recorded {
        type Context = Semaphore;

        const WAITING_MAX: usize = 4;

        fn take_group(waiting: &mut Vec<Job<u8, usize>>) -> Vec<Job<u8, usize>> {
            take_first(waiting, 3)
        }

        async fn execute(&self, permits: &Semaphore, _: &&'static str, group: Vec<Job<u8, usize>>) {
            permits.acquire().await.unwrap().forget();
            lock(&self.0).push(group.iter().map(|job| job.request).collect());
            let size = group.len();
            for job in group {
                job.caller.respond(size);
            }
        }
    }

    struct Fixture {
        coalescer: Coalescer<&'static str, u8, usize>,
        executor: Arc<Recorded>,
        permits: Arc<Semaphore>,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                coalescer: Coalescer::default(),
                executor: Arc::default(),
                permits: Arc::new(Semaphore::new(0)),
            }
        }

        /// Submits a request and lets the task of its key run as far as it can.
        async fn submit(&self, request: u8) -> Result<oneshot::Receiver<usize>> {
            let response = self.coalescer.submit(&self.executor, &self.permits, "key", request);
            tokio::task::yield_now().await;
            response
        }

        fn groups(&self) -> Vec<Vec<u8>> {
            lock(&self.executor.0).clone()
        }
    }

    #[tokio::test]
    async fn requests_that_arrive_during_a_statement_go_into_the_next_group() {
        let fixture = Fixture::new();
        let mut responses = Vec::new();
        for request in 0..5 {
            responses.push(fixture.submit(request).await.unwrap());
        }
        assert_eq!(fixture.submit(9).await.unwrap_err(), StoreError::Overloaded, "four wait already");
        fixture.permits.add_permits(9);
        let mut sizes = Vec::new();
        for response in responses {
            sizes.push(response.await.unwrap());
        }
        assert_eq!(sizes, [1, 3, 3, 3, 1]);
        assert_eq!(fixture.groups(), [vec![0], vec![1, 2, 3], vec![4]]);
        tokio::task::yield_now().await;
        assert!(lock(&fixture.coalescer.waiting).is_empty(), "an idle key is dropped");
    }

    #[tokio::test]
    async fn cancelled_caller_takes_no_request_with_it() {
        let fixture = Fixture::new();
        let cancelled = fixture.submit(1).await.unwrap();
        let second = fixture.submit(2).await.unwrap();
        drop(cancelled);
        fixture.permits.add_permits(9);
        assert_eq!(second.await, Ok(1));
        assert_eq!(fixture.groups(), [vec![1], vec![2]]);
    }
}
