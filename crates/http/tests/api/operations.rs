//! Health, readiness and metrics.

use http::Method;
use mw_testkit::faults::CAUSE;
use mw_testkit::{Calls, Fault};
use serde_json::{Value, json};

use crate::client::client;

#[tokio::test]
async fn health_is_the_process_and_readiness_the_store() {
    let client = client();
    let ready = client.get("/readyz").await.ok();
    assert_eq!((&ready["status"], &ready["lost_share"]), (&json!("ready"), &json!(0.0)));
    assert!(ready["clock_skew_ms"].is_i64() && ready.get("reason").is_none(), "{ready}");
    client.store.fail(Calls::All, Fault::Unavailable);
    let response = client.get("/readyz").await;
    assert_eq!((response.status.as_u16(), &response.json["status"]), (503, &json!("unavailable")));
    assert!(!response.text.contains(CAUSE), "an internal cause leaks: {}", response.text);
    client.store.fail(Calls::All, Fault::NotServing);
    let response = client.get("/readyz").await;
    assert_eq!((response.status.as_u16(), &response.json["status"]), (503, &json!("unavailable")));
    assert!(response.json["reason"].as_str().unwrap().contains(CAUSE), "{}", response.text);
    assert_eq!(response.headers["retry-after"], "1");
    assert_eq!(client.get("/healthz").await.ok()["status"], "ok");
    assert_eq!(client.call(Method::HEAD, "/healthz", &[], &Value::Null).await.text, "");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_not_ready() {
    let client = client();
    client.store.fail(Calls::All, Fault::Hang);
    let response = client.get("/readyz").await;
    assert_eq!((response.status.as_u16(), &response.json["status"]), (503, &json!("unavailable")));
}

#[tokio::test]
async fn metrics_count_routes_and_not_paths() {
    let client = client();
    for user in ["u1", "u2"] {
        client.set_line(&format!("users/{user}"), "p1", 1).await;
    }
    client.put("/v1/users/u1/cart/lines/p1", json!({ "quantity": 0 })).await.invalid_field("quantity");
    client.get("/anything/at/all").await;
    let response = client.get("/metrics").await;
    assert_eq!(response.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let route = r#"method="PUT",route="/v1/users/{user_id}/cart/lines/{product_id}""#;
    for expected in [
        format!("mw_http_requests_total{{class=\"2xx\",{route}}} 2"),
        format!("mw_http_requests_total{{class=\"4xx\",{route}}} 1"),
        format!("mw_http_request_duration_seconds_count{{{route}}} 3"),
        "mw_http_requests_total{class=\"4xx\",method=\"any\",route=\"unmatched\"} 1".to_owned(),
        "mw_http_requests_in_flight 0".to_owned(),
    ] {
        assert!(response.text.contains(&expected), "{expected}\n{}", response.text);
    }
    assert!(!response.text.contains("u1"), "a path became a label");
}
