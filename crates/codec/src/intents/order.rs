//! The intent of placing an order: the whole order, the cart that it closes, and the key of its request.

use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, Order};
use mw_store::RequestIdentity;

use crate::idempotency::{read_key, write_key};
use crate::{Damaged, Reader, Writer, carts, orders};

/// Everything that a process needs to place the order or to undo it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderIntent {
    pub order: Order,
    /// The cart that becomes the order, as it was read, and how long carts live.
    pub closing: Option<(Cart, CartLifetime)>,
    pub identity: Option<RequestIdentity>,
}

pub fn encode(intent: &OrderIntent) -> Vec<u8> {
    let mut writer = Writer::new(256);
    orders::write(&mut writer, &intent.order);
    writer.optional(intent.closing.as_ref(), |writer, (cart, lifetime)| {
        carts::write(writer, cart);
        writer.signed(lifetime.user_ms);
        writer.signed(lifetime.guest_ms);
    });
    writer.optional(intent.identity.as_ref(), |writer, identity| {
        writer.time(identity.keep_until);
        write_key(writer, identity);
    });
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<OrderIntent, Damaged> {
    let mut reader = Reader::new(bytes, "order intent")?;
    let order = orders::read(&mut reader)?;
    let closing = reader.optional(|reader| {
        let cart = carts::read(reader)?;
        Ok((cart, CartLifetime { user_ms: reader.signed()?, guest_ms: reader.signed()? }))
    })?;
    let identity = reader.optional(|reader| {
        let keep_until = reader.time()?;
        read_key(reader, keep_until)
    })?;
    reader.end()?;
    Ok(OrderIntent { order, closing, identity })
}
