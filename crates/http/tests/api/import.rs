//! Import of products as NDJSON.

use std::convert::Infallible;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request};
use http_body_util::BodyExt;
use mw_http::{ServerSettings, Tokens};
use mw_testkit::faults::CAUSE;
use mw_testkit::{Calls, Fault};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt;

use crate::client::{Client, Response, client, client_on, money};
use crate::engine::instant_store;

const PATH: &str = "/v1/products/import";
const NDJSON: (&str, &str) = ("content-type", "application/x-ndjson");

fn line(product_id: &str, price: &str) -> String {
    json!({ "product_id": product_id, "name": "n", "category": "c", "price": money(price) }).to_string()
}

async fn import(client: &Client, body: &str) -> Vec<Value> {
    results(&client.text(Method::POST, PATH, &[NDJSON], body).await)
}

fn results(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.text);
    assert_eq!(response.headers["content-type"], "application/x-ndjson");
    response.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn every_line_has_its_result_in_order() {
    let client = client();
    let lines: Vec<String> = (0..1_000).map(|at| line(&format!("p{at}"), "1")).collect();
    let results = import(&client, &lines.join("\n")).await;
    assert_eq!(results.len(), 1_000);
    for (at, result) in results.iter().enumerate() {
        assert_eq!(*result, json!({ "line": at + 1, "product_id": format!("p{at}"), "status": "created" }));
    }
    client.get("/v1/products/p999").await.ok();
    assert_eq!(import(&client, &line("p0", "2")).await[0]["status"], "replaced");
}

#[tokio::test]
async fn a_product_ends_as_its_last_line_says() {
    const PRODUCTS: usize = 12;
    let client = client();
    for round in 0..2 {
        // The lines of a product are next to one another, so that all of them are at the store at once.
        let lines: Vec<String> = (0..PRODUCTS * 6)
            .map(|at| line(&format!("p{}", at / 6), &format!("{}", 1 + round * 10 + at % 6)))
            .collect();
        let results = import(&client, &lines.join("\n")).await;
        assert!(results.iter().all(|result| result["status"] != "failed"), "{results:?}");
        for product in 0..PRODUCTS {
            let found = client.get(&format!("/v1/products/p{product}?fresh=true")).await.ok();
            assert_eq!(found["price"], money(&format!("{}.00", 6 + round * 10)), "p{product}");
        }
    }
}

#[tokio::test]
async fn a_bad_line_fails_alone_and_says_why() {
    let client = client();
    let huge = format!("{{\"name\":\"{}\"}}", "x".repeat(1024 * 1024));
    let body = [
        line("p1", "1").as_str(),
        "",
        "{ nonsense",
        "[]",
        "   ",
        r#"{"product_id":"p2","name":"n","category":"c","price":{"amount":"1.999","currency":"RUB"}}"#,
        r#"{"product_id":"p3","name":"n","category":"c","price":{"amount":"1","currency":"USD"}}"#,
        r#"{"name":"n","category":"c","price":{"amount":"1","currency":"RUB"}}"#,
        huge.as_str(),
        r#"{"product_id":"p4","name":"","category":"c","price":{"amount":"1","currency":"RUB"}}"#,
        line("p5", "1").as_str(),
    ]
    .join("\r\n");
    let results = import(&client, &body).await;
    let shown: Vec<_> =
        results.iter().map(|result| (result["line"].as_u64().unwrap(), &result["code"])).collect();
    let (ok, json, field) = (&Value::Null, &json!("invalid_json"), &json!("invalid_field"));
    assert_eq!(
        shown,
        [
            (1, ok),
            (3, json),
            (4, json),
            (6, field),
            (7, &json!("currency_mismatch")),
            (8, field),
            (9, &json!("body_too_large")),
            (10, field),
            (11, ok),
        ]
    );
    assert_eq!(results[3]["product_id"], "p2");
    assert_eq!(results[3]["status"], "failed");
    assert!(results[3]["detail"].as_str().unwrap().starts_with("price.amount: "));
    assert!(results[1].get("product_id").is_none());
    client.get("/v1/products/p2").await.problem(404, "product_not_found");
}

#[tokio::test]
async fn stock_is_set_where_it_is_given_and_stays_where_it_is_not() {
    let client = client();
    let with_stock = |stock: Value| {
        let mut line: Value = serde_json::from_str(&line("p1", "1")).unwrap();
        line["stock"] = stock;
        line.to_string()
    };
    import(&client, &with_stock(json!({ "msk": 5, "spb": 7 }))).await;
    import(&client, &line("p1", "2")).await;
    let stock = client.get("/v1/products/p1/stock").await.ok();
    assert_eq!((&stock["zones"][0]["on_hand"], &stock["zones"][1]["on_hand"]), (&json!(5), &json!(7)));
    for bad in [json!({ "msk": -1 }), json!({ "msk": 1_000_000_001 }), json!({ "m s": 1 }), json!([1])] {
        let result = &import(&client, &with_stock(bad)).await[0];
        assert_eq!(result["code"], "invalid_field", "{result}");
        assert!(result["detail"].as_str().unwrap().starts_with("stock"), "{result}");
    }
    client.order("k", "p1", 4).await.created();
    let result = &import(&client, &with_stock(json!({ "msk": 3 }))).await[0];
    assert_eq!(result["code"], "stock_below_reserved");
}

