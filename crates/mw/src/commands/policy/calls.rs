//! Which tables each call of the API reads, at which consistency level, and so how stale its response may be.

use std::time::Duration;

use mw_store::Freshness;
use mw_store_cassandra::{Options, Table};

/// One call of the API.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) routes: &'static str,
    pub(super) read: ReadLevel,
    /// The tables that its response comes from.
    pub(super) tables: &'static [Table],
}

/// The level of the policy at which a call reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadLevel {
    /// The table's `stale_read` level.
    StaleRead,
    /// The table's `read` level.
    Read,
    /// As part of an LWT, or at the serial level.
    Serial,
}

impl ReadLevel {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::StaleRead => "stale_read",
            Self::Read => "read",
            Self::Serial => "serial",
        }
    }
}

impl Call {
    /// How stale its response may be; `None` where it reflects every acknowledged write.
    pub(super) fn max_staleness(&self, options: &Options) -> Option<Duration> {
        let freshness = match self.read {
            ReadLevel::StaleRead => Freshness::StaleOk,
            ReadLevel::Read => Freshness::Latest,
            ReadLevel::Serial => return None,
        };
        let of_table = |table: &Table| {
            options.policy.max_staleness(*table, freshness, &options.replication, &options.local_dc)
        };
        self.tables.iter().filter_map(of_table).max()
    }
}

const fn call(name: &'static str, routes: &'static str, read: ReadLevel, tables: &'static [Table]) -> Call {
    Call { name, routes, read, tables }
}

pub(super) const CALLS: &[Call] = &[
    call(
        "products of a category, with availability",
        "GET /v1/products",
        ReadLevel::StaleRead,
        &[Table::CategoryBands, Table::ProductsByCategory, Table::Stock],
    ),
    call(
        "products of a category, fresh=true",
        "GET /v1/products?fresh=true",
        ReadLevel::Read,
        &[Table::CategoryBands, Table::ProductsByCategory, Table::Stock],
    ),
    call(
        "list of categories",
        "GET /v1/categories",
        ReadLevel::Read,
        &[Table::Categories, Table::CategoryBands, Table::ProductsByCategory],
    ),
    call("product", "GET /v1/products/{product_id}", ReadLevel::StaleRead, &[Table::ProductById]),
    call(
        "product, fresh=true",
        "GET /v1/products/{product_id}?fresh=true",
        ReadLevel::Read,
        &[Table::ProductById],
    ),
    call(
        "product stock",
        "GET /v1/products/{product_id}/stock",
        ReadLevel::Read,
        &[Table::StockZones, Table::Stock],
    ),
    call(
        "units when held, taken or released",
        "POST /v1/orders, …/cart/checkout, /v1/reservations, …/status",
        ReadLevel::Serial,
        &[Table::Stock],
    ),
    call(
        "prices when an order is placed",
        "POST /v1/orders, …/cart/checkout",
        ReadLevel::Read,
        &[Table::ProductById],
    ),
    call(
        "order with its status and events",
        "GET /v1/orders/{order_id}, …/events",
        ReadLevel::Read,
        &[Table::OrderById],
    ),
    call("orders of a user", "GET /v1/users/{user_id}/orders", ReadLevel::Read, &[Table::OrdersByCustomer]),
    call(
        "orders by zone and period, sales report",
        "GET /v1/orders, /v1/reports/sales",
        ReadLevel::Read,
        &[Table::OrdersByDay],
    ),
    call(
        "cart: reads, changes, merge",
        "{owner}/cart, …/lines, …/merge",
        ReadLevel::Read,
        &[Table::CartsByOwner],
    ),
    call(
        "carts of an owner",
        "GET {owner}/carts",
        ReadLevel::Read,
        &[Table::CartsByOwner, Table::ClosedCarts],
    ),
    call("cart history", "GET {owner}/cart/history", ReadLevel::Read, &[Table::CartChanges]),
    call(
        "abandoned carts report",
        "GET /v1/reports/abandoned-carts",
        ReadLevel::Read,
        &[Table::CartsByDay, Table::CartsByOwner, Table::ClosedCarts],
    ),
    call(
        "session, sessions of a user",
        "/v1/sessions, GET /v1/users/{user_id}/sessions",
        ReadLevel::Read,
        &[Table::SessionsById, Table::SessionsByUser],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_stale_only_where_its_read_can_miss_a_write() {
        let of = |options: &Options, name: &str| {
            let call = CALLS.iter().find(|call| call.name == name).unwrap();
            call.max_staleness(options).is_some()
        };
        let mut options = Options::new(vec!["127.0.0.1:9042".to_owned()], "dc1");
        assert!(of(&options, "product"));
        assert!(of(&options, "products of a category, with availability"));
        assert!(!of(&options, "prices when an order is placed"));
        options.policy.set("product_by_id", "stale_read", "LOCAL_QUORUM").unwrap();
        assert!(!of(&options, "product"));
        options.policy.set("product_by_id", "read", "LOCAL_ONE").unwrap();
        assert!(of(&options, "prices when an order is placed"));
    }

    #[test]
    fn the_calls_with_stale_reads_cover_the_tables_with_stale_reads() {
        for table in Table::ALL {
            let is_read = |call: &Call| call.read == ReadLevel::StaleRead && call.tables.contains(table);
            assert_eq!(CALLS.iter().any(is_read), table.has_stale_read(), "{table}");
        }
    }
}
