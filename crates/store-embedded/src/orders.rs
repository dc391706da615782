//! Orders: a row by id with its events, an index row in each list, and running sums for the sales report. Placing one
//! is a single atomic write: key, stock, ledger, order, lists, cart.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use async_trait::async_trait;
use mw_codec::orders::Sums;
use mw_domain::limits::InvalidField;
use mw_domain::order::{Step, total};
use mw_domain::stock::Cause;
use mw_domain::{
    Cart, Date, Demand, GeoZone, Order, OrderEvent, OrderId, OrderLine, OrderStatus, Owner, Period,
    ProductId, Timestamp, UserId,
};
use mw_store::orders::{Basket, Orders, PlaceOrder, Sales, SetStatus};
use mw_store::{Done, Page, PageRequest, Refusal, Result, StoreError};

use crate::keys::{self, OrderList};
use crate::once::{self, Placed};
use crate::stock::Unknown;
use crate::tables::Table;
use crate::tx::Tx;
use crate::view::{List, Look, Span, page};
use crate::{EmbeddedStore, carts, products, stock};

#[async_trait]
impl Orders for EmbeddedStore {
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        let done = self
            .write(command.now, move |tx| {
                let once = command.once.clone();
                once::run(tx, once, command.now, |tx| place(tx, command).map(Placed))
            })
            .await?;
        Ok(Done { value: done.value.0, replayed: done.replayed })
    }

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
        read(&self.view(), order_id)
    }

    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
        let found = read_with_events(&self.view(), order_id)?;
        Ok(found.map(|(_, mut events)| {
            events.reverse();
            events
        }))
    }

    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>> {
        self.write(command.now, move |tx| {
            let once = command.once.clone();
            once::run(tx, once, command.now, |tx| set_status(tx, command))
        })
        .await
    }

    async fn customer_orders(
        &self,
        user_id: &UserId,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        list(&self.view(), OrderList::Customer(user_id), period, &request)
    }

    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        request: PageRequest,
    ) -> Result<Page<Order>> {
        list(&self.view(), geo_zone.map_or(OrderList::All, OrderList::Zone), period, &request)
    }

    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        sales(&self.view(), geo_zone, period)
    }

    async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
        if now < self.progress.payment_due() {
            return Ok(0);
        }
        let note = note.to_owned();
        self.write(now, move |tx| cancel_unpaid(tx, now, &note, limit)).await
    }
}

pub(crate) fn read(look: &dyn Look, order_id: OrderId) -> Result<Option<Order>> {
    let row = look.get(Table::Orders, &keys::order(order_id))?;
    Ok(row.map(|row| mw_codec::orders::decode_order(&row)).transpose()?)
}

pub(crate) fn read_with_events(
    look: &dyn Look,
    order_id: OrderId,
) -> Result<Option<(Order, Vec<OrderEvent>)>> {
    let row = look.get(Table::Orders, &keys::order(order_id))?;
    Ok(row.map(|row| mw_codec::orders::decode(&row)).transpose()?)
}

pub(crate) const fn list_table(list: OrderList<'_>) -> Table {
    match list {
        OrderList::Customer(_) => Table::OrdersByCustomer,
        OrderList::Zone(_) => Table::OrdersByZone,
        OrderList::All => Table::OrdersByTime,
    }
}

fn list(look: &dyn Look, list: OrderList<'_>, period: Period, request: &PageRequest) -> Result<Page<Order>> {
    let prefix = list.prefix();
    let end = list.until(period.from).or_else(|| keys::after_prefix(&prefix));
    let rows = List {
        span: Span { from: list.before(period.to), to: end },
        prefix,
        reverse: false,
        is_position: |tail| tail.len() == keys::TIME_ID_LEN,
    };
    page(look, list_table(list), &rows, request, &mut |key, _| {
        let (_, order_id) = keys::read_order(key)?;
        listed(look, order_id).map(Some)
    })
}

fn listed(look: &dyn Look, order_id: OrderId) -> Result<Order> {
    read(look, order_id)?
        .ok_or_else(|| StoreError::Corrupt(format!("a list names order {order_id}, which is not there")))
}

fn lines(order: &Order) -> impl Iterator<Item = (&ProductId, u32)> {
    order.lines.iter().map(|line| (&line.product_id, line.quantity))
}

