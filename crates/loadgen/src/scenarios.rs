//! The job of a run: starts flows in an open or closed loop, and records every response.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

use crate::sampling::{Choices, FlowValues, Names, number};
use crate::schedule::{Nanos, SECOND, Schedule};
use crate::stats::{Second, Stats};
use crate::target::Target;
use crate::wire::{Response, text_field};
use crate::worker::{Job, Loss, Next};
use crate::workload::{Data, Template, Workload};

/// Retries of a request whose outcome is unknown, with the same idempotency key.
const REPEATS_MAX: u8 = 5;
/// After the end of a schedule, for flows that were due before it.
const GRACE: Nanos = SECOND;
const OUTCOME_UNKNOWN: u16 = 504;

/// A workload compiled for a target.
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
    /// Buyers with a filled cart, who check out once each; 0: no limit.
    baskets: u64,
}

#[derive(Debug)]
struct PlannedCall {
    kind: usize,
    /// The request head without its last lines: key, length, empty line.
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

/// What a worker keeps from one job to the next: its random generator, the ids it has used, and acknowledged orders.
#[derive(Debug)]
pub(crate) struct WorkerState {
    random: SmallRng,
    thread: u64,
    threads: u64,
    pub(crate) buyers: u64,
    sessions: u64,
    keys: u64,
    pub(crate) orders: Vec<Placed>,
    /// Orders whose outcome stayed unknown.
    pub(crate) unresolved: u64,
}

impl WorkerState {
    pub(crate) fn new(seed: u64, thread: u64, threads: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed.wrapping_add(thread));
        Self { random, thread, threads, buyers: 0, sessions: 0, keys: 0, orders: Vec::new(), unresolved: 0 }
    }

    pub(crate) fn random(&mut self) -> &mut SmallRng {
        &mut self.random
    }

    /// Numbers are divided among the threads by remainder, so that no two use the same one.
    fn own(&self, count: u64) -> u64 {
        count * self.threads + self.thread
    }

    /// Buyers round-robin: no two flows in progress have the same one, as long as there are more users than flows.
    fn next_buyer(&mut self, users: u64) -> u64 {
        let turn = (users / self.threads).max(1);
        let buyer = self.own(self.buyers % turn);
        self.buyers += 1;
        buyer
    }
}

/// When flows start.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Open loop: by a schedule.
    Open(Schedule),
    /// Closed loop: as soon as a connection is free.
    Closed,
    /// Closed loop, one flow a number of times, for consecutive users.
    Times { flow: usize, left: u64, user: u64 },
}

/// The phases of a run: warm-up from `start`, measured from `from`, no flow starts after `to`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    pub(crate) start: Nanos,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

pub(crate) struct Scenario<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) worker_state: &'a mut WorkerState,
    pub(crate) arrival: Arrival,
    pub(crate) phases: Phases,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) seconds: Sender<Second>,
    pub(crate) stats: Stats,
    pub(crate) second: Second,
    body: Vec<u8>,
    /// The scheduled instant of the next flow, while a connection is free for it.
    awaited: Option<Nanos>,
    /// An instant of the measurement, and the thread's CPU time at it.
    watched_from: Option<(Nanos, Nanos)>,
}

/// A call of a flow in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    call: usize,
    /// Latency is counted from here: the scheduled instant, or the response to the call before.
    due: Nanos,
    values: FlowValues,
    key: u64,
    repeats: u8,
}

