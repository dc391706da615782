//! Forwarding: a hit product has one keeper at a time, however many processes sell it.
//!
//! Keepers of several processes on one partition lose most of their CAS rounds to each other. So a process that loses rounds
//! on a partition sends its commands to the owner of the partition (rendezvous hashing over the living processes), whose
//! keeper decides them together with all others. The owner decides nothing by being the owner: correctness stays with the
//! conditional write, so a wrong or a dead owner costs time only, and two owners cost CAS rounds.
//!
//! A forwarded command that was not answered may have been decided or may be decided later. It is resolved by its ledger row:
//! the keeper of this process decides it again, with the row read, and whichever of the two decisions comes second finds the
//! first. Only commands that can be submitted twice are forwarded.

mod client;
mod connection;
mod contention;
mod directory;
mod frames;
mod handshake;
mod server;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use tokio::net::TcpListener;
use uuid::Uuid;

pub(crate) use contention::Contention;
use handshake::Token;

use crate::CassandraStore;
use crate::driver::connect::{InternalOptions, StartError};
use crate::driver::statements::Cql;
use crate::recovery::heartbeat::LivingPeer;
use crate::stock::decision::{Decision, StockCommand, StockKey};
use crate::stock::keeper::Keepers;
use crate::stock::ledger::{LedgerState, Transition};
use client::{Call, Forwarded, LISTENER_TIMEOUT, Link};
use connection::LinkError;
use directory::{Directory, write_address};
use server::{Listener, Service};

/// The listener sends a frame at least this often.
const STAMP_INTERVAL: Duration = Duration::from_millis(250);
/// After the first command or decision of a frame, for others to join it. A frame wakes a process, and a decision takes tens of
/// milliseconds.
const GATHERING: Duration = Duration::from_millis(1);
/// A frame that cannot be written for so long ends its connection.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    tokio::time::timeout(timeout, work).await.unwrap_or(Err(LinkError::TimedOut(timeout)))
}

/// Counts of forwarded stock commands since the start of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForwardingCounts {
    /// Commands of this process that another one decided.
    pub forwarded: u64,
    /// Commands of other processes that this one took.
    pub served: u64,
    /// Commands that were sent and not answered: this process resolved them by the ledger.
    pub unanswered: u64,
}

#[derive(Debug, Default)]
struct Counters {
    forwarded: AtomicU64,
    served: AtomicU64,
    unanswered: AtomicU64,
}

/// What is known of the attempts to submit one command.
#[derive(Debug, Default)]
pub(crate) struct SubmitAttempts {
    /// An attempt was sent to an owner that did not answer: it may be decided at any time.
    is_in_doubt: bool,
}

