//! Every limit of the contract, from both sides.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, client, lines, money, order, product_body};

fn entries(count: usize) -> BTreeMap<String, String> {
    (0..count).map(|at| (format!("k{at}"), "v".to_owned())).collect()
}

async fn put_with(client: &Client, field: &str, value: Value) -> crate::client::Response {
    let mut body = product_body("phones", "1");
    body[field] = value;
    client.put("/v1/products/p1", body).await
}

#[tokio::test]
async fn a_cart_has_a_hundred_lines() {
    let client = client();
    for at in 0..100 {
        client.set_line("users/u1", &format!("p{at}"), 1).await;
    }
    let one_more = client.put("/v1/users/u1/cart/lines/more", json!({ "quantity": 1 })).await;
    one_more.problem(422, "cart_too_large");
    client.set_line("users/u1", "p5", 2).await;
}

#[tokio::test]
async fn an_order_and_a_reservation_have_a_hundred_lines() {
    let client = client();
    let names: Vec<String> = (0..101).map(|at| format!("p{at}")).collect();
    let demanded: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let reserve = |demanded: &[(&str, u32)]| json!({ "geo_zone": "msk", "lines": lines(demanded) });
    client.post_keyed("/v1/orders", "k", order("u1", &demanded)).await.invalid_field("lines");
    client.post("/v1/reservations", reserve(&demanded)).await.invalid_field("lines");
    client
        .post_keyed("/v1/orders", "k", order("u1", &demanded[..100]))
        .await
        .problem(404, "product_not_found");
    client.post("/v1/reservations", reserve(&demanded[..100])).await.problem(409, "out_of_stock");
    client.post_keyed("/v1/orders", "k", order("u1", &[])).await.invalid_field("lines");
    client.post("/v1/reservations", reserve(&[])).await.invalid_field("lines");
}

