//! Recovery on a cluster: a process is killed while it places orders, and another one finishes or undoes them.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mw_domain::Timestamp;
use serde_json::json;
use uuid::Uuid;

use crate::cassandra::{Shop, Tables};
use crate::client::{Call, Client, Reply};
use crate::process::{Server, until};

/// Recovery of a dead process is done within this time.
const RECOVERED: Duration = Duration::from_secs(10);
/// Each has an order in flight when the process is killed.
const CLIENTS: usize = 24;
/// Acknowledged orders before the kill.
const ENOUGH: usize = 150;
const UNITS: u64 = 100_000;
const PRODUCTS: [&str; 3] = ["hit", "case", "glass"];
const ZONE: &str = "moscow";

/// An order request, and the id of the order where it was acknowledged.
#[derive(Debug, Clone)]
struct PlacedOrder {
    call: Call,
    message: Option<String>,
}

fn order(client: usize, number: usize) -> Call {
    // Several products, so that a kill can leave some of them held.
    let lines = [PRODUCTS[0], PRODUCTS[1 + number % 2]].map(|id| json!({"product_id": id, "quantity": 1}));
    let body = json!({"user_id": user(client), "geo_zone": ZONE, "lines": lines});
    Call::new("POST", "/v1/orders").json(body).key(format!("order-{client}-{number}"))
}

fn user(client: usize) -> String {
    format!("u-{client}")
}

fn order_id(reply: &Reply) -> String {
    reply.body["order_id"].as_str().unwrap_or_else(|| panic!("no order in {reply:?}")).to_owned()
}

fn stock_up(client: &mut Client) {
    for product in PRODUCTS {
        let price = json!({"amount": "100.00", "currency": "RUB"});
        let body = json!({"name": product, "category": "things", "price": price});
        client.done(&Call::new("PUT", format!("/v1/products/{product}")).json(body));
        let path = format!("/v1/products/{product}/stock/{ZONE}");
        client.done(&Call::new("PUT", path).json(json!({"on_hand": UNITS})));
    }
}

/// Places orders until enough are acknowledged, then kills the process; returns the instant of the kill.
fn order_until_killed(server: Server) -> (Vec<PlacedOrder>, Instant) {
    let address = server.address;
    let asked = Mutex::new(Vec::new());
    let killed = thread::scope(|scope| {
        for client in 0..CLIENTS {
            let asked = &asked;
            scope.spawn(move || {
                let mut connection = Client::new(address);
                for number in 0.. {
                    let call = order(client, number);
                    let reply = connection.try_call(&call);
                    let message = reply.as_ref().ok().filter(|reply| reply.is_success()).map(order_id);
                    asked.lock().unwrap().push(PlacedOrder { call, message });
                    if reply.is_err() {
                        break;
                    }
                }
            });
        }
        let message =
            || asked.lock().unwrap().iter().filter(|asked: &&PlacedOrder| asked.message.is_some()).count();
        until("orders are acknowledged", || message() >= ENOUGH);
        let killed = Instant::now();
        server.kill();
        killed
    });
    (asked.into_inner().unwrap(), killed)
}

/// Retries with the same key until it succeeds.
fn retry_until_done(client: &mut Client, call: &Call) -> Reply {
    let mut last = None;
    until("an order is placed", || {
        let reply = client.call(call);
        let is_done = reply.is_success();
        last = Some(reply);
        is_done
    });
    last.unwrap()
}

