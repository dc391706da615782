//! After a restart: settles what was under way when the service died, then compares everything with what was told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mw_domain::Timestamp;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::Value;

use super::book::{Book, Moves, Order, id_of};
use super::op::{Lines, Op, lines_of};
use super::shopper::Shopper;
use super::{PRODUCTS, UNITS, ZONES, product};
use crate::client::Client;
use crate::process::Server;

/// How many orders are looked at one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    Sample,
    Everything,
}

impl Depth {
    /// Whether to look at one of so many.
    fn chooses(self, count: usize, rng: &mut StdRng) -> bool {
        self == Self::Everything || rng.random_range(0..count) < SAMPLE
    }
}

/// Orders, holds and answers of each shopper that a sample has.
const SAMPLE: usize = 60;

pub(super) fn all(server: &Server, shoppers: &mut [Shopper], rng: &mut StdRng, depth: Depth) {
    let mut client = server.client();
    for shopper in shoppers.iter_mut() {
        if let Some(op) = shopper.pending.take() {
            settle(&mut client, &mut shopper.book, &op);
        }
    }
    wait_for_short_holds(shoppers);
    for shopper in shoppers.iter_mut() {
        carts(&mut client, shopper);
        for (order_id, known) in &shopper.book.orders {
            if depth.chooses(shopper.book.orders.len(), rng) {
                order(&mut client, order_id, known);
            }
        }
        holds(&mut client, &shopper.book, rng, depth);
        answers(&mut client, shopper);
    }
    views(&mut client, shoppers);
    stock(&mut client, shoppers);
}

/// What was asked and not answered was done whole or not at all; repeated with its key, it is done once.
fn settle(client: &mut Client, book: &mut Book, op: &Op) {
    let applied = match op {
        Op::SetLine { .. } | Op::RemoveLine { .. } => return settle_line(client, book, op),
        Op::Merge { user, session, .. } => merge_was_applied(client, book, user, session),
        Op::Checkout { user, .. } => {
            let placed = order_was_placed(client, book, user);
            let cart = cart(client, &format!("users/{user}"));
            let expected = if placed { Lines::new() } else { book.cart(&format!("users/{user}")) };
            assert_eq!(cart, expected, "{op:?}: a cart and its order");
            Some(placed)
        }
        Op::Order { user, .. } => Some(order_was_placed(client, book, user)),
        Op::Status { order_id, from, to, .. } => {
            let status = id_of(&client.get(&format!("/v1/orders/{order_id}")).body, "status");
            assert!([*from, *to].contains(&status.as_str()), "{op:?}: {status}");
            Some(status == *to)
        }
        Op::Confirm { reservation_id, .. } => Some(hold_became(client, reservation_id, "confirmed")),
        Op::Release { reservation_id } => {
            hold_became(client, reservation_id, "released");
            None
        }
        Op::Reserve { .. } | Op::Adjust { .. } => None,
    };
    let reply = client.call(&op.call());
    if let Some(applied) = applied {
        assert_eq!(reply.is_replay, applied, "{op:?}: {reply:?}");
    }
    book.note(op, &reply);
}

fn settle_line(client: &mut Client, book: &mut Book, op: &Op) {
    let (Op::SetLine { owner, product, .. } | Op::RemoveLine { owner, product }) = op else {
        panic!("{op:?} changes no line");
    };
    let before = book.cart(owner);
    let mut after = before.clone();
    match op {
        Op::SetLine { quantity, .. } => after.insert(product.clone(), *quantity),
        _ => after.remove(product),
    };
    let found = cart(client, owner);
    assert!(found == before || found == after, "{op:?}: {found:?} is neither {before:?} nor {after:?}");
    book.carts.insert(owner.clone(), found);
}

/// `None` where a merge of nothing cannot be told from none.
fn merge_was_applied(client: &mut Client, book: &Book, user: &str, session: &str) -> Option<bool> {
    let owners = [format!("users/{user}"), format!("sessions/{session}")];
    let before = owners.clone().map(|owner| book.cart(&owner));
    let after = [book.merged(user, session), Lines::new()];
    let found = owners.map(|owner| cart(client, &owner));
    assert!(found == before || found == after, "half a merge: {found:?}, {before:?}, {after:?}");
    (before != after).then_some(found == after)
}

fn order_was_placed(client: &mut Client, book: &Book, user: &str) -> bool {
    let orders = client.items(&format!("/v1/users/{user}/orders"));
    let new = orders.iter().filter(|order| !book.orders.contains_key(&id_of(order, "order_id"))).count();
    assert!(new <= 1, "{new} orders of one call");
    new == 1
}

fn hold_became(client: &mut Client, reservation_id: &str, closed: &str) -> bool {
    let status = id_of(&client.get(&format!("/v1/reservations/{reservation_id}")).body, "status");
    assert!(["held", closed].contains(&status.as_str()), "{reservation_id}: {status}");
    status == closed
}

fn cart(client: &mut Client, owner: &str) -> Lines {
    lines_of(&client.get(&format!("/v1/{owner}/cart")).body)
}

fn wait_for_short_holds(shoppers: &[Shopper]) {
    let holds = shoppers.iter().flat_map(|shopper| shopper.book.holds.values());
    if let Some(over_by) = holds.filter_map(|hold| hold.over_by).max() {
        std::thread::sleep(over_by.saturating_duration_since(Instant::now()));
    }
}

