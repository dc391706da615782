//! Orders of the model. Every view is a filter over the same rows, so an order is in all of them or in none.

use std::collections::BTreeMap;

use mw_domain::cart::CartLifetime;
use mw_domain::limits::InvalidField;
use mw_domain::order::{Step, total};
use mw_domain::stock::Cause;
use mw_domain::{
    Cart, Date, Demand, GeoZone, Money, Order, OrderEvent, OrderId, OrderLine, OrderStatus, Owner, Period,
    Timestamp, UserId,
};

use super::carts::check_version;
use super::page::{Direction, page};
use super::stock::{Change, demands};
use super::{Model, State, StoredOrder};
use crate::once::Outcome;
use crate::orders::{Basket, PlaceOrder, Sales, SetStatus};
use crate::{Done, Orders, Page, PageRequest, Refusal, Result};

/// A cart that an order closes.
type Closing = Option<(Cart, CartLifetime)>;

impl State {
    /// The demands of the basket, and the cart to close.
    fn basket(&self, command: &PlaceOrder) -> Result<(Vec<Demand>, Closing)> {
        match &command.basket {
            Basket::Lines(lines) => Ok((lines.clone(), None)),
            Basket::Cart { expected_version, lifetime } => {
                let active = self.active(&Owner::User(command.user_id.clone()), command.now);
                check_version(active.as_ref(), *expected_version)?;
                let cart = active.filter(|cart| !cart.lines.is_empty()).ok_or(Refusal::CartEmpty)?;
                let lines = cart
                    .lines
                    .iter()
                    .map(|line| Demand { product_id: line.product_id.clone(), quantity: line.quantity })
                    .collect();
                Ok((lines, Some((cart, *lifetime))))
            }
        }
    }

    fn price(&self, lines: &[Demand]) -> Result<(Vec<OrderLine>, Money)> {
        let mut priced = Vec::new();
        for line in lines {
            let product = self
                .products
                .get(&line.product_id)
                .ok_or_else(|| Refusal::ProductNotFound(line.product_id.clone()))?;
            priced.push(OrderLine {
                product_id: line.product_id.clone(),
                name: product.name.clone(),
                price: product.price,
                quantity: line.quantity,
            });
        }
        let total = total(&priced)
            .ok_or_else(|| InvalidField::new("lines", format!("the total is at most {}", Money::MAX)))?;
        Ok((priced, total))
    }

    fn place(&mut self, command: PlaceOrder) -> Result<Order> {
        let (demands, closing) = self.basket(&command)?;
        let (lines, total) = self.price(&demands)?;
        if command.expected_total.is_some_and(|expected| expected != total) {
            return Err(Refusal::PriceChanged { current: total }.into());
        }
        let shortages = self.shortages(&demands, &command.geo_zone, command.now);
        if !shortages.is_empty() {
            return Err(Refusal::OutOfStock(shortages).into());
        }

        let change = Change::new(command.order_id.uuid(), Cause::Hold, command.now);
        self.move_units(&demands, &command.geo_zone, &change);
        if let Some((mut cart, lifetime)) = closing {
            cart.become_order(command.order_id, command.now, &lifetime);
            self.keep_cart(&cart);
        }
        let order = Order {
            order_id: command.order_id,
            user_id: command.user_id,
            status: OrderStatus::Created,
            geo_zone: command.geo_zone,
            lines,
            total,
            delivery_address: command.delivery_address,
            payment_method: command.payment_method,
            created_at: command.now,
            updated_at: command.now,
            version: 1,
            pay_by: command.pay_by,
        };
        let stored = StoredOrder { events: vec![order.created_event()], order: order.clone() };
        self.orders.insert(order.order_id, stored);
        Ok(order)
    }

    /// Moves an order and its units to a status that the machine allows.
    fn advance(
        &mut self,
        mut order: Order,
        to: OrderStatus,
        note: Option<String>,
        now: Timestamp,
    ) -> Result<Order> {
        match order.status.step(to)? {
            Step::Stay => return Ok(order),
            Step::Move => {}
            Step::MoveUnits(cause) => {
                let change = Change::new(order.order_id.uuid(), cause, now);
                self.move_units(&demands(&order), &order.geo_zone, &change);
            }
        }
        let event = order.advance(to, note, now);
        if let Some(stored) = self.orders.get_mut(&order.order_id) {
            stored.order = order.clone();
            stored.events.push(event);
        }
        Ok(order)
    }

