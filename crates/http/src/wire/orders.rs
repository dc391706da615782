//! Orders, their events and their sales in JSON.

use mw_domain::{
    Currency, Demand, EventKind, GeoZone, Money, Order, OrderEvent, OrderLine, OrderStatus, UserId,
};
use mw_shop::OrderDraft;
use mw_store::orders::Sales;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::deserialize::{self, MoneyBody};
use super::scalars::{At, Day, Id, MoneyView};
use super::schema;
use crate::error::Problem;

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Order)]
pub(crate) struct OrderView<'a> {
    #[schema(value_type = schema::Uuid)]
    order_id: Id,
    #[schema(value_type = schema::Name)]
    user_id: &'a str,
    #[schema(value_type = OrderStatusName)]
    status: &'static str,
    #[schema(value_type = schema::Name)]
    geo_zone: &'a str,
    /// One a product.
    #[schema(value_type = Vec<OrderLineView>)]
    lines: Lines<'a>,
    #[schema(value_type = MoneyView)]
    total: MoneyView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    delivery_address: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    payment_method: Option<&'a str>,
    #[schema(value_type = schema::Time)]
    created_at: At,
    #[schema(value_type = schema::Time)]
    updated_at: At,
    version: u64,
}

#[derive(Debug)]
struct Lines<'a>(&'a [OrderLine], &'a Currency);

impl Serialize for Lines<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|line| OrderLineView {
            product_id: line.product_id.as_str(),
            name: &line.name,
            price: MoneyView::new(line.price, self.1),
            quantity: line.quantity,
        }))
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OrderLine)]
pub(crate) struct OrderLineView<'a> {
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    name: &'a str,
    #[schema(value_type = MoneyView)]
    price: MoneyView<'a>,
    quantity: u32,
}

#[derive(Debug, ToSchema)]
#[schema(as = OrderStatus, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum OrderStatusName {
    Created,
    Paid,
    Shipped,
    Delivered,
    Returned,
    Cancelled,
}

impl<'a> OrderView<'a> {
    pub(crate) fn new(order: &'a Order, currency: &'a Currency) -> Self {
        Self {
            order_id: Id(order.order_id.uuid()),
            user_id: order.user_id.as_str(),
            status: order.status.as_str(),
            geo_zone: order.geo_zone.as_str(),
            lines: Lines(&order.lines, currency),
            total: MoneyView::new(order.total, currency),
            delivery_address: order.delivery_address.as_deref(),
            payment_method: order.payment_method.as_deref(),
            created_at: At(order.created_at),
            updated_at: At(order.updated_at),
            version: order.version,
        }
    }

    /// An estimate of the bytes of the JSON.
    pub(crate) fn size(&self) -> usize {
        512 + self.lines.0.len() * 192
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OrderEvent)]
pub(crate) struct EventView<'a> {
    #[schema(value_type = schema::Time)]
    at: At,
    #[serde(rename = "type")]
    #[schema(value_type = EventType)]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = OrderStatusName, required = false)]
    from: Option<&'static str>,
    #[schema(value_type = OrderStatusName)]
    to: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    note: Option<&'a str>,
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum EventType {
    Created,
    Status,
}

impl<'a> From<&'a OrderEvent> for EventView<'a> {
    fn from(event: &'a OrderEvent) -> Self {
        Self {
            at: At(event.at),
            kind: match event.kind {
                EventKind::Created => "created",
                EventKind::Status => "status",
            },
            from: event.from.map(OrderStatus::as_str),
            to: event.to.as_str(),
            note: event.note.as_deref(),
        }
    }
}

/// Sales of one zone on one day.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sales)]
pub(crate) struct SalesView<'a> {
    #[schema(value_type = schema::CalendarDate)]
    date: Day,
    #[schema(value_type = schema::Name)]
    geo_zone: &'a str,
    orders: u64,
    units: u64,
    #[schema(value_type = MoneyView)]
    revenue: MoneyView<'a>,
}

