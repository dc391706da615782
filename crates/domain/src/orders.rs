//! Orders: lines with their prices, and the state machine of the order status.
//!
//! Lines, prices and total never change after the order is placed; only status, version and events do.

use crate::ids::{GeoZone, OrderId, ProductId, UserId};
use crate::money::Money;
use crate::stock::Cause;
use crate::time::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OrderStatus {
    Created,
    Paid,
    Shipped,
    Delivered,
    Returned,
    Cancelled,
}

/// The effect of a status change on the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The order has this status already.
    Stay,
    /// Only the status changes.
    Move,
    /// The order's units move too.
    MoveUnits(Cause),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an order that is {from} cannot become {to}")]
pub struct IllegalTransition {
    pub from: OrderStatus,
    pub to: OrderStatus,
}

impl OrderStatus {
    pub const ALL: [Self; 6] =
        [Self::Created, Self::Paid, Self::Shipped, Self::Delivered, Self::Returned, Self::Cancelled];

    /// The name in every representation: JSON, CQL, exports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Paid => "paid",
            Self::Shipped => "shipped",
            Self::Delivered => "delivered",
            Self::Returned => "returned",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// The state machine: created → paid → shipped → delivered → returned; created and paid → cancelled.
    pub fn step(self, to: Self) -> Result<Step, IllegalTransition> {
        use OrderStatus::{Cancelled, Created, Delivered, Paid, Returned, Shipped};
        match (self, to) {
            (from, to) if from == to => Ok(Step::Stay),
            (Created, Paid) => Ok(Step::MoveUnits(Cause::Take)),
            (Created, Cancelled) => Ok(Step::MoveUnits(Cause::Release)),
            (Paid, Cancelled) | (Delivered, Returned) => Ok(Step::MoveUnits(Cause::Return)),
            (Paid, Shipped) | (Shipped, Delivered) => Ok(Step::Move),
            (from, to) => Err(IllegalTransition { from, to }),
        }
    }

    /// Whether the sales report counts an order of this status.
    pub const fn is_sale(self) -> bool {
        matches!(self, Self::Paid | Self::Shipped | Self::Delivered)
    }
}

impl std::fmt::Display for OrderStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A product as it was ordered, with its name and price at that instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderLine {
    pub product_id: ProductId,
    pub name: String,
    pub price: Money,
    pub quantity: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub order_id: OrderId,
    pub user_id: UserId,
    pub status: OrderStatus,
    pub geo_zone: GeoZone,
    /// One per product.
    pub lines: Vec<OrderLine>,
    pub total: Money,
    pub delivery_address: Option<String>,
    pub payment_method: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
    /// The service cancels the order if it is still `created` by then.
    pub pay_by: Timestamp,
}

/// `Created` is the first event; every later one is a change of status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Created,
    Status,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderEvent {
    pub at: Timestamp,
    pub kind: EventKind,
    pub from: Option<OrderStatus>,
    pub to: OrderStatus,
    pub note: Option<String>,
}

/// The sum of the lines; `None` above the largest amount of money.
pub fn total(lines: &[OrderLine]) -> Option<Money> {
    lines.iter().try_fold(Money::ZERO, |sum, line| sum.plus(line.price.times(line.quantity)?))
}

/// Sums of the orders that count as sales, such as those of one zone and day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SalesSums {
    pub orders: u64,
    pub units: u64,
    pub revenue: Money,
}

impl SalesSums {
    /// Adds an order that became a sale.
    pub fn add(&mut self, units: u64, total: Money) {
        self.orders += 1;
        self.units += units;
        self.revenue = self.revenue.saturating_add(total);
    }

    /// Adds the sums of other orders.
    pub fn add_all(&mut self, other: Self) {
        self.orders += other.orders;
        self.units += other.units;
        self.revenue = self.revenue.saturating_add(other.revenue);
    }

    /// Removes an order that is no sale any more.
    pub fn remove(&mut self, units: u64, total: Money) {
        self.orders = self.orders.saturating_sub(1);
        self.units = self.units.saturating_sub(units);
        self.revenue = self.revenue.saturating_sub(total);
    }
}

impl Order {
    pub fn units(&self) -> u64 {
        self.lines.iter().map(|line| u64::from(line.quantity)).sum()
    }

    /// The event that every order begins with.
    pub fn created_event(&self) -> OrderEvent {
        OrderEvent {
            at: self.created_at,
            kind: EventKind::Created,
            from: None,
            to: OrderStatus::Created,
            note: None,
        }
    }

    /// Moves to a status that [`OrderStatus::step`] has allowed; returns the event of the change.
    pub fn advance(&mut self, to: OrderStatus, note: Option<String>, now: Timestamp) -> OrderEvent {
        let from = std::mem::replace(&mut self.status, to);
        self.version += 1;
        self.updated_at = self.updated_at.max(now);
        OrderEvent { at: self.updated_at, kind: EventKind::Status, from: Some(from), to, note }
    }

    /// The order as it was at a version, which `event` led to.
    #[must_use]
    pub fn as_of(mut self, version: u64, event: &OrderEvent) -> Self {
        self.status = event.to;
        self.version = version;
        self.updated_at = event.at;
        self
    }

    /// The order as it was when it was placed.
    #[must_use]
    pub fn as_placed(mut self) -> Self {
        self.status = OrderStatus::Created;
        self.version = 1;
        self.updated_at = self.created_at;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_allows_six_steps_and_no_other() {
        let mut allowed = Vec::new();
        for from in OrderStatus::ALL {
            for to in OrderStatus::ALL {
                match from.step(to) {
                    Ok(Step::Stay) => assert_eq!(from, to),
                    Ok(step) => allowed.push(format!("{from}>{to}:{step:?}")),
                    Err(refused) => assert_eq!((refused.from, refused.to), (from, to)),
                }
            }
        }
        assert_eq!(
            allowed,
            [
                "created>paid:MoveUnits(Take)",
                "created>cancelled:MoveUnits(Release)",
                "paid>shipped:Move",
                "paid>cancelled:MoveUnits(Return)",
                "shipped>delivered:Move",
                "delivered>returned:MoveUnits(Return)",
            ]
        );
    }

    #[test]
    fn statuses_read_back() {
        for status in OrderStatus::ALL {
            assert_eq!(OrderStatus::parse(status.as_str()), Some(status));
        }
        assert_eq!(OrderStatus::parse("Paid"), None);
    }

    #[test]
    fn a_total_beyond_the_limit_is_none() {
        let line = |price, quantity| OrderLine {
            product_id: ProductId::parse("p").unwrap(),
            name: "n".into(),
            price,
            quantity,
        };
        assert_eq!(
            total(&[line(Money::from_minor(150), 2), line(Money::from_minor(1), 1)]),
            Some(Money::from_minor(301))
        );
        assert_eq!(total(&[line(Money::MAX, 1), line(Money::from_minor(1), 1)]), None);
        assert_eq!(total(&[line(Money::MAX, 10_000)]), None);
    }
}