fn place(tx: &mut Tx, command: PlaceOrder) -> Result<Order> {
    let now = command.now;
    let (demands, cart) = match command.basket {
        Basket::Lines(lines) => (lines, None),
        Basket::Cart { expected_version, lifetime } => {
            let owner = Owner::User(command.user_id.clone());
            let cart = carts::expected(carts::read_active(tx, &owner, now)?, expected_version)?;
            let cart = cart.filter(|cart| !cart.lines.is_empty()).ok_or(Refusal::CartEmpty)?;
            (cart_demands(&cart), Some((cart, lifetime)))
        }
    };
    let lines_priced = price(tx, demands)?;
    let sum = total(&lines_priced).ok_or_else(|| {
        InvalidField::new("lines", "the total is beyond the largest amount, 999999999999.99")
    })?;
    if command.expected_total.is_some_and(|expected| expected != sum) {
        return Err(Refusal::PriceChanged { current: sum }.into());
    }
    let order = Order {
        order_id: command.order_id,
        user_id: command.user_id,
        status: OrderStatus::Created,
        geo_zone: command.geo_zone,
        lines: lines_priced,
        total: sum,
        delivery_address: command.delivery_address,
        payment_method: command.payment_method,
        created_at: now,
        updated_at: now,
        version: 1,
        pay_by: command.pay_by,
    };
    stock::settle_due(tx, now)?;
    stock::check_demands(tx, &order.geo_zone, lines(&order), Unknown::IsRuledOut)?;
    stock::move_lines(tx, &order.geo_zone, lines(&order), Cause::Hold, order.order_id.uuid(), now)?;
    save_new(tx, &order, &[order.created_event()]);
    if let Some((mut cart, lifetime)) = cart {
        let place = carts::active_place(&cart);
        cart.become_order(order.order_id, now, &lifetime);
        carts::close(tx, place, &cart);
    }
    Ok(order)
}

fn cart_demands(cart: &Cart) -> Vec<Demand> {
    cart.lines
        .iter()
        .map(|line| Demand { product_id: line.product_id.clone(), quantity: line.quantity })
        .collect()
}

fn price(look: &dyn Look, demands: Vec<Demand>) -> Result<Vec<OrderLine>> {
    demands
        .into_iter()
        .map(|Demand { product_id, quantity }| match products::read_tag(look, &product_id)? {
            Some((name, price)) => Ok(OrderLine { product_id, name, price, quantity }),
            None => Err(Refusal::ProductNotFound(product_id).into()),
        })
        .collect()
}

/// Writes an order with its place in every list and in what waits for payment.
pub(crate) fn save_new(tx: &mut Tx, order: &Order, events: &[OrderEvent]) {
    for list in [OrderList::Customer(&order.user_id), OrderList::Zone(&order.geo_zone), OrderList::All] {
        tx.put(list_table(list), list.key(order.created_at, order.order_id), Vec::new());
    }
    if order.status == OrderStatus::Created {
        tx.put(Table::PaymentsDue, keys::due(order.pay_by, order.order_id.as_bytes()), Vec::new());
        tx.due.payment = tx.due.payment.min(order.pay_by);
    }
    tx.put(Table::Orders, keys::order(order.order_id), mw_codec::orders::encode(order, events));
}

fn set_status(tx: &mut Tx, command: SetStatus) -> Result<Order> {
    let SetStatus { order_id, of_user, to, note, expected_version, now, .. } = command;
    let found = read_with_events(tx, order_id)?
        .filter(|(order, _)| of_user.as_ref().is_none_or(|user_id| order.user_id == *user_id));
    let (mut order, mut events) = found.ok_or(Refusal::OrderNotFound(order_id))?;
    if expected_version.is_some_and(|expected| expected != order.version) {
        return Err(Refusal::OrderVersion { current: order }.into());
    }
    let step = order.status.step(to)?;
    if step == Step::Stay {
        return Ok(order);
    }
    if let Step::MoveUnits(cause) = step {
        stock::move_lines(tx, &order.geo_zone, lines(&order), cause, order_id.uuid(), now)?;
    }
    if order.status == OrderStatus::Created {
        tx.remove(Table::PaymentsDue, keys::due(order.pay_by, order_id.as_bytes()));
    }
    let was_sale = order.status.is_sale();
    events.push(order.advance(to, note, now));
    count_sale(tx, &order, was_sale, to.is_sale())?;
    tx.put(Table::Orders, keys::order(order_id), mw_codec::orders::encode(&order, &events));
    Ok(order)
}

