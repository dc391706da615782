//! The catalogue: products, patches, listings.

use std::io::Read as _;

use axum::body::Body;
use http::{Method, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::client::{Client, Response, client, money, pluck, product_body};

#[tokio::test]
async fn a_product_is_created_replaced_and_deleted() {
    let client = client();
    let body = json!({
        "name": "Телефон", "category": "Телефоны", "price": money("1999.9"), "description": "Хороший",
        "attributes": { "colour": "black" },
    });
    let created = client.put("/v1/products/p1", body).await.created();
    assert_eq!(created["price"], money("1999.90"));
    assert_eq!(created["attributes"], json!({ "colour": "black" }));
    assert_eq!(created["product_id"], "p1");
    client.pass_ms(1_000);
    let replaced = client.put("/v1/products/p1", product_body("phones", "10")).await.ok();
    assert_eq!((&replaced["description"], &replaced["attributes"]), (&json!(""), &json!({})));
    assert_eq!(replaced["created_at"], created["created_at"]);
    assert_ne!(replaced["updated_at"], created["updated_at"]);
    assert_eq!(client.get("/v1/products/p1").await.ok(), replaced);
    assert_eq!(client.get("/v1/products/p1?fresh=true").await.ok(), replaced);
    client.get("/v1/products/p1?fresh=yes").await.invalid_parameter("fresh");
    client.delete("/v1/products/p1").await.no_content();
    client.get("/v1/products/p1").await.problem(404, "product_not_found");
    client.delete("/v1/products/p1").await.problem(404, "product_not_found");
}

#[tokio::test]
async fn a_patch_changes_what_it_names() {
    let client = client();
    client.patch("/v1/products/p1", json!({ "name": "x" })).await.problem(404, "product_not_found");
    client.put("/v1/products/p1", product_body("phones", "10")).await.created();
    let patched = client.patch("/v1/products/p1", json!({ "price": money("12.34") })).await.ok();
    assert_eq!((&patched["name"], &patched["price"]), (&json!("A phone"), &money("12.34")));
    let body = json!({ "attributes": { "a": "b" }, "description": "d", "category": "tablets" });
    let patched = client.patch("/v1/products/p1", body).await.ok();
    assert_eq!(patched["category"], "tablets");
    client.patch("/v1/products/p1", json!({ "name": "" })).await.invalid_field("name");
    client.patch("/v1/products/p1", json!({ "name": null })).await.invalid_field("name");
    client.patch("/v1/products/p1", json!({ "product_id": "p2" })).await.invalid_field("product_id");
}

#[tokio::test]
async fn money_is_an_exact_decimal_string_in_the_shops_currency() {
    let client = client();
    let put = async |price: Value| {
        let body = json!({ "name": "n", "category": "c", "price": price });
        client.put("/v1/products/p1", body).await
    };
    for amount in ["1.999", "-1", "+1", "1e3", "", ".5", "5.", "1,5", "1000000000000", "NaN", " 1"] {
        put(money(amount)).await.invalid_field("price.amount");
    }
    put(json!({ "amount": 19.99, "currency": "RUB" })).await.invalid_field("price.amount");
    put(json!({ "amount": 19, "currency": "RUB" })).await.invalid_field("price.amount");
    put(json!({ "currency": "RUB" })).await.invalid_field("price.amount");
    put(json!({ "amount": "1" })).await.invalid_field("price.currency");
    put(json!({ "amount": "1", "currency": "RUB", "scale": 2 })).await.invalid_field("price.scale");
    put(json!(["1", "RUB"])).await.invalid_field("price");
    put(json!("1 RUB")).await.invalid_field("price");
    for currency in ["USD", "rub", ""] {
        put(json!({ "amount": "1", "currency": currency })).await.problem(422, "currency_mismatch");
    }
    for amount in ["0", "999999999999.99"] {
        assert!(put(money(amount)).await.status.is_success());
    }
}

async fn fill(client: &Client) {
    for (id, price) in [("p3", "30"), ("p1", "10"), ("p2b", "20"), ("p2a", "20")] {
        client.put(&format!("/v1/products/{id}"), product_body("phones", price)).await.created();
    }
    client.put("/v1/products/t1", product_body("tablets", "5")).await.created();
    client.put("/v1/products/p1/stock/msk", json!({ "on_hand": 3 })).await.ok();
    client.put("/v1/products/p3/stock/spb", json!({ "on_hand": 9 })).await.ok();
}

#[tokio::test]
async fn a_category_is_listed_by_price_then_id() {
    let client = client();
    fill(&client).await;
    let ids = async |query: &str| {
        let list = client.get(&format!("/v1/products?category=phones{query}")).await.ok();
        pluck(&list, "product_id").into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ids("").await, ["p1", "p2a", "p2b", "p3"]);
    assert_eq!(ids("&order=asc&fresh=true").await, ["p1", "p2a", "p2b", "p3"]);
    assert_eq!(ids("&order=desc").await, ["p3", "p2b", "p2a", "p1"]);
    assert_eq!(ids("&min_price=20&max_price=20.00").await, ["p2a", "p2b"]);
    assert_eq!(ids("&min_price=31").await, Vec::<String>::new());
    assert_eq!(ids("&geo_zone=msk&in_stock=true").await, ["p1"]);
    assert_eq!(ids("&in_stock=false").await.len(), 4);
}

#[tokio::test]
async fn a_listing_with_a_zone_shows_what_is_available() {
    let client = client();
    fill(&client).await;
    let list = client.get("/v1/products?category=phones&geo_zone=msk").await.ok();
    let available: Vec<_> =
        list["items"].as_array().unwrap().iter().map(|item| item["available"].clone()).collect();
    assert_eq!(available, [3, 0, 0, 0]);
    let list = client.get("/v1/products?category=phones").await.ok();
    assert!(list["items"][0].get("available").is_none());
}

#[tokio::test]
async fn a_listing_is_paged_and_its_cursor_is_bound_to_its_filters() {
    let client = client();
    fill(&client).await;
    let first = client.get("/v1/products?category=phones&limit=2").await.ok();
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = client.get(&format!("/v1/products?category=phones&limit=2&cursor={cursor}")).await.ok();
    assert_eq!(pluck(&second, "product_id"), ["p2b", "p3"]);
    for other in ["category=tablets", "category=phones&order=desc", "category=phones&min_price=1"] {
        client.get(&format!("/v1/products?{other}&cursor={cursor}")).await.problem(400, "invalid_cursor");
    }
}

#[tokio::test]
async fn a_listing_refuses_bad_filters() {
    let client = client();
    for (query, parameter) in [
        ("", "category"),
        ("?category=", "category"),
        ("?category=%01", "category"),
        ("?category=a&category=b", "category"),
        ("?category=a&order=up", "order"),
        ("?category=a&min_price=1.999", "min_price"),
        ("?category=a&max_price=-1", "max_price"),
        ("?category=a&min_price=2&max_price=1", "max_price"),
        ("?category=a&geo_zone=m%20s", "geo_zone"),
        ("?category=a&in_stock=true", "geo_zone"),
        ("?category=a&in_stock=1", "in_stock"),
        ("?category=a&offset=3", "offset"),
        ("?category=a&limit=0", "limit"),
        ("?category=a&limit=101", "limit"),
        ("?category=%ff", "category"),
    ] {
        client.get(&format!("/v1/products{query}")).await.invalid_parameter(parameter);
    }
}

#[tokio::test]
async fn a_category_exists_while_it_has_products() {
    let client = client();
    fill(&client).await;
    assert_eq!(pluck(&client.get("/v1/categories").await.ok(), "category"), ["phones", "tablets"]);
    client.delete("/v1/products/t1").await.no_content();
    assert_eq!(pluck(&client.get("/v1/categories?fresh=true").await.ok(), "category"), ["phones"]);
}

async fn get_with(client: &Client, path: &str, headers: &[(&str, &str)]) -> Response {
    client.text(Method::GET, path, headers, "").await
}

#[tokio::test]
async fn a_read_that_the_client_has_already_is_not_sent_again() {
    let client = client();
    client.put("/v1/products/p1", product_body("phones", "10")).await.created();
    client.put("/v1/products/p1/stock/msk", json!({ "on_hand": 5 })).await.ok();
    let order =
        json!({ "user_id": "u", "geo_zone": "msk", "lines": [{ "product_id": "p1", "quantity": 1 }] });
    let key = [("idempotency-key", "k1")];
    let order = client.call(Method::POST, "/v1/orders", &key, &order).await.created();
    let order = format!("/v1/orders/{}", order["order_id"].as_str().unwrap());
    let page = "/v1/products?category=phones&geo_zone=msk";
    for path in ["/v1/products/p1", page, order.as_str()] {
        let first = client.get(path).await;
        let tag = first.headers["etag"].to_str().unwrap().to_owned();
        let again = get_with(&client, path, &[("if-none-match", &tag)]).await;
        assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""), "{path}");
        assert_eq!(again.headers["etag"], tag);
        let other = get_with(&client, path, &[("if-none-match", "\"other\"")]).await;
        assert_eq!(other.ok(), first.ok());
    }
    let tag = |response: Response| response.headers["etag"].to_str().unwrap().to_owned();
    let before = (tag(client.get("/v1/products/p1").await), tag(client.get(page).await));
    let hold =
        json!({ "geo_zone": "msk", "lines": [{ "product_id": "p1", "quantity": 1 }], "ttl_seconds": 5 });
    client.post("/v1/reservations", hold).await.created();
    let while_reserved = tag(client.get(page).await);
    assert_ne!(while_reserved, before.1, "one unit less is available");
    client.pass_ms(5_000);
    assert_eq!(tag(client.get(page).await), before.1, "the hold ended by time");
    client.patch("/v1/products/p1", json!({ "price": money("11") })).await.ok();
    assert_ne!(tag(client.get("/v1/products/p1").await), before.0);
}

#[tokio::test]
async fn large_responses_are_compressed_where_the_client_accepts_it() {
    let client = client();
    for at in 0..20 {
        let body = product_body("phones", &format!("{}", at + 1));
        client.put(&format!("/v1/products/p{at}"), body).await.created();
    }
    let path = "/v1/products?category=phones";
    let plain = client.get(path).await;
    assert!(plain.text.len() > 1024 && !plain.headers.contains_key("content-encoding"));
    assert_eq!(plain.headers["vary"], "accept-encoding");
    for encoding in ["zstd", "gzip"] {
        let request = Request::get(path).header("accept-encoding", format!("deflate, {encoding}"));
        let response = client.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.headers()["content-encoding"], encoding);
        assert_eq!(response.headers()["vary"], "accept-encoding");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let mut read = Vec::new();
        if encoding == "zstd" {
            read = zstd::bulk::decompress(&body, plain.text.len()).unwrap();
        } else {
            flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut read).unwrap();
        }
        assert_eq!(String::from_utf8(read).unwrap(), plain.text);
    }
    let small = get_with(&client, "/v1/products/p1", &[("accept-encoding", "zstd, gzip")]).await;
    assert!(!small.headers.contains_key("content-encoding"));
}
