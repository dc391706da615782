//! An exhaustive check of the cart protocol: every interleaving of a few requests, with a crash at every step, writes that arrive
//! late, clocks that disagree and a reader at every state. Each request runs the functions of the engine; the model adds the IO.
//!
//! A plain write is in flight until it lands, which may be after its process crashed. A quorum read is one instant: with blocking
//! read repair what a quorum read has shown stays visible, so a write that is on one replica is either landed or not for every
//! reader. An LWT is one instant as well. A mutation leaves out one rule of the protocol, and the check must find it.

mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_codec::carts::header::{CartHeader, ClosedCart, OutboxRow};
use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, CartId, Owner, ProductId, Timestamp, UserId};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};
use stateright::{Checker, HasDiscoveries, Model, Property};
use uuid::Uuid;

use super::{
    BlindStep, BlindWrite, LineCell, View, active_cart_of, claimed, decided, next_step, revoked, stamp_above,
};
use crate::carts::rows::{CartKey, cart_key};
use spec::{Op, Ret, Shop};

const NOW: Timestamp = Timestamp::from_millis(1_000);
const LIFETIME: CartLifetime = CartLifetime { user_ms: 1_000_000, guest_ms: 1_000_000 };
/// More than any check takes; a check that ends by it has not explored every state and fails.
const TIMEOUT: Duration = Duration::from_mins(10);
const LINEARIZABLE: &str = "every request happens at one instant between its start and its end";
const CLOSED_CARTS_STAY: &str = "a closed cart is in the header or in a row";
const NO_DEADLOCK: &str = "some request can go on until all have ended";

/// What a task requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Set {
        product: char,
        quantity: u32,
    },
    Remove {
        product: char,
    },
    /// Reads, then reads again.
    ReadTwice,
    /// Reads the cart, orders what it read, and closes the cart if it has that version still.
    Checkout,
    Abandon,
    /// Reads the cart, then sets the line if the cart has that version still.
    SetIfMatch {
        product: char,
        quantity: u32,
    },
    /// What a merge does to the user's cart: a quantity is read and increased, once for all processes that run the same merge.
    Merge {
        product: char,
        quantity: u32,
    },
}

/// A rule of the protocol that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mutation {
    None,
    /// A blind write that does not count is taken for done.
    NoRedo,
    /// A blind write does not wait for a claim.
    WriterIgnoresClaim,
    ReaderIgnoresClaim,
    /// A blind write takes its stamp from its clock alone.
    StampByClock,
    /// A decision uses what it read before its claim.
    DecideByEarlierRead,
    /// A decision takes the base from its clock.
    BaseByClock,
    /// The header does not say which cells a decision read.
    ForgetAbsorbed,
    /// The version is the newest stamp.
    VersionByNewest,
    /// A merge does not look for its marker.
    NoMarker,
    /// A decision does not write the rows of the header's outbox.
    DropOutbox,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Start,
    /// The cell is in flight or has landed.
    Written(BlindWrite),
    /// About to open a cart, on the condition of the revision.
    Opening {
        rev: u32,
        header: CartHeader,
        outbox: Vec<OutboxRow>,
    },
    Claiming {
        rev: u32,
        view: View,
        expected: Option<Cart>,
    },
    Claimed {
        rev: u32,
        view: View,
        expected: Option<Cart>,
    },
    Deciding {
        rev: u32,
        header: CartHeader,
        outbox: Vec<OutboxRow>,
        ret: Ret,
    },
    SecondRead,
    Ended,
    Crashed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Task {
    request: Request,
    clock: i64,
    /// The version in `If-Match`.
    if_match: Option<u64>,
    phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    rev: u32,
    header: CartHeader,
    /// Whether the marker of the merge is there. It is written with the header.
    is_merged: bool,
    /// The carts that decisions have closed, and those of them that have a row.
    closed: BTreeSet<CartKey>,
    rows: BTreeSet<CartKey>,
    cells: BTreeMap<(CartKey, ProductId), LineCell>,
    in_flight: Vec<(CartKey, ProductId, LineCell)>,
    tasks: Vec<Task>,
    crashes_left: u8,
    revokes_left: u8,
    history: LinearizabilityTester<usize, Shop>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Step(usize),
    Crash(usize),
    Revoke(usize),
    Land(usize),
}

