//! The stock keeper: per product and zone one task of a process, with one transaction in flight at a time.
//!
//! A transaction per buyer collapses on a hit product, because transactions that change one document conflict. So the
//! commands of a process that move units go into the mailbox of a keeper, which settles all that wait in one
//! transaction: figures, ledger, orders, reservations and idempotency keys. A command that moves units of several
//! products goes to the keeper with the longest queue among theirs; within the process a transaction has its products
//! for itself ([`Locks`]), and between processes the servers detect conflicts.
//!
//! A crash loses the mailbox and the transaction that is not committed, so each command took effect whole or not at all.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mw_store::request::{self, RequestLabel};
use mw_store::stock::decision::StockKey;
use mw_store::{Result, StoreError};
use tokio::sync::oneshot;

use crate::MongoStore;
use crate::locks::Locks;
use crate::shards::targeting::Operation;
use crate::stock::command::{Settled, StockRequest};

/// Commands that may wait in one mailbox.
const MAILBOX_MAX: usize = 16_384;
/// Commands of one transaction.
const BATCH_MAX: usize = 256;
/// Products and zones of one transaction.
const BATCH_KEYS_MAX: usize = 200;
/// Units of one transaction: in the shape `user` an order has an item per unit.
const BATCH_UNITS_MAX: u64 = 100_000;
/// Transactions that a command may wait for while expired holds are released ahead of it.
const ROUNDS_MAX: usize = 64;

/// A command that waits in a mailbox.
#[derive(Debug)]
struct Pending {
    request: StockRequest,
    keys: Vec<StockKey>,
    units: u64,
    reply: oneshot::Sender<Result<Settled>>,
    /// Set under the lock of the mailboxes when a transaction takes the command.
    is_taken: Arc<AtomicBool>,
    label: Option<RequestLabel>,
}

#[derive(Debug, Default)]
pub(crate) struct Keepers {
    mailboxes: Mutex<HashMap<StockKey, VecDeque<Pending>>>,
    /// By product and zone.
    locks: Locks<StockKey>,
}

impl MongoStore {
    /// Submits a command that moves units of `keys` and waits for its result. One that can move none is settled at once.
    pub(crate) async fn submit(
        &self,
        request: StockRequest,
        keys: Vec<StockKey>,
        units: u64,
    ) -> Result<Settled> {
        for key in &keys {
            self.counts.count(Operation::StockChange);
            self.counts.product(key.product_id.as_str());
        }
        if keys.is_empty() {
            return self.settle_rounds(&[request]).await.pop().unwrap_or_else(undecided);
        }
        let (reply, settled) = oneshot::channel();
        let keys: BTreeSet<StockKey> = keys.into_iter().collect();
        let keys = keys.into_iter().collect();
        let is_taken = Arc::new(AtomicBool::new(false));
        let label = request::current();
        self.enqueue(Pending { request, keys, units, reply, is_taken: Arc::clone(&is_taken), label })?;
        match tokio::time::timeout(self.options.request_timeout, settled).await {
            Ok(Ok(settled)) => settled,
            Ok(Err(_)) => {
                Err(StoreError::Ambiguous("change stock: the keeper ended without a reply".to_owned()))
            }
            Err(_) => Err(self.keepers.give_up(&is_taken)),
        }
    }

    fn enqueue(&self, pending: Pending) -> Result<()> {
        let mut mailboxes = self.keepers.mailboxes();
        // The longest queue is that of a hit product: its commands belong into one transaction.
        let busiest = pending.keys.iter().filter_map(|key| Some((mailboxes.get(key)?.len(), key)));
        let busiest = busiest.max_by_key(|(waiting, _)| *waiting).map(|(_, key)| key);
        let Some(key) = busiest.or(pending.keys.first()).cloned() else {
            return Err(StoreError::Corrupt("change stock: a command without a product".to_owned()));
        };
        if let Some(mailbox) = mailboxes.get_mut(&key) {
            if mailbox.len() >= MAILBOX_MAX {
                return Err(StoreError::Overloaded);
            }
            mailbox.push_back(pending);
            return Ok(());
        }
        mailboxes.insert(key.clone(), VecDeque::from([pending]));
        drop(mailboxes);
        tokio::spawn(run(Running { store: self.me.clone(), key, has_mailbox: true }));
        Ok(())
    }

    /// Settles a batch and replies. A batch that fails as a whole, without an effect, is settled command by command, so
    /// that one command cannot fail the others.
    async fn settle_batch(&self, batch: Vec<Pending>) {
        let keys: BTreeSet<StockKey> = batch.iter().flat_map(|it| it.keys.iter().cloned()).collect();
        let _locked = self.keepers.locks.lock(keys).await;
        let label = batch.iter().find_map(|it| it.label);
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for Pending { request, reply, .. } in batch {
            requests.push(request);
            replies.push(reply);
        }
        let results = request::scope(label, self.settle_rounds(&requests)).await;
        // A crash before the replies leaves committed commands that no caller knows of. A repeated request finds its
        // stored outcome, or the state that it asked for.
        for (reply, result) in replies.into_iter().zip(results) {
            // A caller that was dropped needs no reply; what was written stays.
            let _ = reply.send(result);
        }
    }

