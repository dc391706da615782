//! Tokens, roles and rates.

use http::Method;
use mw_http::{Role, ServerSettings, Token, Tokens};
use serde_json::{Value, json};

use crate::client::{Client, Response, client, client_with, product_body};

fn guarded() -> Client {
    let token = |role, secret: &str, rate_limit| Token { role, secret: secret.into(), rate_limit };
    let tokens = Tokens(vec![
        token(Role::Storefront, "front", None),
        token(Role::Backoffice, "back", None),
        token(Role::Operator, "ops", None),
        token(Role::Auditor, "audit", None),
        token(Role::Storefront, "slow", Some(1)),
    ]);
    client_with(&ServerSettings::default(), &tokens)
}

async fn call(client: &Client, method: Method, path: &str, token: &str) -> Response {
    let value = format!("Bearer {token}");
    client.call(method, path, &[("authorization", &value)], &Value::Null).await
}

/// Whether the role is enough; the rest of the response does not matter here.
async fn may(client: &Client, method: &str, path: &str, token: &str) -> bool {
    let response = call(client, method.parse().unwrap(), path, token).await;
    assert_ne!(response.status, 401, "{method} {path}");
    if response.status == 403 {
        response.problem(403, "forbidden");
        return false;
    }
    true
}

#[tokio::test]
async fn without_a_token_only_the_open_routes_respond() {
    let client = guarded();
    for path in ["/healthz", "/readyz", "/openapi.json", "/docs"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    for path in ["/v1/users/u1/cart", "/v1/categories", "/metrics"] {
        let response = client.get(path).await;
        assert_eq!(response.headers["www-authenticate"], "Bearer");
        response.problem(401, "unauthorized");
        call(&client, Method::GET, path, "nope").await.problem(401, "unauthorized");
    }
    client.get("/nope").await.problem(404, "route_not_found");
}

#[tokio::test]
async fn each_role_may_do_what_it_is_for() {
    let client = guarded();
    let order = "/v1/orders/01890a5d-ac96-774b-bcce-b302099a8057";
    let order_status = format!("{order}/status");
    let cancel = "/v1/users/u1/orders/01890a5d-ac96-774b-bcce-b302099a8057/cancel";
    let reservation = "/v1/reservations/01890a5d-ac96-774b-bcce-b302099a8057";
    for (method, path) in [
        ("GET", "/v1/users/u1/cart"),
        ("PUT", "/v1/sessions/s1/cart/lines/p1"),
        ("POST", "/v1/users/u1/cart/checkout"),
        ("POST", "/v1/sessions"),
        ("DELETE", "/v1/users/u1/sessions"),
        ("POST", "/v1/orders"),
        ("GET", order),
        ("POST", cancel),
        ("GET", "/v1/users/u1/orders"),
        ("GET", "/v1/products/p1"),
        ("GET", "/v1/products?category=a"),
        ("GET", "/v1/products/p1/stock/msk"),
        ("POST", "/v1/reservations"),
        ("DELETE", reservation),
    ] {
        for token in ["front", "back", "ops"] {
            assert!(may(&client, method, path, token).await, "{method} {path} as {token}");
        }
    }
    for (method, path) in [
        ("PUT", "/v1/products/p1"),
        ("PATCH", "/v1/products/p1"),
        ("DELETE", "/v1/products/p1"),
        ("POST", "/v1/products/import"),
        ("PUT", "/v1/products/p1/stock/msk"),
        ("POST", "/v1/products/p1/stock/msk/adjust"),
        ("POST", order_status.as_str()),
        ("GET", "/v1/orders?date=2026-01-01"),
        ("GET", "/v1/reports/sales?from=2026-01-01&to=2026-01-02"),
        ("GET", "/v1/reports/abandoned-carts"),
    ] {
        assert!(!may(&client, method, path, "front").await, "{method} {path}");
        assert!(may(&client, method, path, "back").await, "{method} {path}");
    }
    assert!(!may(&client, "GET", "/metrics", "back").await);
    assert!(may(&client, "GET", "/metrics", "ops").await);
}

#[tokio::test]
async fn a_token_over_its_rate_limit_does_not_affect_the_others() {
    let client = guarded();
    let path = "/v1/users/u1/cart";
    call(&client, Method::GET, path, "slow").await.ok();
    let response = call(&client, Method::GET, path, "slow").await;
    assert_eq!(response.headers["retry-after"], "1");
    response.problem(429, "rate_limited");
    call(&client, Method::GET, path, "front").await.ok();
}

#[tokio::test]
async fn without_configured_tokens_every_call_is_allowed() {
    let client = client();
    assert_eq!(client.get("/metrics").await.status, 200);
}

#[tokio::test]
async fn an_auditor_reads_without_personal_data_and_changes_nothing() {
    let client = guarded();
    let put = async |path: &str, body: Value| {
        client.call(Method::PUT, path, &[("authorization", "Bearer ops")], &body).await
    };
    let post = async |path: &str, body: Value| {
        let headers = [("authorization", "Bearer ops"), ("idempotency-key", path)];
        client.call(Method::POST, path, &headers, &body).await
    };
    put("/v1/products/p1", product_body("phones", "10")).await.created();
    put("/v1/products/p1/stock/msk", json!({ "on_hand": 5 })).await.ok();
    let order = json!({
        "user_id": "anna", "geo_zone": "msk", "lines": [{ "product_id": "p1", "quantity": 1 }],
        "delivery_address": "Tverskaya 1", "payment_method": "card 4242",
    });
    let order = post("/v1/orders", order).await.created();
    let session = json!({ "session_id": "s1", "user_id": "anna", "ip": "10.0.0.7", "data": { "k": "v" } });
    post("/v1/sessions", session).await.created();
    put("/v1/users/anna/cart/lines/p1", json!({ "quantity": 1 })).await.ok();

    let day = order["created_at"].as_str().unwrap().split('T').next().unwrap().to_owned();
    let list = call(&client, Method::GET, &format!("/v1/orders?date={day}"), "audit").await;
    for secret in ["anna", "Tverskaya", "4242"] {
        assert!(!list.text.contains(secret), "{}", list.text);
    }
    let listed = list.ok()["items"][0].clone();
    assert_eq!((&listed["order_id"], &listed["total"]), (&order["order_id"], &order["total"]));
    assert_eq!(listed["delivery_address"], "***");
    let sessions = call(&client, Method::GET, "/v1/users/anna/sessions", "audit").await;
    assert!(!sessions.text.contains("10.0.0.7") && !sessions.text.contains("anna"), "{}", sessions.text);
    assert_eq!(sessions.ok()["items"][0]["user_id"], listed["user_id"], "the same pseudonym everywhere");
    let cart = call(&client, Method::GET, "/v1/users/anna/cart", "audit").await.ok();
    assert_eq!(cart["owner"]["id"], listed["user_id"]);

    for (method, path) in [
        ("PUT", "/v1/users/anna/cart/lines/p1"),
        ("POST", "/v1/orders"),
        ("POST", "/v1/products/import"),
        ("PUT", "/v1/products/p1/stock/msk"),
        ("DELETE", "/v1/sessions/s1"),
    ] {
        assert!(!may(&client, method, path, "audit").await, "{method} {path}");
    }
    for path in ["/metrics", "/v1/reports/sales?from=2026-01-01&to=2026-01-02", "/v1/reports/abandoned-carts"]
    {
        assert!(may(&client, "GET", path, "audit").await, "{path}");
    }
}

#[tokio::test]
async fn without_tokens_requests_of_other_sites_are_refused() {
    let client = client();
    let get = async |headers: &[(&str, &str)]| client.text(Method::GET, "/v1/categories", headers, "").await;
    get(&[("host", "127.0.0.1:8080")]).await.ok();
    get(&[("host", "localhost"), ("origin", "http://localhost:3000")]).await.ok();
    get(&[("host", "shop.example")]).await.problem(403, "forbidden");
    get(&[("host", "localhost"), ("origin", "https://evil.example")]).await.problem(403, "forbidden");
    let guarded = guarded();
    let headers = [("host", "shop.example"), ("authorization", "Bearer front")];
    guarded.text(Method::GET, "/v1/categories", &headers, "").await.ok();
}
