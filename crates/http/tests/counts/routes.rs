//! The hot routes of a busy shop. Reads come first, so that the background work that writes leave to the engine is counted
//! with writes.

use serde_json::json;

use crate::client::Request;
use crate::seed::{Seeded, USERS, category, order, product, set_line};

/// Makes the request of a number; those of a write all differ.
type Make = fn(usize, &Seeded) -> Request;

pub(crate) const HOT: &[(&str, Make)] = &[
    ("healthz", |_, _| Request::get("/healthz")),
    ("product", |number, _| Request::get(&product(number % 40))),
    ("category_page", |number, _| {
        Request::get(&format!("/v1/products?category={}&geo_zone=msk", category(number)))
    }),
    ("cart", |number, _| Request::get(&format!("/v1/users/user-{}/cart", number % USERS))),
    ("session", |number, _| Request::get(&format!("/v1/sessions/session-{}", number % USERS))),
    ("order", |number, seeded| {
        Request::get(&format!("/v1/orders/{}", seeded.orders[number % seeded.orders.len()]))
    }),
    ("orders_of_user", |_, _| Request::get("/v1/users/regular/orders")),
    ("session_activity", |number, _| {
        Request::patch(&format!("/v1/sessions/session-{}", number % USERS), &json!({}))
    }),
    ("session_data", |number, _| {
        let path = format!("/v1/sessions/session-{}", number % USERS);
        Request::patch(&path, &json!({ "data": { "seen": number.to_string() } }))
    }),
    ("set_line", |number, _| {
        let user = number % USERS;
        set_line(user, user, 1 + number % 9)
    }),
    ("place_order", |number, _| {
        order(&format!("buyer-{}", number % USERS), &format!("order-{number}"), number)
    }),
];