/// Requests that run at the same time, each by the clock of its process.
#[derive(Debug, Clone)]
struct Scenario {
    requests: Vec<(Request, i64)>,
    /// The lines of a cart that is open at the start.
    open: Option<Vec<(char, u32)>>,
    crashes: u8,
    /// Whether the open cart has expired by the clocks that are ahead. The reads of two clocks differ then, so it is only checked
    /// that no write is lost.
    is_expiring: bool,
    mutation: Mutation,
}

fn product(name: char) -> ProductId {
    ProductId::parse(&name.to_string()).unwrap()
}

fn name(product_id: &ProductId) -> char {
    product_id.as_str().chars().next().unwrap()
}

fn owner() -> Owner {
    Owner::User(UserId::parse("u").unwrap())
}

fn lines(cart: &Cart) -> BTreeMap<char, u32> {
    cart.lines.iter().map(|line| (name(&line.product_id), line.quantity)).collect()
}

impl State {
    fn view(&self) -> View {
        let key = self.header.open.as_ref().map(|open| cart_key(&open.cart));
        let of_open = self.cells.iter().filter(|((cart, _), _)| Some(*cart) == key);
        let cells = of_open.map(|((_, product_id), cell)| (product_id.clone(), cell.clone())).collect();
        View { header: self.header.clone(), cells }
    }

    fn is_landed(&self, write: &BlindWrite) -> bool {
        !self.in_flight.iter().any(|(cart, product_id, cell)| {
            *cart == write.cart && *product_id == write.product_id && cell.stamp == write.stamp
        })
    }

    /// Whether the task that has claimed the header will never decide.
    fn is_claim_orphaned(&self) -> bool {
        let number = self.header.claim.and_then(|claim| usize::try_from(claim.as_u128()).ok());
        let task = number.and_then(|number| self.tasks.get(number - 1));
        task.is_some_and(|task| task.phase == Phase::Crashed)
    }

    /// An LWT on the condition of the revision.
    fn cas(&mut self, rev: u32, header: CartHeader) -> bool {
        if self.rev != rev {
            return false;
        }
        (self.rev, self.header) = (rev + 1, header);
        true
    }

    /// A decision: the rows of the header that it replaces, and then its LWT.
    fn replace(&mut self, rev: u32, header: CartHeader, outbox: &[OutboxRow]) -> bool {
        self.rows.extend(outbox.iter().map(|row| row.cart));
        let closes: Vec<CartKey> = header.outbox.iter().map(|row| row.cart).collect();
        let is_replaced = self.cas(rev, header);
        if is_replaced {
            self.closed.extend(closes);
        }
        is_replaced
    }

    /// A request that starts again has begun already.
    fn begin(&mut self, at: usize, op: Op) {
        let has_begun = self.history.clone().on_return(at, Ret::Done).is_ok();
        if !has_begun {
            self.history.on_invoke(at, op).unwrap();
        }
    }

    fn end(&mut self, at: usize, ret: Ret) -> Phase {
        self.history.on_return(at, ret).unwrap();
        Phase::Ended
    }

    fn all_ended(&self) -> bool {
        self.tasks.iter().all(|task| matches!(task.phase, Phase::Ended | Phase::Crashed))
    }
}

impl Scenario {
    /// The time of the commands of a process.
    fn now(&self, task: &Task) -> Timestamp {
        let expiry = LIFETIME.expiry(&owner(), NOW);
        if self.is_expiring { expiry.plus_millis(if task.clock == AHEAD { 0 } else { -1 }) } else { NOW }
    }

    fn version(&self, view: &View, cart: &Cart) -> u64 {
        match self.mutation {
            Mutation::VersionByNewest => view.newest_stamp().unsigned_abs().max(view.header.last_version),
            _ => cart.version,
        }
    }

    fn decided(&self, view: &View, after: Option<&Cart>, clock: i64) -> CartHeader {
        let mut header = decided(view, after, clock);
        if self.mutation == Mutation::BaseByClock
            && let Some(open) = &mut header.open
        {
            open.base = clock;
        }
        if self.mutation == Mutation::ForgetAbsorbed {
            header.absorbed.clear();
        }
        header
    }

    /// The rows that a decision about this view writes first.
    fn outbox(&self, view: &View) -> Vec<OutboxRow> {
        if self.mutation == Mutation::DropOutbox { Vec::new() } else { view.header.outbox.clone() }
    }

