//! Carts: lines, versions, guests, merging, checkout, history.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, HOUR_MS, client, money, pluck};

fn quantities(cart: &Value) -> Vec<(&str, u64)> {
    let line = |line: &'_ Value| line["quantity"].as_u64().unwrap();
    let lines = cart["lines"].as_array().unwrap();
    lines.iter().map(|item| (item["product_id"].as_str().unwrap(), line(item))).collect()
}

#[tokio::test]
async fn an_owner_without_a_cart_has_an_empty_one_of_version_0() {
    let client = client();
    for (path, kind) in [("/v1/users/u1/cart", "user"), ("/v1/sessions/s1/cart", "session")] {
        let cart = client.get(path).await.ok();
        assert_eq!(cart["cart_id"], Value::Null);
        assert_eq!((&cart["version"], &cart["lines"]), (&json!(0), &json!([])));
        assert_eq!(cart["owner"]["kind"], kind);
        assert!(cart.get("created_at").is_none() && cart.get("order_id").is_none());
        assert!(cart.as_object().unwrap().contains_key("cart_id"));
    }
}

#[tokio::test]
async fn a_line_is_added_replaced_and_removed() {
    let client = client();
    client.set_line("users/u1", "b", 2).await;
    let before = client.set_line("users/u1", "a", 1).await;
    let cart = client.set_line("users/u1", "b", 5).await;
    assert_eq!(quantities(&cart), [("a", 1), ("b", 5)]);
    assert_eq!(cart["status"], "active");
    assert!(before["version"].as_u64() < cart["version"].as_u64());
    assert_eq!(cart["owner"], json!({ "kind": "user", "id": "u1" }));
    assert_eq!(cart["created_at"], "2026-03-10T12:00:00.000Z");
    assert_eq!(cart["lines"][0]["updated_at"], "2026-03-10T12:00:00.000Z");
    assert_eq!(cart["expires_at"], "2026-04-09T12:00:00.000Z");
    assert_eq!(client.get("/v1/users/u1/cart").await.ok(), cart);

    let cart = client.delete("/v1/users/u1/cart/lines/b").await.ok();
    assert_eq!(quantities(&cart), [("a", 1)]);
    let again = client.delete("/v1/users/u1/cart/lines/b").await.ok();
    assert_eq!(again, cart);
    let empty = client.delete("/v1/users/u2/cart/lines/b").await.ok();
    assert_eq!((&empty["cart_id"], &empty["version"]), (&Value::Null, &json!(0)));
}

#[tokio::test]
async fn a_guests_cart_is_the_sessions_and_needs_no_session() {
    let client = client();
    let cart = client.set_line("sessions/s1", "a", 1).await;
    assert_eq!(cart["owner"], json!({ "kind": "session", "id": "s1" }));
    assert_eq!(cart["expires_at"], "2026-03-11T12:00:00.000Z");
    assert_eq!(client.get("/v1/users/s1/cart").await.ok()["version"], 0);
    client.pass_ms(24 * HOUR_MS);
    assert_eq!(client.get("/v1/sessions/s1/cart").await.ok()["version"], 0);
}

async fn set_if(client: &Client, tag: &str) -> crate::client::Response {
    let path = "/v1/users/u1/cart/lines/a";
    client.call(Method::PUT, path, &[("if-match", tag)], &json!({ "quantity": 1 })).await
}

#[tokio::test]
async fn if_match_holds_a_change_to_its_version() {
    let client = client();
    let problem = set_if(&client, "\"1\"").await.problem(412, "version_mismatch");
    assert_eq!(problem["current"]["version"], 0);
    assert_eq!(problem["current"]["cart_id"], Value::Null);
    let cart = set_if(&client, "\"0\"").await.ok();
    let problem = set_if(&client, "\"0\"").await.problem(412, "version_mismatch");
    assert_eq!(problem["current"], cart);
    set_if(&client, &format!("\"{}\"", cart["version"])).await.ok();
    for (method, path, body) in [
        (Method::DELETE, "/v1/users/u1/cart/lines/a", Value::Null),
        (Method::POST, "/v1/users/u1/cart/abandon", Value::Null),
        (Method::POST, "/v1/users/u1/cart/merge", json!({ "session_id": "s" })),
    ] {
        let stale = client.call(method.clone(), path, &[("if-match", "\"9\"")], &body).await;
        stale.problem(412, "version_mismatch");
        client.call(method, path, &[("if-match", "W/\"2\"")], &body).await.invalid_parameter("If-Match");
    }
    let headers = [("if-match", "\"9\""), ("idempotency-key", "k")];
    let body = json!({ "geo_zone": "msk" });
    client
        .call(Method::POST, "/v1/users/u1/cart/checkout", &headers, &body)
        .await
        .problem(412, "version_mismatch");
}

