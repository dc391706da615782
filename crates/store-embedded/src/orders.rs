//! Orders: a row by id with its events, an index row in each list, and running sums for the sales report.
//!
//! Invariant: a command writes idempotency key, stock, ledger, order, lists, timer, sums and cart in one batch. A crash at any
//! step leaves all of the command or none of it, so there is nothing to recover.

use std::sync::Arc;

use async_trait::async_trait;
use mw_codec::changes::ChangeRef;
use mw_domain::orders::Step;
use mw_domain::stock::Cause;
use mw_domain::{
    GeoZone, Order, OrderEvent, OrderId, OrderStatus, Owner, Period, ProductId, Timestamp, UserId,
};
use mw_store::orders::{Basket, Orders, PlaceOrder, Sales, SetStatus, check_version, price_basket};
use mw_store::{Done, Page, PageRequest, Refusal, Result, StoreError};

use crate::idempotency::{self, Placed};
use crate::keys::{self, OrderList};
use crate::long_reads::StoppableReader;
use crate::maintenance::COMMAND_ROWS;
use crate::reader::{KeyRange, List, Reader, page};
use crate::stock::UnknownProduct;
use crate::tables::Table;
use crate::tx::Tx;
use crate::{EmbeddedStore, carts, products, sales, stock, timers};

#[async_trait]
impl Orders for EmbeddedStore {
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        self.options.partitions.write(Table::OrdersByCustomer.name(), command.user_id.as_str());
        let done = self
            .write(move |tx| {
                let identity = command.identity.clone();
                idempotency::run(tx, identity, command.now, |tx| place(tx, command).map(Placed))
            })
            .await?;
        Ok(Done { value: done.value.0, replayed: done.replayed })
    }

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
        read(&self.snapshot(), order_id)
    }

    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
        let found = read_with_events(&self.snapshot(), order_id)?;
        Ok(found.map(|(_, mut events)| {
            events.reverse();
            events
        }))
    }

    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>> {
        self.write(move |tx| {
            let identity = command.identity.clone();
            idempotency::run(tx, identity, command.now, |tx| set_status(tx, command))
        })
        .await
    }

    async fn user_orders(
        &self,
        user_id: &UserId,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        self.options.partitions.read(Table::OrdersByCustomer.name(), user_id.as_str());
        list(&self.snapshot(), OrderList::User(user_id), period, &request)
    }

    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        let geo_zone = geo_zone.cloned();
        let read = move |reader: &StoppableReader| {
            let of = geo_zone.as_ref().map_or(OrderList::All, OrderList::Zone);
            list(reader, of, period, &request)
        };
        self.long_reads.run(Arc::new(self.snapshot()), read).await
    }

    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        let (geo_zone, hourly_from) = (geo_zone.cloned(), self.hourly_from);
        let read =
            move |reader: &StoppableReader| sales::report(reader, hourly_from, geo_zone.as_ref(), period);
        self.long_reads.run(Arc::new(self.snapshot()), read).await
    }

    async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
        if now < self.status.next_payment_timer() {
            return Ok(0);
        }
        let mut cancelled = 0;
        // A crash between two commands leaves the timers of the rest, and the next call finds them.
        while cancelled < limit {
            let (slice, note) = (COMMAND_ROWS.min(limit - cancelled), note.to_owned());
            let count = self.write(move |tx| cancel_unpaid(tx, now, &note, slice)).await?;
            cancelled += count;
            if count < slice {
                break;
            }
        }
        Ok(cancelled)
    }
}

pub(crate) fn read(reader: &dyn Reader, order_id: OrderId) -> Result<Option<Order>> {
    let row = reader.get(Table::Orders, &keys::order(order_id))?;
    Ok(row.map(|row| mw_codec::orders::decode_order(&row)).transpose()?)
}

/// An order with its events, oldest first.
pub(crate) fn read_with_events(
    reader: &dyn Reader,
    order_id: OrderId,
) -> Result<Option<(Order, Vec<OrderEvent>)>> {
    let row = reader.get(Table::Orders, &keys::order(order_id))?;
    Ok(row.map(|row| mw_codec::orders::decode(&row)).transpose()?)
}

pub(crate) const fn list_table(list: OrderList<'_>) -> Table {
    match list {
        OrderList::User(_) => Table::OrdersByCustomer,
        OrderList::Zone(_) => Table::OrdersByZone,
        OrderList::All => Table::OrdersByTime,
    }
}

/// A page of the orders of a list, newest first. List rows are keys alone: the order is read by id from the same snapshot.
fn list(
    reader: &dyn Reader,
    list: OrderList<'_>,
    period: Period,
    request: &PageRequest,
) -> Result<Page<Order>> {
    let prefix = list.prefix();
    let end = list.until(period.from).or_else(|| keys::after_prefix(&prefix));
    let rows = List {
        range: KeyRange { from: list.before(period.to), to: end },
        prefix,
        reverse: false,
        is_position: |tail| tail.len() == keys::TIME_ID_LEN,
    };
    page(reader, list_table(list), &rows, request, &mut |key, _| {
        let (_, order_id) = keys::read_order(key)?;
        listed(reader, order_id).map(Some)
    })
}

/// An order that a list names. A list row without its order is damage: both are written in one batch.
pub(crate) fn listed(reader: &dyn Reader, order_id: OrderId) -> Result<Order> {
    read(reader, order_id)?.ok_or_else(|| {
        StoreError::Corrupt(format!("read order {order_id}: a list names it, but it is not stored"))
    })
}

fn lines(order: &Order) -> impl Iterator<Item = (&ProductId, u32)> {
    order.lines.iter().map(|line| (&line.product_id, line.quantity))
}