    fn waits(&self, task: &Task, view: &View) -> bool {
        let ignores = match task.request {
            Request::ReadTwice => self.mutation == Mutation::ReaderIgnoresClaim,
            Request::Set { .. } | Request::Remove { .. } => self.mutation == Mutation::WriterIgnoresClaim,
            _ => false,
        };
        view.header.claim.is_some() && !ignores
    }

    /// The first read of a request, and what it starts.
    fn start(&self, state: &mut State, at: usize) -> Option<()> {
        let task = state.tasks.get(at)?.clone();
        let view = state.view();
        if self.waits(&task, &view) {
            return None;
        }
        let now = self.now(&task);
        let cart = active_cart_of(&view, now);
        let rev = state.rev;
        let phase = match task.request {
            Request::ReadTwice => {
                state.history.on_invret(at, Op::Read, self.read(&view)).ok()?;
                if task.phase == Phase::Start { Phase::SecondRead } else { Phase::Ended }
            }
            Request::Set { product: line, quantity } => {
                state.begin(at, Op::Set(line, quantity));
                match cart {
                    Some(_) => self.write(state, &view, &task, line, quantity),
                    None if view.header.open.is_some() => Phase::Claiming { rev, view, expected: None },
                    None => {
                        let id = CartId::new(Uuid::from_u128(u128::from(rev) * 16 + at as u128));
                        let mut cart = view.new_cart(id, owner(), now);
                        cart.set_line(product(line), quantity, now, &LIFETIME).ok()?;
                        let header = self.decided(&view, Some(&cart), task.clock);
                        Phase::Opening { rev, header, outbox: self.outbox(&view) }
                    }
                }
            }
            Request::Remove { product: line } => {
                state.begin(at, Op::Set(line, 0));
                match cart {
                    Some(cart) if lines(&cart).contains_key(&line) => {
                        self.write(state, &view, &task, line, 0)
                    }
                    _ => state.end(at, Ret::Done),
                }
            }
            Request::Checkout | Request::Abandon => {
                state.begin(at, Op::Close);
                match cart {
                    Some(cart) => Phase::Claiming { rev, view, expected: Some(cart) },
                    None => state.end(at, Ret::Refused),
                }
            }
            Request::SetIfMatch { product: line, quantity } => {
                if task.if_match.is_none() {
                    state.history.on_invret(at, Op::Read, self.read(&view)).ok()?;
                    let version = cart.as_ref().map_or(0, |cart| self.version(&view, cart));
                    state.tasks.get_mut(at)?.if_match = Some(version);
                    state.begin(at, Op::SetIfMatch { version, line, quantity });
                }
                match cart {
                    Some(cart) => Phase::Claiming { rev, view, expected: Some(cart) },
                    None => state.end(at, Ret::Refused),
                }
            }
            Request::Merge { product: line, quantity } => {
                state.begin(at, Op::Merge(line, quantity));
                Phase::Claiming { rev, view, expected: None }
            }
        };
        state.tasks.get_mut(at)?.phase = phase;
        Some(())
    }

    fn read(&self, view: &View) -> Ret {
        let cart = active_cart_of(view, NOW);
        Ret::Cart(cart.map(|cart| (lines(&cart), self.version(view, &cart))))
    }

    fn write(&self, state: &mut State, view: &View, task: &Task, line: char, quantity: u32) -> Phase {
        let open = view.header.open.as_ref().unwrap();
        let above = if self.mutation == Mutation::StampByClock { open.base } else { view.newest_stamp() };
        let unique = u8::try_from(state.in_flight.len() + state.cells.len()).unwrap();
        let stamp = stamp_above(above, task.clock, unique);
        let now = self.now(task);
        let expires_at = LIFETIME.expiry(&owner(), now);
        let cell = LineCell { stamp, quantity, updated_at: now, expires_at };
        state.in_flight.push((cart_key(&open.cart), product(line), cell));
        state.in_flight.sort_by_key(|(_, _, cell)| cell.stamp);
        Phase::Written(BlindWrite { cart: cart_key(&open.cart), product_id: product(line), stamp })
    }