impl<'a> SalesView<'a> {
    pub(crate) fn new(sales: &'a Sales, currency: &'a Currency) -> Self {
        Self {
            date: Day(sales.date),
            geo_zone: sales.geo_zone.as_str(),
            orders: sales.orders,
            units: sales.units,
            revenue: MoneyView::new(sales.revenue, currency),
        }
    }
}

/// The whole report.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SalesReport)]
pub(crate) struct SalesReportView<'a> {
    /// By date, then zone.
    pub(crate) items: Vec<SalesView<'a>>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaceOrder)]
pub(crate) struct OrderBody {
    #[serde(deserialize_with = "deserialize::id")]
    #[schema(value_type = schema::Name)]
    user_id: UserId,
    #[serde(deserialize_with = "deserialize::id")]
    #[schema(value_type = schema::Name)]
    geo_zone: GeoZone,
    #[serde(deserialize_with = "deserialize::lines")]
    #[schema(value_type = Vec<deserialize::DemandBody>, min_items = 1, max_items = 100)]
    lines: Vec<Demand>,
    /// Refuses the order where the total is another.
    #[schema(value_type = Option<MoneyView>)]
    expected_total: Option<MoneyBody>,
    #[serde(default, deserialize_with = "deserialize::optional_text")]
    #[schema(max_length = 1_024)]
    delivery_address: Option<String>,
    #[serde(default, deserialize_with = "deserialize::optional_text")]
    #[schema(max_length = 1_024)]
    payment_method: Option<String>,
}

fn expected(total: Option<MoneyBody>, currency: Currency) -> Result<Option<Money>, Problem> {
    total.map(|total| total.amount("expected_total", currency)).transpose()
}

impl OrderBody {
    pub(crate) fn draft(self, currency: Currency) -> Result<(OrderDraft, Vec<Demand>), Problem> {
        let draft = OrderDraft {
            expected_total: expected(self.expected_total, currency)?,
            user_id: self.user_id,
            geo_zone: self.geo_zone,
            delivery_address: self.delivery_address,
            payment_method: self.payment_method,
        };
        Ok((draft, self.lines))
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Checkout)]
pub(crate) struct CheckoutBody {
    #[serde(deserialize_with = "deserialize::id")]
    #[schema(value_type = schema::Name)]
    geo_zone: GeoZone,
    /// Refuses the order where the total is another.
    #[schema(value_type = Option<MoneyView>)]
    expected_total: Option<MoneyBody>,
    #[serde(default, deserialize_with = "deserialize::optional_text")]
    #[schema(max_length = 1_024)]
    delivery_address: Option<String>,
    #[serde(default, deserialize_with = "deserialize::optional_text")]
    #[schema(max_length = 1_024)]
    payment_method: Option<String>,
}

impl CheckoutBody {
    pub(crate) fn draft(self, user_id: UserId, currency: Currency) -> Result<OrderDraft, Problem> {
        Ok(OrderDraft {
            expected_total: expected(self.expected_total, currency)?,
            user_id,
            geo_zone: self.geo_zone,
            delivery_address: self.delivery_address,
            payment_method: self.payment_method,
        })
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SetStatus)]
pub(crate) struct StatusBody {
    #[serde(deserialize_with = "status")]
    #[schema(value_type = OrderStatusName)]
    pub(crate) status: OrderStatus,
    #[serde(default, deserialize_with = "deserialize::optional_text")]
    #[schema(max_length = 1_024)]
    pub(crate) note: Option<String>,
}

fn status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OrderStatus, D::Error> {
    deserialize::parsed(deserializer, |text| {
        OrderStatus::parse(text).ok_or("created, paid, shipped, delivered, returned or cancelled")
    })
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CancelOrder)]
pub(crate) struct NoteBody {
    #[serde(default, deserialize_with = "deserialize::optional_text")]
    #[schema(max_length = 1_024)]
    pub(crate) note: Option<String>,
}
