//! The operations of a client.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::client::Call;

/// Units by product.
pub(super) type Lines = BTreeMap<String, u32>;

#[derive(Debug, Clone)]
pub(super) enum Op {
    /// The owner is `users/…` or `sessions/…`.
    SetLine {
        owner: String,
        product: String,
        quantity: u32,
    },
    RemoveLine {
        owner: String,
        product: String,
    },
    Merge {
        user: String,
        session: String,
        key: String,
    },
    Checkout {
        user: String,
        zone: &'static str,
        key: String,
    },
    Order {
        user: String,
        zone: &'static str,
        lines: Lines,
        key: String,
    },
    Status {
        order_id: String,
        from: &'static str,
        to: &'static str,
        key: String,
    },
    Reserve {
        zone: &'static str,
        lines: Lines,
        ttl_seconds: u32,
        key: String,
    },
    Confirm {
        reservation_id: String,
        key: String,
    },
    Release {
        reservation_id: String,
    },
    Adjust {
        product: String,
        zone: &'static str,
        delta: i64,
        key: String,
    },
}

impl Op {
    pub(super) fn call(&self) -> Call {
        let post = |path: String, body: Value| Call::new("POST", path).json(body);
        match self {
            Self::SetLine { owner, product, quantity } => {
                Call::new("PUT", format!("/v1/{owner}/cart/lines/{product}"))
                    .json(json!({"quantity": quantity}))
            }
            Self::RemoveLine { owner, product } => {
                Call::new("DELETE", format!("/v1/{owner}/cart/lines/{product}"))
            }
            Self::Merge { user, session, key } => {
                post(format!("/v1/users/{user}/cart/merge"), json!({"session_id": session})).key(key)
            }
            Self::Checkout { user, zone, key } => {
                post(format!("/v1/users/{user}/cart/checkout"), json!({"geo_zone": zone})).key(key)
            }
            Self::Order { user, zone, lines, key } => {
                let body = json!({"user_id": user, "geo_zone": zone, "lines": listed(lines)});
                post("/v1/orders".to_owned(), body).key(key)
            }
            Self::Status { order_id, to, key, .. } => {
                post(format!("/v1/orders/{order_id}/status"), json!({"status": to})).key(key)
            }
            Self::Reserve { zone, lines, ttl_seconds, key } => {
                let body = json!({"geo_zone": zone, "lines": listed(lines), "ttl_seconds": ttl_seconds});
                post("/v1/reservations".to_owned(), body).key(key)
            }
            Self::Confirm { reservation_id, key } => {
                Call::new("POST", format!("/v1/reservations/{reservation_id}/confirm")).key(key)
            }
            Self::Release { reservation_id } => {
                Call::new("DELETE", format!("/v1/reservations/{reservation_id}"))
            }
            Self::Adjust { product, zone, delta, key } => {
                let path = format!("/v1/products/{product}/stock/{zone}/adjust");
                post(path, json!({"delta": delta, "reason": "counted"})).key(key)
            }
        }
    }

    /// Whether the rules of the shop may refuse it with this code.
    pub(super) fn may_be_refused(&self, code: &str) -> bool {
        match self {
            Self::Checkout { .. } => ["cart_empty", "out_of_stock"].contains(&code),
            Self::Order { .. } | Self::Reserve { .. } => code == "out_of_stock",
            Self::Adjust { .. } => code == "stock_below_reserved",
            _ => false,
        }
    }
}

fn listed(lines: &Lines) -> Value {
    lines.iter().map(|(product, quantity)| json!({"product_id": product, "quantity": quantity})).collect()
}

/// The lines of a cart, an order or a reservation.
pub(super) fn lines_of(body: &Value) -> Lines {
    let lines = body["lines"].as_array().unwrap_or_else(|| panic!("no lines in {body}"));
    let line = |line: &Value| {
        let quantity = line["quantity"].as_u64().unwrap();
        (line["product_id"].as_str().unwrap().to_owned(), u32::try_from(quantity).unwrap())
    };
    lines.iter().map(line).collect()
}