#[tokio::test]
async fn a_malformed_if_match_is_refused() {
    let client = client();
    for tag in ["7", "\"07\"", "*", "W/\"7\"", "\"x\"", "\"\"", "\"1\", \"2\""] {
        set_if(&client, tag).await.invalid_parameter("If-Match");
    }
}

#[tokio::test]
async fn an_abandoned_cart_is_closed() {
    let client = client();
    client.post("/v1/users/u1/cart/abandon", Value::Null).await.problem(409, "cart_empty");
    let open = client.set_line("users/u1", "a", 1).await;
    client.post("/v1/users/u1/cart/abandon", json!({ "why": "x" })).await.invalid_field("why");
    let cart = client.post("/v1/users/u1/cart/abandon", json!({})).await.ok();
    assert_eq!((&cart["status"], &cart["cart_id"]), (&json!("abandoned"), &open["cart_id"]));
    assert_eq!(client.get("/v1/users/u1/cart").await.ok()["version"], 0);
    client.post("/v1/users/u1/cart/abandon", Value::Null).await.problem(409, "cart_empty");
}

#[tokio::test]
async fn a_repeated_key_replays_the_first_success() {
    let client = client();
    let path = "/v1/users/u1/cart/abandon";
    client.post_keyed(path, "k1", Value::Null).await.problem(409, "cart_empty");
    client.set_line("users/u1", "a", 1).await;
    let first = client.post_keyed(path, "k1", Value::Null).await;
    assert!(!first.is_replayed());
    let next = client.set_line("users/u1", "b", 1).await;
    let again = client.post_keyed(path, "k1", json!({})).await;
    assert!(again.is_replayed());
    assert_eq!(again.ok(), first.ok());
    assert_eq!(client.get("/v1/users/u1/cart").await.ok(), next);
    client
        .post_keyed("/v1/users/u2/cart/abandon", "k1", Value::Null)
        .await
        .problem(422, "idempotency_key_reused");
    client.post_keyed(path, "bad key", Value::Null).await.invalid_parameter("Idempotency-Key");
}

#[tokio::test]
async fn each_mode_merges_its_own_way() {
    for (mode, expected) in [("sum", 7), ("max", 5), ("guest", 2), ("user", 5)] {
        let client = client();
        let user = client.set_line("users/u1", "a", 5).await;
        client.set_line("sessions/s1", "a", 2).await;
        client.set_line("sessions/s1", "new", 3).await;
        let body = json!({ "session_id": "s1", "mode": mode });
        let merged = client.post("/v1/users/u1/cart/merge", body.clone()).await.ok();
        assert_eq!(quantities(&merged["cart"]), [("a", expected), ("new", 3)], "{mode}");
        assert_eq!(merged["cart"]["cart_id"], user["cart_id"]);
        let mut changes = vec![json!({ "product_id": "new", "from": 0, "to": 3 })];
        if expected != 5 {
            changes.insert(0, json!({ "product_id": "a", "from": 5, "to": expected }));
        }
        assert_eq!(merged["changes"], json!(changes), "{mode}");
        let again = client.post("/v1/users/u1/cart/merge", body).await.ok();
        assert_eq!(again, json!({ "cart": merged["cart"], "changes": [] }));
        let guest = client.get("/v1/sessions/s1/carts").await.ok();
        assert_eq!(guest["items"][0]["status"], "abandoned");
        assert_eq!(guest["items"][0]["merged_into"], user["cart_id"]);
    }
}

#[tokio::test]
async fn a_merge_without_any_cart_returns_an_empty_one() {
    let client = client();
    let merged = client.post("/v1/users/u1/cart/merge", json!({ "session_id": "s1" })).await.ok();
    assert_eq!((&merged["cart"]["version"], &merged["changes"]), (&json!(0), &json!([])));
    client.post("/v1/users/u1/cart/merge", json!({})).await.invalid_field("session_id");
    let body = json!({ "session_id": "s1", "mode": "both" });
    client.post("/v1/users/u1/cart/merge", body).await.invalid_field("mode");
}

#[tokio::test]
async fn a_keyed_merge_is_replayed_with_its_changes() {
    let client = client();
    client.set_line("sessions/s1", "a", 2).await;
    let body = json!({ "session_id": "s1", "mode": "sum" });
    let first = client.post_keyed("/v1/users/u1/cart/merge", "k", body).await.ok();
    assert_eq!(first["changes"].as_array().unwrap().len(), 1);
    let body = json!({ "mode": "sum", "session_id": "s1" });
    let again = client.post_keyed("/v1/users/u1/cart/merge", "k", body).await;
    assert!(again.is_replayed());
    assert_eq!(again.ok(), first);
}

