//! A generator's thread: its connections, and the loop that sends what is due and takes what comes back.
//!
//! The loop never waits for an answer before it sends the next request, as long as a connection is free. A connection
//! that breaks is opened again; the job says of each request on it whether it is sent once more.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use crate::alarm::Alarm;
use crate::connection::{Connection, Taken};
use crate::error::LoadError;
use crate::schedule::{Nanos, SECOND};
use crate::target::Target;
use crate::wire::{self, Answer, Parsed};

const EVENTS_MAX: usize = 1_024;
const READ_BYTES: usize = 256 << 10;
/// Timeouts and broken connections are looked after this often.
const TICK: Nanos = SECOND / 20;
/// A schedule whose next request is due sooner than this sleeps so long, and then takes all answers and sends all that is due
/// at once: to be woken for each of them would take from the server, on the same machine, what is to be measured.
const GATHER: Nanos = SECOND / 4_000;
const ALARM: Token = Token(usize::MAX);

/// What a worker is to do, and what becomes of the answers.
pub(crate) trait Job {
    /// One request, from its beginning to the end of its repeats.
    type Ticket;

    /// Asked whenever a connection is free.
    fn next(&mut self, now: Nanos) -> Next<Self::Ticket>;

    fn write(&mut self, ticket: &Self::Ticket, out: &mut Vec<u8>);

    /// Answers what is to be sent after it on the same connection.
    fn answered(&mut self, ticket: Self::Ticket, answer: &Answer<'_>, now: Nanos) -> Option<Self::Ticket>;

    /// No answer came, and none will. Answers what is to be sent instead.
    fn lost(&mut self, ticket: Self::Ticket, loss: Loss, now: Nanos) -> Option<Self::Ticket>;

    /// Called many times a second, also when nothing happens.
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

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    TimedOut,
    Disconnected,
    Nonsense,
    /// The server has not been reachable for as long as a request may take.
    Unreachable,
}

impl Loss {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "timed out",
            Self::Disconnected => "connection lost",
            Self::Nonsense => "answer is no HTTP",
            Self::Unreachable => "cannot connect",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) connections: usize,
    /// Requests on their way on one connection.
    pub(crate) depth: usize,
    pub(crate) timeout: Duration,
}

pub(crate) struct Worker {
    poll: Poll,
    events: Events,
    alarm: Alarm,
    origin: Instant,
    connections: Vec<Connection>,
    sizes: Sizes,
    buffer: Vec<u8>,
    joined: Vec<u8>,
}

impl Worker {
    pub(crate) fn new(target: &Target, sizes: Sizes, origin: Instant) -> Result<Self, LoadError> {
        let poll = Poll::new().map_err(LoadError::Poll)?;
        let alarm = Alarm::new(poll.registry(), ALARM).map_err(LoadError::Poll)?;
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

    /// Runs until the job has nothing more to begin and everything begun has ended, or the server is gone.
    pub(crate) fn drive<J: Job>(&mut self, job: &mut J) -> Result<Ended, LoadError> {
        let mut round = Round {
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
                round.free.extend(std::iter::repeat_n(index, self.sizes.depth));
            }
        }
        let mut next_tick = 0;
        loop {
            let now = self.now();
            if now >= next_tick {
                next_tick = now + TICK;
                self.look_after(job, &mut round, now);
                job.tick(now);
            }
            let due = self.begin(job, &mut round, now);
            self.flush(job, &mut round);
            if round.has_ended && round.under_way == 0 {
                return Ok(if round.is_gone { Ended::Gone } else { Ended::Done });
            }
            self.wait(due, next_tick)?;
            let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
            for event in &events {
                let Token(index) = event.token();
                if event.token() != ALARM {
                    self.ready(job, &mut round, index, event.is_writable());
                }
            }
            self.events = events;
        }
    }

