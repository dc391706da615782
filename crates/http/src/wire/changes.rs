//! Changes of the feed in JSON.

use mw_domain::Currency;
use mw_store::changes::{ChangeEvent, Changed};
use serde::Serialize;
use utoipa::ToSchema;

use super::carts::CartView;
use super::orders::OrderView;
use super::products::ProductView;
use super::scalars::At;
use super::schema;
use super::sessions::SessionView;
use super::stock::ZoneStockView;
use crate::cursor::Scope;

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Change)]
pub(crate) struct ChangeView<'a> {
    /// For `after`, to go on behind this change.
    pub(crate) cursor: String,
    /// The same whenever the change is read again.
    id: &'a str,
    #[schema(value_type = schema::Time)]
    time: At,
    #[schema(value_type = TopicName)]
    topic: &'static str,
    /// `order.created`, `order.status`, `stock.changed`, `product.put`, `product.deleted`, `cart.changed`, `cart.closed`,
    /// `session.changed` or `session.ended`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// An order id, `product_id/geo_zone` for stock, a product id, `user:<id>` or `session:<id>` for a cart, a session id.
    subject: String,
    /// Grows with every change of the subject; of an order and a cart it is the version of the resource.
    version: u64,
    /// The order, zone stock, product, cart or session after the change; absent where it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    data: Option<ResourceView<'a>>,
}

#[derive(Debug, ToSchema)]
#[schema(as = Topic, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum TopicName {
    Orders,
    Stock,
    Products,
    Carts,
    Sessions,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ResourceView<'a> {
    Order(OrderView<'a>),
    Stock(ZoneStockView<'a>),
    Product(ProductView<'a>),
    Cart(CartView<'a>),
    Session(SessionView<'a>),
}

impl<'a> ChangeView<'a> {
    pub(crate) fn new(change: &'a ChangeEvent, scope: &Scope, currency: &'a Currency) -> Self {
        let data = match &change.changed {
            Changed::OrderCreated(order) | Changed::OrderStatus(order) => {
                Some(ResourceView::Order(OrderView::new(order, currency)))
            }
            Changed::Stock(stock) => Some(ResourceView::Stock(stock.into())),
            Changed::ProductPut(product) => Some(ResourceView::Product(ProductView::new(product, currency))),
            Changed::Cart(cart) | Changed::CartClosed(cart) => Some(ResourceView::Cart(cart.into())),
            Changed::Session(session) => Some(ResourceView::Session(session.into())),
            Changed::ProductDeleted(_) | Changed::SessionEnded(_) => None,
        };
        Self {
            cursor: scope.encode(&change.position.0),
            id: &change.id,
            time: At(change.at),
            topic: change.changed.topic().name(),
            kind: change.changed.kind(),
            subject: change.changed.subject(),
            version: change.version,
            data,
        }
    }
}

/// A page of the feed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Changes)]
pub(crate) struct ChangesView<'a> {
    #[schema(value_type = Vec<ChangeView>)]
    pub(crate) items: Vec<ChangeView<'a>>,
    /// For `after`, to go on behind this page, also where it has no changes.
    pub(crate) next_cursor: String,
}
