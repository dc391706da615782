//! Codes of a failing store, a missing role and an unknown route; and that the list of codes is closed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use mw_http::{Code, ServerSettings, Tokens};
use mw_testkit::faults::CAUSE;
use mw_testkit::{Calls, Fault};
use serde_json::{Value, json};

use crate::client::{client, client_on};
use crate::engine::instant_store;

const CART: &str = "/v1/users/u1/cart";
const LINE: &str = "/v1/users/u1/cart/lines/p1";

#[tokio::test]
async fn each_store_error_has_its_code() {
    let client = client();
    for (fault, status, code, retry_after) in [
        (Fault::Unavailable, 503, "store_unavailable", Some("1")),
        (Fault::Overloaded, 503, "overloaded", Some("1")),
        (Fault::AmbiguousNotDone, 504, "outcome_unknown", None),
        (Fault::Corrupt, 500, "internal", None),
    ] {
        client.store.fail(Calls::All, fault);
        let response = client.put(LINE, json!({ "quantity": 1 })).await;
        assert!(!response.text.contains(CAUSE), "{}", response.text);
        assert_eq!(response.headers.get("retry-after").map(|value| value.to_str().unwrap()), retry_after);
        response.problem(status, code);
    }
}

#[tokio::test]
async fn a_panic_is_a_plain_500_and_the_next_request_is_served() {
    let client = client();
    client.store.fail(Calls::All, Fault::Panic);
    let response = client.get(CART).await;
    assert!(!response.text.contains(CAUSE), "{}", response.text);
    response.problem(500, "internal");
    client.store.heal();
    client.get(CART).await.ok();
    assert!(client.get("/metrics").await.text.contains("mw_http_panics_total 1"));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_times_out_is_unavailable_and_a_write_unknown() {
    let client = client();
    client.store.fail(Calls::All, Fault::Hang);
    let response = client.get(CART).await;
    assert_eq!(response.headers["retry-after"], "1");
    response.problem(503, "store_unavailable");
    client.put(LINE, json!({ "quantity": 1 })).await.problem(504, "outcome_unknown");
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_limit_are_shed_and_probes_are_not() {
    let settings = ServerSettings {
        max_in_flight: 2,
        request_timeout: Duration::from_secs(1),
        ..ServerSettings::default()
    };
    let client = client_on(instant_store(), &settings, &Tokens::default());
    client.store.fail(Calls::All, Fault::Hang);
    let hanging: Vec<_> = (0..2)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get(CART).await })
        })
        .collect();
    while !client.get("/metrics").await.text.contains("mw_http_requests_in_flight 2") {
        tokio::task::yield_now().await;
    }
    let response = client.get(CART).await;
    assert_eq!(response.headers["retry-after"], "1");
    response.problem(503, "overloaded");
    assert_eq!(client.get("/healthz").await.status, 200);
    for hung in hanging {
        hung.await.unwrap().problem(503, "store_unavailable");
    }
    client.store.heal();
    client.get(CART).await.ok();
    assert!(client.get("/metrics").await.text.contains("mw_http_requests_shed_total 1"));
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems_too() {
    let client = client();
    for path in ["/", "/v1", "/v1/users", "/v1/users/u1/cart/", "/v2/orders", "/docs/nope.js"] {
        client.get(path).await.problem(404, "route_not_found");
    }
    let response = client.call(Method::PATCH, LINE, &[], &json!({})).await;
    assert_eq!(response.headers["allow"], "PUT,DELETE");
    response.problem(405, "method_not_allowed");
    let response = client.call(Method::POST, CART, &[], &Value::Null).await;
    assert_eq!(response.headers["allow"], "GET,HEAD");
    response.problem(405, "method_not_allowed");
    client.call(Method::OPTIONS, "/v1/orders", &[], &Value::Null).await.problem(405, "method_not_allowed");
}

#[tokio::test]
async fn calls_without_parameters_refuse_them() {
    let client = client();
    client.get("/v1/users/u1/cart?fresh=true").await.invalid_parameter("fresh");
    client
        .call(Method::PUT, &format!("{LINE}?x=1"), &[], &json!({ "quantity": 1 }))
        .await
        .invalid_parameter("x");
    client.get("/v1/users/u1/cart?").await.ok();
}

#[tokio::test]
async fn a_request_id_is_kept_or_generated() {
    let client = client();
    let response = client.call(Method::GET, "/nope", &[("x-request-id", "shop-42")], &Value::Null).await;
    assert_eq!(response.headers["x-request-id"], "shop-42");
    assert_eq!(response.problem(404, "route_not_found")["request_id"], "shop-42");
    let response = client.call(Method::GET, CART, &[("x-request-id", "a b")], &Value::Null).await;
    assert_eq!(response.headers["x-request-id"].len(), 16);
    assert_eq!(response.headers["cache-control"], "no-store");
}

/// Collects the log while it is in scope.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_internal_cause_is_logged_once_and_not_sent_to_the_client() {
    let client = client();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let guard = tracing::subscriber::set_default(subscriber);
    client.get(CART).await.ok();
    client.store.fail(Calls::All, Fault::Corrupt);
    client
        .call(Method::GET, CART, &[("x-request-id", "find-me")], &Value::Null)
        .await
        .problem(500, "internal");
    drop(guard);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    for expected in ["ERROR", "find-me", CAUSE, "/v1/users/{user_id}/cart", "GET", "status=500"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// A new code needs a change of the HTTP contract first.
#[test]
fn the_list_of_codes_is_closed() {
    let listed: Vec<_> =
        Code::ALL.iter().map(|code| format!("{} {}", code.status().as_u16(), code.name())).collect();
    assert_eq!(
        listed,
        [
            "400 invalid_json",
            "400 invalid_parameter",
            "400 invalid_cursor",
            "400 idempotency_key_required",
            "401 unauthorized",
            "403 forbidden",
            "404 route_not_found",
            "404 product_not_found",
            "404 order_not_found",
            "404 reservation_not_found",
            "404 session_not_found",
            "404 stock_not_found",
            "404 partition_not_found",
            "404 repair_not_found",
            "405 method_not_allowed",
            "410 cursor_expired",
            "409 out_of_stock",
            "409 price_changed",
            "409 cart_empty",
            "409 stock_changed",
            "409 stock_below_reserved",
            "409 illegal_transition",
            "409 reservation_closed",
            "409 session_bound",
            "412 version_mismatch",
            "413 body_too_large",
            "415 unsupported_media_type",
            "422 invalid_field",
            "422 cart_too_large",
            "422 currency_mismatch",
            "422 idempotency_key_reused",
            "429 rate_limited",
            "500 internal",
            "503 overloaded",
            "503 store_unavailable",
            "504 outcome_unknown",
        ]
    );
}
