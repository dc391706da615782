//! Concurrent requests: a key has one effect, a unit one buyer, a cart one order.

use http::StatusCode;
use mw_http::ServerSettings;
use mw_testkit::{Calls, Fault};
use serde_json::{Value, json};

use crate::client::{Client, Response, client, lines, order, product_body};
use crate::wire::serve;

const DUPLICATES: usize = 32;

/// Sends each request with its key; the store serves none of them before all have arrived.
async fn at_once(client: &Client, requests: Vec<(String, String, Value)>) -> Vec<Response> {
    client.store.fail(Calls::All, Fault::Hang);
    let sent: Vec<_> = requests
        .into_iter()
        .map(|(path, key, body)| {
            let client = client.clone();
            tokio::spawn(async move { client.post_keyed(&path, &key, body).await })
        })
        .collect();
    client.until(&format!("mw_http_requests_in_flight {}", sent.len())).await;
    client.store.heal();
    let mut responses = Vec::new();
    for response in sent {
        responses.push(response.await.unwrap());
    }
    responses
}

/// Sends one request many times under one key; returns the body that all of them got.
async fn duplicates(client: &Client, path: &str, body: Value, status: StatusCode) -> Value {
    let requests = vec![(path.to_owned(), "k".to_owned(), body); DUPLICATES];
    let responses = at_once(client, requests).await;
    let firsts =
        responses.iter().filter(|response| !response.headers.contains_key("idempotent-replayed")).count();
    let repeats = responses.iter().filter(|response| response.is_replayed()).count();
    assert_eq!((firsts, repeats), (1, DUPLICATES - 1));
    for response in &responses {
        assert_eq!((response.status, &response.json), (status, &responses[0].json), "{}", response.text);
    }
    responses[0].json.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_requests_place_an_order_once() {
    let client = client();
    client.stock_product("p1", "1", 100).await;
    let placed = duplicates(&client, "/v1/orders", order("u1", &[("p1", 3)]), StatusCode::CREATED).await;
    assert_eq!(client.level("p1").await, (100, 3, 97));
    assert_eq!(client.get("/v1/users/u1/orders").await.ok()["items"], json!([placed]));
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_checkouts_order_the_cart_once() {
    let client = client();
    client.stock_product("p1", "1", 100).await;
    client.set_line("users/u1", "p1", 2).await;
    let path = "/v1/users/u1/cart/checkout";
    let placed = duplicates(&client, path, json!({ "geo_zone": "msk" }), StatusCode::CREATED).await;
    assert_eq!(client.level("p1").await, (100, 2, 98));
    assert_eq!(client.get("/v1/users/u1/orders").await.ok()["items"], json!([placed]));
    let carts = client.get("/v1/users/u1/carts").await.ok();
    assert_eq!(carts["items"].as_array().unwrap().len(), 1);
    assert_eq!(carts["items"][0]["order_id"], placed["order_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_requests_reserve_once() {
    let client = client();
    client.stock_product("p1", "1", 100).await;
    let body = json!({ "geo_zone": "msk", "lines": lines(&[("p1", 4)]) });
    let held = duplicates(&client, "/v1/reservations", body, StatusCode::CREATED).await;
    assert_eq!(client.level("p1").await, (100, 4, 96));
    let path = format!("/v1/reservations/{}", held["reservation_id"].as_str().unwrap());
    client.delete(&path).await.no_content();
    assert_eq!(client.level("p1").await, (100, 0, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_adjustments_add_up_once() {
    let client = client();
    client.put("/v1/products/p1", product_body("phones", "1")).await.created();
    let path = "/v1/products/p1/stock/msk/adjust";
    let stock = duplicates(&client, path, json!({ "delta": 7, "reason": "delivery" }), StatusCode::OK).await;
    assert_eq!(stock["on_hand"], 7);
    assert_eq!(client.level("p1").await, (7, 0, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_concurrent_checkouts_one_wins() {
    let client = client();
    client.stock_product("p1", "1", 100).await;
    for round in 1..=16 {
        let owner = format!("users/u{round}");
        client.set_line(&owner, "p1", 1).await;
        let path = format!("/v1/{owner}/cart/checkout");
        let checkout = |name: &str| (path.clone(), format!("{name}{round}"), json!({ "geo_zone": "msk" }));
        let mut responses = at_once(&client, vec![checkout("a"), checkout("b")]).await;
        responses.sort_by_key(|response| response.status);
        responses.pop().unwrap().problem(409, "cart_empty");
        let placed = responses.pop().unwrap().created();
        assert_eq!(client.get(&format!("/v1/{owner}/orders")).await.ok()["items"], json!([placed]));
        assert_eq!(client.level("p1").await, (100, round, 100 - round));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_orders_never_sell_more_than_there_is() {
    let running = serve(ServerSettings::default()).await;
    let client = &running.client;
    client.stock_product("p1", "1", 32).await;
    client.store.fail(Calls::All, Fault::Hang);
    let mut buyers = Vec::new();
    for buyer in 0..64 {
        let body = order(&format!("u{buyer}"), &[("p1", 1)]).to_string();
        let mut wire = running.connect().await;
        wire.send(&format!(
            "POST /v1/orders HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nidempotency-key: k{buyer}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
        buyers.push(wire);
    }
    client.until("mw_http_requests_in_flight 64").await;
    client.store.heal();
    let mut order_ids = Vec::new();
    for wire in &mut buyers {
        let reply = wire.reply().await;
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        if reply.status == 201 {
            order_ids.push(body["order_id"].as_str().unwrap().to_owned());
        } else {
            assert_eq!((reply.status, &body["code"]), (409, &json!("out_of_stock")), "{body}");
            let shortage = json!([{ "product_id": "p1", "requested": 1, "available": 0 }]);
            assert_eq!(body["shortages"], shortage);
        }
    }
    order_ids.sort_unstable();
    order_ids.dedup();
    assert_eq!(order_ids.len(), 32);
    assert_eq!(client.level("p1").await, (32, 32, 0));
}
