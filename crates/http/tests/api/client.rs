//! A shop with a stopped clock, and a client of its router.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use mw_http::prometheus::Registry;
use mw_http::{Api, ServerSettings, Tokens};
use mw_testkit::{FakeClock, FaultyStore, builders};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::engine::fresh_store;
use crate::storage::operations;

/// Long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const HOUR_MS: u64 = 3_600_000;

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) api: Api,
    router: Router,
    clock: Arc<FakeClock>,
    pub(crate) store: Arc<FaultyStore>,
}

pub(crate) fn client() -> Client {
    client_with(&ServerSettings::default(), &Tokens::default())
}

pub(crate) fn client_with(settings: &ServerSettings, tokens: &Tokens) -> Client {
    client_on(fresh_store(), settings, tokens)
}

pub(crate) fn client_on(store: Arc<FaultyStore>, settings: &ServerSettings, tokens: &Tokens) -> Client {
    let clock = FakeClock::new();
    let shop = builders::shop(Arc::clone(&store) as _, &clock);
    let operations = Some(operations(&clock));
    let api = Api::with_operations(shop, settings, tokens, Registry::new(), operations).unwrap();
    Client::of(api, clock, store)
}

/// A response with its body read.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// Null where the body is not JSON.
    pub(crate) json: Value,
}

impl Response {
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/json");
        self.json
    }

    #[track_caller]
    pub(crate) fn created(self) -> Value {
        assert_eq!(self.status, StatusCode::CREATED, "{}", self.text);
        self.json
    }

    #[track_caller]
    pub(crate) fn no_content(&self) {
        assert_eq!((self.status, self.text.as_str()), (StatusCode::NO_CONTENT, ""));
    }

    /// Checks that this is a whole problem document with this status and code.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, code: &str) -> Value {
        assert_eq!(self.json["code"], code, "{}", self.text);
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.json["status"], status);
        assert_eq!(self.json["type"], format!("urn:mobile-world:problem:{code}"));
        assert!(self.json["title"].is_string() && self.json["detail"].is_string(), "{}", self.text);
        assert_eq!(self.json["request_id"], self.headers["x-request-id"].to_str().unwrap());
        self.json
    }

    #[track_caller]
    pub(crate) fn invalid_field(self, field: &str) {
        assert_eq!(self.problem(422, "invalid_field")["field"], field);
    }

    #[track_caller]
    pub(crate) fn invalid_parameter(self, parameter: &str) {
        assert_eq!(self.problem(400, "invalid_parameter")["parameter"], parameter);
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }
}

impl Client {
    pub(crate) fn of(api: Api, clock: Arc<FakeClock>, store: Arc<FaultyStore>) -> Self {
        Self { router: api.router(), api, clock, store }
    }

    pub(crate) fn pass_ms(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    /// Waits until the metrics show this line.
    pub(crate) async fn until(&self, line: &str) {
        let shown = async {
            while !self.get("/metrics").await.text.lines().any(|known| known == line) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, shown)
            .await
            .unwrap_or_else(|_| panic!("the metrics never showed {line}"));
    }

    pub(crate) fn router(&self) -> Router {
        self.router.clone()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Response {
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        let response = Response { status: parts.status, headers: parts.headers, text, json };
        assert!(response.headers.contains_key("x-request-id"));
        assert_eq!(response.headers["x-content-type-options"], "nosniff");
        response
    }

    /// Sends the text as it is, as JSON unless a header says otherwise.
    pub(crate) async fn text(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let mut request = Request::builder().method(method).uri(path);
        if !body.is_empty() && !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Response {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.text(method, path, headers, &body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.call(Method::GET, path, &[], &Value::Null).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Response {
        self.call(Method::DELETE, path, &[], &Value::Null).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Response {
        self.call(Method::PUT, path, &[], &body).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Response {
        self.call(Method::PATCH, path, &[], &body).await
    }

    /// Without a key; null sends no body.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Response {
        self.call(Method::POST, path, &[], &body).await
    }

    pub(crate) async fn post_keyed(&self, path: &str, key: &str, body: Value) -> Response {
        self.call(Method::POST, path, &[("idempotency-key", key)], &body).await
    }

    /// A product of this price, with so many units in zone `msk`.
    pub(crate) async fn stock_product(&self, product_id: &str, price: &str, on_hand: u64) {
        let path = format!("/v1/products/{product_id}");
        self.put(&path, product_body("phones", price)).await.created();
        self.put(&format!("{path}/stock/msk"), json!({ "on_hand": on_hand })).await.ok();
    }

    pub(crate) async fn set_line(&self, owner: &str, product_id: &str, quantity: u32) -> Value {
        let path = format!("/v1/{owner}/cart/lines/{product_id}");
        self.put(&path, json!({ "quantity": quantity })).await.ok()
    }

    /// An order of one product for user `u1` in zone `msk`.
    pub(crate) async fn order(&self, key: &str, product_id: &str, quantity: u32) -> Response {
        self.post_keyed("/v1/orders", key, order("u1", &[(product_id, quantity)])).await
    }

    pub(crate) async fn level(&self, product_id: &str) -> (u64, u64, u64) {
        let stock = self.get(&format!("/v1/products/{product_id}/stock/msk")).await.ok();
        let units = |name: &str| stock[name].as_u64().unwrap();
        (units("on_hand"), units("reserved"), units("available"))
    }
}

pub(crate) fn product_body(category: &str, price: &str) -> Value {
    json!({ "name": "A phone", "category": category, "price": money(price) })
}

pub(crate) fn money(amount: &str) -> Value {
    json!({ "amount": amount, "currency": "RUB" })
}

pub(crate) fn lines(lines: &[(&str, u32)]) -> Value {
    lines
        .iter()
        .map(|(product_id, quantity)| json!({ "product_id": product_id, "quantity": quantity }))
        .collect()
}

pub(crate) fn order(user_id: &str, demanded: &[(&str, u32)]) -> Value {
    json!({ "user_id": user_id, "geo_zone": "msk", "lines": lines(demanded) })
}

/// One member of every item.
pub(crate) fn pluck<'a>(list: &'a Value, member: &str) -> Vec<&'a str> {
    list["items"].as_array().unwrap().iter().map(|item| item[member].as_str().unwrap()).collect()
}
