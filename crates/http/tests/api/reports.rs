//! Reports of the back office.

use serde_json::{Value, json};

use crate::client::{HOUR_MS, client, money};

#[tokio::test]
async fn sales_count_what_is_paid_by_day_and_zone() {
    let client = client();
    client.stock_product("p1", "10.50", 10).await;
    for (key, quantity) in [("k1", 1), ("k2", 2), ("k3", 3)] {
        let order = client.order(key, "p1", quantity).await.created();
        if key != "k3" {
            let path = format!("/v1/orders/{}/status", order["order_id"].as_str().unwrap());
            client.post(&path, json!({ "status": "paid" })).await.ok();
        }
    }
    let report = client.get("/v1/reports/sales?from=2026-03-01&to=2026-06-01").await.ok();
    let expected = json!([{ "date": "2026-03-10", "geo_zone": "msk", "orders": 2, "units": 3, "revenue": money("31.50") }]);
    assert_eq!(report, json!({ "items": expected }));
    let elsewhere = client.get("/v1/reports/sales?from=2026-03-01&to=2026-04-01&geo_zone=spb").await.ok();
    assert_eq!(elsewhere["items"], json!([]));
    for (query, parameter) in [
        ("", "from"),
        ("?from=2026-03-01", "to"),
        ("?from=2026-03-01&to=2026-06-01T00:00:00.001Z", "to"),
        ("?from=2026-03-01&to=2026-03-02&limit=5", "limit"),
        ("?from=2026-03-01&to=2026-03-02&geo_zone=%20", "geo_zone"),
    ] {
        client.get(&format!("/v1/reports/sales{query}")).await.invalid_parameter(parameter);
    }
}

#[tokio::test]
async fn abandoned_carts_are_idle_or_abandoned_ones() {
    let client = client();
    client.set_line("users/idle", "a", 1).await;
    client.set_line("users/gone", "a", 1).await;
    client.post("/v1/users/gone/cart/abandon", Value::Null).await.ok();
    client.set_line("sessions/merged", "a", 1).await;
    client.post("/v1/users/other/cart/merge", json!({ "session_id": "merged" })).await.ok();
    client.pass_ms(HOUR_MS);
    client.set_line("users/busy", "a", 1).await;
    client.set_line("users/other", "a", 1).await;
    let owners = async |query: &str| {
        let list = client.get(&format!("/v1/reports/abandoned-carts{query}")).await.ok();
        let items = list["items"].as_array().unwrap().clone();
        let mut owners: Vec<_> =
            items.iter().map(|cart| cart["owner"]["id"].as_str().unwrap().to_owned()).collect();
        owners.sort_unstable();
        owners
    };
    assert_eq!(owners("").await, ["gone", "idle"]);
    assert_eq!(owners("?idle_for=3601").await, ["gone"]);
    assert_eq!(owners("?idle_for=0").await, ["busy", "gone", "idle", "other"]);
    client.get("/v1/reports/abandoned-carts?idle_for=-1").await.invalid_parameter("idle_for");
    let first = client.get("/v1/reports/abandoned-carts?limit=1").await.ok();
    let cursor = first["next_cursor"].as_str().unwrap();
    let next = client.get(&format!("/v1/reports/abandoned-carts?limit=1&cursor={cursor}")).await.ok();
    assert_ne!(next["items"][0]["owner"], first["items"][0]["owner"]);
    let other = client.get(&format!("/v1/reports/abandoned-carts?idle_for=1&cursor={cursor}")).await;
    other.problem(400, "invalid_cursor");
}
