//! A client: sends random operations and records the responses, until the service is killed.

use std::net::SocketAddr;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::expected::Expected;
use super::op::{Lines, Op};
use super::{PRODUCTS, ZONES, product};
use crate::client::{Call, Client};

const USERS: usize = 5;
/// Holds that expire during the test; no operation closes them.
const SHORT_TTL_SECONDS: u32 = 1;
const LONG_TTL_SECONDS: u32 = 86_400;

pub(super) struct CrashClient {
    id: u64,
    rng: StdRng,
    pub(super) expected: Expected,
    /// Sent and without a response.
    pub(super) pending: Option<Op>,
    pub(super) calls: u64,
}

impl CrashClient {
    pub(super) fn new(id: u64, seed: u64) -> Self {
        Self { id, rng: StdRng::seed_from_u64(seed), expected: Expected::default(), pending: None, calls: 0 }
    }

    pub(super) fn users(&self) -> impl Iterator<Item = String> + use<> {
        let id = self.id;
        (0..USERS).map(move |at| format!("user-{id}-{at}"))
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = String> + use<> {
        let id = self.id;
        (0..USERS).map(move |at| format!("session-{id}-{at}"))
    }

    pub(super) fn run_until_disconnected(&mut self, address: SocketAddr) {
        assert!(self.pending.is_none(), "what was pending must be settled first");
        let mut client = Client::new(address);
        loop {
            self.calls += 1;
            if self.rng.random_bool(0.05) {
                if !self.repeat_a_request(&mut client) {
                    return;
                }
                continue;
            }
            let op = self.choose();
            let Ok(reply) = client.try_call(&op.call()) else {
                self.pending = Some(op);
                return;
            };
            self.expected.note(&op, &reply);
        }
    }

    /// A used key replays its first response; `false` where the connection breaks.
    fn repeat_a_request(&mut self, client: &mut Client) -> bool {
        let Some((call, first)) = self.expected.answered.choose(&mut self.rng) else { return true };
        let Ok(reply) = client.try_call(call) else { return false };
        assert!(reply.is_success() && reply.is_replay, "{call:?}: {reply:?}");
        assert_eq!(&reply.body, first, "{call:?}");
        true
    }

    fn choose(&mut self) -> Op {
        let user = format!("user-{}-{}", self.id, self.rng.random_range(0..USERS));
        let session = format!("session-{}-{}", self.id, self.rng.random_range(0..USERS));
        let zone = ZONES[self.rng.random_range(0..ZONES.len())];
        let product = self.product();
        match self.rng.random_range(0..100) {
            0..25 => self.set_line(format!("users/{user}"), product),
            25..35 => self.set_line(format!("sessions/{session}"), product),
            35..40 => Op::RemoveLine { owner: format!("users/{user}"), product },
            40..48 => Op::Merge { user, session, key: self.key() },
            48..58 => Op::Checkout { user, zone, key: self.key() },
            58..68 => Op::Order { user, zone, lines: self.lines(), key: self.key() },
            68..80 => self.move_order().unwrap_or_else(|| self.reserve(zone)),
            80..88 => self.reserve(zone),
            88..94 => self.close_hold().unwrap_or_else(|| self.reserve(zone)),
            _ => Op::Adjust { product, zone, delta: self.rng.random_range(-20..=30), key: self.key() },
        }
    }

    fn set_line(&mut self, owner: String, product: String) -> Op {
        Op::SetLine { owner, product, quantity: self.rng.random_range(1..=4) }
    }

    fn reserve(&mut self, zone: &'static str) -> Op {
        let ttl_seconds = if self.rng.random_bool(0.2) { SHORT_TTL_SECONDS } else { LONG_TTL_SECONDS };
        Op::Reserve { zone, lines: self.lines(), ttl_seconds, key: self.key() }
    }

    /// The next status of some order.
    fn move_order(&mut self) -> Option<Op> {
        let open: Vec<_> = self
            .expected
            .orders
            .iter()
            .filter(|(_, order)| !["cancelled", "returned"].contains(&order.status))
            .collect();
        let (order_id, order) = open.choose(&mut self.rng)?;
        let to: &[&'static str] = match order.status {
            "created" => &["paid", "paid", "cancelled"],
            "paid" => &["shipped", "shipped", "cancelled"],
            "shipped" => &["delivered"],
            _ => &["returned"],
        };
        let (order_id, from) = ((*order_id).clone(), order.status);
        let to = to.choose(&mut self.rng)?;
        Some(Op::Status { order_id, from, to, key: self.key() })
    }

    fn close_hold(&mut self) -> Option<Op> {
        let open: Vec<_> = self
            .expected
            .holds
            .iter()
            .filter(|(_, hold)| hold.status == "held" && hold.over_by.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        let reservation_id = open.choose(&mut self.rng)?.clone();
        Some(if self.rng.random_bool(0.5) {
            Op::Confirm { reservation_id, key: self.key() }
        } else {
            Op::Release { reservation_id }
        })
    }

    fn product(&mut self) -> String {
        product(self.rng.random_range(0..PRODUCTS))
    }

    fn lines(&mut self) -> Lines {
        let count = self.rng.random_range(1..=3);
        (0..count).map(|_| (self.product(), self.rng.random_range(1..=3))).collect()
    }

    fn key(&mut self) -> String {
        format!("key-{}-{:016x}", self.id, self.rng.random::<u64>())
    }

    /// A sample of requests with keys, and their responses.
    pub(super) fn sample_of_responses(&mut self, count: usize) -> Vec<(Call, serde_json::Value)> {
        self.expected.answered.choose_multiple(&mut self.rng, count).cloned().collect()
    }
}