impl SubmitAttempts {
    /// The error of a command: what an owner may have applied is not certainly unapplied.
    pub(crate) fn error(&self, error: StoreError) -> StoreError {
        if self.is_in_doubt { error.after_first_effect() } else { error }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Forwarding {
    contention: Arc<Contention>,
    /// Set when the internal listener starts; without it nothing is forwarded.
    peers: OnceLock<Peers>,
    counters: Arc<Counters>,
    listener: Mutex<Option<Listener>>,
}

/// This process among the others.
#[derive(Debug)]
struct Peers {
    own: Uuid,
    token: Token,
    directory: Arc<Mutex<Directory>>,
    links: Mutex<HashMap<Uuid, Arc<Link>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    /// The owner of a partition with the link to it; `None` where this process is the owner.
    fn owner(&self, ownership_key: u64, now: Instant) -> Option<(Uuid, Arc<Link>)> {
        let (owner, address) = lock(&self.directory).owner(ownership_key, now)?;
        let mut links = lock(&self.links);
        if let Some(link) = links.get(&owner).filter(|link| !link.is_closed()) {
            return Some((owner, Arc::clone(link)));
        }
        links.retain(|_, link| !link.is_closed());
        let link = self.open(owner, address);
        links.insert(owner, Arc::clone(&link));
        Some((owner, link))
    }

    fn open(&self, owner: Uuid, address: SocketAddr) -> Arc<Link> {
        let token = self.token.clone();
        let call = Call { own: self.own, owner, address, token, listener_timeout: LISTENER_TIMEOUT };
        let directory = Arc::clone(&self.directory);
        Link::open(call, move || lock(&directory).failed(owner, Instant::now()))
    }
}

impl Forwarding {
    /// Where keepers report lost CAS rounds.
    pub(crate) const fn contention(&self) -> &Arc<Contention> {
        &self.contention
    }

    /// Takes commands of other processes from now on, and forwards those of this one.
    pub(crate) fn start(
        &self,
        listener: TcpListener,
        store: Weak<CassandraStore>,
        (process, local_dc): (Uuid, &str),
        token: Token,
    ) {
        let service = Service {
            store,
            process,
            token: token.clone(),
            counters: Arc::clone(&self.counters),
            started: Instant::now(),
            is_closing: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
        };
        let directory = Arc::new(Mutex::new(Directory::new(process, local_dc.to_owned())));
        let peers = Peers { own: process, token, directory, links: Mutex::default() };
        if self.peers.set(peers).is_ok() {
            *lock(&self.listener) = Some(Listener::start(listener, service));
        }
    }

    /// The other processes that live now.
    pub(crate) fn update(&self, living: &[LivingPeer]) {
        if let Some(peers) = self.peers.get() {
            lock(&peers.directory).update(living, Instant::now());
        }
    }

    /// Decides the commands that other processes have sent, and takes no more.
    pub(crate) async fn close(&self) {
        let listener = lock(&self.listener).take();
        if let Some(listener) = listener {
            listener.close().await;
        }
    }

    pub(crate) fn counts(&self) -> ForwardingCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ForwardingCounts {
            forwarded: count(&self.counters.forwarded),
            served: count(&self.counters.served),
            unanswered: count(&self.counters.unanswered),
        }
    }

    /// Lets the owner of a contended partition decide a command; `None` where the keeper of this process has to.
    async fn forward(
        &self,
        stock_key: &StockKey,
        command: &StockCommand,
        now: Timestamp,
        attempts: &mut SubmitAttempts,
    ) -> Option<Result<Decision>> {
        if attempts.is_in_doubt || !is_forwardable(command) {
            return None;
        }
        let peers = self.peers.get()?;
        let instant = Instant::now();
        let ownership_key = self.contention.key_to_forward(stock_key, instant)?;
        let (owner, link) = peers.owner(ownership_key, instant)?;
        match link.forward(stock_key, command, now).await {
            Forwarded::Decided(outcome) => match outcome.decision(stock_key) {
                // The owner cannot reach the cluster, or is shutting down; certainly nothing was applied.
                Err(StoreError::Unavailable(error)) => {
                    tracing::debug!(error, %owner, "forward a stock command: the owner did not apply it");
                    lock(&peers.directory).failed(owner, Instant::now());
                    None
                }
                decided => {
                    self.counters.forwarded.fetch_add(1, Ordering::Relaxed);
                    if let Ok(decision) = &decided {
                        self.contention.record_available(stock_key, decision);
                    }
                    Some(decided)
                }
            },
            Forwarded::NotSent => None,
            Forwarded::Unanswered => {
                self.counters.unanswered.fetch_add(1, Ordering::Relaxed);
                attempts.is_in_doubt = true;
                None
            }
        }
    }
}

/// Whether a command can be submitted twice, at two processes and at any time, and counts once. Those of the back office and
/// of imports are rare and cannot: a change that one process refused could still be made by the other.
const fn is_forwardable(command: &StockCommand) -> bool {
    matches!(
        command,
        StockCommand::Hold { .. } | StockCommand::Advance { .. } | StockCommand::RaiseEarliestHoldEnd
    )
}

impl CassandraStore {
    /// Starts the internal listener, where one is configured. The next heartbeat tells its address to the other processes.
    pub(crate) async fn start_forwarding(
        self: &Arc<Self>,
        options: InternalOptions,
        local_dc: &str,
    ) -> Result<(), StartError> {
        let Some(address) = options.listen else { return Ok(()) };
        let listening = async {
            let listener = TcpListener::bind(address).await?;
            let bound = listener.local_addr()?;
            Ok((listener, bound))
        };
        let (listener, bound) =
            listening.await.map_err(|cause| StartError::InternalListen { address, cause })?;
        let token = match options.token {
            Some(token) => Token::new(token.as_str()),
            None => Token::new(&self.shared_internal_token().await?),
        };
        let advertised = options.advertise.map_or(bound, |mut address| {
            if address.port() == 0 {
                address.set_port(bound.port());
            }
            address
        });
        let own = (self.intents.process(), local_dc);
        self.keepers.forwarding().start(listener, Arc::downgrade(self), own, token);
        self.intents.processes().set_address(write_address(advertised, local_dc));
        Ok(())
    }

    /// Counts of stock commands that processes decided for each other.
    pub fn forwarding_counts(&self) -> ForwardingCounts {
        self.keepers.forwarding().counts()
    }
}

impl Keepers {
    /// Submits a command to the keeper of a partition, here or at the owner, and waits for its decision.
    pub(crate) async fn submit(
        &self,
        cql: &Arc<Cql>,
        stock_key: &StockKey,
        command: StockCommand,
        now: Timestamp,
    ) -> Result<Decision> {
        self.submit_again(cql, stock_key, (command, now), &mut SubmitAttempts::default()).await
    }

    /// Submits a command that may have been submitted before; `attempts` are those of the same command.
    pub(crate) async fn submit_again(
        &self,
        cql: &Arc<Cql>,
        stock_key: &StockKey,
        (command, now): (StockCommand, Timestamp),
        attempts: &mut SubmitAttempts,
    ) -> Result<Decision> {
        if let Some(decided) = self.forwarding().forward(stock_key, &command, now, attempts).await {
            return decided;
        }
        if attempts.is_in_doubt {
            // A crash here leaves a command that the owner may have decided. The recovery of its caller submits it again.
            return self.resolve(cql, stock_key, command, now).await.map_err(StoreError::after_first_effect);
        }
        self.submit_locally(cql, stock_key, command, now).await
    }

    /// Decides a command that an owner may have decided, or may still decide: by its ledger row.
    async fn resolve(
        &self,
        cql: &Arc<Cql>,
        stock_key: &StockKey,
        command: StockCommand,
        now: Timestamp,
    ) -> Result<Decision> {
        let StockCommand::Hold { until, op_id, quantity, .. } = command else {
            return self.submit_locally(cql, stock_key, command, now).await;
        };
        // Not a new hold any more: its row is read.
        let hold = StockCommand::Hold { until, op_id, quantity, started_at: None };
        let decision = self.submit_locally(cql, stock_key, hold, now).await?;
        let Decision::Short { available } = decision else { return Ok(decision) };
        // The owner may find units for it later. The void row decides for both.
        let transition = Transition::VoidIfAbsent;
        let void = StockCommand::Advance { until, op_id, quantity, transition };
        match self.submit_locally(cql, stock_key, void, now).await? {
            Decision::Done { state: Some(LedgerState::Void), .. } => Ok(Decision::Short { available }),
            decision => Ok(decision),
        }
    }
}
