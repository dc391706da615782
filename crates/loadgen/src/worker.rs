//! A worker thread of the generator: its connections, and the event loop that sends requests and reads responses.
//!
//! The loop never waits for a response before it sends the next request, as long as a connection is free. A broken
//! connection is reopened; the job decides for each of its requests whether it is retried.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use crate::connection::{Connection, Received};
use crate::error::LoadError;
use crate::schedule::{Nanos, SECOND};
use crate::target::Target;
use crate::timer::Timer;
use crate::wire::{self, Parsed, Response};

const EVENTS_MAX: usize = 1_024;
const READ_BYTES: usize = 256 << 10;
/// Timeouts and broken connections are checked this often.
const TICK: Nanos = SECOND / 20;
/// A schedule whose next request is due sooner than this sleeps so long, and then reads all responses and sends all due requests
/// in one pass: a wake-up for each would take CPU time from a server on the same machine.
const BATCHING_DELAY: Nanos = SECOND / 4_000;
const TIMER: Token = Token(usize::MAX);

/// What a worker sends, and how responses are processed.
pub(crate) trait Job {
    /// One request, including its retries.
    type Ticket;

    /// Called whenever a connection is free.
    fn next(&mut self, now: Nanos) -> Next<Self::Ticket>;

    fn write(&mut self, ticket: &Self::Ticket, out: &mut Vec<u8>);

    /// Returns what to send next on the same connection.
    fn answered(&mut self, ticket: Self::Ticket, response: &Response<'_>, now: Nanos)
    -> Option<Self::Ticket>;

    /// The request got no response and will get none. Returns what to send instead.
    fn lost(&mut self, ticket: Self::Ticket, loss: Loss, now: Nanos) -> Option<Self::Ticket>;

    /// Called many times a second, also without events.
    fn tick(&mut self, _now: Nanos) {}
}

#[derive(Debug)]
pub(crate) enum Next<T> {
    Begin(T),
    /// Nothing before that instant.
    NotBefore(Nanos),
    /// Nothing any more.
    End,
}

/// Why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    TimedOut,
    Disconnected,
    Nonsense,
    /// The server was unreachable for the timeout of a request.
    Unreachable,
}

impl Loss {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "timed out",
            Self::Disconnected => "connection lost",
            Self::Nonsense => "response is not HTTP",
            Self::Unreachable => "cannot connect",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) connections: usize,
    /// Requests in flight on one connection.
    pub(crate) depth: usize,
    pub(crate) timeout: Duration,
}

pub(crate) struct Worker {
    poll: Poll,
    events: Events,
    alarm: Timer,
    origin: Instant,
    connections: Vec<Connection>,
    sizes: Sizes,
    buffer: Vec<u8>,
    joined: Vec<u8>,
}

