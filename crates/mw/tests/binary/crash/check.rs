//! After a restart: resolves the request in flight at the kill, then compares all data with the expected state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mw_domain::Timestamp;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::Value;

use super::crash_client::CrashClient;
use super::expected::{Expected, Moves, Order, id_of};
use super::feed;
use super::op::{Lines, Op, lines_of};
use super::{PRODUCTS, UNITS, ZONES, product};
use crate::client::Client;
use crate::process::Server;

/// How many orders are checked one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    Sample,
    Everything,
}

impl Depth {
    /// Whether to check one of `count`.
    fn chooses(self, count: usize, rng: &mut StdRng) -> bool {
        self == Self::Everything || rng.random_range(0..count) < SAMPLE
    }
}

/// Orders, holds and responses of each client in a sample.
const SAMPLE: usize = 60;

pub(super) fn all(server: &Server, clients: &mut [CrashClient], rng: &mut StdRng, depth: Depth) {
    let mut client = server.client();
    for crash_client in clients.iter_mut() {
        if let Some(op) = crash_client.pending.take() {
            resolve(&mut client, &mut crash_client.expected, &op);
        }
    }
    wait_for_short_holds(clients);
    for crash_client in clients.iter_mut() {
        carts(&mut client, crash_client);
        for (order_id, known) in &crash_client.expected.orders {
            if depth.chooses(crash_client.expected.orders.len(), rng) {
                order(&mut client, order_id, known);
            }
        }
        holds(&mut client, &crash_client.expected, rng, depth);
        replays(&mut client, crash_client);
    }
    views(&mut client, clients);
    stock(&mut client, clients);
    feed::check(&mut client, clients);
}

/// A request without a response took effect completely or not at all; repeated with its key, it takes effect once.
fn resolve(client: &mut Client, expected: &mut Expected, op: &Op) {
    let applied = match op {
        Op::SetLine { .. } | Op::RemoveLine { .. } => return resolve_line(client, expected, op),
        Op::Merge { user, session, .. } => merge_was_applied(client, expected, user, session),
        Op::Checkout { user, .. } => {
            let placed = order_was_placed(client, expected, user);
            let cart = cart(client, &format!("users/{user}"));
            let expected = if placed { Lines::new() } else { expected.cart(&format!("users/{user}")) };
            assert_eq!(cart, expected, "{op:?}: a cart and its order");
            Some(placed)
        }
        Op::Order { user, .. } => Some(order_was_placed(client, expected, user)),
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
    expected.note(op, &reply);
}

fn resolve_line(client: &mut Client, expected: &mut Expected, op: &Op) {
    let (Op::SetLine { owner, product, .. } | Op::RemoveLine { owner, product }) = op else {
        panic!("{op:?} changes no line");
    };
    let before = expected.cart(owner);
    let mut after = before.clone();
    match op {
        Op::SetLine { quantity, .. } => after.insert(product.clone(), *quantity),
        _ => after.remove(product),
    };
    let found = cart(client, owner);
    assert!(found == before || found == after, "{op:?}: {found:?} is neither {before:?} nor {after:?}");
    expected.carts.insert(owner.clone(), found);
}

/// `None` where a merge of an empty cart leaves no trace.
fn merge_was_applied(client: &mut Client, expected: &Expected, user: &str, session: &str) -> Option<bool> {
    let owners = [format!("users/{user}"), format!("sessions/{session}")];
    let before = owners.clone().map(|owner| expected.cart(&owner));
    let after = [expected.merged(user, session), Lines::new()];
    let found = owners.map(|owner| cart(client, &owner));
    assert!(found == before || found == after, "half a merge: {found:?}, {before:?}, {after:?}");
    (before != after).then_some(found == after)
}

fn order_was_placed(client: &mut Client, expected: &Expected, user: &str) -> bool {
    let orders = client.items(&format!("/v1/users/{user}/orders"));
    let new = orders.iter().filter(|order| !expected.orders.contains_key(&id_of(order, "order_id"))).count();
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

fn wait_for_short_holds(clients: &[CrashClient]) {
    let holds = clients.iter().flat_map(|crash_client| crash_client.expected.holds.values());
    if let Some(over_by) = holds.filter_map(|hold| hold.over_by).max() {
        std::thread::sleep(over_by.saturating_duration_since(Instant::now()));
    }
}

fn carts(client: &mut Client, crash_client: &CrashClient) {
    let users = crash_client.users().map(|user| format!("users/{user}"));
    let sessions = crash_client.sessions().map(|session| format!("sessions/{session}"));
    for owner in users.chain(sessions) {
        assert_eq!(cart(client, &owner), crash_client.expected.cart(&owner), "the cart of {owner}");
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

fn holds(client: &mut Client, expected: &Expected, rng: &mut StdRng, depth: Depth) {
    for (reservation_id, hold) in &expected.holds {
        if depth.chooses(expected.holds.len(), rng) {
            let found = client.get(&format!("/v1/reservations/{reservation_id}"));
            let expected = if hold.over_by.is_some() { "expired" } else { hold.status };
            assert_eq!(found.body["status"], expected, "{reservation_id}: {found:?}");
        }
    }
}

fn replays(client: &mut Client, crash_client: &mut CrashClient) {
    for (call, first) in crash_client.sample_of_responses(SAMPLE) {
        let again = client.call(&call);
        assert!(again.is_success() && again.is_replay, "{call:?}: {again:?}");
        assert_eq!(again.body, first, "{call:?}");
    }
}

/// Every view has the same orders and no others.
fn views(client: &mut Client, clients: &[CrashClient]) {
    let mut by_user: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let mut by_zone: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for crash_client in clients {
        by_user.extend(crash_client.users().map(|user| (user, BTreeSet::new())));
        for (order_id, order) in &crash_client.expected.orders {
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
        sales(client, clients, &period, zone);
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

fn sales(client: &mut Client, clients: &[CrashClient], period: &str, zone: &str) {
    let report = client.get(&format!("/v1/reports/sales?{period}&geo_zone={zone}")).body;
    let days = report["items"].as_array().unwrap();
    let sum = |read: fn(&Value) -> i64| days.iter().map(read).sum::<i64>();
    let found = [
        sum(|day| day["orders"].as_i64().unwrap()),
        sum(|day| day["units"].as_i64().unwrap()),
        sum(|day| minor(&day["revenue"])),
    ];
    let sold = clients.iter().flat_map(|crash_client| crash_client.expected.orders.values());
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

/// Every unit is on hand, reserved, or part of an acknowledged paid order.
fn stock(client: &mut Client, clients: &[CrashClient]) {
    let mut moves = Moves::new();
    for crash_client in clients {
        crash_client.expected.add_moves(&mut moves);
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
