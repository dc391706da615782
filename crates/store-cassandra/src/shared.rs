//! Reads that many callers ask for at the same time become one.
//!
//! Whoever asks while a read is under way waits for the next one, so that nobody is answered with what was read before
//! they asked.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use mw_store::{Result, StoreError};
use tokio::sync::oneshot;

type Waiting<V> = Vec<oneshot::Sender<Result<V>>>;

#[derive(Debug)]
pub(crate) struct Shared<K, V> {
    /// A key is here while a read of it is under way.
    waiting: Arc<Mutex<HashMap<K, Waiting<V>>>>,
}

impl<K, V> Default for Shared<K, V> {
    fn default() -> Self {
        Self { waiting: Arc::default() }
    }
}

impl<K, V> Shared<K, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
{
    /// What `read` answers for the key, started after this call.
    pub(crate) async fn read<F>(&self, key: K, read: impl Fn(K) -> F + Send + 'static) -> Result<V>
    where
        F: Future<Output = Result<V>> + Send,
    {
        let (sender, receiver) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            match waiting.get_mut(&key) {
                Some(others) => {
                    others.push(sender);
                    false
                }
                None => {
                    waiting.insert(key.clone(), vec![sender]);
                    true
                }
            }
        };
        if is_first {
            tokio::spawn(run(Arc::clone(&self.waiting), key, read));
        }
        receiver
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("a shared read was dropped".to_owned())))
    }
}

async fn run<K, V, F>(waiting: Arc<Mutex<HashMap<K, Waiting<V>>>>, key: K, read: impl Fn(K) -> F + Send)
where
    K: Hash + Eq + Clone + Send,
    V: Clone + Send,
    F: Future<Output = Result<V>> + Send,
{
    loop {
        let group = {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            match waiting.get_mut(&key) {
                Some(group) if !group.is_empty() => std::mem::take(group),
                _ => {
                    waiting.remove(&key);
                    return;
                }
            }
        };
        let answer = read(key.clone()).await;
        for sender in group {
            let _ = sender.send(answer.clone());
        }
    }
}