    /// Begins what is due while connections are free; answers when the next is due.
    fn begin<J: Job>(&mut self, job: &mut J, round: &mut Round<J::Ticket>, now: Nanos) -> Option<Nanos> {
        while !round.has_ended {
            let index = *round.free.front()?;
            match job.next(now) {
                Next::Begin(ticket) => {
                    round.free.pop_front();
                    round.under_way += 1;
                    self.send(job, round, index, ticket, now);
                }
                Next::NotBefore(at) => return Some(at),
                Next::End => round.has_ended = true,
            }
        }
        None
    }

    fn send<J: Job>(
        &mut self,
        job: &mut J,
        round: &mut Round<J::Ticket>,
        index: usize,
        ticket: J::Ticket,
        now: Nanos,
    ) {
        let Some((connection, lane)) = self.connections.get_mut(index).zip(round.lanes.get_mut(index)) else {
            return;
        };
        if connection.is_up() {
            if connection.out.is_empty() {
                round.touched.push(index);
            }
            job.write(&ticket, &mut connection.out);
        }
        lane.push_back(Sent { ticket, at: now });
    }

    fn flush<J: Job>(&mut self, job: &mut J, round: &mut Round<J::Ticket>) {
        while let Some(index) = round.touched.pop() {
            let failed = self.connections.get_mut(index).is_some_and(|it| it.flush().is_err());
            if failed {
                self.broken(job, round, index, Loss::Disconnected);
            }
        }
    }

    fn wait(&mut self, due: Option<Nanos>, next_tick: Nanos) -> Result<(), LoadError> {
        let now = self.now();
        if due.is_some_and(|due| (now + 1..now + GATHER).contains(&due)) {
            std::thread::sleep(Duration::from_nanos(GATHER));
            return self.poll(0);
        }
        self.poll(due.unwrap_or(next_tick).min(next_tick).saturating_sub(now))
    }

    /// Takes what is ready; where nothing is, waits for it so long.
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

    fn ready<J: Job>(&mut self, job: &mut J, round: &mut Round<J::Ticket>, index: usize, is_writable: bool) {
        let now = self.now();
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.is_up() {
            if connection.has_come_up(now) {
                self.up(job, round, index, now);
            }
            return;
        }
        if is_writable && !connection.out.is_empty() {
            round.touched.push(index);
        }
        self.read(job, round, index);
    }

    /// Sends again what waited for the connection, and offers what is left of its room.
    fn up<J: Job>(&mut self, job: &mut J, round: &mut Round<J::Ticket>, index: usize, now: Nanos) {
        let Some((connection, lane)) = self.connections.get_mut(index).zip(round.lanes.get_mut(index)) else {
            return;
        };
        for sent in lane.iter_mut() {
            job.write(&sent.ticket, &mut connection.out);
            sent.at = now;
        }
        round.touched.push(index);
        round.free.extend(std::iter::repeat_n(index, self.sizes.depth.saturating_sub(lane.len())));
    }

    fn read<J: Job>(&mut self, job: &mut J, round: &mut Round<J::Ticket>, index: usize) {
        loop {
            let Some(connection) = self.connections.get_mut(index) else { return };
            let taken = match connection.take(&mut self.buffer) {
                Ok(Taken::Bytes(bytes)) => bytes,
                Ok(Taken::Nothing) => return,
                Ok(Taken::Closed) | Err(_) => return self.broken(job, round, index, Loss::Disconnected),
            };
            if let Err(loss) = self.answers(job, round, index, taken) {
                return self.broken(job, round, index, loss);
            }
            // A socket that gave less than there was room for is empty; what comes later is told of again.
            if taken < READ_BYTES {
                return;
            }
        }
    }

