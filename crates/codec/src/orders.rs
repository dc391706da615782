//! Stored orders with their events, and the running sums of the sales report.

use mw_domain::orders::SalesSums;
use mw_domain::{
    EventKind, GeoZone, Money, Order, OrderEvent, OrderId, OrderLine, OrderStatus, ProductId, UserId,
};

use crate::{Damaged, Reader, Writer};

const WHAT: &str = "order";

/// An order and its events, oldest first, in one row: the state machine bounds their number.
pub fn encode(order: &Order, events: &[OrderEvent]) -> Vec<u8> {
    let mut writer = Writer::new(160 + order.lines.len() * 64);
    write(&mut writer, order);
    write_events(&mut writer, events);
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<(Order, Vec<OrderEvent>), Damaged> {
    let mut reader = Reader::new(bytes, WHAT)?;
    let order = read(&mut reader)?;
    let events = read_events(&mut reader)?;
    reader.end()?;
    Ok((order, events))
}

/// The order alone.
pub fn decode_order(bytes: &[u8]) -> Result<Order, Damaged> {
    read(&mut Reader::new(bytes, WHAT)?)
}

fn status_byte(status: OrderStatus) -> u8 {
    match status {
        OrderStatus::Created => 0,
        OrderStatus::Paid => 1,
        OrderStatus::Shipped => 2,
        OrderStatus::Delivered => 3,
        OrderStatus::Returned => 4,
        OrderStatus::Cancelled => 5,
    }
}

fn read_status(reader: &mut Reader<'_>) -> Result<OrderStatus, Damaged> {
    Ok(match reader.byte()? {
        0 => OrderStatus::Created,
        1 => OrderStatus::Paid,
        2 => OrderStatus::Shipped,
        3 => OrderStatus::Delivered,
        4 => OrderStatus::Returned,
        5 => OrderStatus::Cancelled,
        _ => return Err(reader.damaged()),
    })
}

pub fn write(writer: &mut Writer, order: &Order) {
    writer.bytes(order.order_id.as_bytes());
    writer.text(order.user_id.as_str());
    writer.byte(status_byte(order.status));
    writer.text(order.geo_zone.as_str());
    writer.signed(order.total.as_minor());
    writer.optional_text(order.delivery_address.as_deref());
    writer.optional_text(order.payment_method.as_deref());
    writer.time(order.created_at);
    writer.time(order.updated_at);
    writer.unsigned(order.version);
    writer.time(order.pay_by);
    writer.unsigned(order.lines.len() as u64);
    for line in &order.lines {
        writer.text(line.product_id.as_str());
        writer.text(&line.name);
        writer.signed(line.price.as_minor());
        writer.unsigned(u64::from(line.quantity));
    }
}

pub fn read(reader: &mut Reader<'_>) -> Result<Order, Damaged> {
    let order_id = OrderId::from_bytes(reader.array()?);
    let user_id = reader.id(UserId::parse)?;
    let status = read_status(reader)?;
    let geo_zone = reader.id(GeoZone::parse)?;
    let total = Money::from_minor(reader.signed()?);
    let delivery_address = reader.optional_text()?;
    let payment_method = reader.optional_text()?;
    let created_at = reader.time()?;
    let updated_at = reader.time()?;
    let version = reader.unsigned()?;
    let pay_by = reader.time()?;
    let lines = reader.list(|reader| {
        Ok(OrderLine {
            product_id: reader.id(ProductId::parse)?,
            name: reader.text()?.to_owned(),
            price: Money::from_minor(reader.signed()?),
            quantity: reader.small()?,
        })
    })?;
    Ok(Order {
        order_id,
        user_id,
        status,
        geo_zone,
        lines,
        total,
        delivery_address,
        payment_method,
        created_at,
        updated_at,
        version,
        pay_by,
    })
}

pub fn write_events(writer: &mut Writer, events: &[OrderEvent]) {
    writer.unsigned(events.len() as u64);
    for event in events {
        write_event(writer, event);
    }
}

pub fn read_events(reader: &mut Reader<'_>) -> Result<Vec<OrderEvent>, Damaged> {
    reader.list(read_event)
}

fn write_event(writer: &mut Writer, event: &OrderEvent) {
    writer.time(event.at);
    writer.byte(match event.kind {
        EventKind::Created => 0,
        EventKind::Status => 1,
    });
    writer.optional(event.from.as_ref(), |writer, from| {
        writer.byte(status_byte(*from));
    });
    writer.byte(status_byte(event.to));
    writer.optional_text(event.note.as_deref());
}

fn read_event(reader: &mut Reader<'_>) -> Result<OrderEvent, Damaged> {
    Ok(OrderEvent {
        at: reader.time()?,
        kind: match reader.byte()? {
            0 => EventKind::Created,
            1 => EventKind::Status,
            _ => return Err(reader.damaged()),
        },
        from: reader.optional(read_status)?,
        to: read_status(reader)?,
        note: reader.optional_text()?,
    })
}

/// The running sums of one zone and day.
pub fn encode_sums(sums: SalesSums) -> Vec<u8> {
    let mut writer = Writer::new(24);
    writer.unsigned(sums.orders);
    writer.unsigned(sums.units);
    writer.signed(sums.revenue.as_minor());
    writer.done()
}

pub fn decode_sums(bytes: &[u8]) -> Result<SalesSums, Damaged> {
    let mut reader = Reader::new(bytes, "sales sums")?;
    let sums = SalesSums {
        orders: reader.unsigned()?,
        units: reader.unsigned()?,
        revenue: Money::from_minor(reader.signed()?),
    };
    reader.end()?;
    Ok(sums)
}