impl Worker {
    pub(crate) fn new(target: &Target, sizes: Sizes, origin: Instant) -> Result<Self, LoadError> {
        let poll = Poll::new().map_err(LoadError::Poll)?;
        let alarm = Timer::new(poll.registry(), TIMER).map_err(LoadError::Poll)?;
        let connections =
            (0..sizes.connections).map(|index| Connection::new(target.address, index)).collect();
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            alarm,
            origin,
            connections,
            sizes,
            buffer: vec![0; READ_BYTES],
            joined: Vec::new(),
        })
    }

    pub(crate) fn now(&self) -> Nanos {
        nanos(self.origin.elapsed())
    }

    /// Runs until the job has nothing more to send and all requests have ended, or the server is unreachable.
    pub(crate) fn drive<J: Job>(&mut self, job: &mut J) -> Result<Ended, LoadError> {
        let mut in_flight = InFlight {
            lanes: self.connections.iter().map(|_| VecDeque::new()).collect(),
            free: VecDeque::new(),
            touched: Vec::new(),
            under_way: 0,
            has_ended: false,
            is_gone: false,
            reachable_at: self.now(),
        };
        for (index, connection) in self.connections.iter().enumerate() {
            if connection.is_up() {
                in_flight.free.extend(std::iter::repeat_n(index, self.sizes.depth));
            }
        }
        let mut next_tick = 0;
        loop {
            let now = self.now();
            if now >= next_tick {
                next_tick = now + TICK;
                self.check_timeouts(job, &mut in_flight, now);
                job.tick(now);
            }
            let due = self.begin(job, &mut in_flight, now);
            self.flush(job, &mut in_flight);
            if in_flight.has_ended && in_flight.under_way == 0 {
                return Ok(if in_flight.is_gone { Ended::Gone } else { Ended::Done });
            }
            self.wait(due, next_tick)?;
            let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
            for event in &events {
                let Token(index) = event.token();
                if event.token() != TIMER {
                    self.ready(job, &mut in_flight, index, event.is_writable());
                }
            }
            self.events = events;
        }
    }

    /// Sends what is due while connections are free; returns when the next is due.
    fn begin<J: Job>(
        &mut self,
        job: &mut J,
        in_flight: &mut InFlight<J::Ticket>,
        now: Nanos,
    ) -> Option<Nanos> {
        while !in_flight.has_ended {
            let index = *in_flight.free.front()?;
            match job.next(now) {
                Next::Begin(ticket) => {
                    in_flight.free.pop_front();
                    in_flight.under_way += 1;
                    self.send(job, in_flight, index, ticket, now);
                }
                Next::NotBefore(at) => return Some(at),
                Next::End => in_flight.has_ended = true,
            }
        }
        None
    }

    fn send<J: Job>(
        &mut self,
        job: &mut J,
        in_flight: &mut InFlight<J::Ticket>,
        index: usize,
        ticket: J::Ticket,
        now: Nanos,
    ) {
        let Some((connection, lane)) = self.connections.get_mut(index).zip(in_flight.lanes.get_mut(index))
        else {
            return;
        };
        if connection.is_up() {
            if connection.out.is_empty() {
                in_flight.touched.push(index);
            }
            job.write(&ticket, &mut connection.out);
        }
        lane.push_back(Sent { ticket, at: now });
    }

    fn flush<J: Job>(&mut self, job: &mut J, in_flight: &mut InFlight<J::Ticket>) {
        while let Some(index) = in_flight.touched.pop() {
            let failed = self.connections.get_mut(index).is_some_and(|it| it.flush().is_err());
            if failed {
                self.broken(job, in_flight, index, Loss::Disconnected);
            }
        }
    }

    fn wait(&mut self, due: Option<Nanos>, next_tick: Nanos) -> Result<(), LoadError> {
        let now = self.now();
        if due.is_some_and(|due| (now + 1..now + BATCHING_DELAY).contains(&due)) {
            std::thread::sleep(Duration::from_nanos(BATCHING_DELAY));
            return self.poll(0);
        }
        self.poll(due.unwrap_or(next_tick).min(next_tick).saturating_sub(now))
    }

    /// Polls ready sockets, for at most `pause`.
    fn poll(&mut self, pause: Nanos) -> Result<(), LoadError> {
        let waited = if pause == 0 {
            self.poll.poll(&mut self.events, Some(Duration::ZERO))
        } else {
            let set = self.alarm.set(pause);
            set.and_then(|()| self.poll.poll(&mut self.events, Some(Duration::from_nanos(pause))))
        };
        match waited {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(LoadError::Poll(error)),
            _ => Ok(()),
        }
    }

    fn ready<J: Job>(
        &mut self,
        job: &mut J,
        in_flight: &mut InFlight<J::Ticket>,
        index: usize,
        is_writable: bool,
    ) {
        let now = self.now();
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.is_up() {
            if connection.has_come_up(now) {
                self.up(job, in_flight, index, now);
            }
            return;
        }
        if is_writable && !connection.out.is_empty() {
            in_flight.touched.push(index);
        }
        self.read(job, in_flight, index);
    }

    /// Resends requests that waited for the connection, and frees its remaining slots.
    fn up<J: Job>(&mut self, job: &mut J, in_flight: &mut InFlight<J::Ticket>, index: usize, now: Nanos) {
        let Some((connection, lane)) = self.connections.get_mut(index).zip(in_flight.lanes.get_mut(index))
        else {
            return;
        };
        for sent in lane.iter_mut() {
            job.write(&sent.ticket, &mut connection.out);
            sent.at = now;
        }
        in_flight.touched.push(index);
        in_flight.free.extend(std::iter::repeat_n(index, self.sizes.depth.saturating_sub(lane.len())));
    }

    fn read<J: Job>(&mut self, job: &mut J, in_flight: &mut InFlight<J::Ticket>, index: usize) {
        loop {
            let Some(connection) = self.connections.get_mut(index) else { return };
            let received = match connection.receive(&mut self.buffer) {
                Ok(Received::Bytes(bytes)) => bytes,
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) | Err(_) => {
                    return self.broken(job, in_flight, index, Loss::Disconnected);
                }
            };
            if let Err(loss) = self.read_responses(job, in_flight, index, received) {
                return self.broken(job, in_flight, index, loss);
            }
            // A short read means an empty socket; later bytes raise another event.
            if received < READ_BYTES {
                return;
            }
        }
    }

    /// Processes the responses in the received bytes.
    fn read_responses<J: Job>(
        &mut self,
        job: &mut J,
        in_flight: &mut InFlight<J::Ticket>,
        index: usize,
        received: usize,
    ) -> Result<(), Loss> {
        let now = self.now();
        let (Some(connection), Some(lane)) =
            (self.connections.get_mut(index), in_flight.lanes.get_mut(index))
        else {
            return Ok(());
        };
        let fresh = self.buffer.get(..received).unwrap_or_default();
        let mut partial = std::mem::take(&mut connection.partial);
        let had_partial = !partial.is_empty();
        if had_partial {
            partial.extend_from_slice(fresh);
        }
        let mut rest: &[u8] = if had_partial { &partial } else { fresh };
        while !rest.is_empty() {
            let (response, bytes) = match wire::parse(rest, &mut self.joined) {
                Ok(Parsed::Partial) if rest.len() > wire::RESPONSE_BYTES_MAX => return Err(Loss::Nonsense),
                Ok(Parsed::Partial) => break,
                Ok(Parsed::Whole { response, bytes }) => (response, bytes),
                Err(_) => return Err(Loss::Nonsense),
            };
            let sent = lane.pop_front().ok_or(Loss::Nonsense)?;
            let is_last = response.is_last;
            if let Some(ticket) = job.answered(sent.ticket, &response, now) {
                if connection.out.is_empty() {
                    in_flight.touched.push(index);
                }
                job.write(&ticket, &mut connection.out);
                lane.push_back(Sent { ticket, at: now });
            } else {
                in_flight.under_way -= 1;
                in_flight.free.push_back(index);
            }
            rest = rest.get(bytes..).unwrap_or_default();
            if is_last {
                self.closed_in_order(job, in_flight, index);
                return Ok(());
            }
        }
        let left = rest.len();
        if left > 0 && !had_partial {
            connection.partial.extend_from_slice(rest);
        } else if left > 0 {
            partial.drain(..partial.len() - left);
            connection.partial = partial;
        }
        Ok(())
    }

    /// The server announced that it closes: requests that follow go over the next connection.
    fn closed_in_order<J: Job>(&mut self, job: &mut J, in_flight: &mut InFlight<J::Ticket>, index: usize) {
        if self.sizes.depth > 1 {
            // The server may or may not have read the requests behind it.
            return self.broken(job, in_flight, index, Loss::Disconnected);
        }
        self.reopen(in_flight, index);
    }

    fn reopen<T>(&mut self, in_flight: &mut InFlight<T>, index: usize) {
        let now = self.now();
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.start_over(now);
        connection.connect(self.poll.registry(), now);
        in_flight.free.retain(|free| *free != index);
        in_flight.touched.retain(|touched| *touched != index);
    }

    fn broken<J: Job>(&mut self, job: &mut J, in_flight: &mut InFlight<J::Ticket>, index: usize, loss: Loss) {
        self.reopen(in_flight, index);
        let now = self.now();
        if let Some(lane) = in_flight.lanes.get_mut(index) {
            lose(job, lane, &mut in_flight.under_way, loss, now);
        }
    }

    /// Reopens closed connections, and times out slow requests.
    fn check_timeouts<J: Job>(&mut self, job: &mut J, in_flight: &mut InFlight<J::Ticket>, now: Nanos) {
        let timeout = nanos(self.sizes.timeout);
        for index in 0..self.connections.len() {
            let (Some(connection), Some(lane)) =
                (self.connections.get_mut(index), in_flight.lanes.get_mut(index))
            else {
                continue;
            };
            connection.connect(self.poll.registry(), now);
            let waits_too_long = lane.front().is_some_and(|sent| now.saturating_sub(sent.at) > timeout);
            if waits_too_long && connection.is_up() {
                self.broken(job, in_flight, index, Loss::TimedOut);
            } else if waits_too_long {
                lose(job, lane, &mut in_flight.under_way, Loss::Unreachable, now);
            }
        }
        if self.connections.iter().any(Connection::is_up) {
            in_flight.reachable_at = now;
        } else if now.saturating_sub(in_flight.reachable_at) > timeout {
            in_flight.has_ended = true;
            in_flight.is_gone = true;
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    /// No connection was possible for the timeout of a request.
    Gone,
}

/// The requests in flight of one job.
struct InFlight<T> {
    /// By connection, in the order of sending, which is the order of responses.
    lanes: Vec<VecDeque<Sent<T>>>,
    /// Connections with free slots, one entry per slot.
    free: VecDeque<usize>,
    /// Connections with something to send.
    touched: Vec<usize>,
    under_way: usize,
    has_ended: bool,
    is_gone: bool,
    /// When a connection was up for the last time.
    reachable_at: Nanos,
}

struct Sent<T> {
    ticket: T,
    at: Nanos,
}

/// Keeps in the lane what the job retries.
fn lose<J: Job>(
    job: &mut J,
    lane: &mut VecDeque<Sent<J::Ticket>>,
    under_way: &mut usize,
    loss: Loss,
    now: Nanos,
) {
    for _ in 0..lane.len() {
        let Some(sent) = lane.pop_front() else { return };
        match job.lost(sent.ticket, loss, now) {
            Some(ticket) => lane.push_back(Sent { ticket, at: now }),
            None => *under_way -= 1,
        }
    }
}

pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
