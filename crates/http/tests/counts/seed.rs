//! A small shop for the counts: the same in every run, with a fixed clock.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mw_http::prometheus::Registry;
use mw_http::{Api, Role, Server, ServerSettings, Token, Tokens};
use mw_operate::partitions::PartitionCounters;
use mw_store::partitions::PartitionReports;
use mw_store_embedded::{EmbeddedStore, Options};
use mw_testkit::{FakeClock, builders};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Client, Request, TOKEN};

pub(crate) const PRODUCTS: usize = 120;
const CATEGORIES: usize = 3;
pub(crate) const USERS: usize = 20;
/// Lines of a user's cart.
const LINES: usize = 3;
/// Orders of the user whose orders are listed: a page.
const ORDERS: usize = 20;

/// Switches the counting of partitions on: `all` of the accesses, or `sampled`, as above two thousand accesses a second. Not set: off.
const PARTITIONS: &str = "MW_COUNTS_PARTITIONS";

/// What the requests refer to.
#[derive(Debug)]
pub(crate) struct Seeded {
    pub(crate) orders: Vec<String>,
    _folder: TempDir,
}

/// Starts a server on the embedded engine, and fills its shop.
pub(crate) async fn serve() -> (Client, Seeded) {
    let folder = tempfile::tempdir().expect("a folder for the store");
    let counters = Arc::new(PartitionCounters::default());
    let counting = std::env::var(PARTITIONS).ok();
    let partitions = match counting {
        Some(_) => PartitionReports::to(Arc::clone(&counters) as _),
        None => PartitionReports::default(),
    };
    let currency = builders::settings().currency;
    let options = Options { min_free_bytes: 0, partitions, ..Options::new(folder.path(), currency) };
    let store = Arc::new(EmbeddedStore::open(options).expect("a new store"));
    let shop = builders::shop(store, &FakeClock::new());
    let tokens = Tokens(vec![Token { role: Role::Operator, secret: TOKEN.to_owned(), rate_limit: None }]);
    let settings = ServerSettings::default();
    let api = Api::new(shop, &settings, &tokens, Registry::new()).expect("an empty registry");
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = Server::bind(anywhere, settings, api).await.expect("a free port");
    let mut client = Client::connect(server.address()).await;
    tokio::spawn(server.run(std::future::pending()));
    let orders = fill(&mut client).await;
    if counting.as_deref() == Some("sampled") {
        // Whatever the fill did in no time was more than is counted one by one.
        counters.adapt_sampling(Duration::ZERO);
    }
    (client, Seeded { orders, _folder: folder })
}

async fn fill(client: &mut Client) -> Vec<String> {
    for number in 0..PRODUCTS {
        client.send(&Request::put(&product(number), &product_body(number), "201")).await;
        let stock = format!("{}/stock/msk", product(number));
        client.send(&Request::put(&stock, &json!({ "on_hand": 1_000_000 }), "200")).await;
    }
    for number in 0..USERS {
        for line in 0..LINES {
            client.send(&set_line(number, number + line, 1)).await;
        }
        let data = json!({ "referrer": "search", "theme": "dark" });
        let session = json!({
            "session_id": format!("session-{number}"), "geo_zone": "msk", "ip": "192.0.2.7",
            "user_agent": "Mozilla/5.0 (X11; Linux x86_64)", "device_type": "desktop", "data": data,
        });
        client.send(&Request::post("/v1/sessions", &format!("session-{number}"), &session)).await;
    }
    let mut orders = Vec::new();
    for number in 0..ORDERS {
        let placed = client.send(&order("regular", &format!("seed-{number}"), number)).await;
        let placed: Value = serde_json::from_slice(placed).expect("an order");
        orders.push(placed["order_id"].as_str().expect("its id").to_owned());
    }
    orders
}

pub(crate) fn product(number: usize) -> String {
    format!("/v1/products/product-{number:04}")
}

pub(crate) fn category(number: usize) -> String {
    format!("category-{}", number % CATEGORIES)
}

fn product_body(number: usize) -> Value {
    let attributes: Value = ["brand", "colour", "memory", "screen", "weight", "year"]
        .iter()
        .map(|name| ((*name).to_owned(), json!(format!("{name} of {number}"))))
        .collect();
    json!({
        "name": format!("A phone of the series {number}"),
        "category": category(number),
        "price": { "amount": format!("{}.90", 1_000 + number), "currency": "RUB" },
        "description": "A phone with a bright screen and a battery for two days. ".repeat(5),
        "attributes": attributes,
    })
}

pub(crate) fn set_line(user: usize, product: usize, quantity: usize) -> Request {
    let path = format!("/v1/users/user-{user}/cart/lines/product-{product:04}");
    Request::put(&path, &json!({ "quantity": quantity }), "200")
}

/// An order of two products.
pub(crate) fn order(user: &str, key: &str, number: usize) -> Request {
    let lines = [number, number + 1]
        .map(|it| json!({ "product_id": format!("product-{:04}", it % PRODUCTS), "quantity": 1 }));
    Request::post("/v1/orders", key, &json!({ "user_id": user, "geo_zone": "msk", "lines": lines }))
}
