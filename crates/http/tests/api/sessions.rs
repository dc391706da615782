//! Sessions: creating, activity, data, login, ending.

use serde_json::{Value, json};

use crate::client::{HOUR_MS, client, pluck};

#[tokio::test]
async fn a_session_has_the_fields_it_was_created_with() {
    let client = client();
    let body = json!({
        "session_id": "s1", "user_id": "u1", "geo_zone": "msk", "ip": "10.0.0.1", "user_agent": "curl",
        "device_type": "phone", "data": { "theme": "dark" },
    });
    let session = client.post("/v1/sessions", body.clone()).await.created();
    let mut expected = body;
    expected["created_at"] = json!("2026-03-10T12:00:00.000Z");
    expected["last_activity"] = json!("2026-03-10T12:00:00.000Z");
    expected["expires_at"] = json!("2026-03-11T12:00:00.000Z");
    assert_eq!(session, expected);
    assert_eq!(client.get("/v1/sessions/s1").await.ok(), session);
    client.post("/v1/sessions", json!({ "session_id": "s1" })).await.problem(409, "session_bound");
}

#[tokio::test]
async fn an_id_is_generated_where_none_is_given() {
    let client = client();
    let first = client.post("/v1/sessions", Value::Null).await.created();
    let second = client.post("/v1/sessions", json!({ "ip": null })).await.created();
    assert_ne!(first["session_id"], second["session_id"]);
    assert!(first["session_id"].as_str().unwrap().len() >= 32);
    assert_eq!(first.get("data"), None, "what is not set is absent");
    assert!(first.get("user_id").is_none() && first.get("ip").is_none());
}

#[tokio::test]
async fn a_repeated_key_opens_one_session() {
    let client = client();
    let first = client.post_keyed("/v1/sessions", "k", json!({})).await.created();
    let again = client.post_keyed("/v1/sessions", "k", Value::Null).await;
    assert!(again.is_replayed());
    assert_eq!(again.created(), first);
}

#[tokio::test]
async fn activity_slides_the_expiry_and_data_is_merged() {
    let client = client();
    client
        .post("/v1/sessions", json!({ "session_id": "s1", "data": { "a": "1", "b": "2" } }))
        .await
        .created();
    client.pass_ms(HOUR_MS);
    let body = json!({ "data": { "a": null, "c": "3" } });
    let session = client.patch("/v1/sessions/s1", body).await.ok();
    assert_eq!(session["data"], json!({ "b": "2", "c": "3" }));
    assert_eq!(session["last_activity"], "2026-03-10T13:00:00.000Z");
    client.pass_ms(23 * HOUR_MS);
    client.patch("/v1/sessions/s1", Value::Null).await.ok();
    client.pass_ms(23 * HOUR_MS);
    client.get("/v1/sessions/s1").await.ok();
    client.pass_ms(HOUR_MS);
    client.get("/v1/sessions/s1").await.problem(404, "session_not_found");
    client.patch("/v1/sessions/s1", json!({})).await.problem(404, "session_not_found");
}

#[tokio::test]
async fn login_binds_the_user_and_merges_the_cart() {
    let client = client();
    client.post("/v1/sessions/s1/login", json!({ "user_id": "u1" })).await.problem(404, "session_not_found");
    client.post("/v1/sessions", json!({ "session_id": "s1" })).await.created();
    client.set_line("sessions/s1", "a", 2).await;
    client.set_line("users/u1", "a", 3).await;
    let body = json!({ "user_id": "u1", "merge_mode": "max" });
    let first = client.post("/v1/sessions/s1/login", body.clone()).await.ok();
    assert_eq!(first["session"]["user_id"], "u1");
    assert_eq!(first["cart"]["lines"][0]["quantity"], 3);
    assert_eq!(client.get("/v1/sessions/s1/cart").await.ok()["version"], 0);
    client.post("/v1/sessions/s1/login", body).await.ok();
    client.post("/v1/sessions/s1/login", json!({ "user_id": "u2" })).await.problem(409, "session_bound");
}

#[tokio::test]
async fn login_without_any_cart_returns_the_users_empty_one() {
    let client = client();
    client.post("/v1/sessions", json!({ "session_id": "s1" })).await.created();
    let response = client.post("/v1/sessions/s1/login", json!({ "user_id": "u1" })).await.ok();
    assert_eq!(response["cart"]["owner"], json!({ "kind": "user", "id": "u1" }));
    assert_eq!(response["cart"]["version"], 0);
}

#[tokio::test]
async fn sessions_end_one_by_one_or_all_at_once() {
    let client = client();
    for id in ["s1", "s2", "s3"] {
        client.post("/v1/sessions", json!({ "session_id": id, "user_id": "u1" })).await.created();
        client.pass_ms(1_000);
    }
    assert_eq!(pluck(&client.get("/v1/users/u1/sessions").await.ok(), "session_id"), ["s3", "s2", "s1"]);
    client.delete("/v1/sessions/s2").await.no_content();
    client.delete("/v1/sessions/s2").await.problem(404, "session_not_found");
    client.delete("/v1/users/u1/sessions").await.no_content();
    assert_eq!(client.get("/v1/users/u1/sessions").await.ok()["items"], json!([]));
    client.delete("/v1/users/u1/sessions").await.no_content();
}
