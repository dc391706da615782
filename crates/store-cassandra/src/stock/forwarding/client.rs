//! A link to another process: one connection, on which commands are pipelined.
//!
//! Commands that are submitted while others are being written go into one frame. Whatever ends the link, every command on
//! it learns whether it can have reached the owner: one that was not sent certainly did not.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mw_domain::Timestamp;
use mw_store::StoreError;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::connection::{LinkError, append, read_frame};
use super::frames::{Action, ForwardedCommand, Frame, ITEMS_MAX, Outcome, Stamp};
use super::handshake::{Token, initiate};
use super::{GATHERING, STAMP_INTERVAL, WRITE_TIMEOUT, within};
use crate::stock::decision::{StockCommand, StockKey};

/// For the connection and its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The listener sends a frame every [`STAMP_INTERVAL`]; without one for so long it has failed.
pub(super) const LISTENER_TIMEOUT: Duration = Duration::from_secs(2);
const _: () = assert!(LISTENER_TIMEOUT.as_millis() >= 4 * STAMP_INTERVAL.as_millis());
/// A command without a decision for so long is resolved by this process.
const DECISION_TIMEOUT: Duration = Duration::from_secs(10);
/// A link without commands ends after this time.
const LINK_IDLE: Duration = Duration::from_mins(1);
/// Commands that may wait for a decision on one link, and as many again to be sent.
const IN_FLIGHT_MAX: usize = 16_384;
/// Stamps that are remembered, and the time between two of them.
const STAMPS_MAX: usize = 64;
const STAMP_SPACING: Duration = Duration::from_millis(50);

/// What became of a command that was to be forwarded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Forwarded {
    Decided(Outcome),
    /// The owner certainly never had it.
    NotSent,
    /// The owner may have it, and may still decide it.
    Unanswered,
}

#[derive(Debug)]
struct Outgoing {
    stock_key: StockKey,
    command: StockCommand,
    now: Timestamp,
    reply: oneshot::Sender<Forwarded>,
}

/// Who calls whom.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) own: Uuid,
    pub(super) owner: Uuid,
    pub(super) address: SocketAddr,
    pub(super) token: Token,
    pub(super) listener_timeout: Duration,
}

#[derive(Debug)]
pub(super) struct Link {
    queue: mpsc::Sender<Outgoing>,
    task: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Connects in the background; `on_failure` is called if the link ends by a failure.
    pub(super) fn open(call: Call, on_failure: impl FnOnce() + Send + 'static) -> Arc<Self> {
        let (queue, mut outgoing) = mpsc::channel(IN_FLIGHT_MAX);
        let task = tokio::spawn(async move {
            if let Err(error) = run(&call, &mut outgoing).await {
                let (owner, address) = (call.owner, call.address);
                tracing::warn!(%error, %owner, %address, "forward stock commands: another process decides them for a while");
                on_failure();
            }
            outgoing.close();
            while let Ok(unsent) = outgoing.try_recv() {
                let _ = unsent.reply.send(Forwarded::NotSent);
            }
        });
        Arc::new(Self { queue, task: task.abort_handle() })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Sends a command to the owner and waits for its decision.
    pub(super) async fn forward(
        &self,
        stock_key: &StockKey,
        command: &StockCommand,
        now: Timestamp,
    ) -> Forwarded {
        let (reply, decided) = oneshot::channel();
        let outgoing = Outgoing { stock_key: stock_key.clone(), command: command.clone(), now, reply };
        match self.queue.try_send(outgoing) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Forwarded::Decided(Outcome::Failed(StoreError::Overloaded));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return Forwarded::NotSent,
        }
        match tokio::time::timeout(DECISION_TIMEOUT, decided).await {
            Ok(Ok(forwarded)) => forwarded,
            Ok(Err(_)) | Err(_) => Forwarded::Unanswered,
        }
    }
}

/// The stamps of the listener, and when each was received.
#[derive(Debug, Default)]
struct Stamps {
    newest: Stamp,
    kept: VecDeque<(Instant, Stamp)>,
}

impl Stamps {
    fn record(&mut self, received: Instant, stamp: Stamp) {
        self.newest = stamp;
        if self.kept.back().is_some_and(|(last, _)| received.duration_since(*last) < STAMP_SPACING) {
            return;
        }
        if self.kept.len() == STAMPS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((received, stamp));
    }

    /// The newest stamp that had been received by an instant: what happened at the listener before the stamp happened
    /// before that instant.
    fn received_by(&self, instant: Instant) -> Option<Stamp> {
        self.kept.iter().rev().find(|(received, _)| *received <= instant).map(|(_, stamp)| *stamp)
    }
}

#[derive(Debug, Default)]
struct Exchange {
    next_id: u64,
    pending: HashMap<u64, oneshot::Sender<Forwarded>>,
    stamps: Stamps,
}