    /// What a decision makes of the cart that it read after its claim.
    fn decide(&self, state: &State, at: usize, view: &View, expected: Option<&Cart>) -> (CartHeader, Ret) {
        let task = &state.tasks[at];
        let now = self.now(task);
        let cart = active_cart_of(view, now);
        let version = cart.as_ref().map_or(0, |cart| self.version(view, cart));
        let expected_version = match task.request {
            Request::Checkout => expected.map_or(version, |expected| expected.version),
            Request::SetIfMatch { .. } => task.if_match.unwrap_or(version),
            _ => version,
        };
        let mut after = match cart {
            Some(cart) if version == expected_version => cart,
            None if matches!(task.request, Request::Merge { .. } | Request::Set { .. }) => {
                view.new_cart(CartId::new(Uuid::from_u128(u128::from(state.rev) * 16 + 7)), owner(), now)
            }
            _ => return (revoked(&view.header), Ret::Refused),
        };
        let ret = match task.request {
            Request::Checkout | Request::Abandon => {
                let ordered = if task.request == Request::Abandon { Some(&after) } else { expected };
                let ret = Ret::Closed(ordered.map(lines).unwrap_or_default());
                let mut header = self.decided(view, None, task.clock);
                let closed = Some(ClosedCart { cart: after.clone(), merge_id: None });
                header.outbox =
                    vec![OutboxRow { cart: cart_key(&after), stamp: i64::from(state.rev), closed }];
                return (header, ret);
            }
            Request::Merge { product: line, quantity } => {
                let before = lines(&after).get(&line).copied().unwrap_or(0);
                after.set_line(product(line), before + quantity, now, &LIFETIME).unwrap();
                Ret::Done
            }
            Request::SetIfMatch { product: line, quantity } | Request::Set { product: line, quantity } => {
                after.set_line(product(line), quantity, now, &LIFETIME).unwrap();
                Ret::Done
            }
            _ => unreachable!("not a decision"),
        };
        (self.decided(view, Some(&after), task.clock), ret)
    }

    fn step(&self, state: &mut State, at: usize) -> Option<()> {
        let task = state.tasks.get(at)?.clone();
        let phase = match task.phase.clone() {
            Phase::Start | Phase::SecondRead => return self.start(state, at),
            Phase::Written(write) => {
                let mut view = state.view();
                if !self.waits(&task, &view) {
                    view.header.claim = None;
                }
                match next_step(&view, &write) {
                    BlindStep::Done => state.end(at, Ret::Done),
                    BlindStep::Wait => return None,
                    BlindStep::Redo if self.mutation == Mutation::NoRedo => state.end(at, Ret::Done),
                    BlindStep::Redo => Phase::Start,
                    BlindStep::Unknown => unreachable!("more decisions than a header keeps"),
                }
            }
            Phase::Opening { rev, header, outbox } => {
                if state.replace(rev, header, &outbox) {
                    state.end(at, Ret::Done)
                } else {
                    Phase::Start
                }
            }
            Phase::Claiming { rev, view, expected } => {
                let header = claimed(&view.header, Uuid::from_u128(at as u128 + 1));
                if state.cas(rev, header) {
                    Phase::Claimed { rev: rev + 1, view, expected }
                } else {
                    Phase::Start
                }
            }
            Phase::Claimed { rev, view: earlier, expected } => {
                let view =
                    if self.mutation == Mutation::DecideByEarlierRead { earlier } else { state.view() };
                let is_merge = matches!(task.request, Request::Merge { .. });
                let outbox = self.outbox(&view);
                let (header, ret) = if is_merge && state.is_merged && self.mutation != Mutation::NoMarker {
                    (revoked(&state.header), Ret::Done)
                } else {
                    self.decide(state, at, &view, expected.as_ref())
                };
                Phase::Deciding { rev, header, outbox, ret }
            }
            Phase::Deciding { rev, header, outbox, ret } => {
                if state.replace(rev, header, &outbox) {
                    state.is_merged |= matches!(task.request, Request::Merge { .. });
                    state.end(at, ret)
                } else {
                    Phase::Start
                }
            }
            Phase::Ended | Phase::Crashed => return None,
        };
        state.tasks.get_mut(at)?.phase = phase;
        Some(())
    }

    /// Whether the cart has every line that was set, each of another product.
    fn has_every_line(state: &State) -> bool {
        let cart = state.view().cart().map(|cart| lines(&cart)).unwrap_or_default();
        state.tasks.iter().all(|task| match (task.request, &task.phase) {
            (Request::Set { product, quantity }, Phase::Ended) => cart.get(&product) == Some(&quantity),
            _ => true,
        })
    }