/// Places an order. Every step only adds rows to the running batch. A crash before the commit leaves nothing of the order, and
/// the client's repeated request places it; a crash after the commit leaves all of it, and the repeat gets the stored outcome.
fn place(tx: &mut Tx, mut command: PlaceOrder) -> Result<Order> {
    let now = command.now;
    let basket = std::mem::replace(&mut command.basket, Basket::Lines(Vec::new()));
    let (demands, cart) = match basket {
        Basket::Lines(lines) => (lines, None),
        Basket::Cart { expected_version, lifetime } => {
            let owner = Owner::User(command.user_id.clone());
            let cart = carts::expected(carts::read_active(tx, &owner, now)?, expected_version)?;
            let cart = cart.filter(|cart| !cart.lines.is_empty()).ok_or(Refusal::CartEmpty)?;
            (cart.demands(), Some((cart, lifetime)))
        }
    };
    let (order_lines, total) = price_basket(demands, |product_id| products::read_tag(tx, product_id))?;
    command.check_total(total)?;
    let order = command.into_order(order_lines, total);
    // Final even if the order is refused below: the units of these holds are available in any case.
    stock::expire_for(tx, &order.geo_zone, lines(&order), now)?;
    // All lines are checked before the first moves, so that a refusal names every shortage.
    stock::check_demands(tx, &order.geo_zone, lines(&order), UnknownProduct::RuledOut)?;
    // The units move in the batch of their order: no crash leaves held units without an order.
    stock::move_lines(tx, &order.geo_zone, lines(&order), Cause::Hold, order.order_id.uuid(), now)?;
    save_new(tx, &order, &[order.created_event()]);
    record_step(tx, &order);
    if let Some((mut cart, lifetime)) = cart {
        // The cart closes in the batch of its order: no crash leaves a cart that can be ordered twice.
        let index_key = carts::active_index_key(&cart);
        cart.become_order(order.order_id, now, &lifetime);
        carts::close(tx, index_key, &cart);
    }
    Ok(order)
}

/// Writes a new order with its row in every list, and with a timer while it is unpaid.
pub(crate) fn save_new(tx: &mut Tx, order: &Order, events: &[OrderEvent]) {
    for list in [OrderList::User(&order.user_id), OrderList::Zone(&order.geo_zone), OrderList::All] {
        tx.put(list_table(list), list.key(order.created_at, order.order_id), Vec::new());
    }
    if order.status == OrderStatus::Created {
        tx.put(Table::PaymentTimers, keys::timer(order.pay_by, order.order_id.as_bytes()), Vec::new());
        tx.next_timers.payment = tx.next_timers.payment.min(order.pay_by);
    }
    tx.put(Table::Orders, keys::order(order.order_id), mw_codec::orders::encode(order, events));
}

/// Moves an order to another status, with its units, event, timer and sums. A crash before the commit leaves the old status and its
/// units, and the repeated request makes the step again; an unpaid order keeps its timer.
fn set_status(tx: &mut Tx, command: SetStatus) -> Result<Order> {
    let SetStatus { order_id, of_user, to, note, expected_version, now, .. } = command;
    let found = read_with_events(tx, order_id)?
        .filter(|(order, _)| of_user.as_ref().is_none_or(|user_id| order.user_id == *user_id));
    let (mut order, mut events) = found.ok_or(Refusal::OrderNotFound(order_id))?;
    check_version(&order, expected_version)?;
    let step = order.status.step(to)?;
    // A repeated step is a success and writes nothing.
    if step == Step::Stay {
        return Ok(order);
    }
    if let Step::MoveUnits(cause) = step {
        stock::move_lines(tx, &order.geo_zone, lines(&order), cause, order_id.uuid(), now)?;
    }
    // Only an unpaid order has a timer.
    if order.status == OrderStatus::Created {
        tx.remove(Table::PaymentTimers, keys::timer(order.pay_by, order_id.as_bytes()));
    }
    let was_sale = order.status.is_sale();
    events.push(order.advance(to, note, now));
    sales::count(tx, &order, was_sale, to.is_sale())?;
    tx.put(Table::Orders, keys::order(order_id), mw_codec::orders::encode(&order, &events));
    record_step(tx, &order);
    Ok(order)
}

fn record_step(tx: &mut Tx, order: &Order) {
    let step = ChangeRef::Order { order_id: order.order_id, version: order.version };
    tx.record_change(order.updated_at, step);
}

/// Cancels up to `limit` orders whose time to pay is over; returns how many. A crash before the commit leaves their timers, and the
/// next call finds them again.
fn cancel_unpaid(tx: &mut Tx, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
    let due = timers::due(tx, Table::PaymentTimers, tx.next_timers.payment, now, limit)?;
    for (pay_by, id) in &due {
        let order_id = OrderId::from_bytes(*id);
        let command = SetStatus {
            order_id,
            of_user: None,
            to: OrderStatus::Cancelled,
            note: Some(note.to_owned()),
            expected_version: None,
            now,
            identity: None,
        };
        // Rolled back alone: the other orders of the batch are cancelled all the same.
        if let Err(error) = tx.attempt(|tx| set_status(tx, command)) {
            if matches!(error, StoreError::Unavailable(_)) {
                return Err(error);
            }
            // An order that the stock level does not explain must not block all other orders; the audit reports the drift.
            tracing::error!(%order_id, %error, "cancel unpaid order: left as it is; run mw stock audit");
            tx.remove(Table::PaymentTimers, keys::timer(*pay_by, id));
        }
    }
    tx.next_timers.payment = timers::first_due(tx, Table::PaymentTimers, tx.next_timers.payment)?;
    Ok(due.len())
}
