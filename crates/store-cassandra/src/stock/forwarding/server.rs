//! The internal listener: takes commands of other processes to the keepers of this one.
//!
//! A command that arrives here is never forwarded again. A crash of this process leaves its commands decided or not; the
//! process that sent them resolves each by its ledger row.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use mw_store::{Result as StoreResult, StoreError};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use uuid::Uuid;

use super::connection::{LinkError, append, read_frame};
use super::frames::{Action, ForwardedCommand, Frame, ITEMS_MAX, Outcome, Stamp};
use super::handshake::{self, Token};
use super::{Counters, GATHERING, STAMP_INTERVAL, WRITE_TIMEOUT, within};
use crate::CassandraStore;
use crate::stock::decision::{Decision, StockCommand};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections at the same time: one a process of the shop.
const CONNECTIONS_MAX: usize = 1_024;
/// Commands of one connection that wait for their decision.
const IN_FLIGHT_MAX: usize = 16_384;
/// Before the next connection is accepted after an error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// On closing, for the commands in flight to be decided.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Commands that are older when they are read are not decided: much less than a ledger row is kept.
const COMMAND_AGE_MICROS_MAX: Stamp = 60_000_000;
const CLOSE_POLL: Duration = Duration::from_millis(10);

/// What the connections share.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) store: Weak<CassandraStore>,
    pub(super) process: Uuid,
    pub(super) token: Token,
    pub(super) counters: Arc<Counters>,
    /// Stamps count from here.
    pub(super) started: Instant,
    pub(super) is_closing: AtomicBool,
    pub(super) in_flight: AtomicUsize,
}

/// The listener of a process; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    service: Arc<Service>,
    task: AbortHandle,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    pub(super) fn start(listener: TcpListener, service: Service) -> Self {
        let service = Arc::new(service);
        let task = tokio::spawn(accept_connections(listener, Arc::clone(&service))).abort_handle();
        Self { service, task }
    }

    /// Refuses further commands and waits for those in flight. Their senders take the refused ones elsewhere.
    pub(super) async fn close(self) {
        self.service.is_closing.store(true, Ordering::Relaxed);
        let started = Instant::now();
        while self.service.in_flight.load(Ordering::Relaxed) > 0 && started.elapsed() < CLOSE_TIMEOUT {
            tokio::time::sleep(CLOSE_POLL).await;
        }
    }
}

async fn accept_connections(listener: TcpListener, service: Arc<Service>) {
    // Aborted together with this task.
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, caller)) => {
                while connections.try_join_next().is_some() {}
                if connections.len() < CONNECTIONS_MAX {
                    connections.spawn(serve(stream, caller, Arc::clone(&service)));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "accept an internal connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(mut stream: TcpStream, caller: SocketAddr, service: Arc<Service>) {
    let served = async {
        stream.set_nodelay(true)?;
        let shaking = handshake::accept(&mut stream, &service.token, service.process, || service.stamp());
        within(HANDSHAKE_TIMEOUT, shaking).await?;
        let (reader, writer) = stream.into_split();
        let (submitted, decisions) = mpsc::channel(IN_FLIGHT_MAX);
        tokio::select! {
            read = read_commands(reader, &service, submitted) => read,
            written = write_decisions(writer, &service, decisions) => written,
        }
    };
    match served.await {
        Err(error @ LinkError::WrongToken) => {
            tracing::warn!(%caller, %error, "accept an internal connection");
        }
        Err(error) => tracing::debug!(%caller, %error, "internal connection ended"),
        Ok(()) => {}
    }
}

/// A command in flight, counted until its decision was written or cannot be.
#[derive(Debug)]
struct InFlight(Arc<Service>);

impl InFlight {
    fn new(service: &Arc<Service>) -> Self {
        service.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(service))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A command that was submitted to its keeper.
#[derive(Debug)]
struct Submitted {
    id: u64,
    decision: StoreResult<oneshot::Receiver<StoreResult<Decision>>>,
    in_flight: InFlight,
}

impl Submitted {
    async fn outcome(self) -> (u64, Outcome, InFlight) {
        let dropped = || StoreError::Ambiguous("the keeper ended without a reply".to_owned());
        let decided = match self.decision {
            Ok(decision) => decision.await.unwrap_or_else(|_| Err(dropped())),
            Err(error) => Err(error),
        };
        (self.id, Outcome::of(decided), self.in_flight)
    }
}

impl Service {
    fn stamp(&self) -> Stamp {
        Stamp::try_from(self.started.elapsed().as_micros()).unwrap_or(Stamp::MAX)
    }

    fn submit(&self, store: &CassandraStore, command: ForwardedCommand) -> Submission {
        if self.is_closing.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("the process is shutting down".to_owned()));
        }
        let ForwardedCommand { stock_key, now, action, .. } = command;
        self.counters.served.fetch_add(1, Ordering::Relaxed);
        store.compaction.enqueue(&stock_key, now);
        store.keepers.enqueue(&store.cql, &stock_key, self.stock_command(action), now)
    }

    fn stock_command(&self, action: Action) -> StockCommand {
        match action {
            Action::Hold { until, op_id, quantity, started_after } => {
                // The operation began after this instant, so no process can have written its row before. It may have been
                // written since, by the process that sent it: then the revision has changed.
                let started_at = started_after
                    .and_then(|stamp| self.started.checked_add(Duration::from_micros(stamp)))
                    .filter(|instant| *instant <= Instant::now());
                StockCommand::Hold { until, op_id, quantity, started_at }
            }
            Action::Advance { until, op_id, quantity, transition } => {
                StockCommand::Advance { until, op_id, quantity, transition }
            }
            Action::RaiseEarliestHoldEnd => StockCommand::RaiseEarliestHoldEnd,
        }
    }
}

