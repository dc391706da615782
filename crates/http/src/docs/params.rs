//! Query parameters and headers in the OpenAPI document.

use utoipa::{IntoParams, ToSchema};

use crate::wire::schema;

macro_rules! params {
    ($($(#[$attribute:meta])* $name:ident in $location:ident {
        $($(#[$field_attribute:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$attribute])*
        #[derive(Debug, IntoParams)]
        #[into_params(parameter_in = $location)]
        #[expect(dead_code, reason = "only its schema is used")]
        pub(crate) struct $name {
            $($(#[$field_attribute])* $field: $type,)*
        }
    )*};
}

params! {
    PageParams in Query {
        /// How many items a page has at most.
        #[param(minimum = 1, maximum = 100, default = 20)]
        limit: Option<u32>,
        /// `next_cursor` of the page before, of the same list with the same filters.
        cursor: Option<String>,
    }

    FreshParam in Query {
        /// Read at full consistency; otherwise products and listings of a cluster may lag up to 30 s.
        #[param(default = false)]
        fresh: Option<bool>,
    }

    CategoryParams in Query {
        #[param(value_type = schema::CategoryName)]
        category: String,
        /// Inclusive.
        #[param(value_type = Option<schema::Amount>)]
        min_price: Option<String>,
        /// Inclusive.
        #[param(value_type = Option<schema::Amount>)]
        max_price: Option<String>,
        #[param(inline)]
        order: Option<Order>,
        /// Each item then carries `available` in this zone.
        #[param(value_type = Option<schema::Name>)]
        geo_zone: Option<String>,
        /// Only what is available in `geo_zone`.
        #[param(default = false)]
        in_stock: Option<bool>,
    }

    PeriodParams in Query {
        /// Inclusive: a time, or a date as its midnight in UTC.
        from: Option<String>,
        /// Exclusive: a time, or a date as its midnight in UTC.
        to: Option<String>,
    }

    OrdersParams in Query {
        /// One day in UTC, without `from` and `to`.
        #[param(value_type = Option<schema::CalendarDate>)]
        date: Option<String>,
        /// Inclusive: a time, or a date as its midnight in UTC.
        from: Option<String>,
        /// Exclusive: a time, or a date as its midnight in UTC; at most 31 days after `from`.
        to: Option<String>,
        #[param(value_type = Option<schema::Name>)]
        geo_zone: Option<String>,
    }

    SalesParams in Query {
        /// Inclusive: a time, or a date as its midnight in UTC.
        from: String,
        /// Exclusive: a time, or a date as its midnight in UTC; at most 92 days after `from`.
        to: String,
        #[param(value_type = Option<schema::Name>)]
        geo_zone: Option<String>,
    }

    IdleParam in Query {
        /// Seconds.
        #[param(minimum = 0, maximum = 315_360_000, default = 3_600)]
        idle_for: Option<u32>,
    }

    ChangesParams in Query {
        /// `cursor` of a change or `next_cursor` of a page; `now`: only what comes from now on. Without it: the oldest change
        /// that is kept.
        after: Option<String>,
        /// Some of `orders`, `stock`, `products`, `carts`, `sessions`, separated by commas; by default all that are written.
        topics: Option<String>,
        /// How many changes a page has at most.
        #[param(minimum = 1, maximum = 1000, default = 100)]
        limit: Option<u32>,
        /// How many seconds to wait for the first change.
        #[param(minimum = 0, maximum = 30, default = 0)]
        wait: Option<u32>,
    }

    LastEventId in Header {
        /// `id` of the last event; it wins over `after`.
        #[param(rename = "Last-Event-ID", value_type = String, required = false)]
        last_event_id: Option<String>,
    }

    IfMatchVersion in Header {
        /// The version the change is made to, in quotes; a cart that is not there has version 0.
        #[param(rename = "If-Match", value_type = String, required = false, example = "\"7\"")]
        if_match: Option<String>,
    }

    IdempotencyKey in Header {
        /// Identifies one intended effect: a repeat with the same body returns the first success again.
        #[param(rename = "Idempotency-Key", min_length = 1, max_length = 128, pattern = "^[!-~]{1,128}$",
            value_type = String, required = false)]
        idempotency_key: Option<String>,
    }

    RequiredIdempotencyKey in Header {
        /// Identifies one intended effect: a repeat with the same body returns the first success again.
        #[param(rename = "Idempotency-Key", min_length = 1, max_length = 128, pattern = "^[!-~]{1,128}$")]
        idempotency_key: String,
    }
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum Order {
    Asc,
    Desc,
}
