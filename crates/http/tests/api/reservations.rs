//! Reservations: all or nothing, confirmed, released or expired.

use serde_json::{Value, json};

use crate::client::{Client, client, lines};

async fn reserve(client: &Client, demanded: &[(&str, u32)]) -> String {
    let body = json!({ "geo_zone": "msk", "lines": lines(demanded) });
    let reservation = client.post("/v1/reservations", body).await.created();
    reservation["reservation_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_hold_takes_what_is_available_and_no_more() {
    let client = client();
    client.stock_product("p1", "1", 5).await;
    let body = json!({ "geo_zone": "msk", "lines": lines(&[("p1", 2), ("p1", 1)]), "ttl_seconds": 60 });
    let reservation = client.post("/v1/reservations", body).await.created();
    assert_eq!(reservation["lines"], lines(&[("p1", 3)]));
    assert_eq!((&reservation["status"], &reservation["geo_zone"]), (&json!("held"), &json!("msk")));
    assert_eq!(reservation["expires_at"], "2026-03-10T12:01:00.000Z");
    assert_eq!(client.level("p1").await, (5, 3, 2));
    let body = json!({ "geo_zone": "msk", "lines": lines(&[("p1", 3), ("nope", 1)]) });
    let problem = client.post("/v1/reservations", body).await.problem(409, "out_of_stock");
    assert_eq!(
        problem["shortages"],
        json!([
            { "product_id": "p1", "requested": 3, "available": 2 },
            { "product_id": "nope", "requested": 1, "available": 0 },
        ])
    );
    assert_eq!(client.level("p1").await, (5, 3, 2));
}

#[tokio::test]
async fn a_deleted_product_has_nothing_to_hold() {
    let client = client();
    client.stock_product("p1", "1", 5).await;
    reserve(&client, &[("p1", 1)]).await;
    client.delete("/v1/products/p1").await.no_content();
    let body = json!({ "geo_zone": "msk", "lines": lines(&[("p1", 1)]) });
    let problem = client.post("/v1/reservations", body).await.problem(409, "out_of_stock");
    assert_eq!(problem["shortages"], json!([{ "product_id": "p1", "requested": 1, "available": 0 }]));
}

#[tokio::test]
async fn a_confirmed_hold_leaves_and_cannot_be_released() {
    let client = client();
    client.stock_product("p1", "1", 5).await;
    let path = format!("/v1/reservations/{}", reserve(&client, &[("p1", 2)]).await);
    let confirmed = client.post(&format!("{path}/confirm"), Value::Null).await.ok();
    assert_eq!(confirmed["status"], "confirmed");
    client.post(&format!("{path}/confirm"), json!({})).await.ok();
    assert_eq!(client.level("p1").await, (3, 0, 3));
    let problem = client.delete(&path).await.problem(409, "reservation_closed");
    assert_eq!(problem["reservation_status"], "confirmed");
    assert_eq!(client.get(&path).await.ok()["status"], "confirmed");
}

#[tokio::test]
async fn a_released_hold_is_available_again_and_cannot_be_confirmed() {
    let client = client();
    client.stock_product("p1", "1", 5).await;
    let path = format!("/v1/reservations/{}", reserve(&client, &[("p1", 2)]).await);
    client.delete(&path).await.no_content();
    client.delete(&path).await.no_content();
    assert_eq!(client.level("p1").await, (5, 0, 5));
    client.post(&format!("{path}/confirm"), Value::Null).await.problem(409, "reservation_closed");
    assert_eq!(client.get(&path).await.ok()["status"], "released");
}

#[tokio::test]
async fn a_hold_past_its_time_is_expired_where_it_is_read() {
    let client = client();
    client.stock_product("p1", "1", 5).await;
    let path = format!("/v1/reservations/{}", reserve(&client, &[("p1", 5)]).await);
    client.pass_ms(900_000);
    assert_eq!(client.get(&path).await.ok()["status"], "expired");
    assert_eq!(client.level("p1").await.2, 5);
    client.post(&format!("{path}/confirm"), Value::Null).await.problem(409, "reservation_closed");
    client.delete(&path).await.problem(409, "reservation_closed");
    reserve(&client, &[("p1", 5)]).await;
}

#[tokio::test]
async fn a_repeated_key_holds_once_and_is_free_after_a_refusal() {
    let client = client();
    client.stock_product("p1", "1", 1).await;
    let body = json!({ "geo_zone": "msk", "lines": lines(&[("p1", 2)]) });
    client.post_keyed("/v1/reservations", "k", body.clone()).await.problem(409, "out_of_stock");
    client.put("/v1/products/p1/stock/msk", json!({ "on_hand": 4 })).await.ok();
    let first = client.post_keyed("/v1/reservations", "k", body.clone()).await.created();
    let again = client.post_keyed("/v1/reservations", "k", body.clone()).await;
    assert!(again.is_replayed());
    assert_eq!(again.created(), first);
    assert_eq!(client.level("p1").await, (4, 2, 2));
    client.pass_ms(900_000);
    assert_eq!(client.post_keyed("/v1/reservations", "k", body).await.created(), first);
    let confirm = format!("/v1/reservations/{}/confirm", first["reservation_id"].as_str().unwrap());
    client.post_keyed(&confirm, "k", Value::Null).await.problem(422, "idempotency_key_reused");
}

#[tokio::test]
async fn unknown_and_malformed_reservations_are_refused() {
    let client = client();
    let missing = "/v1/reservations/01890a5d-ac96-774b-bcce-b302099a8057";
    client.get(missing).await.problem(404, "reservation_not_found");
    client.delete(missing).await.problem(404, "reservation_not_found");
    client.post(&format!("{missing}/confirm"), Value::Null).await.problem(404, "reservation_not_found");
    for bad in ["1", "507f1f77bcf86cd799439011", "01890a5dac96774bbcceb302099a8057"] {
        client.get(&format!("/v1/reservations/{bad}")).await.invalid_parameter("reservation_id");
    }
    for ttl in [json!(0), json!(86_401), json!(-1), json!("60"), json!(1.5)] {
        let body = json!({ "geo_zone": "msk", "lines": lines(&[("p1", 1)]), "ttl_seconds": ttl });
        client.post("/v1/reservations", body).await.invalid_field("ttl_seconds");
    }
}