    fn check(&self) -> impl Checker<Self> + use<> {
        self.clone().checker().threads(2).timeout(TIMEOUT).finish_when(HasDiscoveries::Any).spawn_dfs().join()
    }

    #[track_caller]
    fn holds(&self) {
        let checker = self.check();
        assert!(checker.is_done(), "not every state was explored in {TIMEOUT:?}: {self:?}");
        checker.assert_properties();
    }

    #[track_caller]
    fn is_caught(&self, mutation: Mutation) {
        let checker = Self { mutation, ..self.clone() }.check();
        let broken = if mutation == Mutation::DropOutbox { CLOSED_CARTS_STAY } else { LINEARIZABLE };
        assert!(checker.discovery(broken).is_some(), "{mutation:?} was not found in {self:?}");
    }
}

impl Model for Scenario {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut header = CartHeader::default();
        let mut shop = Shop::default();
        if let Some(open) = &self.open {
            let mut cart =
                View::default().new_cart(CartId::new(Uuid::from_u128(9)), owner(), Timestamp::EPOCH);
            for (line, quantity) in open {
                cart.set_line(product(*line), *quantity, NOW, &LIFETIME).unwrap();
            }
            shop = Shop::open(lines(&cart));
            header = decided(&View::default(), Some(&cart), 0);
        }
        let tasks = self.requests.iter().map(|(request, clock)| Task {
            request: *request,
            clock: *clock,
            if_match: None,
            phase: Phase::Start,
        });
        vec![State {
            rev: 1,
            header,
            is_merged: false,
            closed: BTreeSet::new(),
            rows: BTreeSet::new(),
            cells: BTreeMap::new(),
            in_flight: Vec::new(),
            tasks: tasks.collect(),
            crashes_left: self.crashes,
            revokes_left: 1,
            history: LinearizabilityTester::new(shop),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, task) in state.tasks.iter().enumerate() {
            if matches!(task.phase, Phase::Ended | Phase::Crashed) {
                continue;
            }
            let is_in_flight = matches!(&task.phase, Phase::Written(write) if !state.is_landed(write));
            let waits = matches!(task.phase, Phase::Start | Phase::SecondRead | Phase::Written(_))
                && self.waits(task, &state.view());
            if waits && !is_in_flight && (state.revokes_left > 0 || state.is_claim_orphaned()) {
                actions.push(Action::Revoke(at));
            }
            if !waits && !is_in_flight {
                actions.push(Action::Step(at));
            }
            let is_reader = task.request == Request::ReadTwice;
            if state.crashes_left > 0 && task.phase != Phase::Start && !is_reader {
                actions.push(Action::Crash(at));
            }
        }
        actions.extend((0..state.in_flight.len()).map(Action::Land));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(at) => self.step(&mut state, at)?,
            Action::Crash(at) => {
                state.tasks.get_mut(at)?.phase = Phase::Crashed;
                state.crashes_left -= 1;
            }
            Action::Revoke(_) => {
                if !state.is_claim_orphaned() {
                    state.revokes_left -= 1;
                }
                let header = revoked(&state.header);
                state.cas(state.rev, header);
            }
            Action::Land(at) => {
                let (cart, product_id, cell) = state.in_flight.remove(at);
                let landed = state.cells.entry((cart, product_id)).or_insert_with(|| cell.clone());
                if landed.stamp < cell.stamp {
                    *landed = cell;
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LINEARIZABLE, |model: &Self, state: &State| {
                !state.all_ended()
                    || if model.is_expiring {
                        Self::has_every_line(state)
                    } else {
                        state.history.is_consistent()
                    }
            }),
            Property::always(CLOSED_CARTS_STAY, |_: &Self, state: &State| {
                let in_header = |key: &CartKey| state.header.outbox.iter().any(|row| row.cart == *key);
                state.closed.iter().all(|key| in_header(key) || state.rows.contains(key))
            }),
            Property::always(NO_DEADLOCK, |model: &Self, state| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                state.all_ended() || !actions.is_empty()
            }),
        ]
    }
}

const SET_A: Request = Request::Set { product: 'a', quantity: 5 };
const SET_A_TOO: Request = Request::Set { product: 'a', quantity: 6 };
const SET_B: Request = Request::Set { product: 'b', quantity: 7 };
const SET_C: Request = Request::Set { product: 'c', quantity: 8 };
const SET_D: Request = Request::Set { product: 'd', quantity: 9 };
const IF_MATCH: Request = Request::SetIfMatch { product: 'a', quantity: 8 };
const MERGE: Request = Request::Merge { product: 'a', quantity: 10 };
const REMOVE_A: Request = Request::Remove { product: 'a' };
/// A clock that is behind by more than any request takes.
const BEHIND: i64 = 100;
const AHEAD: i64 = 1_000_000;