impl Exchange {
    /// The frame of a batch. From here on its commands may reach the owner.
    fn commands(&mut self, batch: Vec<Outgoing>) -> Frame {
        let mut commands = Vec::with_capacity(batch.len());
        for Outgoing { stock_key, command, now, reply } in batch {
            if reply.is_closed() {
                // Its caller has gone: it was not sent, and is not.
                continue;
            }
            let Some(action) = self.action(&command) else {
                let _ = reply.send(Forwarded::NotSent);
                continue;
            };
            if self.pending.len() >= IN_FLIGHT_MAX {
                let _ = reply.send(Forwarded::Decided(Outcome::Failed(StoreError::Overloaded)));
                continue;
            }
            self.next_id += 1;
            self.pending.insert(self.next_id, reply);
            commands.push(ForwardedCommand { id: self.next_id, stock_key, now, action });
        }
        Frame::Commands { seen: self.stamps.newest, commands }
    }

    fn action(&self, command: &StockCommand) -> Option<Action> {
        match *command {
            StockCommand::Hold { until, op_id, quantity, started_at } => {
                let started_after = started_at.and_then(|instant| self.stamps.received_by(instant));
                Some(Action::Hold { until, op_id, quantity, started_after })
            }
            StockCommand::Advance { until, op_id, quantity, transition } => {
                Some(Action::Advance { until, op_id, quantity, transition })
            }
            StockCommand::RaiseEarliestHoldEnd => Some(Action::RaiseEarliestHoldEnd),
            _ => None,
        }
    }
}

fn lock(exchange: &Mutex<Exchange>) -> MutexGuard<'_, Exchange> {
    exchange.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a link until it was idle or failed. Commands that were sent and have no decision then are unanswered.
async fn run(call: &Call, outgoing: &mut mpsc::Receiver<Outgoing>) -> Result<(), LinkError> {
    let connecting = async {
        let mut stream = TcpStream::connect(call.address).await?;
        stream.set_nodelay(true)?;
        let stamp = initiate(&mut stream, &call.token, call.own, call.owner).await?;
        Ok((stream, stamp))
    };
    let (stream, stamp) = within(CONNECT_TIMEOUT, connecting).await?;
    let exchange = Mutex::new(Exchange::default());
    lock(&exchange).stamps.record(Instant::now(), stamp);
    let (reader, writer) = stream.into_split();
    tokio::select! {
        read = read_decisions(reader, call.listener_timeout, &exchange) => read,
        written = write_commands(writer, outgoing, &exchange) => written,
    }
}

async fn write_commands(
    mut writer: OwnedWriteHalf,
    outgoing: &mut mpsc::Receiver<Outgoing>,
    exchange: &Mutex<Exchange>,
) -> Result<(), LinkError> {
    let mut bytes = Vec::new();
    loop {
        let mut batch = Vec::new();
        match tokio::time::timeout(LINK_IDLE, outgoing.recv_many(&mut batch, ITEMS_MAX)).await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(_) if lock(exchange).pending.is_empty() => return Ok(()),
            Err(_) => continue,
        }
        // Requests that were woken by the same frame of decisions submit their next commands now.
        tokio::time::sleep(GATHERING).await;
        while batch.len() < ITEMS_MAX
            && let Ok(more) = outgoing.try_recv()
        {
            batch.push(more);
        }
        bytes.clear();
        append(&lock(exchange).commands(batch), &mut bytes)?;
        within(WRITE_TIMEOUT, async { Ok(writer.write_all(&bytes).await?) }).await?;
    }
}

