//! The promise of orders: an order exists whole or not at all in every view (by id, by customer, by zone and day, by
//! period, with its first event), together with the units it holds and the cart it closed.

use mw_domain::cart::CartLifetime;
use mw_domain::{
    Date, Demand, GeoZone, Money, Order, OrderEvent, OrderId, OrderStatus, Period, Timestamp, UserId,
};

use crate::{Done, Once, Page, PageRequest, Result};

/// What an order is made of.
#[derive(Debug, Clone)]
pub enum Basket {
    /// One a product, in the order to keep.
    Lines(Vec<Demand>),
    /// Exactly what the user's active cart holds; the cart becomes `ordered`.
    Cart { expected_version: Option<u64>, lifetime: CartLifetime },
}

#[derive(Debug, Clone)]
pub struct PlaceOrder {
    pub order_id: OrderId,
    pub user_id: UserId,
    pub geo_zone: GeoZone,
    pub basket: Basket,
    pub expected_total: Option<Money>,
    pub delivery_address: Option<String>,
    pub payment_method: Option<String>,
    pub pay_by: Timestamp,
    pub now: Timestamp,
    pub once: Option<Once>,
}

#[derive(Debug, Clone)]
pub struct SetStatus {
    pub order_id: OrderId,
    /// Another user's order is `OrderNotFound`.
    pub of_user: Option<UserId>,
    pub to: OrderStatus,
    pub note: Option<String>,
    pub expected_version: Option<u64>,
    pub now: Timestamp,
    pub once: Option<Once>,
}

/// Sales of one zone on one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sales {
    pub date: Date,
    pub geo_zone: GeoZone,
    pub orders: u64,
    pub units: u64,
    pub revenue: Money,
}

#[async_trait::async_trait]
pub trait Orders: Send + Sync {
    /// Prices are the catalogue's at this moment. Refuses, in this order: `CartVersion`, `CartEmpty`,
    /// `ProductNotFound`, `InvalidField` (a total beyond the largest amount), `PriceChanged`, `OutOfStock`.
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>>;

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>>;

    /// Newest first; `None` where there is no such order.
    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>>;

    /// Units move with the status. The status it has: nothing happens. Refuses, in this order: `OrderNotFound`,
    /// `OrderVersion`, `IllegalTransition`.
    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>>;

    /// Newest (by creation, then id: both falling) first.
    async fn customer_orders(
        &self,
        user_id: &UserId,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>>;

    /// All orders of a period, of one zone or of all, newest first.
    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>>;

    /// Orders that are paid, shipped or delivered, by the day they were created and by zone; days without any are
    /// absent. By date, then zone.
    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>>;

    /// Cancels up to `limit` orders that were not paid in time, with `note` in their events; answers how many.
    async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize>;
}
