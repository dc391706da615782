//! Stored carts and their line changes.

pub mod header;

use mw_domain::{
    Cart, CartChange, CartId, CartLine, CartStatus, OrderId, Owner, ProductId, SessionId, Timestamp, UserId,
};

use crate::{Damaged, Reader, Writer};

const LINE_BYTES: usize = 24;

pub fn encode(cart: &Cart) -> Vec<u8> {
    let mut writer = Writer::expiring(96 + cart.lines.len() * LINE_BYTES, cart.expires_at);
    write(&mut writer, cart);
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<Cart, Damaged> {
    let (mut reader, _) = Reader::expiring(bytes, "cart")?;
    let cart = read(&mut reader)?;
    reader.end()?;
    Ok(cart)
}

pub fn write_owner(writer: &mut Writer, owner: &Owner) {
    writer.byte(match owner {
        Owner::User(_) => 0,
        Owner::Session(_) => 1,
    });
    writer.text(owner.id());
}

pub fn read_owner(reader: &mut Reader<'_>) -> Result<Owner, Damaged> {
    match reader.byte()? {
        0 => reader.id(UserId::parse).map(Owner::User),
        1 => reader.id(SessionId::parse).map(Owner::Session),
        _ => Err(reader.damaged()),
    }
}

pub fn write(writer: &mut Writer, cart: &Cart) {
    writer.bytes(cart.cart_id.as_bytes());
    write_owner(writer, &cart.owner);
    writer.byte(match cart.status {
        CartStatus::Active => 0,
        CartStatus::Ordered => 1,
        CartStatus::Abandoned => 2,
    });
    writer.unsigned(cart.version);
    writer.time(cart.created_at);
    writer.time(cart.updated_at);
    writer.time(cart.expires_at);
    writer.optional(cart.merged_into.as_ref(), |writer, id| {
        writer.bytes(id.as_bytes());
    });
    writer.optional(cart.order_id.as_ref(), |writer, id| writer.bytes(id.as_bytes()));
    writer.unsigned(cart.lines.len() as u64);
    for line in &cart.lines {
        writer.text(line.product_id.as_str());
        writer.unsigned(u64::from(line.quantity));
        // Lines were changed since the cart was opened: the difference is short.
        writer.signed(line.updated_at.as_millis() - cart.created_at.as_millis());
    }
}

pub fn read(reader: &mut Reader<'_>) -> Result<Cart, Damaged> {
    let cart_id = CartId::from_bytes(reader.array()?);
    let owner = read_owner(reader)?;
    let status = match reader.byte()? {
        0 => CartStatus::Active,
        1 => CartStatus::Ordered,
        2 => CartStatus::Abandoned,
        _ => return Err(reader.damaged()),
    };
    let version = reader.unsigned()?;
    let created_at = reader.time()?;
    let updated_at = reader.time()?;
    let expires_at = reader.time()?;
    let merged_into = reader.optional(|reader| reader.array().map(CartId::from_bytes))?;
    let order_id = reader.optional(|reader| reader.array().map(OrderId::from_bytes))?;
    let lines = reader.list(|reader| {
        Ok(CartLine {
            product_id: reader.id(ProductId::parse)?,
            quantity: reader.small()?,
            updated_at: created_at.plus_millis(reader.signed()?),
        })
    })?;
    Ok(Cart {
        cart_id,
        owner,
        status,
        version,
        lines,
        created_at,
        updated_at,
        expires_at,
        merged_into,
        order_id,
    })
}

pub fn encode_change(change: &CartChange, expires_at: Timestamp) -> Vec<u8> {
    let mut writer = Writer::expiring(64, expires_at);
    write_change(&mut writer, change);
    writer.done()
}

pub fn decode_change(bytes: &[u8]) -> Result<CartChange, Damaged> {
    let (mut reader, _) = Reader::expiring(bytes, "cart change")?;
    let change = read_change(&mut reader)?;
    reader.end()?;
    Ok(change)
}

pub fn write_change(writer: &mut Writer, change: &CartChange) {
    writer.time(change.at);
    writer.bytes(change.cart_id.as_bytes());
    writer.unsigned(change.version);
    writer.text(change.product_id.as_str());
    writer.unsigned(u64::from(change.quantity));
}

pub fn read_change(reader: &mut Reader<'_>) -> Result<CartChange, Damaged> {
    Ok(CartChange {
        at: reader.time()?,
        cart_id: CartId::from_bytes(reader.array()?),
        version: reader.unsigned()?,
        product_id: reader.id(ProductId::parse)?,
        quantity: reader.small()?,
    })
}