/// Moves the running sums of the day where an order becomes a sale or stops being one.
pub(crate) fn count_sale(tx: &mut Tx, order: &Order, was_sale: bool, is_sale: bool) -> Result<()> {
    if was_sale == is_sale {
        return Ok(());
    }
    let key = keys::sales(order.created_at.date(), &order.geo_zone);
    let row = tx.get(Table::Sales, &key)?;
    let mut sums = row.map(|row| mw_codec::orders::decode_sums(&row)).transpose()?.unwrap_or_default();
    if is_sale {
        sums.orders += 1;
        sums.units += order.units();
        sums.revenue = sums.revenue.saturating_add(order.total);
    } else {
        sums.orders = sums.orders.saturating_sub(1);
        sums.units = sums.units.saturating_sub(order.units());
        sums.revenue = sums.revenue.saturating_sub(order.total);
    }
    tx.put(Table::Sales, key, mw_codec::orders::encode_sums(sums));
    Ok(())
}

fn cancel_unpaid(tx: &mut Tx, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
    let due = stock::due(tx, Table::PaymentsDue, tx.due.payment, now, limit)?;
    for (pay_by, id) in &due {
        let order_id = OrderId::from_bytes(*id);
        let command = SetStatus {
            order_id,
            of_user: None,
            to: OrderStatus::Cancelled,
            note: Some(note.to_owned()),
            expected_version: None,
            now,
            once: None,
        };
        if let Err(error) = tx.attempt(|tx| set_status(tx, command)) {
            if matches!(error, StoreError::Unavailable(_)) {
                return Err(error);
            }
            // One order that the figures do not explain must not keep the others waiting; the audit tells of it.
            tracing::error!(%order_id, %error, "cancel an order that was not paid in time");
            tx.remove(Table::PaymentsDue, keys::due(*pay_by, id));
        }
    }
    tx.due.payment = stock::first_due(tx, Table::PaymentsDue, tx.due.payment)?;
    Ok(due.len())
}

/// Whole days come from the running sums; a day of which only a part was asked for is counted order by order.
fn sales(look: &dyn Look, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
    let mut found: BTreeMap<(Date, GeoZone), Sums> = BTreeMap::new();
    let (first, last) = (period.from.date(), period.to.date());
    let whole_from = if first.midnight() < period.from { first.next() } else { first };
    if whole_from < last {
        add_sums(look, whole_from, last, geo_zone, &mut found)?;
    }
    let head = Period { from: period.from, to: whole_from.midnight().min(period.to) };
    let tail = Period { from: last.midnight().max(head.to), to: period.to };
    for part in [head, tail] {
        if !part.is_empty() {
            add_orders(look, part, geo_zone, &mut found)?;
        }
    }
    let rows = found.into_iter().filter(|(_, sums)| sums.orders > 0);
    Ok(rows
        .map(|((date, geo_zone), sums)| Sales {
            date,
            geo_zone,
            orders: sums.orders,
            units: sums.units,
            revenue: sums.revenue,
        })
        .collect())
}

/// Adds the running sums of the days from `from` up to but without `to`.
fn add_sums(
    look: &dyn Look,
    from: Date,
    to: Date,
    geo_zone: Option<&GeoZone>,
    found: &mut BTreeMap<(Date, GeoZone), Sums>,
) -> Result<()> {
    let span = Span { from: keys::sales_of_day(from), to: Some(keys::sales_of_day(to)) };
    look.scan(Table::Sales, &span, false, &mut |key, value| {
        let (date, zone) = keys::read_sales(key)?;
        if geo_zone.is_none_or(|asked| *asked == zone) {
            found.insert((date, zone), mw_codec::orders::decode_sums(value)?);
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn add_orders(
    look: &dyn Look,
    period: Period,
    geo_zone: Option<&GeoZone>,
    found: &mut BTreeMap<(Date, GeoZone), Sums>,
) -> Result<()> {
    let list = geo_zone.map_or(OrderList::All, OrderList::Zone);
    let end = list.until(period.from).or_else(|| keys::after_prefix(&list.prefix()));
    let span = Span { from: list.before(period.to), to: end };
    look.scan(list_table(list), &span, false, &mut |key, _| {
        let (_, order_id) = keys::read_order(key)?;
        let order = listed(look, order_id)?;
        if order.status.is_sale() {
            let sums = found.entry((order.created_at.date(), order.geo_zone.clone())).or_default();
            sums.orders += 1;
            sums.units += order.units();
            sums.revenue = sums.revenue.saturating_add(order.total);
        }
        Ok(ControlFlow::Continue(()))
    })
}
