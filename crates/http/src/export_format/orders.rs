//! Orders with their events. Amounts are in the currency that the header names.

use mw_domain::{
    EventKind, GeoZone, Money, Order, OrderEvent, OrderId, OrderLine, OrderStatus, ProductId, Timestamp,
    UserId,
};
use serde::{Deserialize, Serialize};

use super::form::{form, list, one, optional};

#[derive(Serialize, Deserialize)]
#[serde(remote = "OrderStatus", rename_all = "snake_case")]
enum OrderStatusForm {
    Created,
    Paid,
    Shipped,
    Delivered,
    Returned,
    Cancelled,
}
form!(OrderStatus as OrderStatusForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "OrderLine", deny_unknown_fields)]
struct OrderLineForm {
    #[serde(with = "one")]
    product_id: ProductId,
    name: String,
    #[serde(with = "one")]
    price: Money,
    quantity: u32,
}
form!(OrderLine as OrderLineForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Order", deny_unknown_fields)]
struct OrderForm {
    #[serde(with = "one")]
    order_id: OrderId,
    #[serde(with = "one")]
    user_id: UserId,
    #[serde(with = "one")]
    status: OrderStatus,
    #[serde(with = "one")]
    geo_zone: GeoZone,
    #[serde(with = "list")]
    lines: Vec<OrderLine>,
    #[serde(with = "one")]
    total: Money,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delivery_address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payment_method: Option<String>,
    #[serde(with = "one")]
    created_at: Timestamp,
    #[serde(with = "one")]
    updated_at: Timestamp,
    version: u64,
    #[serde(with = "one")]
    pay_by: Timestamp,
}
form!(Order as OrderForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "EventKind", rename_all = "snake_case")]
enum EventKindForm {
    Created,
    Status,
}
form!(EventKind as EventKindForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "OrderEvent", deny_unknown_fields)]
struct OrderEventForm {
    #[serde(with = "one")]
    at: Timestamp,
    #[serde(with = "one")]
    kind: EventKind,
    #[serde(with = "optional", default, skip_serializing_if = "Option::is_none")]
    from: Option<OrderStatus>,
    #[serde(with = "one")]
    to: OrderStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}
form!(OrderEvent as OrderEventForm);