    async fn settle_rounds(&self, requests: &[StockRequest]) -> Vec<Result<Settled>> {
        match self.settle_until_decided(requests).await {
            Ok(results) => results,
            Err(error @ (StoreError::Ambiguous(_) | StoreError::Unavailable(_) | StoreError::Overloaded)) => {
                vec![Err(error); requests.len()]
            }
            Err(error) if requests.len() == 1 => vec![Err(error)],
            Err(_) => {
                let mut results = Vec::with_capacity(requests.len());
                for request in requests {
                    let single = self.settle_until_decided(std::slice::from_ref(request)).await;
                    results.push(single.and_then(|mut all| all.pop().unwrap_or_else(undecided)));
                }
                results
            }
        }
    }

    /// Settles until every command is decided: while more holds have expired than one transaction releases, each
    /// transaction releases some, and the command waits for the next.
    async fn settle_until_decided(&self, requests: &[StockRequest]) -> Result<Vec<Result<Settled>>> {
        let mut results: Vec<Option<Result<Settled>>> = requests.iter().map(|_| None).collect();
        for _ in 0..ROUNDS_MAX {
            let waiting: Vec<usize> =
                (0..requests.len()).filter(|at| matches!(results.get(*at), Some(None))).collect();
            if waiting.is_empty() {
                break;
            }
            let open: Vec<&StockRequest> = waiting.iter().filter_map(|at| requests.get(*at)).collect();
            let settled = match self.process_batch(&open).await {
                Ok(settled) => settled,
                // Some of the batch is decided: its results stand, the error is that of the rest.
                Err(error) if open.len() < requests.len() => {
                    open.iter().map(|_| Some(Err(error.clone()))).collect()
                }
                Err(error) => return Err(error),
            };
            for (at, result) in waiting.into_iter().zip(settled) {
                if let Some(slot) = results.get_mut(at) {
                    *slot = result;
                }
            }
        }
        Ok(results.into_iter().map(|result| result.unwrap_or_else(undecided)).collect())
    }
}

fn undecided() -> Result<Settled> {
    Err(StoreError::Unavailable("change stock: too many expired holds are waiting to be released".to_owned()))
}

/// A running keeper. However it ends, its mailbox goes: the next command starts another keeper.
struct Running {
    store: Weak<MongoStore>,
    key: StockKey,
    has_mailbox: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let (true, Some(store)) = (self.has_mailbox, self.store.upgrade()) {
            store.keepers.mailboxes().remove(&self.key);
        }
    }
}

/// The task of a keeper: settles batches until its mailbox is empty.
async fn run(mut keeper: Running) {
    while let Some(store) = keeper.store.upgrade() {
        let batch = store.keepers.next_batch(&keeper.key);
        if batch.is_empty() {
            // The next mailbox of this key belongs to another keeper.
            keeper.has_mailbox = false;
            return;
        }
        store.settle_batch(batch).await;
    }
}

impl Keepers {
    fn mailboxes(&self) -> MutexGuard<'_, HashMap<StockKey, VecDeque<Pending>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a command whose time is over. One that still waits is never taken: its receiver is gone.
    fn give_up(&self, is_taken: &AtomicBool) -> StoreError {
        let _mailboxes = self.mailboxes();
        if is_taken.load(Ordering::Relaxed) {
            StoreError::Ambiguous("change stock: no result within the request timeout".to_owned())
        } else {
            StoreError::Unavailable(
                "change stock: waited for the keeper longer than the request timeout".to_owned(),
            )
        }
    }

    /// The commands of the next transaction. An empty mailbox is removed under the lock, so no command is left behind.
    fn next_batch(&self, key: &StockKey) -> Vec<Pending> {
        let mut mailboxes = self.mailboxes();
        let Some(mailbox) = mailboxes.get_mut(key) else { return Vec::new() };
        let mut batch: Vec<Pending> = Vec::new();
        let (mut keys, mut units) = (HashSet::new(), 0);
        while let Some(next) = mailbox.front() {
            let more = next.keys.iter().filter(|key| !keys.contains(*key)).count();
            let is_full = batch.len() >= BATCH_MAX
                || keys.len() + more > BATCH_KEYS_MAX
                || units + next.units > BATCH_UNITS_MAX;
            if is_full && !batch.is_empty() {
                break;
            }
            let Some(next) = mailbox.pop_front() else { break };
            // Its caller has given up.
            if next.reply.is_closed() {
                continue;
            }
            next.is_taken.store(true, Ordering::Relaxed);
            keys.extend(next.keys.iter().cloned());
            units += next.units;
            batch.push(next);
        }
        if batch.is_empty() {
            mailboxes.remove(key);
        }
        batch
    }
}
