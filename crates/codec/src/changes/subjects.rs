//! What a row of the change feed refers to, on an engine whose readers read the resources themselves. Products, sessions and
//! closed carts are stored whole: every step of them is reported, and their rows have only the last one.

use mw_domain::{Cart, CartId, GeoZone, OrderId, Owner, Product, ProductId, Session, SessionId, Timestamp};

use crate::{Damaged, Reader, Writer, carts, products, sessions};

/// A resource that has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// An order, and the version that a step made.
    Order {
        order_id: OrderId,
        version: u64,
    },
    Stock {
        product_id: ProductId,
        geo_zone: GeoZone,
    },
    /// A product as a change left it.
    Product(Box<ProductState>),
    /// An active cart.
    Cart {
        owner: Owner,
        created_at: Timestamp,
        cart_id: CartId,
    },
    /// A cart as it was closed.
    CartClosed(Box<Cart>),
    /// A session as a change left it.
    Session(Box<SessionState>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionState {
    pub session_id: SessionId,
    /// The time and the stamp of the change.
    pub at: Timestamp,
    pub stamp: i64,
    /// `None`: it has ended.
    pub session: Option<Session>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProductState {
    pub product: Product,
    pub rev: i64,
    pub is_deleted: bool,
}

pub fn encode(subjects: &[Subject]) -> Vec<u8> {
    let mut writer = Writer::new(8 + subjects.len() * 32);
    writer.unsigned(subjects.len() as u64);
    for subject in subjects {
        match subject {
            Subject::Order { order_id, version } => {
                writer.byte(0);
                writer.bytes(order_id.as_bytes());
                writer.unsigned(*version);
            }
            Subject::Stock { product_id, geo_zone } => {
                writer.byte(1);
                writer.text(product_id.as_str());
                writer.text(geo_zone.as_str());
            }
            Subject::Product(state) => {
                let ProductState { product, rev, is_deleted } = &**state;
                writer.byte(if *is_deleted { 3 } else { 2 });
                writer.signed(*rev);
                products::write(&mut writer, product);
            }
            Subject::Cart { owner, created_at, cart_id } => {
                writer.byte(4);
                carts::write_owner(&mut writer, owner);
                writer.time(*created_at);
                writer.bytes(cart_id.as_bytes());
            }
            Subject::CartClosed(cart) => {
                writer.byte(5);
                carts::write(&mut writer, cart);
            }
            Subject::Session(state) => {
                writer.byte(6);
                writer.text(state.session_id.as_str());
                writer.time(state.at);
                writer.signed(state.stamp);
                writer.optional(state.session.as_ref(), sessions::write);
            }
        }
    }
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<Vec<Subject>, Damaged> {
    let mut reader = Reader::new(bytes, "changed subjects")?;
    let subjects = reader.list(|reader| {
        Ok(match reader.byte()? {
            0 => {
                Subject::Order { order_id: OrderId::from_bytes(reader.array()?), version: reader.unsigned()? }
            }
            1 => Subject::Stock {
                product_id: reader.id(ProductId::parse)?,
                geo_zone: reader.id(GeoZone::parse)?,
            },
            kind @ (2 | 3) => Subject::Product(Box::new(ProductState {
                rev: reader.signed()?,
                product: products::read(reader)?,
                is_deleted: kind == 3,
            })),
            4 => Subject::Cart {
                owner: carts::read_owner(reader)?,
                created_at: reader.time()?,
                cart_id: CartId::from_bytes(reader.array()?),
            },
            5 => Subject::CartClosed(Box::new(carts::read(reader)?)),
            6 => Subject::Session(Box::new(SessionState {
                session_id: reader.id(SessionId::parse)?,
                at: reader.time()?,
                stamp: reader.signed()?,
                session: reader.optional(sessions::read)?,
            })),
            _ => return Err(reader.damaged()),
        })
    })?;
    reader.end()?;
    Ok(subjects)
}
