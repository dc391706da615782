//! How old the answer of each call may be. On Cassandra it is the consistency level of its reads that decides.

use std::time::Duration;

use crate::tables::Table;

/// How far the showcase may lag. No level promises a time: a copy that was away shows what it missed until the others have
/// sent it their hints, which takes seconds where a node was away for minutes.
pub const SHOWCASE_LAG: Duration = Duration::from_secs(30);

/// What of the API reads how.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub what: &'static str,
    pub routes: &'static str,
    pub reads: Reads,
    /// Where the answer comes from.
    pub tables: &'static [Table],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// At the table's `showcase` level.
    Showcase,
    /// At its `read` level.
    Fresh,
    /// Together with the conditional write that follows, or at the serial level.
    Serial,
}

impl Reads {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Showcase => "showcase",
            Self::Fresh => "read",
            Self::Serial => "serial",
        }
    }
}

impl Table {
    /// Whether any call reads it as the showcase.
    pub fn has_showcase(self) -> bool {
        CALLS.iter().any(|call| call.reads == Reads::Showcase && call.tables.contains(&self))
    }
}

const fn call(what: &'static str, routes: &'static str, reads: Reads, tables: &'static [Table]) -> Call {
    Call { what, routes, reads, tables }
}

pub(crate) const CARD: Call =
    call("a product's card", "GET /v1/products/{product_id}", Reads::Showcase, &[Table::ProductById]);

pub const CALLS: &[Call] = &[
    call(
        "a category, with what is available",
        "GET /v1/products",
        Reads::Showcase,
        &[Table::CategoryBands, Table::ProductsByCategory, Table::Stock],
    ),
    call(
        "a category, with fresh=true",
        "GET /v1/products?fresh=true",
        Reads::Fresh,
        &[Table::CategoryBands, Table::ProductsByCategory, Table::Stock],
    ),
    call(
        "the categories",
        "GET /v1/categories",
        Reads::Fresh,
        &[Table::Categories, Table::CategoryBands, Table::ProductsByCategory],
    ),
    CARD,
    call(
        "a product's card, with fresh=true",
        "GET /v1/products/{product_id}?fresh=true",
        Reads::Fresh,
        &[Table::ProductById],
    ),
    call(
        "a product's stock",
        "GET /v1/products/{product_id}/stock",
        Reads::Fresh,
        &[Table::StockZones, Table::Stock],
    ),
    call(
        "units when they are held, taken or given back",
        "POST /v1/orders, …/cart/checkout, /v1/reservations, …/status",
        Reads::Serial,
        &[Table::Stock],
    ),
    call(
        "prices when an order is placed",
        "POST /v1/orders, …/cart/checkout",
        Reads::Fresh,
        &[Table::ProductById],
    ),
    call(
        "an order, its status and its events",
        "GET /v1/orders/{order_id}, …/events",
        Reads::Fresh,
        &[Table::OrderById],
    ),
    call(
        "a shopper's orders, the new and the old",
        "GET /v1/users/{user_id}/orders",
        Reads::Fresh,
        &[Table::OrdersByCustomer],
    ),
    call(
        "orders by zone and period, sales",
        "GET /v1/orders, /v1/reports/sales",
        Reads::Fresh,
        &[Table::OrdersByZoneDay, Table::OrdersByDay],
    ),
    call(
        "a cart: reading, changing, merging",
        "{owner}/cart, …/lines, …/merge",
        Reads::Fresh,
        &[Table::CartsByOwner],
    ),
    call("a cart's history", "GET {owner}/cart/history", Reads::Fresh, &[Table::CartChanges]),
    call(
        "carts that were left",
        "GET /v1/reports/abandoned-carts",
        Reads::Fresh,
        &[Table::CartsByDay, Table::CartsByOwner],
    ),
    call(
        "a session, and a user's sessions",
        "/v1/sessions, GET /v1/users/{user_id}/sessions",
        Reads::Fresh,
        &[Table::SessionsById, Table::SessionsByUser],
    ),
];