    fn orders_where(&self, is_asked: impl Fn(&Order) -> bool, request: &PageRequest) -> Result<Page<Order>> {
        let orders = self
            .orders
            .values()
            .map(|stored| &stored.order)
            .filter(|order| is_asked(order))
            .map(|order| {
                let place = (order.created_at.as_millis(), order.order_id.to_string());
                (place, order.clone())
            })
            .collect();
        page(orders, Direction::Falling, request)
    }
}

#[async_trait::async_trait]
impl Orders for Model {
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        let mut state = self.state();
        let first = state.recall(command.once.as_ref(), command.now, |outcome| match outcome {
            Outcome::Placed(order_id) => {
                let stored = state.orders.get(order_id)?;
                Some(stored.order.clone().as_placed())
            }
            _ => None,
        })?;
        if let Some(first) = first {
            return Ok(first);
        }
        state.settle(command.now, usize::MAX);
        let once = command.once.clone();
        let order = state.place(command)?;
        state.remember(once, || Outcome::Placed(order.order_id));
        Ok(Done::first(order))
    }

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
        let state = self.state();
        Ok(state.orders.get(&order_id).map(|stored| stored.order.clone()))
    }

    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
        let state = self.state();
        let stored = state.orders.get(&order_id);
        Ok(stored.map(|stored| stored.events.iter().rev().cloned().collect()))
    }

    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>> {
        let mut state = self.state();
        let first = state.recall(command.once.as_ref(), command.now, |outcome| match outcome {
            Outcome::Order(order) => Some(order.clone()),
            _ => None,
        })?;
        if let Some(first) = first {
            return Ok(first);
        }
        state.settle(command.now, usize::MAX);
        let order = state
            .orders
            .get(&command.order_id)
            .map(|stored| stored.order.clone())
            .filter(|order| command.of_user.as_ref().is_none_or(|user| *user == order.user_id))
            .ok_or(Refusal::OrderNotFound(command.order_id))?;
        if command.expected_version.is_some_and(|expected| expected != order.version) {
            return Err(Refusal::OrderVersion { current: order }.into());
        }
        let order = state.advance(order, command.to, command.note, command.now)?;
        state.remember(command.once, || Outcome::Order(order.clone()));
        Ok(Done::first(order))
    }

    async fn customer_orders(
        &self,
        user_id: &UserId,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        let is_asked = |order: &Order| order.user_id == *user_id && period.contains(order.created_at);
        self.state().orders_where(is_asked, &request)
    }

    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        let is_asked = |order: &Order| {
            geo_zone.is_none_or(|zone| order.geo_zone == *zone) && period.contains(order.created_at)
        };
        self.state().orders_where(is_asked, &request)
    }

    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        let state = self.state();
        let mut sales: BTreeMap<(Date, GeoZone), Sales> = BTreeMap::new();
        for StoredOrder { order, .. } in state.orders.values() {
            let is_asked = order.status.is_sale()
                && period.contains(order.created_at)
                && geo_zone.is_none_or(|zone| order.geo_zone == *zone);
            if !is_asked {
                continue;
            }
            let date = order.created_at.date();
            let row = sales.entry((date, order.geo_zone.clone())).or_insert_with(|| Sales {
                date,
                geo_zone: order.geo_zone.clone(),
                orders: 0,
                units: 0,
                revenue: Money::ZERO,
            });
            row.orders += 1;
            row.units += order.units();
            row.revenue = row.revenue.saturating_add(order.total);
        }
        Ok(sales.into_values().collect())
    }

    async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
        let mut state = self.state();
        let mut unpaid: Vec<Order> = state
            .orders
            .values()
            .map(|stored| &stored.order)
            .filter(|order| order.status == OrderStatus::Created && now >= order.pay_by)
            .cloned()
            .collect();
        unpaid.sort_by_key(|order| (order.pay_by, order.order_id));
        unpaid.truncate(limit);
        let count = unpaid.len();
        for order in unpaid {
            state.advance(order, OrderStatus::Cancelled, Some(note.to_owned()), now)?;
        }
        Ok(count)
    }
}