#[tokio::test]
async fn a_quantity_is_one_to_ten_thousand() {
    let client = client();
    let path = "/v1/users/u1/cart/lines/p1";
    for good in [1, 10_000] {
        client.put(path, json!({ "quantity": good })).await.ok();
    }
    for bad in
        [json!(0), json!(-1), json!(10_001), json!(1.5), json!(1e3), json!("1"), json!(null), json!([1])]
    {
        client.put(path, json!({ "quantity": bad })).await.invalid_field("quantity");
    }
    client
        .text(Method::PUT, path, &[], r#"{"quantity":99999999999999999999999}"#)
        .await
        .invalid_field("quantity");
    client.text(Method::PUT, path, &[], r#"{"quantity":1e999}"#).await.invalid_field("quantity");
    client.put(path, json!({})).await.invalid_field("quantity");
    client.put(path, json!({ "quantity": 1, "note": "x" })).await.invalid_field("note");
    let body = order("u1", &[("p1", 1), ("p2", 0)]);
    client.post_keyed("/v1/orders", "k", body).await.invalid_field("lines[1].quantity");
    let body = order("u1", &[("p1", 10_000), ("p2", 1), ("p1", 1)]);
    client.post_keyed("/v1/orders", "k", body).await.invalid_field("lines[2].quantity");
}

#[tokio::test]
async fn texts_have_their_lengths_in_characters() {
    let client = client();
    for (field, most) in [("name", 256), ("description", 20_000)] {
        assert!(put_with(&client, field, json!("я".repeat(most))).await.status.is_success());
        put_with(&client, field, json!("я".repeat(most + 1))).await.invalid_field(field);
    }
    put_with(&client, "name", json!("")).await.invalid_field("name");
    put_with(&client, "category", json!("к".repeat(128))).await.ok();
    for bad in [String::new(), "к".repeat(129), "a\nb".to_owned()] {
        put_with(&client, "category", json!(bad)).await.invalid_field("category");
    }
    for field in ["delivery_address", "payment_method"] {
        let mut body = order("u1", &[("nope", 1)]);
        body[field] = json!("я".repeat(1_024));
        client.post_keyed("/v1/orders", "k", body.clone()).await.problem(404, "product_not_found");
        body[field] = json!("я".repeat(1_025));
        client.post_keyed("/v1/orders", "k", body).await.invalid_field(field);
    }
    let status = "/v1/orders/01890a5d-ac96-774b-bcce-b302099a8057/status";
    let body = json!({ "status": "paid", "note": "x".repeat(1_025) });
    client.post(status, body).await.invalid_field("note");
}

#[tokio::test]
async fn attributes_and_data_have_sixty_four_entries() {
    let client = client();
    assert!(put_with(&client, "attributes", json!(entries(64))).await.status.is_success());
    put_with(&client, "attributes", json!(entries(65))).await.invalid_field("attributes");
    put_with(&client, "attributes", json!({ "k".repeat(64): "v".repeat(1_024) })).await.ok();
    put_with(&client, "attributes", json!({ "k".repeat(65): "v" })).await.invalid_field("attributes");
    put_with(&client, "attributes", json!({ "": "v" })).await.invalid_field("attributes");
    put_with(&client, "attributes", json!({ "a": "v".repeat(1_025) })).await.invalid_field("attributes.a");
    put_with(&client, "attributes", json!({ "a": 1 })).await.invalid_field("attributes.a");

    let open =
        async |data: Value| client.post("/v1/sessions", json!({ "session_id": "s1", "data": data })).await;
    open(json!(entries(65))).await.invalid_field("data");
    open(json!({ "a": "v".repeat(1_025) })).await.invalid_field("data.a");
    open(json!(entries(64))).await.created();
    client.patch("/v1/sessions/s1", json!({ "data": { "more": "v" } })).await.invalid_field("data");
    client.patch("/v1/sessions/s1", json!({ "data": { "more": "v", "k1": null } })).await.ok();
    client.patch("/v1/sessions/s1", json!({ "data": { "k2": 7 } })).await.invalid_field("data.k2");
    client.post("/v1/sessions", json!({ "ip": "x".repeat(1_025) })).await.invalid_field("ip");
}

#[tokio::test]
async fn ids_have_their_characters_and_lengths() {
    let client = client();
    let longest = "a".repeat(128);
    client.get(&format!("/v1/users/{longest}/cart")).await.ok();
    client.get("/v1/users/A.z_0:~-/cart").await.ok();
    client.get("/v1/users/a%2Db/cart").await.ok();
    for bad in [&"a".repeat(129), "", "a%20b", "a%2Fb", "%D0%B0", "a+b", "%zz", "%00"] {
        client.get(&format!("/v1/users/{bad}/cart")).await.invalid_parameter("user_id");
    }
    client.get("/v1/users/%ff/cart").await.problem(400, "invalid_parameter");
    client.get("/v1/sessions/a%20b").await.invalid_parameter("session_id");
    client
        .put("/v1/users/u1/cart/lines/a%20b", json!({ "quantity": 1 }))
        .await
        .invalid_parameter("product_id");
    client.get("/v1/products/p1/stock/a%20b").await.invalid_parameter("geo_zone");
    let mut body = order("u 1", &[("p1", 1)]);
    client.post_keyed("/v1/orders", "k", body.clone()).await.invalid_field("user_id");
    body = order("u1", &[("p 1", 1)]);
    client.post_keyed("/v1/orders", "k", body).await.invalid_field("lines[0].product_id");
}

#[tokio::test]
async fn a_key_is_one_to_a_hundred_and_twenty_eight_visible_characters() {
    let client = client();
    client.stock_product("p1", "1", 9).await;
    client.order(&"k".repeat(128), "p1", 1).await.created();
    for bad in ["", "a b", &"k".repeat(129)] {
        client.order(bad, "p1", 1).await.invalid_parameter("Idempotency-Key");
    }
}

#[tokio::test]
async fn a_body_is_at_most_a_mebibyte_of_json_thirty_two_deep() {
    let client = client();
    let path = "/v1/users/u1/cart/lines/p1";
    let padded = |bytes: usize| {
        let body = r#"{"quantity":1}"#;
        format!("{body}{}", " ".repeat(bytes - body.len()))
    };
    client.text(Method::PUT, path, &[], &padded(1024 * 1024)).await.ok();
    client.text(Method::PUT, path, &[], &padded(1024 * 1024 + 1)).await.problem(413, "body_too_large");
    let deep = |levels: usize| format!("{{\"quantity\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    client.text(Method::PUT, path, &[], &deep(31)).await.invalid_field("quantity");
    client.text(Method::PUT, path, &[], &deep(32)).await.problem(400, "invalid_json");
    client.text(Method::PUT, path, &[], &deep(100_000)).await.problem(400, "invalid_json");
}

#[tokio::test]
async fn anything_but_a_json_object_of_a_json_type_is_refused() {
    let client = client();
    let path = "/v1/users/u1/cart/lines/p1";
    for body in
        ["{", "[]", "1", "null", "\"x\"", "{\"quantity\":1}}", "{'quantity':1}", "{\"quantity\":01}", "nope"]
    {
        client.text(Method::PUT, path, &[], body).await.problem(400, "invalid_json");
    }
    let typed = |value| [("content-type", value)];
    client
        .text(Method::PUT, path, &typed("text/plain"), r#"{"quantity":1}"#)
        .await
        .problem(415, "unsupported_media_type");
    client.text(Method::PUT, path, &[], "").await.problem(415, "unsupported_media_type");
    client.text(Method::PUT, path, &typed("application/json"), "").await.problem(400, "invalid_json");
    client.text(Method::PUT, path, &typed("application/vnd.shop+json"), r#"{"quantity":1}"#).await.ok();
    client.text(Method::PUT, path, &[], r#"{"quantity":1,"quantity":2}"#).await.invalid_field("quantity");
}

#[tokio::test]
async fn an_order_beyond_the_largest_amount_is_refused() {
    let client = client();
    client
        .put("/v1/products/p1", json!({ "name": "n", "category": "c", "price": money("999999999999.99") }))
        .await;
    client.put("/v1/products/p1/stock/msk", json!({ "on_hand": 5 })).await.ok();
    client.order("k", "p1", 1).await.created();
    client.order("k2", "p1", 2).await.problem(422, "invalid_field");
}