fn ids(client: &mut Client, path: &str) -> BTreeSet<String> {
    let items = client.items(path);
    let ids: BTreeSet<String> =
        items.iter().map(|order| order["order_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(items.len(), ids.len(), "{path} has an order twice");
    ids
}

/// All orders: every view has the same, and the stock levels match them.
fn whole(client: &mut Client) -> BTreeSet<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let now = Timestamp::from_millis(i64::try_from(now).unwrap());
    let (from, to) = (now.minus_seconds(86_400).date(), now.plus_seconds(2 * 86_400).date());
    let by_zone = ids(client, &format!("/v1/orders?from={from}&to={to}&geo_zone={ZONE}"));
    assert_eq!(ids(client, &format!("/v1/orders?from={from}&to={to}")), by_zone);
    let by_user = (0..CLIENTS).flat_map(|number| ids(client, &format!("/v1/users/{}/orders", user(number))));
    assert_eq!(by_user.collect::<BTreeSet<_>>(), by_zone);
    for id in &by_zone {
        assert_eq!(client.get(&format!("/v1/orders/{id}")).status, 200, "{id}");
        assert_eq!(client.items(&format!("/v1/orders/{id}/events")).len(), 1, "{id}");
    }
    let reserved = PRODUCTS.map(|product| {
        let stock = client.get(&format!("/v1/products/{product}/stock/{ZONE}")).body;
        assert_eq!(stock["on_hand"], UNITS, "{stock}");
        stock["reserved"].as_u64().unwrap()
    });
    let count = by_zone.len() as u64;
    assert_eq!((reserved[0], reserved[1] + reserved[2]), (count, count), "{reserved:?}");
    by_zone
}

fn processes(tables: &Tables) -> Vec<Uuid> {
    tables.rows::<(Uuid,)>("SELECT process FROM {}.processes").into_iter().map(|(process,)| process).collect()
}

/// The number of open intents of a process.
fn open_intents(tables: &Tables, process: Uuid) -> usize {
    let rows = tables.rows::<(Uuid,)>("SELECT process FROM {}.intents");
    rows.into_iter().filter(|(of,)| *of == process).count()
}

#[test]
fn intents_of_a_killed_process_are_recovered_in_ten_seconds() {
    let shop = Shop::new("takeover");
    let command = shop.command(&["serve", "--apply-schema", "--listen", "127.0.0.1:0"], &[]);
    let first = Server::spawn(command).unwrap_or_else(|ended| panic!("{ended:?}"));
    let tables = Tables::of(&shop);
    let process = processes(&tables)[0];
    let second = shop.serve(&[]).unwrap_or_else(|ended| panic!("{ended:?}"));
    assert_eq!(processes(&tables).len(), 2);
    stock_up(&mut first.client());

    let (asked, killed) = order_until_killed(first);
    let left = open_intents(&tables, process);
    assert!(left > 0, "it died in the middle of nothing");
    let (message, untold): (Vec<PlacedOrder>, Vec<PlacedOrder>) =
        asked.into_iter().partition(|asked| asked.message.is_some());
    assert!(untold.len() >= CLIENTS, "{untold:?}");

    // Half of the clients retry at once, within the failure timeout of the dead process.
    let mut client = second.client();
    let (at_once, later) = untold.split_at(untold.len() / 2);
    let mut again: Vec<String> =
        at_once.iter().map(|asked| order_id(&retry_until_done(&mut client, &asked.call))).collect();

    // Its row in the list of processes stays for minutes: were it alive after all, its later intents must be found.
    while open_intents(&tables, process) > 0 {
        assert!(
            killed.elapsed() < RECOVERED,
            "after {RECOVERED:?} {} are left",
            open_intents(&tables, process)
        );
        thread::sleep(Duration::from_millis(50));
    }
    eprintln!("{} acknowledged, {left} left, brought to their end in {:?}", message.len(), killed.elapsed());

    let found = whole(&mut client);
    let of_told: BTreeSet<String> = message.iter().filter_map(|asked| asked.message.clone()).collect();
    let expected: BTreeSet<String> = of_told.iter().chain(&again).cloned().collect();
    assert!(found.is_superset(&expected), "lost: {:?}", expected.difference(&found));

    again.extend(later.iter().map(|asked| order_id(&retry_until_done(&mut client, &asked.call))));
    let expected: BTreeSet<String> = of_told.iter().chain(&again).cloned().collect();
    assert_eq!(expected.len(), message.len() + untold.len(), "an order for two keys");
    assert_eq!(whole(&mut client), expected);
    for asked in &message {
        let reply = client.call(&asked.call);
        assert!(reply.is_replay, "{asked:?}: {reply:?}");
        assert_eq!(Some(order_id(&reply)), asked.message);
    }

    let audit = shop.run(&["stock", "audit"], &[]);
    assert_eq!(audit.code, Some(0), "{audit:?}");
    assert_eq!(second.stop().code, Some(0));
}
