//! The contract of orders. A placed order is in every view (by id, by user, by zone and day, by period, with its first
//! event), and with it the units it holds and the cart it closed; a refused order is in none.

use std::collections::BTreeMap;

use mw_domain::carts::CartLifetime;
use mw_domain::limits::InvalidField;
use mw_domain::orders::SalesSums;
use mw_domain::{
    Date, Demand, GeoZone, Money, Order, OrderEvent, OrderId, OrderLine, OrderStatus, Period, ProductId,
    Timestamp, UserId,
};

use crate::{Done, Page, PageRequest, Refusal, RequestIdentity, Result};

/// The source of an order's lines.
#[derive(Debug, Clone)]
pub enum Basket {
    /// One per product, in the order of the placed lines.
    Lines(Vec<Demand>),
    /// Exactly the lines of the user's active cart; the cart becomes `ordered`.
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
    pub identity: Option<RequestIdentity>,
}

impl PlaceOrder {
    /// Refuses with `PriceChanged` unless the total is the expected one.
    pub fn check_total(&self, total: Money) -> Result<()> {
        match self.expected_total {
            Some(expected) if expected != total => Err(Refusal::PriceChanged { current: total }.into()),
            _ => Ok(()),
        }
    }

    /// The order as it is placed.
    pub fn into_order(self, lines: Vec<OrderLine>, total: Money) -> Order {
        Order {
            order_id: self.order_id,
            user_id: self.user_id,
            status: OrderStatus::Created,
            geo_zone: self.geo_zone,
            lines,
            total,
            delivery_address: self.delivery_address,
            payment_method: self.payment_method,
            created_at: self.now,
            updated_at: self.now,
            version: 1,
            pay_by: self.pay_by,
        }
    }
}

/// Prices a basket, for every engine. `offer` returns the current name and price of a product and is called in the
/// order of the demands. Refuses: `ProductNotFound`, then `InvalidField` if the total is above the largest amount.
pub fn price_basket(
    demands: Vec<Demand>,
    mut offer: impl FnMut(&ProductId) -> Result<Option<(String, Money)>>,
) -> Result<(Vec<OrderLine>, Money)> {
    let price = |Demand { product_id, quantity }| match offer(&product_id)? {
        Some((name, price)) => Ok(OrderLine { product_id, name, price, quantity }),
        None => Err(Refusal::ProductNotFound(product_id).into()),
    };
    let lines = demands.into_iter().map(price).collect::<Result<Vec<OrderLine>>>()?;
    let total = mw_domain::orders::total(&lines)
        .ok_or_else(|| InvalidField::new("lines", format!("the total is at most {}", Money::MAX)))?;
    Ok((lines, total))
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
    pub identity: Option<RequestIdentity>,
}

/// The rule of `If-Match`: refuses with `OrderVersion` unless the order has the expected version.
pub fn check_version(order: &Order, expected: Option<u64>) -> Result<()> {
    match expected {
        Some(expected) if expected != order.version => {
            Err(Refusal::OrderVersion { current: order.clone() }.into())
        }
        _ => Ok(()),
    }
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

/// The running sums of the sales report: orders that are sales, by day of creation and zone.
#[derive(Debug, Default)]
pub struct SalesReport(BTreeMap<(Date, GeoZone), SalesSums>);

impl SalesReport {
    /// Counts an order if its status makes it a sale.
    pub fn add_order(&mut self, order: &Order) {
        if order.status.is_sale() {
            self.add_sale(order.created_at, &order.geo_zone, order.units(), order.total);
        }
    }

    /// Counts an order that is a sale.
    pub fn add_sale(&mut self, created_at: Timestamp, geo_zone: &GeoZone, units: u64, total: Money) {
        self.0.entry((created_at.date(), geo_zone.clone())).or_default().add(units, total);
    }

    /// Adds the sums of a day or of a part of it.
    pub fn add_sums(&mut self, date: Date, geo_zone: GeoZone, sums: SalesSums) {
        self.0.entry((date, geo_zone)).or_default().add_all(sums);
    }

    /// Adds the sums of another report.
    pub fn merge(&mut self, other: Self) {
        for (key, sums) in other.0 {
            self.0.entry(key).or_default().add_all(sums);
        }
    }

    /// By date, then zone; days without a sale are absent.
    pub fn into_sales(self) -> Vec<Sales> {
        let sales = |((date, geo_zone), SalesSums { orders, units, revenue })| Sales {
            date,
            geo_zone,
            orders,
            units,
            revenue,
        };
        self.0.into_iter().filter(|(_, sums)| sums.orders > 0).map(sales).collect()
    }
}

#[async_trait::async_trait]
pub trait Orders: Send + Sync {
    /// Prices come from the catalogue at this instant. Refuses, in this order: `CartVersion`, `CartEmpty`,
    /// `ProductNotFound`, `InvalidField` (a total above the largest amount), `PriceChanged`, `OutOfStock`.
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>>;

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>>;

    /// Newest first; `None` if there is no such order.
    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>>;

    /// Moves the units with the status. A change to the present status writes nothing. Refuses, in this order: `OrderNotFound`,
    /// `OrderVersion`, `IllegalTransition`.
    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>>;

    /// By creation time, then id, both descending.
    async fn user_orders(&self, user_id: &UserId, period: Period, page: PageRequest) -> Result<Page<Order>>;

    /// All orders of a period, of one zone or of all, newest first.
    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>>;

    /// Sums of the orders that are paid, shipped or delivered, by day of creation, then zone; days without a sale are
    /// absent.
    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>>;

    /// Cancels up to `limit` orders that were not paid in time, with `note` in their events; returns how many.
    async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize>;
}
