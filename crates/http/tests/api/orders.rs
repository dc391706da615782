//! Orders: placing, statuses, events, lists.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, HOUR_MS, client, lines, money, order, pluck};

async fn placed(client: &Client, key: &str) -> String {
    let order = client.order(key, "p1", 1).await.created();
    order["order_id"].as_str().unwrap().to_owned()
}

async fn set_status(client: &Client, order_id: &str, status: &str) -> crate::client::Response {
    client.post(&format!("/v1/orders/{order_id}/status"), json!({ "status": status })).await
}

#[tokio::test]
async fn an_order_has_the_requested_lines_at_the_catalogues_prices() {
    let client = client();
    client.stock_product("p1", "10.50", 9).await;
    client.stock_product("p2", "0.10", 9).await;
    let mut body = order("u1", &[("p2", 3), ("p1", 1), ("p2", 1)]);
    body["expected_total"] = money("10.9");
    body["delivery_address"] = json!("Тверская, 1");
    let order = client.post_keyed("/v1/orders", "k", body).await.created();
    let line = |id: &str, price: &str, quantity: u32| json!({ "product_id": id, "name": "A phone", "price": money(price), "quantity": quantity });
    assert_eq!(order["lines"], json!([line("p2", "0.10", 4), line("p1", "10.50", 1)]));
    assert_eq!((&order["total"], &order["status"]), (&money("10.90"), &json!("created")));
    assert_eq!(
        (&order["user_id"], &order["geo_zone"], &order["version"]),
        (&json!("u1"), &json!("msk"), &json!(1))
    );
    assert_eq!(order["delivery_address"], "Тверская, 1");
    assert!(order.get("payment_method").is_none());
    let path = format!("/v1/orders/{}", order["order_id"].as_str().unwrap());
    assert_eq!(client.get(&path).await.ok(), order);
    assert_eq!(client.level("p2").await, (9, 4, 5));
}

#[tokio::test]
async fn a_key_orders_once_for_json_equal_bodies() {
    let client = client();
    client.stock_product("p1", "1", 9).await;
    client.post("/v1/orders", order("u1", &[("p1", 1)])).await.problem(400, "idempotency_key_required");
    let first = client.order("k", "p1", 1).await.created();
    let spaced = r#" { "lines" : [ {"quantity":1,"product_id":"p1"} ] , "geo_zone":"msk", "user_id":"u1" } "#;
    let again = client.text(Method::POST, "/v1/orders", &[("idempotency-key", "k")], spaced).await;
    assert!(again.is_replayed());
    assert_eq!(again.created(), first);
    client.order("k", "p1", 2).await.problem(422, "idempotency_key_reused");
    assert_eq!(client.level("p1").await, (9, 1, 8));
}

#[tokio::test]
async fn a_replay_shows_the_order_as_it_was_placed() {
    let client = client();
    client.stock_product("p1", "1", 9).await;
    let first = client.order("k", "p1", 1).await.created();
    set_status(&client, first["order_id"].as_str().unwrap(), "paid").await.ok();
    assert_eq!(client.order("k", "p1", 1).await.created(), first);
}

#[tokio::test]
async fn a_refused_order_leaves_nothing_and_its_key_free() {
    let client = client();
    let problem = client.order("k", "p1", 2).await.problem(404, "product_not_found");
    assert_eq!(problem["product_id"], "p1");
    client.stock_product("p1", "5", 1).await;
    let mut body = order("u1", &[("p1", 2)]);
    body["expected_total"] = money("9.99");
    let problem = client.post_keyed("/v1/orders", "k", body).await.problem(409, "price_changed");
    assert_eq!(problem["current"], money("10.00"));
    let problem = client.order("k", "p1", 2).await.problem(409, "out_of_stock");
    assert_eq!(problem["shortages"], json!([{ "product_id": "p1", "requested": 2, "available": 1 }]));
    assert_eq!(client.level("p1").await, (1, 0, 1));
    assert_eq!(client.get("/v1/users/u1/orders").await.ok()["items"], json!([]));
    client.put("/v1/products/p1/stock/msk", json!({ "on_hand": 2 })).await.ok();
    client.order("k", "p1", 2).await.created();
}