#[tokio::test]
async fn a_keyed_import_stores_every_line_once() {
    let client = client();
    let headers = [NDJSON, ("idempotency-key", "import-1")];
    let body = format!("{}\n{}\n", line("p1", "1"), line("p2", "1"));
    let first = client.text(Method::POST, PATH, &headers, &body).await;
    assert!(!first.is_replayed());
    client.put("/v1/products/p1", crate::client::product_body("other", "9")).await.ok();
    let again = client.text(Method::POST, PATH, &headers, &body).await;
    assert!(again.is_replayed());
    assert_eq!(results(&again), results(&first));
    assert_eq!(client.get("/v1/products/p1").await.ok()["category"], "other");
    let further = format!("{}\n{}\n", line("p1", "1"), line("p2", "3"));
    let changed = client.text(Method::POST, PATH, &headers, &further).await;
    assert_eq!(results(&changed)[1]["code"], "idempotency_key_reused");
    let changed = format!("{}\n{}\n", line("p1", "3"), line("p3", "1"));
    client.text(Method::POST, PATH, &headers, &changed).await.problem(422, "idempotency_key_reused");
    client.get("/v1/products/p3").await.problem(404, "product_not_found");
    let session = client.post_keyed("/v1/sessions", "import-1", json!({})).await;
    session.problem(422, "idempotency_key_reused");
    let bad = [NDJSON, ("idempotency-key", "a b")];
    client.text(Method::POST, PATH, &bad, &body).await.invalid_parameter("Idempotency-Key");
}

#[tokio::test]
async fn only_ndjson_types_are_accepted() {
    let client = client();
    for good in ["application/x-ndjson; charset=utf-8", "application/json", "application/jsonl"] {
        let response = client.text(Method::POST, PATH, &[("content-type", good)], &line("p1", "1")).await;
        assert_eq!(results(&response).len(), 1);
    }
    let response = client.text(Method::POST, PATH, &[("content-type", "text/csv")], "a,b").await;
    response.problem(415, "unsupported_media_type");
    assert_eq!(results(&client.text(Method::POST, PATH, &[NDJSON], "").await), Vec::<Value>::new());
}

#[tokio::test]
async fn results_come_while_the_body_is_still_sent() {
    let client = client();
    let (sender, mut receiver) = mpsc::unbounded_channel::<Bytes>();
    let pieces =
        stream::poll_fn(move |cx| receiver.poll_recv(cx).map(|piece| piece.map(Ok::<_, Infallible>)));
    let request = Request::post(PATH).header(NDJSON.0, NDJSON.1).body(Body::from_stream(pieces)).unwrap();
    let mut body = client.api.router().oneshot(request).await.unwrap().into_body();
    for at in 1..=3 {
        sender.send(format!("{}\n", line(&format!("p{at}"), "1")).into()).unwrap();
        let result = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&result).unwrap()["line"], at);
    }
    assert!(client.get("/metrics").await.text.contains("mw_http_requests_in_flight 1\n"));
    drop(sender);
    assert!(body.frame().await.is_none());
    drop(body);
    assert!(client.get("/metrics").await.text.contains("mw_http_requests_in_flight 0\n"));
}

#[tokio::test]
async fn a_truncated_body_is_reported_after_the_results_of_its_lines() {
    let client = client();
    let pieces = [Ok(Bytes::from(format!("{}\n", line("p1", "1")))), Err(std::io::Error::other("gone"))];
    let request =
        Request::post(PATH).header(NDJSON.0, NDJSON.1).body(Body::from_stream(stream::iter(pieces))).unwrap();
    let results = results(&client.send(request).await);
    assert_eq!((&results[0]["status"], &results[1]["status"]), (&json!("created"), &json!("failed")));
    assert_eq!(results[1]["line"], 2);
}

#[tokio::test]
async fn a_failing_store_fails_its_lines() {
    let client = client();
    for (fault, code) in [
        (Fault::Unavailable, "store_unavailable"),
        (Fault::AmbiguousNotDone, "outcome_unknown"),
        (Fault::Corrupt, "internal"),
    ] {
        client.store.fail(Calls::All, fault);
        let result = &import(&client, &line("p1", "1")).await[0];
        assert_eq!((&result["status"], &result["code"]), (&json!("failed"), &json!(code)));
        assert!(!result["detail"].as_str().unwrap().contains(CAUSE));
    }
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_store_is_retried() {
    let client = client_on(instant_store(), &ServerSettings::default(), &Tokens::default());
    client.store.fail(Calls::All, Fault::Overloaded);
    let importing = tokio::spawn({
        let client = client.clone();
        async move { import(&client, &line("p1", "1")).await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert!(!importing.is_finished());
    // An engine with a thread of its own works while nothing here runs, which is when paused time leaps.
    tokio::time::resume();
    client.store.heal();
    assert_eq!(importing.await.unwrap()[0]["status"], "created");
}
