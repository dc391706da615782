//! The server on real sockets: keep-alive, slow and vanishing clients, limits of connections, and stopping.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mw_http::ServerSettings;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{PATIENCE, money};
use crate::engine::instant_store;
use crate::wire::{GET_CART, GET_HEALTH, PUT_LINE, Running, serve, serve_on};

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_on_one_connection() {
    let running = serve(ServerSettings::default()).await;
    let mut wire = running.connect().await;
    let put = format!("{PUT_LINE}content-length: 14\r\n\r\n{{\"quantity\":3}}");
    wire.send(&format!("{GET_HEALTH}{put}{GET_CART}{GET_HEALTH}")).await;
    assert_eq!(wire.reply().await.body, "{\"status\":\"ok\"}");
    assert!(wire.reply().await.body.contains("\"quantity\":3"));
    assert!(wire.reply().await.body.contains("\"version\":1"));
    assert_eq!(wire.reply().await.status, 200);
    wire.send(GET_HEALTH).await;
    let reply = wire.reply().await;
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("x-request-id: "), "{}", reply.head);
}

#[tokio::test]
async fn a_client_that_is_slow_with_its_headers_is_closed() {
    let settings = ServerSettings { header_timeout: Duration::from_millis(200), ..ServerSettings::default() };
    let running = serve(settings).await;
    let mut silent = running.connect().await;
    silent.send("GET /healthz HTTP/1.1\r\nhos").await;
    let mut trickle = running.connect().await;
    let trickling = tokio::spawn(async move {
        for byte in GET_HEALTH.bytes().cycle().take(20_000) {
            let byte = if byte == b'\n' { b'x' } else { byte };
            if trickle.stream.write_all(&[byte]).await.is_err() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    });
    assert_eq!(silent.rest().await, "");
    assert!(timeout(PATIENCE, trickling).await.unwrap().unwrap());
    running.client.until("mw_http_open_connections 0").await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let settings = ServerSettings { idle_timeout: Duration::from_millis(500), ..ServerSettings::default() };
    let running = serve(settings).await;
    let mut busy = running.hang(1).await.remove(0);
    let mut idle = running.connect().await;
    idle.send(GET_HEALTH).await;
    assert_eq!(idle.reply().await.status, 200);
    assert_eq!(idle.rest().await, "");
    running.client.store.heal();
    assert_eq!(busy.reply().await.status, 200);
}

/// A head that hyper refuses by itself.
async fn refused_head(running: &Running, head: &str, status: u16) {
    let mut wire = running.connect().await;
    wire.send(head).await;
    let reply = wire.reply().await;
    assert_eq!(reply.status, status);
    assert_eq!(reply.header("content-type"), "application/problem+json");
    let problem: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!((&problem["status"], &problem["code"]), (&json!(status), &json!("invalid_parameter")));
    assert_eq!(problem["request_id"], reply.header("x-request-id"));
    wire.end().await;
    assert_eq!(wire.rest().await, "");
}

#[tokio::test]
async fn malformed_and_too_large_heads_get_a_problem() {
    let running = serve(ServerSettings { header_limit_bytes: 8 * 1024, ..ServerSettings::default() }).await;
    let big = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-big: {}\r\n\r\n", "x".repeat(16 * 1024));
    refused_head(&running, &big, 431).await;
    refused_head(&running, "nonsense\r\n\r\n", 400).await;
    refused_head(&running, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n", 400).await;
}

#[tokio::test]
async fn a_small_refused_body_is_discarded_and_the_connection_kept() {
    let running = serve(ServerSettings::default()).await;
    let mut wire = running.connect().await;
    let body = "x".repeat(60 * 1024);
    for (head, status) in early_refusals() {
        wire.send(&format!("{head}content-length: {}\r\n\r\n{body}", body.len())).await;
        let reply = wire.reply().await;
        assert_eq!((reply.status, reply.header("connection")), (status, ""), "{head}");
    }
    let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    wire.send(&format!("{NO_ROUTE}transfer-encoding: chunked\r\n\r\n{chunk}")).await;
    assert_eq!(wire.reply().await.status, 404);
    wire.send(GET_HEALTH).await;
    assert_eq!(wire.reply().await.status, 200);
}

#[tokio::test]
async fn a_large_refused_body_gets_its_response_whole_before_the_connection_closes() {
    let running = serve(ServerSettings::default()).await;
    let large = [&b"x"[..]; 64].concat().repeat(1024 * 1024);
    let too_large = (PUT_LINE, 413);
    for (head, status) in early_refusals().into_iter().chain([too_large]) {
        let mut wire = running.connect().await;
        wire.send(&format!("{head}content-length: {}\r\n\r\n", large.len())).await;
        // A client that reads only after it has sent everything.
        timeout(PATIENCE, wire.stream.write_all(&large)).await.expect("the body is taken").unwrap();
        let reply = wire.reply().await;
        assert_eq!((reply.status, reply.header("connection")), (status, "close"), "{head}");
        assert_eq!(wire.rest().await, "");
    }
}

const NO_ROUTE: &str = "POST /v1/nope HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

/// Requests that are refused before their body is read: heads without a content length.
fn early_refusals() -> [(&'static str, u16); 5] {
    [
        (NO_ROUTE, 404),
        ("POST /v1/users/u1/cart HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n", 405),
        ("PUT /v1/users/u1/cart/lines/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n", 415),
        (
            "PUT /v1/users/u1/cart/lines/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             if-match: seven\r\n",
            400,
        ),
        (
            "PUT /v1/users/u1/cart/lines/a HTTP/1.1\r\nhost: evil.example\r\ncontent-type: application/json\r\n",
            403,
        ),
    ]
}

#[tokio::test]
async fn a_client_that_awaits_100_continue_is_refused_without_its_body() {
    let running = serve(ServerSettings::default()).await;
    let mut wire = running.connect().await;
    wire.send(&format!("{PUT_LINE}expect: 100-continue\r\ncontent-length: 4194304\r\n\r\n")).await;
    let reply = wire.reply().await;
    assert_eq!((reply.status, reply.header("connection")), (413, "close"));
}

#[tokio::test]
async fn a_body_declared_too_large_is_refused_before_it_arrives() {
    let running = serve(ServerSettings::default()).await;
    let mut wire = running.connect().await;
    wire.send(&format!("{PUT_LINE}content-length: {}\r\n\r\n{{\"quan", 1024 * 1024 + 1)).await;
    let soon = ServerSettings::default().body_timeout / 2;
    let reply = timeout(soon, wire.reply()).await.expect("the server waits for a body that it will not take");
    assert_eq!(reply.status, 413);
    assert!(reply.body.contains("body_too_large"), "{}", reply.body);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_times_out() {
    let settings = ServerSettings { body_timeout: Duration::from_millis(100), ..ServerSettings::default() };
    let running = serve(settings).await;
    let mut wire = running.connect().await;
    wire.send(&format!("{PUT_LINE}content-length: 100\r\n\r\n{{\"quan")).await;
    let reply = wire.reply().await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("invalid_json"), "{}", reply.body);
    let mut too_large = running.connect().await;
    too_large.send(&format!("{PUT_LINE}content-length: 9999999\r\n\r\n{{\"quan")).await;
    assert_eq!(too_large.reply().await.status, 413, "how large it is was known before the time ran out");
    let mut import = running.connect().await;
    import
        .send("POST /v1/products/import HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ncontent-length: 9\r\n\r\n{")
        .await;
    let rest = import.rest().await;
    assert!(rest.contains("\"line\":1") && rest.contains("did not arrive in time"), "{rest}");
}

#[tokio::test]
async fn a_disconnected_client_frees_its_connection() {
    let running = serve(ServerSettings::default()).await;
    let wire = running.hang(1).await;
    drop(wire);
    running.client.until("mw_http_requests_in_flight 0").await;
    running.client.until("mw_http_open_connections 0").await;
}

#[tokio::test]
async fn a_connection_over_the_limit_is_refused_while_all_are_busy() {
    let running = serve(ServerSettings { max_connections: 2, ..ServerSettings::default() }).await;
    let mut busy = running.hang(2).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut refused = running.connect().await;
        refused.send(GET_HEALTH).await;
        let reply = refused.reply().await;
        assert_eq!((reply.status, reply.header("retry-after")), (503, "1"));
        let problem: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!((&problem["code"], &problem["status"]), (&json!("overloaded"), &json!(503)));
        assert_eq!(problem["request_id"], reply.header("x-request-id"));
        ids.push(reply.header("x-request-id").to_owned());
        assert_eq!(refused.rest().await, "");
    }
    assert!(
        ids.iter().all(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())),
        "{ids:?}"
    );
    assert_ne!(ids[0], ids[1]);
    running.client.store.heal();
    for wire in &mut busy {
        assert_eq!(wire.reply().await.status, 200);
    }
}

#[tokio::test]
async fn idle_connections_close_for_new_ones_at_the_limit() {
    let running = serve(ServerSettings { max_connections: 300, ..ServerSettings::default() }).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(running.connect().await);
    }
    running.client.until("mw_http_open_connections 300").await;
    for _ in 0..3 {
        let mut wire = running.connect().await;
        wire.send(GET_HEALTH).await;
        assert_eq!(wire.reply().await.status, 200);
    }
}