impl<'a> Scenario<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        worker_state: &'a mut WorkerState,
        arrival: Arrival,
        phases: Phases,
        stop: &'a AtomicBool,
        seconds: Sender<Second>,
    ) -> Self {
        let stats = Stats { ended: phases.to, ..Stats::new(plan.kinds.len()) };
        let second = Second::new(phases.start < phases.from, 0);
        Self {
            plan,
            worker_state,
            arrival,
            phases,
            stop,
            seconds,
            stats,
            second,
            body: Vec::new(),
            awaited: None,
            watched_from: None,
        }
    }

    /// To be called when the worker has finished.
    pub(crate) fn finish(mut self, now: Nanos) -> Stats {
        self.stats.ended = self.stats.ended.min(now);
        self.count_unsent();
        self.roll(self.stats.ended);
        if self.second.answered + self.second.errors > 0 {
            let _ = self.seconds.send(self.second);
        }
        self.stats
    }

    fn begin(&mut self, flow: usize, due: Nanos) -> Ticket {
        let mut values = self.plan.choices.sample(flow, self.worker_state.random());
        values.buyer = self.worker_state.next_buyer(self.plan.users);
        values.session = self.worker_state.own(self.worker_state.sessions);
        self.worker_state.sessions += 1;
        if self.plan.choices.reads_orders(flow) && !self.worker_state.orders.is_empty() {
            let index = self.worker_state.random.random_range(0..self.worker_state.orders.len());
            if let Some(placed) = self.worker_state.orders.get(index) {
                values.order = placed.id;
                values.order_user = placed.buyer;
            }
        }
        let call = self.plan.starts.get(flow).copied().unwrap_or_default();
        Ticket { call, due, values, key: self.next_key(), repeats: 0 }
    }

    fn next_key(&mut self) -> u64 {
        let key = self.worker_state.own(self.worker_state.keys);
        self.worker_state.keys += 1;
        key
    }

    /// Whether every buyer with a filled cart has checked out; filling the carts does not count.
    fn are_baskets_empty(&self) -> bool {
        let is_filling = matches!(self.arrival, Arrival::Times { .. });
        !is_filling
            && self.plan.baskets > 0
            && self.worker_state.own(self.worker_state.buyers) >= self.plan.baskets
    }

    /// No flow starts after this instant. Flows that were due before the end of a schedule have a grace period.
    fn last_begin(&self) -> Nanos {
        match self.arrival {
            Arrival::Open(_) => self.stats.ended.saturating_add(GRACE),
            Arrival::Closed | Arrival::Times { .. } => self.stats.ended,
        }
    }

    /// The schedule is over: flows that were due and never sent count as latency of the server.
    fn count_unsent(&mut self) {
        let Arrival::Open(schedule) = &mut self.arrival else { return };
        while schedule.due() < self.stats.ended {
            if schedule.due() >= self.phases.from {
                self.stats.unsent += 1;
                self.stats.unsent_for.record(self.stats.ended - schedule.due());
            }
            schedule.advance(&mut self.worker_state.random);
        }
    }

    /// Closes the second that is over.
    fn roll(&mut self, now: Nanos) {
        let is_warm_up = now < self.phases.from;
        let since = if is_warm_up { self.phases.start } else { self.phases.from };
        let index = now.saturating_sub(since) / SECOND;
        if (is_warm_up, index) == (self.second.is_warm_up, self.second.index) {
            return;
        }
        let over = std::mem::replace(&mut self.second, Second::new(is_warm_up, index));
        // During setup the receiver is gone: no progress is shown.
        let _ = self.seconds.send(over);
    }

    /// Records the share of time that the thread is busy.
    fn watch(&mut self, now: Nanos) {
        match self.watched_from {
            None if now >= self.phases.from => self.watched_from = Some((now, thread_time())),
            None => {}
            Some((from, busy)) => {
                self.stats.watched = now.saturating_sub(from);
                self.stats.busy = thread_time().saturating_sub(busy);
            }
        }
    }

    fn is_measured(&self, ticket: &Ticket) -> bool {
        ticket.due >= self.phases.from
    }

    fn note_expected(&mut self, ticket: &Ticket, now: Nanos) {
        self.roll(now);
        let latency = now.saturating_sub(ticket.due);
        if now < self.stats.ended {
            self.second.answered += 1;
            self.second.latencies.record(latency);
        }
        if self.is_measured(ticket)
            && let Some(stats) = self.kind_of(ticket).and_then(|kind| self.stats.calls.get_mut(kind))
        {
            stats.latencies.record(latency);
            stats.answered += u64::from(now < self.stats.ended);
        }
    }

    fn note_error(&mut self, ticket: &Ticket, name: String, now: Nanos) {
        self.roll(now);
        self.second.errors += 1;
        if self.is_measured(ticket)
            && let Some(stats) = self.kind_of(ticket).and_then(|kind| self.stats.calls.get_mut(kind))
        {
            *stats.errors.entry(name).or_default() += 1;
        }
    }

    fn kind_of(&self, ticket: &Ticket) -> Option<usize> {
        self.plan.calls.get(ticket.call).map(|call| call.kind)
    }

    /// The retry with the same key, if the call is repeatable and retries remain.
    fn again(&mut self, ticket: &Ticket) -> Option<Ticket> {
        let call = self.plan.calls.get(ticket.call)?;
        if !call.is_repeatable || ticket.repeats >= REPEATS_MAX {
            return None;
        }
        if let Some(stats) = self.stats.calls.get_mut(call.kind) {
            stats.repeated += 1;
        }
        Some(Ticket { repeats: ticket.repeats + 1, ..*ticket })
    }

    /// The next call of the flow after a success.
    fn go_on(&mut self, ticket: &Ticket, now: Nanos) -> Option<Ticket> {
        let call = self.plan.calls.get(ticket.call)?.next?;
        Some(Ticket { call, due: now, values: ticket.values, key: self.next_key(), repeats: 0 })
    }

    /// Records the order that the response acknowledges.
    fn keep_order(&mut self, ticket: &mut Ticket, response: &Response<'_>) -> bool {
        let id = text_field(response.body, b"\"order_id\"").and_then(|id| Uuid::try_parse_ascii(id).ok());
        let Some(id) = id else { return false };
        ticket.values.order = id;
        ticket.values.order_user = ticket.values.buyer;
        self.worker_state.orders.push(Placed { id, buyer: ticket.values.buyer });
        true
    }
}

