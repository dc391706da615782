//! The requests that a busy shop consists of. Those that only read come first: what a write leaves for the engine to do
//! in the background is counted with writes.

use serde_json::json;

use crate::client::Request;
use crate::seed::{SHOPPERS, Seeded, category, order, product, set_line};

/// One of the requests that are counted, by its number: no two alike where it writes.
type Make = fn(usize, &Seeded) -> Request;

pub(crate) const HOT: &[(&str, Make)] = &[
    ("healthz", |_, _| Request::get("/healthz")),
    ("product", |number, _| Request::get(&product(number % 40))),
    ("category_page", |number, _| {
        Request::get(&format!("/v1/products?category={}&geo_zone=msk", category(number)))
    }),
    ("cart", |number, _| Request::get(&format!("/v1/users/shopper-{}/cart", number % SHOPPERS))),
    ("session", |number, _| Request::get(&format!("/v1/sessions/session-{}", number % SHOPPERS))),
    ("order", |number, seeded| {
        Request::get(&format!("/v1/orders/{}", seeded.orders[number % seeded.orders.len()]))
    }),
    ("orders_of_user", |_, _| Request::get("/v1/users/regular/orders")),
    ("session_activity", |number, _| {
        Request::patch(&format!("/v1/sessions/session-{}", number % SHOPPERS), &json!({}))
    }),
    ("session_data", |number, _| {
        let path = format!("/v1/sessions/session-{}", number % SHOPPERS);
        Request::patch(&path, &json!({ "data": { "seen": number.to_string() } }))
    }),
    ("set_line", |number, _| {
        let shopper = number % SHOPPERS;
        set_line(shopper, shopper, 1 + number % 9)
    }),
    ("place_order", |number, _| {
        order(&format!("buyer-{}", number % SHOPPERS), &format!("order-{number}"), number)
    }),
];
