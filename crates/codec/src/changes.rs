//! Rows of the change feed: consecutive changes in one value, so that a commit of many commands writes few rows.
//!
//! A step of an order is its id and version: lines and prices never change, and the order's events tell the rest. Every other
//! change is the whole resource, which the next change replaces.

pub mod subjects;

use mw_domain::{Cart, OrderId, Product, ProductId, Session, SessionId, Timestamp, ZoneStock};
use mw_store::changes::Topic;

use crate::{Damaged, Reader, VERSION, Writer, carts, products, sessions, stock};

const WHAT: &str = "changes";

/// A change that is to be stored.
#[derive(Debug, Clone, Copy)]
pub enum ChangeRef<'a> {
    Order { order_id: OrderId, version: u64 },
    Stock(&'a ZoneStock),
    ProductPut(&'a Product),
    ProductDeleted(&'a ProductId, Timestamp),
    Cart(&'a Cart),
    CartClosed(&'a Cart),
    Session(&'a Session),
    SessionEnded(&'a SessionId, Timestamp),
}

impl ChangeRef<'_> {
    pub const fn topic(self) -> Topic {
        match self {
            Self::Order { .. } => Topic::Orders,
            Self::Stock(_) => Topic::Stock,
            Self::ProductPut(_) | Self::ProductDeleted(..) => Topic::Products,
            Self::Cart(_) | Self::CartClosed(_) => Topic::Carts,
            Self::Session(_) | Self::SessionEnded(..) => Topic::Sessions,
        }
    }
}

/// A change as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredChange {
    Order { order_id: OrderId, version: u64 },
    Stock(ZoneStock),
    ProductPut(Product),
    ProductDeleted(ProductId, Timestamp),
    Cart(Cart),
    CartClosed(Cart),
    Session(Session),
    SessionEnded(SessionId, Timestamp),
}

impl StoredChange {
    pub const fn as_ref(&self) -> ChangeRef<'_> {
        match self {
            Self::Order { order_id, version } => ChangeRef::Order { order_id: *order_id, version: *version },
            Self::Stock(stock) => ChangeRef::Stock(stock),
            Self::ProductPut(product) => ChangeRef::ProductPut(product),
            Self::ProductDeleted(product_id, at) => ChangeRef::ProductDeleted(product_id, *at),
            Self::Cart(cart) => ChangeRef::Cart(cart),
            Self::CartClosed(cart) => ChangeRef::CartClosed(cart),
            Self::Session(session) => ChangeRef::Session(session),
            Self::SessionEnded(session_id, at) => ChangeRef::SessionEnded(session_id, *at),
        }
    }
}

/// Appends a change to others that are encoded already.
pub fn append(changes: &mut Vec<u8>, change: ChangeRef<'_>) {
    let mut writer = Writer(std::mem::take(changes));
    match change {
        ChangeRef::Order { order_id, version } => {
            writer.byte(0);
            writer.bytes(order_id.as_bytes());
            writer.unsigned(version);
        }
        ChangeRef::Stock(level) => {
            writer.byte(1);
            stock::write_zone(&mut writer, level);
        }
        ChangeRef::ProductPut(product) => {
            writer.byte(2);
            products::write(&mut writer, product);
        }
        ChangeRef::ProductDeleted(product_id, at) => {
            writer.byte(3);
            writer.text(product_id.as_str());
            writer.time(at);
        }
        ChangeRef::Cart(cart) => {
            writer.byte(4);
            carts::write(&mut writer, cart);
        }
        ChangeRef::CartClosed(cart) => {
            writer.byte(5);
            carts::write(&mut writer, cart);
        }
        ChangeRef::Session(session) => {
            writer.byte(6);
            sessions::write(&mut writer, session);
        }
        ChangeRef::SessionEnded(session_id, at) => {
            writer.byte(7);
            writer.text(session_id.as_str());
            writer.time(at);
        }
    }
    *changes = writer.0;
}

/// A row of encoded changes.
pub fn encode(changes: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(1 + changes.len());
    row.push(VERSION);
    row.extend_from_slice(changes);
    row
}

/// All changes of a row, in order.
pub fn decode(row: &[u8]) -> Result<Vec<StoredChange>, Damaged> {
    let mut reader = Reader::new(row, WHAT)?;
    let mut changes = Vec::new();
    while !reader.rest.is_empty() {
        changes.push(read(&mut reader)?);
    }
    Ok(changes)
}

fn read(reader: &mut Reader<'_>) -> Result<StoredChange, Damaged> {
    Ok(match reader.byte()? {
        0 => StoredChange::Order {
            order_id: OrderId::from_bytes(reader.array()?),
            version: reader.unsigned()?,
        },
        1 => StoredChange::Stock(stock::read_zone(reader)?),
        2 => StoredChange::ProductPut(products::read(reader)?),
        3 => StoredChange::ProductDeleted(reader.id(ProductId::parse)?, reader.time()?),
        4 => StoredChange::Cart(carts::read(reader)?),
        5 => StoredChange::CartClosed(carts::read(reader)?),
        6 => StoredChange::Session(sessions::read(reader)?),
        7 => StoredChange::SessionEnded(reader.id(SessionId::parse)?, reader.time()?),
        _ => return Err(reader.damaged()),
    })
}
