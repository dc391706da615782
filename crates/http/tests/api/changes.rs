//! The change feed: pages, long poll, streams, cursors and limits.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use mw_http::{Role, ServerSettings, Token, Tokens};
use mw_store::changes::FeedSettings;
use mw_store::model::Model;
use mw_testkit::{Calls, Fault, FaultyStore};
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::ServiceExt;

use crate::client::{Client, HOUR_MS, PATIENCE, client_on, pluck, product_body};
use crate::engine::{fresh_store, instant_store};
use crate::wire::serve_on;

const DAY_MS: u64 = 24 * HOUR_MS;

async fn changes(client: &Client, query: &str) -> Value {
    client.get(&format!("/v1/changes{query}")).await.ok()
}

fn items(page: &Value) -> &[Value] {
    page["items"].as_array().unwrap()
}

/// The whole feed once it has a change of this subject.
async fn until(client: &Client, subject: &str) -> Vec<Value> {
    let read = async {
        loop {
            let page = changes(client, "?limit=1000").await;
            if items(&page).iter().any(|item| item["subject"] == subject) {
                return items(&page).to_vec();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("no change of {subject}"))
}

fn of<'a>(items: &'a [Value], subject: &str) -> Vec<&'a Value> {
    items.iter().filter(|item| item["subject"] == subject).collect()
}