impl Job for Scenario<'_> {
    type Ticket = Ticket;

    fn next(&mut self, now: Nanos) -> Next<Ticket> {
        if self.stop.load(Ordering::Relaxed) {
            self.stats.ended = self.stats.ended.min(now);
            return Next::End;
        }
        if now >= self.last_begin() {
            return Next::End;
        }
        if self.are_baskets_empty() {
            self.stats.ended = self.stats.ended.min(now);
            return Next::End;
        }
        match &mut self.arrival {
            Arrival::Open(schedule) => {
                let due = schedule.due();
                if due >= self.stats.ended {
                    // Nothing more is due, but the phase is not over: ending here would shorten the run.
                    let end = self.stats.ended;
                    return if now < end { Next::NotBefore(end) } else { Next::End };
                }
                if due > now {
                    self.awaited = Some(due);
                    return Next::NotBefore(due);
                }
                schedule.advance(&mut self.worker_state.random);
                if self.awaited == Some(due) && due >= self.phases.from {
                    self.stats.lag.record(now - due);
                }
                let flow = self.plan.choices.flow(self.worker_state.random());
                Next::Begin(self.begin(flow, due))
            }
            Arrival::Closed => {
                let flow = self.plan.choices.flow(self.worker_state.random());
                Next::Begin(self.begin(flow, now))
            }
            Arrival::Times { left: 0, .. } => Next::End,
            Arrival::Times { flow, left, user } => {
                *left -= 1;
                let (flow, user_now) = (*flow, *user);
                *user += 1;
                let mut ticket = self.begin(flow, now);
                ticket.values.user = user_now;
                ticket.values.wish = self.plan.choices.wish(user_now, self.worker_state.random());
                Next::Begin(ticket)
            }
        }
    }

    fn write(&mut self, ticket: &Ticket, out: &mut Vec<u8>) {
        let Some(call) = self.plan.calls.get(ticket.call) else { return };
        let names = &self.plan.names;
        names.render(&call.head, &ticket.values, out);
        let Some(body) = &call.body else { return };
        if call.has_key {
            out.extend_from_slice(b"idempotency-key: ");
            out.extend_from_slice(names.run.as_bytes());
            out.push(b'-');
            number(ticket.key, out);
            out.extend_from_slice(b"\r\n");
        }
        self.body.clear();
        names.render(body, &ticket.values, &mut self.body);
        out.extend_from_slice(b"content-length: ");
        number(self.body.len() as u64, out);
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(&self.body);
    }

    fn answered(&mut self, mut ticket: Ticket, response: &Response<'_>, now: Nanos) -> Option<Ticket> {
        let call = self.plan.calls.get(ticket.call)?;
        if (200..300).contains(&response.status) {
            if call.places_order && !self.keep_order(&mut ticket, response) {
                self.note_error(&ticket, format!("{} without an order id", response.status), now);
                return None;
            }
            self.note_expected(&ticket, now);
            return self.go_on(&ticket, now);
        }
        let code = text_field(response.body, b"\"code\"").map(String::from_utf8_lossy);
        let name = code
            .as_ref()
            .map_or_else(|| response.status.to_string(), |code| format!("{} {code}", response.status));
        let is_refusal = |refusal: &(u16, String)| {
            refusal.0 == response.status && code.as_deref() == Some(refusal.1.as_str())
        };
        if call.refusals.iter().any(is_refusal) {
            self.note_expected(&ticket, now);
            if self.is_measured(&ticket)
                && let Some(stats) = self.kind_of(&ticket).and_then(|kind| self.stats.calls.get_mut(kind))
            {
                *stats.refused.entry(name).or_default() += 1;
            }
            return None;
        }
        if response.status == OUTCOME_UNKNOWN {
            let again = self.again(&ticket);
            if again.is_some() {
                return again;
            }
            self.worker_state.unresolved += u64::from(self.plan.calls.get(ticket.call)?.places_order);
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
        self.worker_state.unresolved += u64::from(call.places_order);
        self.note_error(&ticket, loss.name().to_owned(), now);
        // A lost request counts with its waiting time, else losses would lower the percentiles.
        if self.is_measured(&ticket)
            && let Some(stats) = self.kind_of(&ticket).and_then(|kind| self.stats.calls.get_mut(kind))
        {
            stats.latencies.record(now.saturating_sub(ticket.due));
        }
        None
    }

    fn tick(&mut self, now: Nanos) {
        if now < self.stats.ended {
            self.roll(now);
            self.watch(now);
        }
    }
}

/// CPU time of this thread so far.
fn thread_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * SECOND + time.tv_nsec.cast_unsigned()
}