#[tokio::test]
async fn units_move_with_the_status() {
    let client = client();
    client.stock_product("p1", "1", 10).await;
    let id = placed(&client, "k1").await;
    assert_eq!(client.level("p1").await, (10, 1, 9));
    let paid = set_status(&client, &id, "paid").await.ok();
    assert_eq!((&paid["status"], &paid["version"]), (&json!("paid"), &json!(2)));
    assert_eq!(client.level("p1").await, (9, 0, 9));
    for status in ["paid", "shipped", "delivered"] {
        set_status(&client, &id, status).await.ok();
    }
    let problem = set_status(&client, &id, "cancelled").await.problem(409, "illegal_transition");
    assert_eq!((&problem["from"], &problem["to"]), (&json!("delivered"), &json!("cancelled")));
    set_status(&client, &id, "returned").await.ok();
    assert_eq!(client.level("p1").await, (10, 0, 10));
    set_status(&client, &id, "sold").await.invalid_field("status");
    set_status(&client, "01890a5d-ac96-774b-bcce-b302099a8057", "paid").await.problem(404, "order_not_found");
}

#[tokio::test]
async fn a_status_change_honours_its_version_and_its_key() {
    let client = client();
    client.stock_product("p1", "1", 10).await;
    let path = format!("/v1/orders/{}/status", placed(&client, "k1").await);
    let body = json!({ "status": "paid", "note": "card" });
    let stale = client.call(Method::POST, &path, &[("if-match", "\"2\"")], &body).await;
    assert_eq!(stale.problem(412, "version_mismatch")["current"]["version"], 1);
    client.call(Method::POST, &path, &[("if-match", "7")], &body).await.invalid_parameter("If-Match");
    let headers = [("if-match", "\"1\""), ("idempotency-key", "s1")];
    let first = client.call(Method::POST, &path, &headers, &body).await.ok();
    let again = client.call(Method::POST, &path, &headers, &body).await;
    assert!(again.is_replayed());
    assert_eq!(again.ok(), first);
}

#[tokio::test]
async fn events_are_listed_newest_first() {
    let client = client();
    client.stock_product("p1", "1", 10).await;
    let id = placed(&client, "k1").await;
    client.pass_ms(1_000);
    client.post(&format!("/v1/orders/{id}/status"), json!({ "status": "paid", "note": "card" })).await.ok();
    let events = client.get(&format!("/v1/orders/{id}/events")).await.ok();
    assert_eq!(
        events,
        json!({
            "items": [
                { "at": "2026-03-10T12:00:01.000Z", "type": "status", "from": "created", "to": "paid", "note": "card" },
                { "at": "2026-03-10T12:00:00.000Z", "type": "created", "to": "created" },
            ],
            "next_cursor": null,
        })
    );
    let first = client.get(&format!("/v1/orders/{id}/events?limit=1")).await.ok();
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = client.get(&format!("/v1/orders/{id}/events?limit=1&cursor={cursor}")).await.ok();
    assert_eq!((&second["items"][0]["type"], &second["next_cursor"]), (&json!("created"), &Value::Null));
    let missing = "/v1/orders/01890a5d-ac96-774b-bcce-b302099a8057";
    client.get(missing).await.problem(404, "order_not_found");
    client.get(&format!("{missing}/events")).await.problem(404, "order_not_found");
}