fn kinds(items: &[&Value]) -> Vec<String> {
    items.iter().map(|item| item["type"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_change_is_in_the_feed_with_the_resource() {
    let client = client_on(fresh_store(), &ServerSettings::default(), &Tokens::default());
    client.stock_product("p1", "10", 5).await;
    let order = client.order("k1", "p1", 2).await.created();
    let id = order["order_id"].as_str().unwrap();
    let path = format!("/v1/orders/{id}");
    let paid = client.post(&format!("{path}/status"), json!({ "status": "paid" })).await.ok();
    client.put("/v1/products/p2", product_body("phones", "1")).await.created();
    client.delete("/v1/products/p2").await.no_content();
    client.put("/v1/products/last", product_body("phones", "1")).await.created();
    let feed = until(&client, "last").await;

    let steps = of(&feed, id);
    assert_eq!(kinds(&steps), ["order.created", "order.status"]);
    assert_eq!((&steps[0]["data"], &steps[1]["data"]), (&order, &paid));
    assert_eq!((&steps[0]["version"], &steps[1]["version"]), (&json!(1), &json!(2)));
    assert_eq!((&steps[0]["topic"], &steps[0]["time"]), (&json!("orders"), &order["created_at"]));
    assert_ne!(steps[0]["id"], steps[1]["id"]);
    let stock = *of(&feed, "p1/msk").last().unwrap();
    assert_eq!(stock["data"], client.get("/v1/products/p1/stock/msk").await.ok());
    assert_eq!((&stock["topic"], &stock["type"]), (&json!("stock"), &json!("stock.changed")));
    let product = of(&feed, "p1")[0];
    assert_eq!(product["data"], client.get("/v1/products/p1").await.ok());
    let deleted = of(&feed, "p2");
    assert_eq!(kinds(&deleted), ["product.put", "product.deleted"]);
    assert!(deleted[1].get("data").is_none(), "{}", deleted[1]);
}

#[tokio::test]
async fn carts_and_sessions_are_in_the_feed_under_their_subjects() {
    let client = client_on(instant_store(), &ServerSettings::default(), &Tokens::default());
    let cart = client.set_line("users/anna", "p1", 2).await;
    client.set_line("sessions/g", "p1", 1).await;
    let abandoned = client.post("/v1/sessions/g/cart/abandon", Value::Null).await.ok();
    let session = client.post("/v1/sessions", json!({ "session_id": "s1" })).await.created();
    client.delete("/v1/sessions/s1").await.no_content();
    let feed = until(&client, "s1").await;
    assert_eq!(of(&feed, "user:anna")[0]["data"], cart);
    let closed = *of(&feed, "session:g").last().unwrap();
    assert_eq!((&closed["type"], &closed["data"]), (&json!("cart.closed"), &abandoned));
    let sessions = of(&feed, "s1");
    assert_eq!(kinds(&sessions), ["session.changed", "session.ended"]);
    assert_eq!(sessions[0]["data"], session);
    assert!(sessions[1].get("data").is_none());
}

#[tokio::test]
async fn pages_go_on_where_the_one_before_ended() {
    let client = client_on(fresh_store(), &ServerSettings::default(), &Tokens::default());
    for name in ["a", "b", "c"] {
        client.put(&format!("/v1/products/{name}"), product_body("phones", "1")).await.created();
    }
    until(&client, "c").await;
    let first = changes(&client, "?limit=2").await;
    assert_eq!(pluck(&first, "subject"), ["a", "b"]);
    let after = first["items"][0]["cursor"].as_str().unwrap();
    let second = changes(&client, &format!("?after={after}")).await;
    assert_eq!(pluck(&second, "subject"), ["b", "c"]);
    assert_eq!(second["items"][0], first["items"][1], "a change is the same when it is read again");
    let next = second["next_cursor"].as_str().unwrap();
    let end = changes(&client, &format!("?after={next}")).await;
    assert_eq!(items(&end), [] as [Value; 0]);
    assert!(end["next_cursor"].is_string());

    let now = changes(&client, "?after=now").await;
    assert_eq!(items(&now), [] as [Value; 0]);
    client.put("/v1/products/d", product_body("phones", "1")).await.created();
    let next = now["next_cursor"].as_str().unwrap();
    let woken = changes(&client, &format!("?after={next}&wait=20")).await;
    assert_eq!(pluck(&woken, "subject"), ["d"]);
}

#[tokio::test]
async fn a_reader_gets_the_topics_that_it_names() {
    let client = client_on(fresh_store(), &ServerSettings::default(), &Tokens::default());
    client.stock_product("p1", "10", 5).await;
    until(&client, "p1/msk").await;
    assert_eq!(pluck(&changes(&client, "?topics=stock").await, "type"), ["stock.changed"]);
    let both = changes(&client, "?topics=products,stock").await;
    assert_eq!(pluck(&both, "topic"), ["products", "stock"]);
    assert_eq!(items(&changes(&client, "?topics=orders").await), [] as [Value; 0]);
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let client = client_on(fresh_store(), &ServerSettings::default(), &Tokens::default());
    for (query, parameter) in [
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?wait=31", "wait"),
        ("?wait=-1", "wait"),
        ("?topics=", "topics"),
        ("?topics=order", "topics"),
        ("?topics=orders,,stock", "topics"),
        ("?cursor=x", "cursor"),
    ] {
        client.get(&format!("/v1/changes{query}")).await.invalid_parameter(parameter);
    }
    for cursor in ["x", "", "AQAAAAAA"] {
        client.get(&format!("/v1/changes?after={cursor}")).await.problem(400, "invalid_cursor");
    }
    changes(&client, "?limit=1000&wait=0").await;
}

#[tokio::test]
async fn a_topic_that_is_not_written_is_refused() {
    let on = |feed| {
        let store = FaultyStore::new(Arc::new(Model::with_feed(feed)));
        client_on(store, &ServerSettings::default(), &Tokens::default())
    };
    let client = on(FeedSettings::default());
    client.get("/v1/changes?topics=orders,carts").await.invalid_parameter("topics");
    client.set_line("users/anna", "p1", 2).await;
    assert_eq!(items(&changes(&client, "").await), [] as [Value; 0]);
    let client = on(FeedSettings { topics: mw_store::changes::Topics::NONE, ..FeedSettings::default() });
    client.get("/v1/changes").await.invalid_parameter("topics");
}

#[tokio::test]
async fn a_cursor_before_what_is_kept_is_gone() {
    let client = client_on(instant_store(), &ServerSettings::default(), &Tokens::default());
    client.put("/v1/products/a", product_body("phones", "1")).await.created();
    client.put("/v1/products/b", product_body("phones", "1")).await.created();
    let page = changes(&client, "").await;
    let (first, last) = (&page["items"][0]["cursor"], page["next_cursor"].as_str().unwrap());
    let after = format!("/v1/changes?after={}", first.as_str().unwrap());
    client.pass_ms(7 * DAY_MS - 1);
    assert_eq!(pluck(&client.get(&after).await.ok(), "subject"), ["b"]);
    client.pass_ms(1);
    client.get(&after).await.problem(410, "cursor_expired");
    let stream = [("accept", "text/event-stream")];
    let response = client.call(http::Method::GET, &after, &stream, &Value::Null).await;
    response.problem(410, "cursor_expired");
    assert_eq!(items(&changes(&client, "").await), [] as [Value; 0]);
    assert_eq!(items(&changes(&client, &format!("?after={last}")).await), [] as [Value; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_long_poll_waits_for_the_first_change_and_not_longer() {
    let client = client_on(instant_store(), &ServerSettings::default(), &Tokens::default());
    let started = tokio::time::Instant::now();
    let page = changes(&client, "?wait=30").await;
    assert_eq!(items(&page), [] as [Value; 0]);
    assert_eq!(started.elapsed().as_secs(), 30, "longer than server.request_timeout");
    let writer = client.clone();
    let writing = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        writer.put("/v1/products/a", product_body("phones", "1")).await.created();
    });
    let started = tokio::time::Instant::now();
    assert_eq!(pluck(&changes(&client, "?wait=30").await, "subject"), ["a"]);
    assert_eq!(started.elapsed().as_secs(), 3);
    writing.await.unwrap();
}

/// An open stream.
struct Streamed {
    headers: HeaderMap,
    body: Body,
    unread: String,
}

async fn open(client: &Client, query: &str, headers: &[(&str, &str)]) -> Streamed {
    let mut request = Request::get(format!("/v1/changes{query}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = client.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let (parts, body) = response.into_parts();
    Streamed { headers: parts.headers, body, unread: String::new() }
}

impl Streamed {
    /// What comes before the next end mark.
    async fn next(&mut self, end: &str) -> String {
        loop {
            if let Some((text, rest)) = self.unread.split_once(end) {
                let (text, rest) = (text.to_owned(), rest.to_owned());
                self.unread = rest;
                return text;
            }
            let frame = timeout(PATIENCE, self.body.frame()).await.expect("the stream is silent");
            let bytes = frame.expect("the stream has ended").unwrap().into_data().unwrap();
            self.unread.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    async fn line(&mut self) -> Value {
        serde_json::from_str(&self.next("\n").await).unwrap()
    }

    /// The fields of the next event that has data.
    async fn event(&mut self) -> (String, String, Value) {
        loop {
            let text = self.next("\n\n").await;
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            if let Some(data) = field("data: ") {
                let data = serde_json::from_str(&data).unwrap();
                return (field("id: ").unwrap(), field("event: ").unwrap(), data);
            }
        }
    }
}

#[tokio::test]
async fn ndjson_streams_what_is_kept_and_what_comes() {
    let client = client_on(fresh_store(), &ServerSettings::default(), &Tokens::default());
    client.put("/v1/products/a", product_body("phones", "1")).await.created();
    let headers = [("accept", "application/x-ndjson"), ("accept-encoding", "zstd, gzip")];
    let mut stream = open(&client, "?limit=1", &headers).await;
    assert_eq!(stream.headers["content-type"], "application/x-ndjson");
    assert!(!stream.headers.contains_key("content-encoding"), "a stream is not compressed");
    assert_eq!(stream.line().await["subject"], "a");
    for name in ["b", "c"] {
        client.put(&format!("/v1/products/{name}"), product_body("phones", "1")).await.created();
        let change = stream.line().await;
        assert_eq!((&change["subject"], &change["type"]), (&json!(name), &json!("product.put")));
    }
    client.until("mw_feed_streams 1").await;
    drop(stream);
    client.until("mw_feed_streams 0").await;
}

#[tokio::test]
async fn events_have_the_cursor_as_their_id_and_last_event_id_wins() {
    let client = client_on(fresh_store(), &ServerSettings::default(), &Tokens::default());
    for name in ["a", "b"] {
        client.put(&format!("/v1/products/{name}"), product_body("phones", "1")).await.created();
    }
    let accept = ("accept", "text/event-stream");
    let mut stream = open(&client, "", &[accept]).await;
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    let (id, event, data) = stream.event().await;
    assert_eq!((event.as_str(), &data["subject"], &data["cursor"]), ("product.put", &json!("a"), &json!(id)));
    let mut again = open(&client, "?after=now", &[accept, ("last-event-id", &id)]).await;
    assert_eq!(again.event().await.2["subject"], "b");
    let bad = [accept, ("last-event-id", "x")];
    let response = client.call(http::Method::GET, "/v1/changes", &bad, &Value::Null).await;
    response.problem(400, "invalid_cursor");
}

#[tokio::test(start_paused = true)]
async fn an_idle_event_stream_shows_that_it_is_alive() {
    let client = client_on(instant_store(), &ServerSettings::default(), &Tokens::default());
    client.put("/v1/products/a", product_body("phones", "1")).await.created();
    let mut stream = open(&client, "?topics=orders", &[("accept", "text/event-stream")]).await;
    let sign = stream.next("\n\n").await;
    let id = sign.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
    assert!(sign.starts_with(": "), "{sign}");
    assert_eq!(items(&changes(&client, &format!("?after={id}")).await), [] as [Value; 0], "behind product a");
    assert_eq!(stream.next("\n\n").await, sign);
}

#[tokio::test]
async fn streams_have_a_limit_of_their_own() {
    let settings = ServerSettings { max_streams: 1, max_in_flight: 1, ..ServerSettings::default() };
    let client = client_on(fresh_store(), &settings, &Tokens::default());
    let stream = open(&client, "", &[("accept", "application/x-ndjson")]).await;
    let response = client.get("/v1/changes").await;
    assert_eq!(response.headers["retry-after"], "1");
    response.problem(503, "overloaded");
    client.get("/v1/users/u1/cart").await.ok();
    drop(stream);
    changes(&client, "").await;
}

#[tokio::test]
async fn only_the_back_office_reads_the_feed() {
    let token = |role, secret: &str| Token { role, secret: secret.into(), rate_limit: None };
    let tokens = Tokens(vec![
        token(Role::Storefront, "front"),
        token(Role::Backoffice, "back"),
        token(Role::Operator, "ops"),
        token(Role::Auditor, "audit"),
    ]);
    let client = client_on(fresh_store(), &ServerSettings::default(), &tokens);
    for (secret, status) in [("front", 403), ("audit", 403), ("back", 200), ("ops", 200)] {
        let value = format!("Bearer {secret}");
        let headers = [("authorization", value.as_str())];
        let response = client.call(http::Method::GET, "/v1/changes", &headers, &Value::Null).await;
        assert_eq!(response.status, status, "{secret}");
    }
    client.get("/v1/changes").await.problem(401, "unauthorized");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_told_before_the_stream_and_ends_it_afterwards() {
    let client = client_on(instant_store(), &ServerSettings::default(), &Tokens::default());
    let mut stream = open(&client, "", &[("accept", "application/x-ndjson")]).await;
    client.store.fail(Calls::Named("changes"), Fault::Unavailable);
    let headers = [("accept", "application/x-ndjson")];
    let response = client.call(http::Method::GET, "/v1/changes", &headers, &Value::Null).await;
    response.problem(503, "store_unavailable");
    assert!(stream.body.frame().await.is_none(), "the stream ends");
    client.store.heal();
    client.store.fail(Calls::Named("changes"), Fault::Hang);
    client.get("/v1/changes").await.problem(503, "store_unavailable");
}

#[tokio::test]
async fn shutdown_ends_streams_and_waiting_requests() {
    let running = serve_on(fresh_store(), ServerSettings::default()).await;
    let mut stream = running.connect().await;
    stream.send("GET /v1/changes HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n\r\n").await;
    let mut waiting = running.connect().await;
    waiting.send("GET /v1/changes?wait=30 HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    running.client.until("mw_feed_streams 2").await;
    running.stop.send(()).unwrap();
    let reply = waiting.reply().await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.contains("next_cursor"), "{}", reply.body);
    assert_eq!(stream.reply().await.status, 200);
    assert_eq!(stream.rest().await, "0\r\n\r\n", "the stream ends whole");
    assert!(timeout(PATIENCE, running.server).await.unwrap().unwrap(), "nothing was cut off");
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_stream() {
    let running = serve_on(instant_store(), ServerSettings::default()).await;
    let mut stream = running.connect().await;
    stream.send("GET /v1/changes HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n\r\n").await;
    assert_eq!(stream.reply().await.status, 200);
    running.client.until("mw_feed_streams 1").await;
    drop(stream);
    running.client.until("mw_feed_streams 0").await;
}
