//! Export, audit and backup of the running shop, and who may ask for them.

use axum::body::Body;
use http::{Method, Request};
use http_body_util::BodyExt;
use mw_http::{Role, ServerSettings, Token, Tokens};
use mw_testkit::faults::{Calls, Fault};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::client::{Client, client, client_with};

async fn exported(client: &Client) -> String {
    let response = client.get("/v1/operations/export").await;
    assert_eq!(response.status, 200, "{}", response.text);
    assert_eq!(response.headers["content-type"], "application/x-ndjson");
    response.text
}

#[tokio::test]
async fn an_export_is_the_whole_shop_line_by_line_also_compressed() {
    let client = client();
    client.stock_product("p1", "10", 5).await;
    client.order("k", "p1", 2).await.created();
    client.set_line("users/u2", "p1", 1).await;
    let text = exported(&client).await;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.first().unwrap()["format"], "mobile-world");
    assert_eq!(lines.last().unwrap()["end"]["records"], lines.len() - 2);
    for kind in ["product", "stock", "order", "cart", "cart_change"] {
        assert!(lines.iter().any(|line| line.get(kind).is_some()), "{kind} is not in {text}");
    }

    let request =
        Request::get("/v1/operations/export").header("accept-encoding", "gzip, zstd").body(Body::empty());
    let response = client.router().oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "zstd");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let plain = String::from_utf8(zstd::stream::decode_all(&body[..]).unwrap()).unwrap();
    let body = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!(body(&plain), body(&text), "all but the header");
}

#[tokio::test]
async fn an_export_that_fails_has_no_last_line() {
    let client = client();
    client.stock_product("p1", "10", 5).await;
    client.store.fail(Calls::Named("export"), Fault::Unavailable);
    client.get("/v1/operations/export").await.problem(503, "store_unavailable");
    client.store.heal();
    assert!(exported(&client).await.ends_with("}}\n"));
}

#[tokio::test]
async fn the_audit_of_a_running_shop_counts_levels_and_drifts() {
    let client = client();
    client.stock_product("p1", "10", 5).await;
    client.order("k", "p1", 2).await.created();
    let audit = client.get("/v1/operations/stock/audit").await.ok();
    assert_eq!((&audit["levels"], &audit["drifts"]), (&json!(1), &json!([])));
    assert!(audit["movements"].as_u64().unwrap() >= 2, "{audit}");
}

#[tokio::test]
async fn a_backup_is_asked_for_with_a_directory_and_an_engine_without_one_says_so() {
    let client = client();
    assert_eq!(client.get("/v1/operations/backup").await.ok()["state"], "none");
    client.post("/v1/operations/backup", json!({})).await.invalid_field("to");
    client.post("/v1/operations/backup", json!({ "to": "/x", "more": 1 })).await.invalid_field("more");
    let dry = client.post("/v1/operations/backup", json!({ "to": "relative" })).await.ok();
    assert_eq!(dry["state"], "none", "a dry run starts nothing");
    let refused = client.post("/v1/operations/backup", json!({ "to": "relative", "confirm": true })).await;
    if std::env::var("MW_TEST_ENGINE").is_ok_and(|engine| engine == "embedded") {
        refused.invalid_field("to");
    } else {
        let problem = refused.problem(503, "store_unavailable");
        assert!(problem["detail"].as_str().unwrap().contains("embedded engine"), "{problem}");
    }
}

#[tokio::test]
async fn operators_export_and_auditors_only_audit() {
    let token = |role, secret: &str| Token { role, secret: secret.into(), rate_limit: None };
    let tokens = Tokens(vec![
        token(Role::Backoffice, "back"),
        token(Role::Operator, "ops"),
        token(Role::Auditor, "audit"),
    ]);
    let client = client_with(&ServerSettings::default(), &tokens);
    let status = async |method: Method, path: &str, token: &str| {
        let headers = [("authorization", format!("Bearer {token}"))];
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        client.call(method, path, &headers, &json!({})).await.status.as_u16()
    };
    for path in ["/v1/operations/export", "/v1/operations/stock/audit", "/v1/operations/backup"] {
        assert_eq!(status(Method::GET, path, "back").await, 403, "{path}");
        assert_eq!(status(Method::GET, path, "ops").await, 200, "{path}");
    }
    assert_eq!(status(Method::GET, "/v1/operations/export", "audit").await, 403);
    assert_eq!(status(Method::GET, "/v1/operations/stock/audit", "audit").await, 200);
    assert_eq!(status(Method::POST, "/v1/operations/backup", "audit").await, 403);
    assert_eq!(status(Method::POST, "/v1/operations/backup", "back").await, 403);
}
