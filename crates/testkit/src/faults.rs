//! Fault injection: a store that wraps another one and fails chosen calls on demand.
//!
//! Without a fault it is transparent. With one, the chosen calls fail as real storage does: certainly not applied,
//! ambiguous (applied or not), corrupt data, a panic, or hanging until the store is healed.

mod forward;

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mw_store::{Result, SharedStore, StoreError};
use tokio::sync::watch;

/// A part of every injected error's message. A response that must not reveal the cause must not contain it.
pub const CAUSE: &str = "fails by an injected fault";

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Not applied.
    Unavailable,
    /// Not applied; the cause is for clients to see.
    NotServing,
    /// Not applied.
    Overloaded,
    /// Ambiguous, and not applied.
    AmbiguousNotDone,
    /// Ambiguous, and applied. A refusal, which applies nothing, stays a refusal.
    AmbiguousDone,
    /// Stored data cannot be decoded.
    Corrupt,
    /// Waits until the store is healed, then proceeds normally.
    Hang,
    /// Not applied; panics in the caller.
    Panic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noun {
    Carts,
    Sessions,
    Products,
    Stock,
    Orders,
    Changes,
    ExportImport,
    Maintenance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// One call of the contract; `name` is the method name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub noun: Noun,
    pub access: Access,
    pub name: &'static str,
}

/// The calls that a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    All,
    Reads,
    Writes,
    Of(Noun),
    ReadsOf(Noun),
    WritesOf(Noun),
    Named(&'static str),
}

impl Calls {
    fn matches(self, call: Call) -> bool {
        match self {
            Self::All => true,
            Self::Reads => call.access == Access::Read,
            Self::Writes => call.access == Access::Write,
            Self::Of(noun) => call.noun == noun,
            Self::ReadsOf(noun) => call.noun == noun && call.access == Access::Read,
            Self::WritesOf(noun) => call.noun == noun && call.access == Access::Write,
            Self::Named(name) => call.name == name,
        }
    }
}

struct Rule {
    calls: Calls,
    fault: Fault,
    /// How many calls it still applies to; `None`: all until healed.
    remaining: Option<usize>,
}

#[derive(Default)]
struct FaultPlan {
    rules: Vec<Rule>,
    seen: Vec<Call>,
}

pub struct FaultyStore {
    inner: SharedStore,
    plan: Mutex<FaultPlan>,
    healed: watch::Sender<u64>,
    /// What the wrapped store needs, such as its directory: dropped after it.
    _resources: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyStore").finish_non_exhaustive()
    }
}

impl FaultyStore {
    pub fn new(inner: SharedStore) -> Arc<Self> {
        Self::on(inner, ())
    }

    /// Wraps a store together with resources that must outlive it, such as its directory.
    pub fn on(inner: SharedStore, resources: impl Any + Send + Sync) -> Arc<Self> {
        let healed = watch::Sender::new(0);
        Arc::new(Self { inner, plan: Mutex::default(), healed, _resources: Box::new(resources) })
    }

    /// The chosen calls fail until the store is healed. A later fault takes precedence over an earlier one.
    pub fn fail(&self, calls: Calls, fault: Fault) {
        self.plan().rules.push(Rule { calls, fault, remaining: None });
    }

    /// The next `times` of the chosen calls fail.
    pub fn fail_next(&self, times: usize, calls: Calls, fault: Fault) {
        self.plan().rules.push(Rule { calls, fault, remaining: Some(times) });
    }

    /// Removes all faults; calls that hang proceed.
    pub fn heal(&self) {
        self.plan().rules.clear();
        self.healed.send_modify(|times| *times += 1);
    }

    /// The number of the chosen calls so far, failed or not.
    pub fn count(&self, calls: Calls) -> usize {
        self.plan().seen.iter().filter(|call| calls.matches(**call)).count()
    }

    fn plan(&self) -> MutexGuard<'_, FaultPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the call; returns its fault, and the signal that a hanging call waits for.
    fn fault_of(&self, call: Call) -> Option<(Fault, watch::Receiver<u64>)> {
        let mut plan = self.plan();
        plan.seen.push(call);
        let rule =
            plan.rules.iter_mut().rev().find(|rule| rule.calls.matches(call) && rule.remaining != Some(0))?;
        if let Some(remaining) = &mut rule.remaining {
            *remaining -= 1;
        }
        Some((rule.fault, self.healed.subscribe()))
    }

    #[expect(clippy::panic, reason = "the injected fault is a panic")]
    async fn around<T>(&self, call: Call, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let Some((fault, mut healed)) = self.fault_of(call) else {
            return work.await;
        };
        let message = format!("{} {CAUSE}", call.name);
        match fault {
            Fault::Unavailable => Err(StoreError::Unavailable(message)),
            Fault::NotServing => Err(StoreError::NotServing(message)),
            Fault::Overloaded => Err(StoreError::Overloaded),
            Fault::AmbiguousNotDone => Err(StoreError::Ambiguous(message)),
            Fault::AmbiguousDone => {
                work.await?;
                Err(StoreError::Ambiguous(message))
            }
            Fault::Corrupt => Err(StoreError::Corrupt(message)),
            Fault::Hang => {
                // The sender lives in this store, which is borrowed here.
                healed.changed().await.ok();
                work.await
            }
            Fault::Panic => panic!("{message}"),
        }
    }
}