#[tokio::test]
async fn a_user_cancels_only_their_own_order() {
    let client = client();
    client.stock_product("p1", "1", 10).await;
    let id = placed(&client, "k1").await;
    client
        .post(&format!("/v1/users/u2/orders/{id}/cancel"), Value::Null)
        .await
        .problem(404, "order_not_found");
    let path = format!("/v1/users/u1/orders/{id}/cancel");
    let cancelled = client.post_keyed(&path, "c", json!({ "note": "changed my mind" })).await.ok();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(client.level("p1").await, (10, 0, 10));
    client.post(&path, Value::Null).await.ok();
    let events = client.get(&format!("/v1/orders/{id}/events")).await.ok();
    assert_eq!(events["items"][0]["note"], "changed my mind");
    assert_eq!(events["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn an_object_id_is_accepted_as_its_uuid() {
    let client = client();
    let problem = client.get("/v1/orders/507f1f77bcf86cd799439011").await.problem(404, "order_not_found");
    assert!(problem["detail"].as_str().unwrap().contains("507f1f77-bcf8-86cd-8799-439011000000"));
    for bad in ["507f1f77bcf86cd79943901", "507f1f77bcf86cd79943901z", "1", "%ff"] {
        let problem = client.get(&format!("/v1/orders/{bad}")).await.problem(400, "invalid_parameter");
        assert!(problem["parameter"].is_string());
    }
}

#[tokio::test]
async fn a_users_orders_are_newest_first_within_a_period() {
    let client = client();
    client.stock_product("p1", "1", 10).await;
    let mut ids = Vec::new();
    for key in ["k1", "k2", "k3"] {
        ids.push(placed(&client, key).await);
        client.pass_ms(24 * HOUR_MS);
    }
    let list = async |query: &str| client.get(&format!("/v1/users/u1/orders{query}")).await;
    let all = list("").await.ok();
    assert_eq!(pluck(&all, "order_id"), [&ids[2], &ids[1], &ids[0]]);
    assert_eq!(pluck(&list("?from=2026-03-11").await.ok(), "order_id"), [&ids[2], &ids[1]]);
    assert_eq!(pluck(&list("?to=2026-03-11").await.ok(), "order_id"), [&ids[0]]);
    let exact = list("?from=2026-03-11T12:00:00Z&to=2026-03-12T15:00:00%2B03:00").await.ok();
    assert_eq!(pluck(&exact, "order_id"), [&ids[1]]);
    let first = list("?limit=2").await.ok();
    let cursor = first["next_cursor"].as_str().unwrap();
    assert_eq!(pluck(&list(&format!("?limit=2&cursor={cursor}")).await.ok(), "order_id"), [&ids[0]]);
    list(&format!("?from=2026-03-11&cursor={cursor}")).await.problem(400, "invalid_cursor");
    list("?from=yesterday").await.invalid_parameter("from");
    list("?from=2026-03-11&to=2026-03-10").await.invalid_parameter("to");
    list("?geo_zone=msk").await.invalid_parameter("geo_zone");
}

#[tokio::test]
async fn orders_are_listed_by_day_period_and_zone() {
    let client = client();
    client.stock_product("p1", "1", 10).await;
    client.put("/v1/products/p1/stock/spb", json!({ "on_hand": 5 })).await.ok();
    let msk = placed(&client, "k1").await;
    client.pass_ms(1_000);
    let body = json!({ "user_id": "u2", "geo_zone": "spb", "lines": lines(&[("p1", 1)]) });
    let spb = client.post_keyed("/v1/orders", "k2", body).await.created();
    let spb = spb["order_id"].as_str().unwrap();
    let list = async |query: &str| client.get(&format!("/v1/orders{query}")).await;
    assert_eq!(pluck(&list("?date=2026-03-10").await.ok(), "order_id"), [spb, &msk]);
    assert_eq!(pluck(&list("?date=2026-03-10&geo_zone=msk").await.ok(), "order_id"), [&msk]);
    assert_eq!(list("?date=2026-03-11").await.ok()["items"], json!([]));
    let period = list("?from=2026-03-01&to=2026-04-01&geo_zone=spb").await.ok();
    assert_eq!(pluck(&period, "order_id"), [spb]);
    for (query, parameter) in [
        ("", "from"),
        ("?from=2026-03-01", "to"),
        ("?to=2026-03-01", "from"),
        ("?from=2026-03-01&to=2026-04-01T00:00:01Z", "to"),
        ("?from=2026-03-02&to=2026-03-01", "to"),
        ("?date=2026-03-10&from=2026-03-01", "date"),
        ("?date=2026-3-1", "date"),
        ("?date=2026-02-30", "date"),
        ("?date=2026-03-10&geo_zone=", "geo_zone"),
        ("?date=2026-03-10&status=paid", "status"),
    ] {
        list(query).await.invalid_parameter(parameter);
    }
}
