//! A store that fails on demand, around any other.
//!
//! Without a fault it is the store inside. With one, the chosen calls answer as storage in trouble would: surely not
//! done, maybe done (both that were and that were not), damaged, a panic, or not at all until it is healed.

mod forward;

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mw_store::{Result, SharedStore, StoreError};
use tokio::sync::watch;

/// In what every fault says of its cause: whoever is not to be told the cause must not be shown this.
pub const CAUSE: &str = "was told to fail";

/// What befalls a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Not done, and says so.
    Unavailable,
    /// Not done, and says so.
    Overloaded,
    /// Not done, and does not say so.
    AmbiguousNotDone,
    /// Done, and does not say so. A refusal, which is nothing done, stays a refusal.
    AmbiguousDone,
    /// What is stored cannot be read.
    Corrupt,
    /// Waits until the store is healed, then goes on as if nothing had been.
    Hang,
    /// Not done, and takes its caller down with it.
    Panic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noun {
    Carts,
    Sessions,
    Products,
    Stock,
    Orders,
    Records,
    Upkeep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// One call of the contract; `name` is the method's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub noun: Noun,
    pub access: Access,
    pub name: &'static str,
}

/// Which calls a fault befalls.
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
    fn has(self, call: Call) -> bool {
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
    /// How many calls it still befalls; `None` is all until healed.
    left: Option<usize>,
}

#[derive(Default)]
struct Orders {
    rules: Vec<Rule>,
    seen: Vec<Call>,
}

pub struct FaultyStore {
    inner: SharedStore,
    orders: Mutex<Orders>,
    healed: watch::Sender<u64>,
    /// What the store inside stands on: dropped after it.
    _ground: Box<dyn Any + Send + Sync>,
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

    /// Around a store that needs something to last as long as it does, such as the folder it is in.
    pub fn on(inner: SharedStore, ground: impl Any + Send + Sync) -> Arc<Self> {
        let healed = watch::Sender::new(0);
        Arc::new(Self { inner, orders: Mutex::default(), healed, _ground: Box::new(ground) })
    }

    /// The chosen calls fail until the store is healed. A later fault goes before an earlier one.
    pub fn fail(&self, calls: Calls, fault: Fault) {
        self.orders().rules.push(Rule { calls, fault, left: None });
    }

    /// The next `times` of the chosen calls fail.
    pub fn fail_next(&self, times: usize, calls: Calls, fault: Fault) {
        self.orders().rules.push(Rule { calls, fault, left: Some(times) });
    }

    /// No call fails any more, and those that hang go on.
    pub fn heal(&self) {
        self.orders().rules.clear();
        self.healed.send_modify(|times| *times += 1);
    }

    /// How many of the chosen calls were made so far, failed or not.
    pub fn count(&self, calls: Calls) -> usize {
        self.orders().seen.iter().filter(|call| calls.has(**call)).count()
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the call; answers what befalls it, and by what a call that hangs learns that it may go on.
    fn meet(&self, call: Call) -> Option<(Fault, watch::Receiver<u64>)> {
        let mut orders = self.orders();
        orders.seen.push(call);
        let rule = orders.rules.iter_mut().rev().find(|rule| rule.calls.has(call) && rule.left != Some(0))?;
        if let Some(left) = &mut rule.left {
            *left -= 1;
        }
        Some((rule.fault, self.healed.subscribe()))
    }

    #[expect(clippy::panic, reason = "a panic is what was asked for")]
    async fn around<T>(&self, call: Call, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let Some((fault, mut healed)) = self.meet(call) else {
            return work.await;
        };
        let told = format!("{} {CAUSE}", call.name);
        match fault {
            Fault::Unavailable => Err(StoreError::Unavailable(told)),
            Fault::Overloaded => Err(StoreError::Overloaded),
            Fault::AmbiguousNotDone => Err(StoreError::Ambiguous(told)),
            Fault::AmbiguousDone => {
                work.await?;
                Err(StoreError::Ambiguous(told))
            }
            Fault::Corrupt => Err(StoreError::Corrupt(told)),
            Fault::Hang => {
                // The store that would heal it cannot be gone: it is borrowed here.
                healed.changed().await.ok();
                work.await
            }
            Fault::Panic => panic!("{told}"),
        }
    }
}