fn carts(client: &mut Client, shopper: &Shopper) {
    let users = shopper.users().map(|user| format!("users/{user}"));
    let sessions = shopper.sessions().map(|session| format!("sessions/{session}"));
    for owner in users.chain(sessions) {
        assert_eq!(cart(client, &owner), shopper.book.cart(&owner), "the cart of {owner}");
    }
}

fn order(client: &mut Client, order_id: &str, known: &Order) {
    let path = format!("/v1/orders/{order_id}");
    let found = client.get(&path).body;
    assert_eq!(found["status"], known.status, "{order_id}");
    assert_eq!(lines_of(&found), known.lines, "{order_id}");
    assert_eq!(found["version"], known.events, "{order_id}");
    assert_eq!(minor(&found["total"]), known.total_minor(), "{order_id}");
    let events = client.items(&format!("{path}/events"));
    assert_eq!(events.len(), known.events, "{order_id}: {events:?}");
    assert_eq!(events[0]["to"], known.status, "{order_id}: {events:?}");
}

fn holds(client: &mut Client, book: &Book, rng: &mut StdRng, depth: Depth) {
    for (reservation_id, hold) in &book.holds {
        if depth.chooses(book.holds.len(), rng) {
            let found = client.get(&format!("/v1/reservations/{reservation_id}"));
            let expected = if hold.over_by.is_some() { "expired" } else { hold.status };
            assert_eq!(found.body["status"], expected, "{reservation_id}: {found:?}");
        }
    }
}

fn answers(client: &mut Client, shopper: &mut Shopper) {
    for (call, first) in shopper.sample_of_answers(SAMPLE) {
        let again = client.call(&call);
        assert!(again.is_success() && again.is_replay, "{call:?}: {again:?}");
        assert_eq!(again.body, first, "{call:?}");
    }
}

/// Every view has the same orders, and no other.
fn views(client: &mut Client, shoppers: &[Shopper]) {
    let mut by_user: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let mut by_zone: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for shopper in shoppers {
        by_user.extend(shopper.users().map(|user| (user, BTreeSet::new())));
        for (order_id, order) in &shopper.book.orders {
            by_user.entry(order.user.clone()).or_default().insert(order_id);
            by_zone.entry(order.zone).or_default().insert(order_id);
            all.insert(order_id.as_str());
        }
    }
    for (user, expected) in by_user {
        assert_view(client, &format!("/v1/users/{user}/orders"), &expected);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let now = Timestamp::from_millis(i64::try_from(now).unwrap());
    let (from, to) = (now.minus_seconds(86_400).date(), now.plus_seconds(2 * 86_400).date());
    let period = format!("from={from}&to={to}");
    assert_view(client, &format!("/v1/orders?{period}"), &all);
    for zone in ZONES {
        let expected = by_zone.remove(zone).unwrap_or_default();
        assert_view(client, &format!("/v1/orders?{period}&geo_zone={zone}"), &expected);
        sales(client, shoppers, &period, zone);
    }
}

fn assert_view(client: &mut Client, path: &str, expected: &BTreeSet<&str>) {
    let items = client.items(path);
    let found: BTreeSet<&str> = items.iter().map(|order| order["order_id"].as_str().unwrap()).collect();
    assert_eq!(items.len(), found.len(), "{path} has an order twice");
    let missing: Vec<_> = expected.difference(&found).collect();
    let unknown: Vec<_> = found.difference(expected).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "{path}: missing {missing:?}, unknown {unknown:?}");
}

fn sales(client: &mut Client, shoppers: &[Shopper], period: &str, zone: &str) {
    let report = client.get(&format!("/v1/reports/sales?{period}&geo_zone={zone}")).body;
    let days = report["items"].as_array().unwrap();
    let sum = |read: fn(&Value) -> i64| days.iter().map(read).sum::<i64>();
    let found = [
        sum(|day| day["orders"].as_i64().unwrap()),
        sum(|day| day["units"].as_i64().unwrap()),
        sum(|day| minor(&day["revenue"])),
    ];
    let sold = shoppers.iter().flat_map(|shopper| shopper.book.orders.values());
    let sold = sold.filter(|order| order.zone == zone && order.is_sale());
    let expected = sold.fold([0; 3], |[orders, units, revenue], order| {
        [orders + 1, units + order.units(), revenue + order.total_minor()]
    });
    assert_eq!(found, expected, "sales in {zone}: {report}");
}

fn minor(money: &Value) -> i64 {
    let amount = money["amount"].as_str().unwrap_or_else(|| panic!("no amount in {money}"));
    amount.replace('.', "").parse().unwrap()
}

/// Every unit is on hand, or reserved, or left with somebody who was told so.
fn stock(client: &mut Client, shoppers: &[Shopper]) {
    let mut moves = Moves::new();
    for shopper in shoppers {
        shopper.book.add_moves(&mut moves);
    }
    for product in (0..PRODUCTS).map(product) {
        for zone in ZONES {
            let found = client.get(&format!("/v1/products/{product}/stock/{zone}")).body;
            let (on_hand, reserved) = moves.get(&(product.clone(), zone)).copied().unwrap_or_default();
            let figures = ["on_hand", "reserved", "available"].map(|name| found[name].as_i64().unwrap());
            let expected = [UNITS + on_hand, reserved, UNITS + on_hand - reserved];
            assert_eq!(figures, expected, "{product} in {zone}: {found}");
        }
    }
}