/// Requests with alternating clocks, in an open cart of one line.
fn open_cart(requests: &[Request], crashes: u8) -> Scenario {
    let clocks = [AHEAD, BEHIND].into_iter().cycle();
    Scenario {
        requests: requests.iter().copied().zip(clocks).collect(),
        open: Some(vec![('a', 1)]),
        crashes,
        is_expiring: false,
        mutation: Mutation::None,
    }
}

fn no_cart(requests: &[Request], crashes: u8) -> Scenario {
    Scenario { open: None, ..open_cart(requests, crashes) }
}

const DECISIONS: [Request; 4] = [Request::Checkout, Request::Abandon, IF_MATCH, MERGE];

#[test]
fn two_blind_writers_and_a_reader_are_linearizable() {
    for second in [SET_A_TOO, SET_B, REMOVE_A] {
        open_cart(&[SET_A, second, Request::ReadTwice], 1).holds();
        open_cart(&[second, SET_A, Request::ReadTwice], 1).holds();
        no_cart(&[SET_A, second, Request::ReadTwice], 1).holds();
    }
}

#[test]
fn a_decision_among_two_blind_writers_and_a_reader_is_linearizable() {
    for decision in DECISIONS {
        open_cart(&[SET_A, SET_B, decision, Request::ReadTwice], 0).holds();
        open_cart(&[decision, SET_A, Request::ReadTwice, SET_A_TOO], 0).holds();
    }
}

#[test]
fn a_crash_at_every_step_of_a_decision_loses_nothing() {
    for decision in DECISIONS {
        open_cart(&[SET_A, decision, Request::ReadTwice], 1).holds();
        open_cart(&[decision, REMOVE_A, Request::ReadTwice], 1).holds();
        no_cart(&[SET_B, decision, Request::ReadTwice], 1).holds();
        open_cart(&[SET_A, SET_B, decision], 1).holds();
    }
}

#[test]
fn two_decisions_are_linearizable() {
    for second in DECISIONS {
        open_cart(&[Request::Checkout, second, SET_A], 0).holds();
        open_cart(&[IF_MATCH, second, SET_A], 0).holds();
    }
}

#[test]
fn a_merge_happens_once_also_if_another_process_finishes_it() {
    open_cart(&[MERGE, MERGE, SET_A], 1).holds();
    no_cart(&[MERGE, MERGE, SET_B], 1).holds();
    open_cart(&[MERGE, MERGE, Request::ReadTwice], 1).holds();
}

/// Set by a clock by which the cart has expired, and by one by which it has not.
fn expiring() -> Scenario {
    Scenario { is_expiring: true, ..open_cart(&[SET_B, SET_C, SET_D], 1) }
}

#[test]
fn no_line_is_lost_when_a_cart_expires_by_some_clocks_only() {
    expiring().holds();
}

#[test]
fn every_rule_that_is_left_out_is_found() {
    let with_reader = |first, second| open_cart(&[first, second, Request::ReadTwice], 0);
    with_reader(SET_B, Request::Checkout).is_caught(Mutation::NoRedo);
    with_reader(SET_B, Request::Checkout).is_caught(Mutation::WriterIgnoresClaim);
    with_reader(SET_B, Request::Checkout).is_caught(Mutation::ReaderIgnoresClaim);
    with_reader(SET_A, SET_A_TOO).is_caught(Mutation::StampByClock);
    with_reader(SET_B, Request::Abandon).is_caught(Mutation::DecideByEarlierRead);
    expiring().is_caught(Mutation::DecideByEarlierRead);
    with_reader(SET_A, MERGE).is_caught(Mutation::BaseByClock);
    with_reader(SET_A, IF_MATCH).is_caught(Mutation::ForgetAbsorbed);
    with_reader(SET_A, SET_B).is_caught(Mutation::VersionByNewest);
    with_reader(MERGE, MERGE).is_caught(Mutation::NoMarker);
    open_cart(&[Request::Checkout, SET_A], 0).is_caught(Mutation::DropOutbox);
}