async fn read_decisions(
    reader: OwnedReadHalf,
    timeout: Duration,
    exchange: &Mutex<Exchange>,
) -> Result<(), LinkError> {
    let mut reader = BufReader::new(reader);
    loop {
        let frame = within(timeout, read_frame(&mut reader)).await?;
        let Frame::Decisions { stamp, decisions } = frame else { return Err(LinkError::UnexpectedFrame) };
        let mut exchange = lock(exchange);
        exchange.stamps.record(Instant::now(), stamp);
        for (id, outcome) in decisions {
            if let Some(reply) = exchange.pending.remove(&id) {
                let _ = reply.send(Forwarded::Decided(outcome));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mw_domain::{GeoZone, ProductId};
    use tokio::net::TcpListener;

    use super::super::connection::write_frame;
    use super::super::handshake::accept;
    use super::*;
    use crate::stock::ledger::END_OF_TIME;

    const OWNER: Uuid = Uuid::from_u128(1);

    fn stock_key() -> StockKey {
        StockKey { product_id: ProductId::parse("hit").unwrap(), geo_zone: GeoZone::parse("msk").unwrap() }
    }

    fn hold(number: u128, started_at: Option<Instant>) -> StockCommand {
        StockCommand::Hold { until: END_OF_TIME, op_id: Uuid::from_u128(number), quantity: 1, started_at }
    }

    fn call(address: SocketAddr) -> Call {
        Call {
            own: Uuid::from_u128(2),
            owner: OWNER,
            address,
            token: Token::new("token"),
            listener_timeout: LISTENER_TIMEOUT,
        }
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn the_newest_stamp_received_before_the_operation_began_is_sent() {
        let (mut stamps, start) = (Stamps::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        stamps.record(after(0), 100);
        stamps.record(after(10), 110);
        stamps.record(after(60), 160);
        assert_eq!(stamps.received_by(after(59)), Some(100), "the one at 10 is too close to be kept");
        assert_eq!(stamps.received_by(after(60)), Some(160));
        assert_eq!(start.checked_sub(Duration::from_millis(1)).and_then(|it| stamps.received_by(it)), None);
        for number in 1..=STAMPS_MAX as u64 {
            stamps.record(after(60 + 50 * number), 200 + number);
        }
        assert_eq!(stamps.kept.len(), STAMPS_MAX);
        assert_eq!(stamps.received_by(after(70)), None, "forgotten");
    }

    #[tokio::test]
    async fn commands_of_several_requests_go_in_one_frame_and_each_gets_its_decision() {
        let (listener, address) = listener().await;
        let link = Link::open(call(address), || panic!("the link failed"));
        let submitting = futures_util::future::join_all((0..50_u64).map(|number| {
            let link = Arc::clone(&link);
            async move { link.forward(&stock_key(), &hold(u128::from(number), None), END_OF_TIME).await }
        }));
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            accept(&mut stream, &Token::new("token"), OWNER, || 1).await.unwrap();
            let (mut frames, mut decided) = (0, 0);
            while decided < 50 {
                let Frame::Commands { commands, .. } = read_frame(&mut stream).await.unwrap() else {
                    panic!()
                };
                frames += 1;
                decided += commands.len();
                // In another order than they came.
                let outcome = |command: &ForwardedCommand| match command.action {
                    Action::Hold { op_id, .. } => Outcome::Short { available: op_id.as_u64_pair().1 },
                    _ => panic!("{command:?}"),
                };
                let decisions = commands.iter().rev().map(|it| (it.id, outcome(it))).collect();
                write_frame(&mut stream, &Frame::Decisions { stamp: 2, decisions }).await.unwrap();
            }
            (frames, stream)
        };
        let (forwarded, (frames, _stream)) = tokio::join!(submitting, serving);
        for (number, forwarded) in (0..).zip(forwarded) {
            assert_eq!(forwarded, Forwarded::Decided(Outcome::Short { available: number }));
        }
        assert_eq!(frames, 1, "all were submitted while the link was being opened");
    }

    #[tokio::test]
    async fn a_command_that_was_sent_is_unanswered_when_the_link_ends_and_a_later_one_not_sent() {
        let (listener, address) = listener().await;
        let (failed, failure) = oneshot::channel();
        let link = Link::open(call(address), move || failed.send(()).unwrap());
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            accept(&mut stream, &Token::new("token"), OWNER, || 1).await.unwrap();
            read_frame(&mut stream).await.unwrap();
        };
        let (key, first) = (stock_key(), hold(1, None));
        let (forwarded, ()) = tokio::join!(link.forward(&key, &first, END_OF_TIME), serving);
        assert_eq!(forwarded, Forwarded::Unanswered);
        failure.await.unwrap();
        assert_eq!(link.forward(&key, &hold(2, None), END_OF_TIME).await, Forwarded::NotSent);
        assert!(link.is_closed());
    }

    #[tokio::test]
    async fn commands_to_an_address_without_a_listener_are_not_sent() {
        let (listener, address) = listener().await;
        drop(listener);
        let (failed, failure) = oneshot::channel();
        let link = Link::open(call(address), move || failed.send(()).unwrap());
        assert_eq!(link.forward(&stock_key(), &hold(1, None), END_OF_TIME).await, Forwarded::NotSent);
        failure.await.unwrap();
    }

    #[tokio::test]
    async fn a_listener_that_stopped_without_closing_is_found_by_its_missing_frames() {
        let (listener, address) = listener().await;
        let call = Call { listener_timeout: Duration::from_millis(50), ..call(address) };
        let link = Link::open(call, || {});
        let (key, first) = (stock_key(), hold(1, None));
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            accept(&mut stream, &Token::new("token"), OWNER, || 1).await.unwrap();
            stream
        };
        let (forwarded, _stream) = tokio::join!(link.forward(&key, &first, END_OF_TIME), serving);
        assert_eq!(forwarded, Forwarded::Unanswered);
    }
}
