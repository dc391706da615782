//! The changes of a live migration as bytes: the redo log of a target that writes a batch row by row.

use mw_domain::{CartId, GeoZone, OrderId, ProductId};
use mw_store::migration::{CartKey, Change};

use crate::{Damaged, Reader, Writer, carts, orders, products, stock};

const WHAT: &str = "batch of a migration";
/// Bytes that a change takes about.
const CHANGE_BYTES: usize = 256;

pub fn encode(changes: &[Change]) -> Vec<u8> {
    let mut writer = Writer::new(changes.len().saturating_mul(CHANGE_BYTES));
    writer.unsigned(changes.len() as u64);
    for change in changes {
        write(&mut writer, change);
    }
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<Vec<Change>, Damaged> {
    let mut reader = Reader::new(bytes, WHAT)?;
    let changes = reader.list(read)?;
    reader.end()?;
    Ok(changes)
}

fn write(writer: &mut Writer, change: &Change) {
    match change {
        Change::Product(product) => {
            writer.byte(0);
            products::write(writer, product);
        }
        Change::RemoveProduct(product_id) => {
            writer.byte(1);
            writer.text(product_id.as_str());
        }
        Change::Stock { stock, held, released } => {
            writer.byte(2);
            stock::write_zone(writer, stock);
            for movements in [held, released] {
                writer.unsigned(movements.len() as u64);
                for movement in movements {
                    stock::write_movement(writer, movement);
                }
            }
        }
        Change::RemoveStock { product_id, geo_zone } => {
            writer.byte(3);
            writer.text(product_id.as_str());
            writer.text(geo_zone.as_str());
        }
        Change::Cart(cart) => {
            writer.byte(4);
            carts::write(writer, cart);
        }
        Change::RemoveCart(CartKey { owner, created_at, cart_id }) => {
            writer.byte(5);
            carts::write_owner(writer, owner);
            writer.time(*created_at);
            writer.bytes(cart_id.as_bytes());
        }
        Change::Order { order, events } => {
            writer.byte(6);
            orders::write(writer, order);
            orders::write_events(writer, events);
        }
        Change::RemoveOrder(order_id) => {
            writer.byte(7);
            writer.bytes(order_id.as_bytes());
        }
        Change::State { key, value } => {
            writer.byte(8);
            write_bytes(writer, key);
            writer.optional(value.as_ref(), |writer, value| write_bytes(writer, value));
        }
    }
}

fn read(reader: &mut Reader<'_>) -> Result<Change, Damaged> {
    Ok(match reader.byte()? {
        0 => Change::Product(products::read(reader)?),
        1 => Change::RemoveProduct(reader.id(ProductId::parse)?),
        2 => Change::Stock {
            stock: stock::read_zone(reader)?,
            held: reader.list(stock::read_movement)?,
            released: reader.list(stock::read_movement)?,
        },
        3 => Change::RemoveStock {
            product_id: reader.id(ProductId::parse)?,
            geo_zone: reader.id(GeoZone::parse)?,
        },
        4 => Change::Cart(carts::read(reader)?),
        5 => Change::RemoveCart(CartKey {
            owner: carts::read_owner(reader)?,
            created_at: reader.time()?,
            cart_id: CartId::from_bytes(reader.array()?),
        }),
        6 => Change::Order { order: orders::read(reader)?, events: orders::read_events(reader)? },
        7 => Change::RemoveOrder(OrderId::from_bytes(reader.array()?)),
        8 => Change::State { key: read_bytes(reader)?, value: reader.optional(read_bytes)? },
        _ => return Err(reader.damaged()),
    })
}

fn write_bytes(writer: &mut Writer, bytes: &[u8]) {
    writer.unsigned(bytes.len() as u64);
    writer.bytes(bytes);
}

fn read_bytes(reader: &mut Reader<'_>) -> Result<Vec<u8>, Damaged> {
    Ok(reader.sized_bytes()?.to_vec())
}