type Submission = StoreResult<oneshot::Receiver<StoreResult<Decision>>>;

async fn read_commands(
    reader: OwnedReadHalf,
    service: &Arc<Service>,
    submitted: mpsc::Sender<Submitted>,
) -> Result<(), LinkError> {
    let mut reader = BufReader::new(reader);
    loop {
        let Frame::Commands { seen, commands } = read_frame(&mut reader).await? else {
            return Err(LinkError::UnexpectedFrame);
        };
        // This process was paused: the commands were resolved without it, and their ledger rows may be gone soon.
        if service.stamp().saturating_sub(seen) > COMMAND_AGE_MICROS_MAX {
            return Err(LinkError::OutdatedCommands);
        }
        for command in commands {
            // A place for its decision first: where callers send more than is decided, they wait.
            let Ok(place) = submitted.reserve().await else { return Ok(()) };
            let Some(store) = service.store.upgrade() else { return Ok(()) };
            let (id, in_flight) = (command.id, InFlight::new(service));
            // A crash here leaves a command undecided: its sender resolves it by the ledger.
            let decision = service.submit(&store, command);
            place.send(Submitted { id, decision, in_flight });
        }
    }
}

async fn write_decisions(
    mut writer: OwnedWriteHalf,
    service: &Arc<Service>,
    mut submitted: mpsc::Receiver<Submitted>,
) -> Result<(), LinkError> {
    let mut undecided = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(STAMP_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut bytes = Vec::new();
    loop {
        let mut arrived = Vec::new();
        let mut decided = Vec::new();
        tokio::select! {
            count = submitted.recv_many(&mut arrived, ITEMS_MAX), if undecided.len() < IN_FLIGHT_MAX => {
                if count == 0 {
                    return Ok(());
                }
                undecided.extend(arrived.into_iter().map(Submitted::outcome));
                continue;
            }
            Some(first) = undecided.next() => {
                decided.push(first);
                // A keeper decides a batch at once: the others of it are ready in a moment.
                if !undecided.is_empty() {
                    tokio::time::sleep(GATHERING).await;
                }
                while decided.len() < ITEMS_MAX && let Some(Some(next)) = undecided.next().now_or_never() {
                    decided.push(next);
                }
            }
            _ = ticks.tick() => {}
        }
        let (decisions, in_flight): (Vec<_>, Vec<_>) =
            decided.into_iter().map(|(id, outcome, in_flight)| ((id, outcome), in_flight)).unzip();
        bytes.clear();
        append(&Frame::Decisions { stamp: service.stamp(), decisions }, &mut bytes)?;
        within(WRITE_TIMEOUT, async { Ok(writer.write_all(&bytes).await?) }).await?;
        drop(in_flight);
    }
}
