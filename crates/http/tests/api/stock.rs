//! Stock by zone: setting, adjusting, what is reserved.

use serde_json::json;

use crate::client::{client, product_body};

const PATH: &str = "/v1/products/p1/stock/msk";

#[tokio::test]
async fn stock_is_set_and_read() {
    let client = client();
    client.put(PATH, json!({ "on_hand": 1 })).await.problem(404, "product_not_found");
    client.get("/v1/products/p1/stock").await.problem(404, "product_not_found");
    client.put("/v1/products/p1", product_body("phones", "1")).await.created();
    client.get(PATH).await.problem(404, "stock_not_found");
    assert_eq!(client.get("/v1/products/p1/stock").await.ok(), json!({ "product_id": "p1", "zones": [] }));
    let stock = client.put(PATH, json!({ "on_hand": 100 })).await.ok();
    assert_eq!(
        stock,
        json!({
            "product_id": "p1", "geo_zone": "msk", "on_hand": 100, "reserved": 0, "available": 100,
            "updated_at": "2026-03-10T12:00:00.000Z",
        })
    );
    assert_eq!(client.get(PATH).await.ok(), stock);
    client.put("/v1/products/p1/stock/ekb", json!({ "on_hand": 0 })).await.ok();
    let zones = client.get("/v1/products/p1/stock").await.ok();
    assert_eq!((&zones["zones"][0]["geo_zone"], &zones["zones"][1]), (&json!("ekb"), &stock));
}

#[tokio::test]
async fn a_failed_expectation_returns_the_current_stock() {
    let client = client();
    client.stock_product("p1", "1", 90).await;
    let problem =
        client.put(PATH, json!({ "on_hand": 5, "expected_on_hand": 89 })).await.problem(409, "stock_changed");
    assert_eq!(problem["current"]["on_hand"], 90);
    client.put(PATH, json!({ "on_hand": 5, "expected_on_hand": 90 })).await.ok();
    let elsewhere = "/v1/products/p1/stock/spb";
    let problem = client.put(elsewhere, json!({ "on_hand": 5, "expected_on_hand": 1 })).await;
    assert_eq!(problem.problem(409, "stock_changed")["current"]["on_hand"], 0);
    client.put(elsewhere, json!({ "on_hand": 5, "expected_on_hand": 0 })).await.ok();
}

#[tokio::test]
async fn stock_never_falls_below_what_is_reserved() {
    let client = client();
    client.stock_product("p1", "1", 10).await;
    client.order("k", "p1", 4).await.created();
    assert_eq!(client.level("p1").await, (10, 4, 6));
    let problem = client.put(PATH, json!({ "on_hand": 3 })).await.problem(409, "stock_below_reserved");
    assert_eq!(problem["current"]["reserved"], 4);
    let adjust = format!("{PATH}/adjust");
    client.post(&adjust, json!({ "delta": -7, "reason": "loss" })).await.problem(409, "stock_below_reserved");
    client.post(&adjust, json!({ "delta": -6, "reason": "loss" })).await.ok();
    assert_eq!(client.level("p1").await, (4, 4, 0));
}

#[tokio::test]
async fn an_adjustment_adds_up_once_per_key() {
    let client = client();
    client.put("/v1/products/p1", product_body("phones", "1")).await.created();
    let adjust = format!("{PATH}/adjust");
    let body = json!({ "delta": 7, "reason": "delivery" });
    let first = client.post_keyed(&adjust, "k", body.clone()).await;
    assert!(!first.is_replayed());
    assert_eq!(first.ok()["on_hand"], 7);
    client.post(&adjust, json!({ "delta": -2, "reason": "loss" })).await.ok();
    let again = client.post_keyed(&adjust, "k", body).await;
    assert!(again.is_replayed());
    assert_eq!(again.ok()["on_hand"], 7);
    assert_eq!(client.level("p1").await.0, 5);
    client
        .post_keyed(&adjust, "k", json!({ "delta": 8, "reason": "delivery" }))
        .await
        .problem(422, "idempotency_key_reused");
}

#[tokio::test]
async fn stock_levels_have_limits() {
    let client = client();
    client.stock_product("p1", "1", 1_000_000_000).await;
    let adjust = format!("{PATH}/adjust");
    client.post(&adjust, json!({ "delta": 1, "reason": "r" })).await.invalid_field("delta");
    client.post(&adjust, json!({ "delta": 1.5, "reason": "r" })).await.invalid_field("delta");
    client.post(&adjust, json!({ "delta": 1_000_000_001, "reason": "r" })).await.invalid_field("delta");
    client.post(&adjust, json!({ "delta": -1 })).await.invalid_field("reason");
    client.post(&adjust, json!({ "delta": -1, "reason": "r".repeat(1_025) })).await.invalid_field("reason");
    for on_hand in [json!(-1), json!(1_000_000_001), json!(1.5), json!("1"), json!(null)] {
        client.put(PATH, json!({ "on_hand": on_hand })).await.invalid_field("on_hand");
    }
    client.put(PATH, json!({ "on_hand": 1, "expected_on_hand": -1 })).await.invalid_field("expected_on_hand");
    client.put(PATH, json!({ "expected_on_hand": 1 })).await.invalid_field("on_hand");
}