#[tokio::test]
async fn checkout_orders_exactly_what_the_cart_holds() {
    let client = client();
    client.stock_product("a", "10.50", 5).await;
    client.stock_product("b", "1", 5).await;
    client.set_line("users/u1", "a", 2).await;
    let cart = client.set_line("users/u1", "b", 3).await;
    let path = "/v1/users/u1/cart/checkout";
    let body = json!({
        "geo_zone": "msk", "expected_total": money("24.0"), "delivery_address": "Tverskaya 1", "payment_method": "card",
    });
    client.post(path, body.clone()).await.problem(400, "idempotency_key_required");
    let first = client.post_keyed(path, "k", body.clone()).await;
    assert!(!first.is_replayed());
    let order = first.created();
    assert_eq!(order["total"], money("24.00"));
    assert_eq!(order["delivery_address"], "Tverskaya 1");
    assert_eq!(quantities(&order), [("a", 2), ("b", 3)]);
    let again = client.post_keyed(path, "k", body.clone()).await;
    assert!(again.is_replayed());
    assert_eq!(again.created(), order);
    client.post_keyed(path, "k2", body).await.problem(409, "cart_empty");
    let carts = client.get("/v1/users/u1/carts").await.ok();
    assert_eq!(carts["items"][0]["status"], "ordered");
    assert_eq!(carts["items"][0]["order_id"], order["order_id"]);
    assert_eq!(carts["items"][0]["cart_id"], cart["cart_id"]);
}

#[tokio::test]
async fn a_refused_checkout_leaves_the_cart_and_the_key() {
    let client = client();
    let path = "/v1/users/u1/cart/checkout";
    let body = json!({ "geo_zone": "msk", "expected_total": money("10") });
    client.set_line("users/u1", "a", 2).await;
    let problem = client.post_keyed(path, "k", body.clone()).await.problem(404, "product_not_found");
    assert_eq!(problem["product_id"], "a");
    client.stock_product("a", "5.01", 1).await;
    let problem = client.post_keyed(path, "k", body.clone()).await.problem(409, "price_changed");
    assert_eq!(problem["current"], money("10.02"));
    client.patch("/v1/products/a", json!({ "price": money("5") })).await.ok();
    let problem = client.post_keyed(path, "k", body.clone()).await.problem(409, "out_of_stock");
    assert_eq!(problem["shortages"], json!([{ "product_id": "a", "requested": 2, "available": 1 }]));
    client.put("/v1/products/a/stock/msk", json!({ "on_hand": 2 })).await.ok();
    client.post_keyed(path, "k", body).await.created();
}

#[tokio::test]
async fn a_guest_cannot_check_out() {
    let client = client();
    let response =
        client.post_keyed("/v1/sessions/s1/cart/checkout", "k", json!({ "geo_zone": "msk" })).await;
    response.problem(404, "route_not_found");
}

#[tokio::test]
async fn history_and_carts_are_paged_newest_first() {
    let client = client();
    for quantity in 1..=3 {
        client.set_line("users/u1", "a", quantity).await;
        client.pass_ms(1_000);
    }
    client.delete("/v1/users/u1/cart/lines/a").await.ok();
    let first = client.get("/v1/users/u1/cart/history?limit=3").await.ok();
    let quantity = |at: usize| first["items"][at]["quantity"].as_u64().unwrap();
    assert_eq!([quantity(0), quantity(1), quantity(2)], [0, 3, 2]);
    assert_eq!(first["items"][0]["at"], "2026-03-10T12:00:03.000Z");
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = client.get(&format!("/v1/users/u1/cart/history?limit=3&cursor={cursor}")).await.ok();
    assert_eq!(second["items"].as_array().unwrap().len(), 1);
    assert_eq!(second["next_cursor"], Value::Null);
    let elsewhere = client.get(&format!("/v1/sessions/u1/cart/history?cursor={cursor}")).await;
    elsewhere.problem(400, "invalid_cursor");

    client.post("/v1/users/u1/cart/abandon", Value::Null).await;
    client.pass_ms(1_000);
    client.set_line("users/u1", "b", 1).await;
    let carts = client.get("/v1/users/u1/carts").await.ok();
    assert_eq!(pluck(&carts, "status"), ["active", "abandoned"]);
}
