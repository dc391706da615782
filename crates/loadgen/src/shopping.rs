//! The job of a run: shoppers that come by a schedule or as fast as they are served, and what is noted of each answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

use crate::draw::{Choices, Draw, Names, number};
use crate::schedule::{Nanos, SECOND, Schedule};
use crate::tally::{Second, Tally};
use crate::target::Target;
use crate::wire::{Answer, text_field};
use crate::worker::{Job, Loss, Next};
use crate::workload::{Data, Template, Workload};

/// A request whose outcome is unknown is sent this often again, with the same key.
const REPEATS_MAX: u8 = 5;
/// After the end of a schedule, for what was due before it.
const GRACE: Nanos = SECOND;
const OUTCOME_UNKNOWN: u16 = 504;

/// A workload made ready to be sent to a target.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) choices: Choices,
    pub(crate) names: Names,
    /// All calls of all flows, one after the other.
    calls: Vec<PlannedCall>,
    /// The first call of each flow.
    starts: Vec<usize>,
    /// Calls of the same name are counted together.
    pub(crate) kinds: Vec<String>,
    users: u64,
    /// Buyers who have one turn each; 0: turns do not end.
    baskets: u64,
}

#[derive(Debug)]
struct PlannedCall {
    kind: usize,
    /// The head, without what comes last: key, length, empty line.
    head: Template,
    body: Option<Template>,
    has_key: bool,
    places_order: bool,
    is_repeatable: bool,
    /// The call after it in the flow.
    next: Option<usize>,
    refusals: Vec<(u16, String)>,
}

impl Plan {
    pub(crate) fn new(workload: &Workload, target: &Target, names: Names) -> Self {
        let mut calls = Vec::new();
        let mut starts = Vec::new();
        let mut kinds: Vec<String> = Vec::new();
        for flow in &workload.flows {
            starts.push(calls.len());
            for (index, call) in flow.calls.iter().enumerate() {
                let kind = kinds.iter().position(|kind| *kind == call.name).unwrap_or_else(|| {
                    kinds.push(call.name.clone());
                    kinds.len() - 1
                });
                let mut head = Template::default();
                head.push_text(&format!("{} {}", call.method, target.base));
                head.append(call.path.clone());
                head.push_text(" HTTP/1.1\r\n");
                head.push_text(&target.headers);
                if call.body.is_some() {
                    head.push_text("content-type: application/json\r\n");
                }
                if call.method == "GET" {
                    head.push_text("\r\n");
                }
                calls.push(PlannedCall {
                    kind,
                    head,
                    body: (call.method != "GET").then(|| call.body.clone().unwrap_or_default()),
                    has_key: call.has_key,
                    places_order: call.places_order,
                    is_repeatable: call.is_repeatable(),
                    next: (index + 1 < flow.calls.len()).then_some(calls.len() + 1),
                    refusals: call.refusals.clone(),
                });
            }
        }
        let Data { users, baskets, .. } = workload.data;
        Self { choices: Choices::new(workload), names, calls, starts, kinds, users, baskets }
    }
}

/// An order that was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) id: Uuid,
    pub(crate) buyer: u64,
}

/// What a thread knows from one job to the next: its randomness, whom it has used, and the orders it was promised.
#[derive(Debug)]
pub(crate) struct Shopper {
    random: SmallRng,
    thread: u64,
    threads: u64,
    pub(crate) buyers: u64,
    sessions: u64,
    keys: u64,
    pub(crate) orders: Vec<Placed>,
    /// Orders of which it never became known whether they were placed.
    pub(crate) unresolved: u64,
}

impl Shopper {
    pub(crate) fn new(seed: u64, thread: u64, threads: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed.wrapping_add(thread));
        Self { random, thread, threads, buyers: 0, sessions: 0, keys: 0, orders: Vec::new(), unresolved: 0 }
    }

    pub(crate) fn random(&mut self) -> &mut SmallRng {
        &mut self.random
    }

    /// Each thread has every so-many-th number to itself.
    fn own(&self, count: u64) -> u64 {
        count * self.threads + self.thread
    }

    /// Users in turn: no two flows under way have the same one, as long as there are more users than flows.
    fn next_buyer(&mut self, users: u64) -> u64 {
        let turn = (users / self.threads).max(1);
        let buyer = self.own(self.buyers % turn);
        self.buyers += 1;
        buyer
    }
}

