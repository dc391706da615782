//! Orders of the model. Every view filters the same rows, so an order is in every view or in none.

use mw_domain::carts::CartLifetime;
use mw_domain::orders::Step;
use mw_domain::stock::Cause;
use mw_domain::{
    Cart, Demand, GeoZone, Order, OrderEvent, OrderId, OrderStatus, Owner, Period, Timestamp, UserId,
};

use super::page::{Direction, page};
use super::stock::{MovementHeader, demands};
use super::{Model, State, StoredOrder};
use crate::carts;
use crate::changes::Changed;
use crate::idempotency::{Outcome, StoredValue as _};
use crate::orders::{self, Basket, PlaceOrder, Sales, SalesReport, SetStatus, price_basket};
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
                carts::check_version(active.as_ref(), *expected_version)?;
                let cart = active.filter(|cart| !cart.lines.is_empty()).ok_or(Refusal::CartEmpty)?;
                Ok((cart.demands(), Some((cart, *lifetime))))
            }
        }
    }

    fn place(&mut self, command: PlaceOrder) -> Result<Order> {
        let (demands, closing) = self.basket(&command)?;
        let (lines, total) = price_basket(demands.clone(), |product_id| {
            Ok(self.products.get(product_id).map(|product| (product.name.clone(), product.price)))
        })?;
        command.check_total(total)?;
        let shortages = self.shortages(&demands, &command.geo_zone, command.now);
        if !shortages.is_empty() {
            return Err(Refusal::OutOfStock(shortages).into());
        }

        let change = MovementHeader::new(command.order_id.uuid(), Cause::Hold, command.now);
        self.move_units(&demands, &command.geo_zone, &change);
        if let Some((mut cart, lifetime)) = closing {
            cart.become_order(command.order_id, command.now, &lifetime);
            self.keep_closed(&cart);
        }
        let order = command.into_order(lines, total);
        let stored = StoredOrder { events: vec![order.created_event()], order: order.clone() };
        self.orders.insert(order.order_id, stored);
        self.record(order.created_at, Changed::OrderCreated(order.clone()));
        Ok(order)
    }

    /// Moves an order and its units to a status that the state machine allows.
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
                let change = MovementHeader::new(order.order_id.uuid(), cause, now);
                self.move_units(&demands(&order), &order.geo_zone, &change);
            }
        }
        let event = order.advance(to, note, now);
        if let Some(stored) = self.orders.get_mut(&order.order_id) {
            stored.order = order.clone();
            stored.events.push(event);
        }
        self.record(order.updated_at, Changed::OrderStatus(order.clone()));
        Ok(order)
    }

    fn orders_where(&self, is_wanted: impl Fn(&Order) -> bool, request: &PageRequest) -> Result<Page<Order>> {
        let orders = self
            .orders
            .values()
            .map(|stored| &stored.order)
            .filter(|order| is_wanted(order))
            .map(|order| {
                let key = (order.created_at.as_millis(), order.order_id.to_string());
                (key, order.clone())
            })
            .collect();
        page(orders, Direction::Falling, request)
    }
}

#[async_trait::async_trait]
impl Orders for Model {
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        let mut state = self.state();
        let first = state.replay_with(command.identity.as_ref(), command.now, |outcome| match outcome {
            Outcome::Placed(order_id) => {
                let stored = state.orders.get(order_id)?;
                Some(stored.order.clone().as_placed())
            }
            _ => None,
        })?;
        if let Some(first) = first {
            return Ok(first);
        }
        state.expire_holds(command.now, usize::MAX);
        let identity = command.identity.clone();
        let order = state.place(command)?;
        state.store_outcome(identity, || Outcome::Placed(order.order_id));
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
        if let Some(first) = state.replay(command.identity.as_ref(), command.now)? {
            return Ok(first);
        }
        state.expire_holds(command.now, usize::MAX);
        let order = state
            .orders
            .get(&command.order_id)
            .map(|stored| stored.order.clone())
            .filter(|order| command.of_user.as_ref().is_none_or(|user| *user == order.user_id))
            .ok_or(Refusal::OrderNotFound(command.order_id))?;
        orders::check_version(&order, command.expected_version)?;
        let order = state.advance(order, command.to, command.note, command.now)?;
        state.store_outcome(command.identity, || order.to_outcome());
        Ok(Done::first(order))
    }

    async fn user_orders(
        &self,
        user_id: &UserId,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        let is_wanted = |order: &Order| order.user_id == *user_id && period.contains(order.created_at);
        self.state().orders_where(is_wanted, &request)
    }

    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        let is_wanted = |order: &Order| {
            geo_zone.is_none_or(|zone| order.geo_zone == *zone) && period.contains(order.created_at)
        };
        self.state().orders_where(is_wanted, &request)
    }

    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        let state = self.state();
        let mut report = SalesReport::default();
        let is_wanted = |order: &Order| {
            geo_zone.is_none_or(|zone| order.geo_zone == *zone) && period.contains(order.created_at)
        };
        for stored in state.orders.values().filter(|stored| is_wanted(&stored.order)) {
            report.add_order(&stored.order);
        }
        Ok(report.into_sales())
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