    /// Goes through the answers in what was read.
    fn answers<J: Job>(
        &mut self,
        job: &mut J,
        round: &mut Round<J::Ticket>,
        index: usize,
        taken: usize,
    ) -> Result<(), Loss> {
        let now = self.now();
        let (Some(connection), Some(lane)) = (self.connections.get_mut(index), round.lanes.get_mut(index))
        else {
            return Ok(());
        };
        let fresh = self.buffer.get(..taken).unwrap_or_default();
        let mut partial = std::mem::take(&mut connection.partial);
        let had_partial = !partial.is_empty();
        if had_partial {
            partial.extend_from_slice(fresh);
        }
        let mut rest: &[u8] = if had_partial { &partial } else { fresh };
        while !rest.is_empty() {
            let (answer, bytes) = match wire::parse(rest, &mut self.joined) {
                Ok(Parsed::Partial) if rest.len() > wire::ANSWER_BYTES_MAX => return Err(Loss::Nonsense),
                Ok(Parsed::Partial) => break,
                Ok(Parsed::Whole { answer, bytes }) => (answer, bytes),
                Err(_) => return Err(Loss::Nonsense),
            };
            let sent = lane.pop_front().ok_or(Loss::Nonsense)?;
            let is_last = answer.is_last;
            if let Some(ticket) = job.answered(sent.ticket, &answer, now) {
                if connection.out.is_empty() {
                    round.touched.push(index);
                }
                job.write(&ticket, &mut connection.out);
                lane.push_back(Sent { ticket, at: now });
            } else {
                round.under_way -= 1;
                round.free.push_back(index);
            }
            rest = rest.get(bytes..).unwrap_or_default();
            if is_last {
                self.closed_in_order(job, round, index);
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

    /// The server said that it closes: what was to follow goes over the next connection.
    fn closed_in_order<J: Job>(&mut self, job: &mut J, round: &mut Round<J::Ticket>, index: usize) {
        if self.sizes.depth > 1 {
            // Which of the requests behind it were read is not known.
            return self.broken(job, round, index, Loss::Disconnected);
        }
        self.reopen(round, index);
    }

    fn reopen<T>(&mut self, round: &mut Round<T>, index: usize) {
        let now = self.now();
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.start_over(now);
        connection.connect(self.poll.registry(), now);
        round.free.retain(|free| *free != index);
        round.touched.retain(|touched| *touched != index);
    }

    fn broken<J: Job>(&mut self, job: &mut J, round: &mut Round<J::Ticket>, index: usize, loss: Loss) {
        self.reopen(round, index);
        let now = self.now();
        if let Some(lane) = round.lanes.get_mut(index) {
            lose(job, lane, &mut round.under_way, loss, now);
        }
    }

    /// Opens what is closed, and gives up on what takes too long.
    fn look_after<J: Job>(&mut self, job: &mut J, round: &mut Round<J::Ticket>, now: Nanos) {
        let timeout = nanos(self.sizes.timeout);
        for index in 0..self.connections.len() {
            let (Some(connection), Some(lane)) =
                (self.connections.get_mut(index), round.lanes.get_mut(index))
            else {
                continue;
            };
            connection.connect(self.poll.registry(), now);
            let waits_too_long = lane.front().is_some_and(|sent| now.saturating_sub(sent.at) > timeout);
            if waits_too_long && connection.is_up() {
                self.broken(job, round, index, Loss::TimedOut);
            } else if waits_too_long {
                lose(job, lane, &mut round.under_way, Loss::Unreachable, now);
            }
        }
        if self.connections.iter().any(Connection::is_up) {
            round.reachable_at = now;
        } else if now.saturating_sub(round.reachable_at) > timeout {
            round.has_ended = true;
            round.is_gone = true;
        }
    }
}

/// How the work on a job came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    /// No connection could be had for as long as a request may take.
    Gone,
}

/// What is on its way while one job runs.
struct Round<T> {
    /// By connection, in the order of sending, which is the order of answers.
    lanes: Vec<VecDeque<Sent<T>>>,
    /// Connections with room, each as often as it has.
    free: VecDeque<usize>,
    /// Connections with something to send.
    touched: Vec<usize>,
    under_way: usize,
    has_ended: bool,
    is_gone: bool,
    /// When there was a connection for the last time.
    reachable_at: Nanos,
}

struct Sent<T> {
    ticket: T,
    at: Nanos,
}

/// Keeps in the lane what the job wants to send again.
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
