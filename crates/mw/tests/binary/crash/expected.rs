//! The expected state of a client: what its responses acknowledged.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::op::{Lines, Op, lines_of};
use super::price_minor;
use crate::client::{Call, Reply};

/// The change of a stock level, of on hand and reserved.
pub(super) type Moves = BTreeMap<(String, &'static str), (i64, i64)>;

#[derive(Debug, Default)]
pub(super) struct Expected {
    /// By owner, as in `users/…`.
    pub(super) carts: BTreeMap<String, Lines>,
    pub(super) orders: BTreeMap<String, Order>,
    pub(super) holds: BTreeMap<String, Hold>,
    adjusted: Moves,
    /// Every success with a key: the request and the response.
    pub(super) answered: Vec<(Call, Value)>,
}

#[derive(Debug)]
pub(super) struct Order {
    pub(super) user: String,
    pub(super) zone: &'static str,
    pub(super) lines: Lines,
    pub(super) status: &'static str,
    /// How many events it has.
    pub(super) events: usize,
}

#[derive(Debug)]
pub(super) struct Hold {
    zone: &'static str,
    lines: Lines,
    pub(super) status: &'static str,
    /// When a short hold ends; a long one outlives the test.
    pub(super) over_by: Option<Instant>,
}

impl Order {
    pub(super) fn units(&self) -> i64 {
        self.lines.values().copied().map(i64::from).sum()
    }

    pub(super) fn total_minor(&self) -> i64 {
        self.lines.iter().map(|(product, quantity)| price_minor(product) * i64::from(*quantity)).sum()
    }

    pub(super) fn is_sale(&self) -> bool {
        ["paid", "shipped", "delivered"].contains(&self.status)
    }

    /// The effect of one unit on the stock level: on hand and reserved.
    fn weight(&self) -> (i64, i64) {
        match self.status {
            "created" => (0, 1),
            "cancelled" | "returned" => (0, 0),
            _ => (-1, 0),
        }
    }
}

impl Hold {
    fn weight(&self) -> (i64, i64) {
        match self.status {
            "held" if self.over_by.is_none() => (0, 1),
            "confirmed" => (-1, 0),
            _ => (0, 0),
        }
    }
}

impl Expected {
    pub(super) fn cart(&self, owner: &str) -> Lines {
        self.carts.get(owner).cloned().unwrap_or_default()
    }

    /// The user's and the guest's lines after a merge.
    pub(super) fn merged(&self, user: &str, session: &str) -> Lines {
        let mut lines = self.cart(&format!("users/{user}"));
        for (product, quantity) in self.cart(&format!("sessions/{session}")) {
            let line = lines.entry(product).or_default();
            *line = (*line + quantity).min(10_000);
        }
        lines
    }

    /// Records a response; panics where it contradicts the expected state.
    pub(super) fn note(&mut self, op: &Op, reply: &Reply) {
        if !reply.is_success() {
            assert!(op.may_be_refused(reply.code()), "{op:?}: {reply:?}");
            if reply.code() == "cart_empty" {
                let Op::Checkout { user, .. } = op else { panic!("{op:?}: {reply:?}") };
                assert_eq!(self.cart(&format!("users/{user}")), Lines::new(), "{op:?}");
            }
            return;
        }
        let call = op.call();
        if call.key.is_some() {
            self.answered.push((call, reply.body.clone()));
        }
        self.apply(op, &reply.body);
    }

    fn apply(&mut self, op: &Op, body: &Value) {
        match op {
            Op::SetLine { owner, product, quantity } => {
                self.carts.entry(owner.clone()).or_default().insert(product.clone(), *quantity);
                assert_eq!(lines_of(body), self.cart(owner), "{op:?}");
            }
            Op::RemoveLine { owner, product } => {
                self.carts.entry(owner.clone()).or_default().remove(product);
                assert_eq!(lines_of(body), self.cart(owner), "{op:?}");
            }
            Op::Merge { user, session, .. } => {
                let merged = self.merged(user, session);
                assert_eq!(lines_of(&body["cart"]), merged, "{op:?}");
                self.carts.insert(format!("users/{user}"), merged);
                self.carts.remove(&format!("sessions/{session}"));
            }
            Op::Checkout { user, zone, .. } => {
                let lines = self.carts.remove(&format!("users/{user}")).unwrap_or_default();
                self.placed(user, zone, lines, body);
            }
            Op::Order { user, zone, lines, .. } => self.placed(user, zone, lines.clone(), body),
            Op::Status { order_id, to, .. } => {
                let order = self.orders.get_mut(order_id).unwrap();
                order.status = to;
                order.events += 1;
                assert_eq!(body["status"], *to, "{op:?}");
            }
            Op::Reserve { zone, lines, ttl_seconds, .. } => {
                assert_eq!(&lines_of(body), lines, "{op:?}");
                let ttl = Duration::from_secs(u64::from(*ttl_seconds));
                let over_by = (*ttl_seconds < 60).then(|| Instant::now() + ttl);
                let hold = Hold { zone, lines: lines.clone(), status: "held", over_by };
                self.holds.insert(id_of(body, "reservation_id"), hold);
            }
            Op::Confirm { reservation_id, .. } => self.closed(reservation_id, "confirmed"),
            Op::Release { reservation_id } => self.closed(reservation_id, "released"),
            Op::Adjust { product, zone, delta, .. } => {
                self.adjusted.entry((product.clone(), zone)).or_default().0 += delta;
            }
        }
    }

    fn placed(&mut self, user: &str, zone: &'static str, lines: Lines, body: &Value) {
        assert_eq!(lines_of(body), lines, "{body}");
        let order = Order { user: user.to_owned(), zone, lines, status: "created", events: 1 };
        let known = self.orders.insert(id_of(body, "order_id"), order);
        assert!(known.is_none(), "one order was placed twice: {body}");
    }

    fn closed(&mut self, reservation_id: &str, status: &'static str) {
        self.holds.get_mut(reservation_id).unwrap().status = status;
    }

    /// Adds all stock changes of this client.
    pub(super) fn add_moves(&self, moves: &mut Moves) {
        for (place, (on_hand, _)) in &self.adjusted {
            moves.entry(place.clone()).or_default().0 += on_hand;
        }
        let of_orders = self.orders.values().map(|order| (order.zone, &order.lines, order.weight()));
        let of_holds = self.holds.values().map(|hold| (hold.zone, &hold.lines, hold.weight()));
        for (zone, lines, (on_hand, reserved)) in of_orders.chain(of_holds) {
            for (product, quantity) in lines {
                let figures = moves.entry((product.clone(), zone)).or_default();
                figures.0 += on_hand * i64::from(*quantity);
                figures.1 += reserved * i64::from(*quantity);
            }
        }
    }
}

pub(super) fn id_of(body: &Value, name: &str) -> String {
    body[name].as_str().unwrap_or_else(|| panic!("no {name} in {body}")).to_owned()
}