/// When flows begin.
#[derive(Debug)]
pub(crate) enum Pace {
    /// By a schedule of their own, until the instant.
    Open(Schedule),
    /// As soon as there is room.
    Closed,
    /// As soon as there is room, this flow so many times, for users from this one on.
    Times { flow: usize, left: u64, user: u64 },
}

/// The time of a run: warm-up from `start`, measured from `from`, begun no more after `to`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: Nanos,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

pub(crate) struct Shopping<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) shopper: &'a mut Shopper,
    pub(crate) pace: Pace,
    pub(crate) span: Span,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) seconds: Sender<Second>,
    pub(crate) tally: Tally,
    pub(crate) second: Second,
    body: Vec<u8>,
    /// What a connection is free for and only the time has not come.
    awaited: Option<Nanos>,
    /// An instant of the measurement, and the thread's processor time then.
    watched_from: Option<(Nanos, Nanos)>,
}

/// A call of a flow under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    call: usize,
    /// Latency is counted from here: the instant of the schedule, or of the answer before.
    due: Nanos,
    draw: Draw,
    key: u64,
    repeats: u8,
}

impl<'a> Shopping<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        shopper: &'a mut Shopper,
        pace: Pace,
        span: Span,
        stop: &'a AtomicBool,
        seconds: Sender<Second>,
    ) -> Self {
        let tally = Tally { ended: span.to, ..Tally::new(plan.kinds.len()) };
        let second = Second::new(span.start < span.from, 0);
        Self {
            plan,
            shopper,
            pace,
            span,
            stop,
            seconds,
            tally,
            second,
            body: Vec::new(),
            awaited: None,
            watched_from: None,
        }
    }

    /// To be called when the worker has come to its end.
    pub(crate) fn finish(mut self, now: Nanos) -> Tally {
        self.tally.ended = self.tally.ended.min(now);
        self.give_up_the_rest();
        self.roll(self.tally.ended);
        if self.second.answered + self.second.errors > 0 {
            let _ = self.seconds.send(self.second);
        }
        self.tally
    }

    fn begin(&mut self, flow: usize, due: Nanos) -> Ticket {
        let mut draw = self.plan.choices.draw(flow, self.shopper.random());
        draw.buyer = self.shopper.next_buyer(self.plan.users);
        draw.session = self.shopper.own(self.shopper.sessions);
        self.shopper.sessions += 1;
        if self.plan.choices.reads_orders(flow) && !self.shopper.orders.is_empty() {
            let index = self.shopper.random.random_range(0..self.shopper.orders.len());
            if let Some(placed) = self.shopper.orders.get(index) {
                draw.order = placed.id;
                draw.customer = placed.buyer;
            }
        }
        let call = self.plan.starts.get(flow).copied().unwrap_or_default();
        Ticket { call, due, draw, key: self.next_key(), repeats: 0 }
    }

    fn next_key(&mut self) -> u64 {
        let key = self.shopper.own(self.shopper.keys);
        self.shopper.keys += 1;
        key
    }

    /// Whether every buyer with a basket had their turn; filling them is no turn.
    fn are_baskets_empty(&self) -> bool {
        let is_filling = matches!(self.pace, Pace::Times { .. });
        !is_filling && self.plan.baskets > 0 && self.shopper.own(self.shopper.buyers) >= self.plan.baskets
    }

    /// From when on nothing begins any more. What a schedule held before its end may still go for a moment.
    fn last_begin(&self) -> Nanos {
        match self.pace {
            Pace::Open(_) => self.tally.ended.saturating_add(GRACE),
            Pace::Closed | Pace::Times { .. } => self.tally.ended,
        }
    }

    /// The schedule is over: what it still held was due and never sent, which is the server's slowness too.
    fn give_up_the_rest(&mut self) {
        let Pace::Open(schedule) = &mut self.pace else { return };
        while schedule.due() < self.tally.ended {
            if schedule.due() >= self.span.from {
                self.tally.unsent += 1;
                self.tally.unsent_for.record(self.tally.ended - schedule.due());
            }
            schedule.advance(&mut self.shopper.random);
        }
    }

    /// Closes the second that is over.
    fn roll(&mut self, now: Nanos) {
        let is_warm_up = now < self.span.from;
        let since = if is_warm_up { self.span.start } else { self.span.from };
        let index = now.saturating_sub(since) / SECOND;
        if (is_warm_up, index) == (self.second.is_warm_up, self.second.index) {
            return;
        }
        let over = std::mem::replace(&mut self.second, Second::new(is_warm_up, index));
        // Nobody listens to the filling of a shop.
        let _ = self.seconds.send(over);
    }

    /// How much of its time the thread itself is at work.
    fn watch(&mut self, now: Nanos) {
        match self.watched_from {
            None if now >= self.span.from => self.watched_from = Some((now, thread_time())),
            None => {}
            Some((from, busy)) => {
                self.tally.watched = now.saturating_sub(from);
                self.tally.busy = thread_time().saturating_sub(busy);
            }
        }
    }

    fn is_measured(&self, ticket: &Ticket) -> bool {
        ticket.due >= self.span.from
    }

    fn note_expected(&mut self, ticket: &Ticket, now: Nanos) {
        self.roll(now);
        let latency = now.saturating_sub(ticket.due);
        if now < self.tally.ended {
            self.second.answered += 1;
            self.second.latencies.record(latency);
        }
        if self.is_measured(ticket)
            && let Some(tally) = self.kind_of(ticket).and_then(|kind| self.tally.calls.get_mut(kind))
        {
            tally.latencies.record(latency);
            tally.answered += u64::from(now < self.tally.ended);
        }
    }

    fn note_error(&mut self, ticket: &Ticket, name: String, now: Nanos) {
        self.roll(now);
        self.second.errors += 1;
        if self.is_measured(ticket)
            && let Some(tally) = self.kind_of(ticket).and_then(|kind| self.tally.calls.get_mut(kind))
        {
            *tally.errors.entry(name).or_default() += 1;
        }
    }

    fn kind_of(&self, ticket: &Ticket) -> Option<usize> {
        self.plan.calls.get(ticket.call).map(|call| call.kind)
    }

    /// The same once more, with the same key, if that is allowed and not hopeless.
    fn again(&mut self, ticket: &Ticket) -> Option<Ticket> {
        let call = self.plan.calls.get(ticket.call)?;
        if !call.is_repeatable || ticket.repeats >= REPEATS_MAX {
            return None;
        }
        if let Some(tally) = self.tally.calls.get_mut(call.kind) {
            tally.repeated += 1;
        }
        Some(Ticket { repeats: ticket.repeats + 1, ..*ticket })
    }

    /// What comes after a success.
    fn go_on(&mut self, ticket: &Ticket, now: Nanos) -> Option<Ticket> {
        let call = self.plan.calls.get(ticket.call)?.next?;
        Some(Ticket { call, due: now, draw: ticket.draw, key: self.next_key(), repeats: 0 })
    }

    /// Keeps the order that the answer promises.
    fn keep_order(&mut self, ticket: &mut Ticket, answer: &Answer<'_>) -> bool {
        let id = text_field(answer.body, b"\"order_id\"").and_then(|id| Uuid::try_parse_ascii(id).ok());
        let Some(id) = id else { return false };
        ticket.draw.order = id;
        ticket.draw.customer = ticket.draw.buyer;
        self.shopper.orders.push(Placed { id, buyer: ticket.draw.buyer });
        true
    }
}