#[tokio::test]
async fn shutdown_finishes_requests_in_flight_and_accepts_no_new_ones() {
    let running = serve(ServerSettings::default()).await;
    let mut busy = running.hang(1).await.remove(0);
    let mut idle = running.connect().await;
    idle.send(GET_HEALTH).await;
    assert_eq!(idle.reply().await.status, 200);
    running.stop.send(()).unwrap();
    assert_eq!(idle.rest().await, "");
    assert!(TcpStream::connect(running.address).await.is_err());
    assert!(!running.server.is_finished());
    running.client.store.heal();
    let reply = busy.reply().await;
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
    assert!(timeout(PATIENCE, running.server).await.unwrap().unwrap());
}

#[tokio::test]
async fn shutdown_ends_after_the_grace_period() {
    let settings = ServerSettings { shutdown_grace: Duration::from_millis(100), ..ServerSettings::default() };
    let running = serve(settings).await;
    let busy = running.hang(1).await.remove(0);
    running.stop.send(()).unwrap();
    assert!(!timeout(PATIENCE, running.server).await.unwrap().unwrap());
    assert_eq!(busy.rest().await, "");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_an_incomplete_head() {
    let minute = Duration::from_mins(1);
    let settings =
        ServerSettings { header_timeout: minute, shutdown_grace: minute, ..ServerSettings::default() };
    let running = serve(settings).await;
    let mut half = running.connect().await;
    half.send("GET /v1/users/u1/cart HTTP/1.1\r\nhost: localhost\r\nx-more: ").await;
    // What is answered on a later connection was read after the half.
    let mut later = running.connect().await;
    later.send(GET_HEALTH).await;
    assert_eq!(later.reply().await.status, 200);
    running.stop.send(()).unwrap();
    assert!(timeout(minute / 6, running.server).await.expect("the stop waits for a head").unwrap());
    assert_eq!(half.rest().await, "");
}

#[tokio::test]
async fn an_import_may_be_sent_whole_before_its_results_are_read() {
    let running = serve_on(instant_store(), ServerSettings::default()).await;
    let count = 60_000;
    let price = money("1");
    let body: Vec<String> = (0..count)
        .map(|at| {
            format!(
                "{{\"product_id\":\"p{}\",\"name\":\"n\",\"category\":\"c\",\"price\":{price}}}\n",
                at % 50
            )
        })
        .collect();
    let body = body.concat();
    let mut wire = running.connect().await;
    let head = "POST /v1/products/import HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    timeout(PATIENCE, wire.send(&request)).await.expect("the import waits for its results to be read");
    let rest = wire.rest().await;
    assert_eq!(rest.matches("\"status\":").count(), count);
    assert!(rest.contains(&format!("\"line\":{count},")));
}

#[tokio::test]
async fn http_2_is_served() {
    let running = serve(ServerSettings::default()).await;
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    for user in ["u1", "u2"] {
        let uri = format!("http://localhost/v1/users/{user}/cart/lines/a");
        let request = http::Request::put(uri).header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from_static(b"{\"quantity\":2}"))).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(String::from_utf8(body.to_vec()).unwrap().contains(user));
    }
    running.stop.send(()).unwrap();
    assert!(timeout(PATIENCE, running.server).await.unwrap().unwrap());
    timeout(PATIENCE, connection).await.unwrap().unwrap().unwrap();
}