impl Job for Shopping<'_> {
    type Ticket = Ticket;

    fn next(&mut self, now: Nanos) -> Next<Ticket> {
        if self.stop.load(Ordering::Relaxed) {
            self.tally.ended = self.tally.ended.min(now);
            return Next::End;
        }
        if now >= self.last_begin() {
            return Next::End;
        }
        if self.are_baskets_empty() {
            self.tally.ended = self.tally.ended.min(now);
            return Next::End;
        }
        match &mut self.pace {
            Pace::Open(schedule) => {
                let due = schedule.due();
                if due >= self.tally.ended {
                    // Nothing more is due, but the time is not over: an earlier end would be a shorter run.
                    let end = self.tally.ended;
                    return if now < end { Next::NotBefore(end) } else { Next::End };
                }
                if due > now {
                    self.awaited = Some(due);
                    return Next::NotBefore(due);
                }
                schedule.advance(&mut self.shopper.random);
                if self.awaited == Some(due) && due >= self.span.from {
                    self.tally.lag.record(now - due);
                }
                let flow = self.plan.choices.flow(self.shopper.random());
                Next::Begin(self.begin(flow, due))
            }
            Pace::Closed => {
                let flow = self.plan.choices.flow(self.shopper.random());
                Next::Begin(self.begin(flow, now))
            }
            Pace::Times { left: 0, .. } => Next::End,
            Pace::Times { flow, left, user } => {
                *left -= 1;
                let (flow, user_now) = (*flow, *user);
                *user += 1;
                let mut ticket = self.begin(flow, now);
                ticket.draw.user = user_now;
                ticket.draw.wish = self.plan.choices.wish(user_now, self.shopper.random());
                Next::Begin(ticket)
            }
        }
    }

    fn write(&mut self, ticket: &Ticket, out: &mut Vec<u8>) {
        let Some(call) = self.plan.calls.get(ticket.call) else { return };
        let names = &self.plan.names;
        names.render(&call.head, &ticket.draw, out);
        let Some(body) = &call.body else { return };
        if call.has_key {
            out.extend_from_slice(b"idempotency-key: ");
            out.extend_from_slice(names.run.as_bytes());
            out.push(b'-');
            number(ticket.key, out);
            out.extend_from_slice(b"\r\n");
        }
        self.body.clear();
        names.render(body, &ticket.draw, &mut self.body);
        out.extend_from_slice(b"content-length: ");
        number(self.body.len() as u64, out);
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(&self.body);
    }

    fn answered(&mut self, mut ticket: Ticket, answer: &Answer<'_>, now: Nanos) -> Option<Ticket> {
        let call = self.plan.calls.get(ticket.call)?;
        if (200..300).contains(&answer.status) {
            if call.places_order && !self.keep_order(&mut ticket, answer) {
                self.note_error(&ticket, format!("{} without an order id", answer.status), now);
                return None;
            }
            self.note_expected(&ticket, now);
            return self.go_on(&ticket, now);
        }
        let code = text_field(answer.body, b"\"code\"").map(String::from_utf8_lossy);
        let name = code
            .as_ref()
            .map_or_else(|| answer.status.to_string(), |code| format!("{} {code}", answer.status));
        let is_refusal = |refusal: &(u16, String)| {
            refusal.0 == answer.status && code.as_deref() == Some(refusal.1.as_str())
        };
        if call.refusals.iter().any(is_refusal) {
            self.note_expected(&ticket, now);
            if self.is_measured(&ticket)
                && let Some(tally) = self.kind_of(&ticket).and_then(|kind| self.tally.calls.get_mut(kind))
            {
                *tally.refused.entry(name).or_default() += 1;
            }
            return None;
        }
        if answer.status == OUTCOME_UNKNOWN {
            let again = self.again(&ticket);
            if again.is_some() {
                return again;
            }
            self.shopper.unresolved += u64::from(self.plan.calls.get(ticket.call)?.places_order);
        }
        self.note_error(&ticket, name, now);
        None
    }

    fn lost(&mut self, ticket: Ticket, loss: Loss, now: Nanos) -> Option<Ticket> {
        let again = if loss == Loss::Unreachable { None } else { self.again(&ticket) };
        if again.is_some() {
            return again;
        }
        let call = self.plan.calls.get(ticket.call)?;
        self.shopper.unresolved += u64::from(call.places_order);
        self.note_error(&ticket, loss.name().to_owned(), now);
        // What never came must not make the rest look fast.
        if self.is_measured(&ticket)
            && let Some(tally) = self.kind_of(&ticket).and_then(|kind| self.tally.calls.get_mut(kind))
        {
            tally.latencies.record(now.saturating_sub(ticket.due));
        }
        None
    }

    fn tick(&mut self, now: Nanos) {
        if now < self.tally.ended {
            self.roll(now);
            self.watch(now);
        }
    }
}

/// Processor time of this thread so far.
fn thread_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * SECOND + time.tv_nsec.cast_unsigned()
}
