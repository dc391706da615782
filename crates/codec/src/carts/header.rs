//! The header of an owner's cart partition: what its lightweight transactions decide.

use mw_domain::{Cart, CartId, ProductId, Timestamp};
use uuid::Uuid;

use super::{read as read_cart, write as write_cart};
use crate::{Damaged, Reader, Writer};

/// The open cart: its state at the last decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OpenCart {
    pub cart: Cart,
    /// Cells with a write timestamp at or below it count no more.
    pub base: i64,
}

/// The cells that a decision read: the snapshot or the closed cart has what counts of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Absorbed {
    /// The creation and the id of the cart.
    pub cart: (Timestamp, CartId),
    pub base: i64,
    /// With their write timestamps.
    pub cells: Vec<(ProductId, i64)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CartHeader {
    pub open: Option<OpenCart>,
    /// The newest version of the owner's closed carts.
    pub last_version: u64,
    /// The decision that is under way. Blind writes and readers wait for it.
    pub claim: Option<Uuid>,
    /// Of the last decisions, newest first, whichever cart they were about.
    pub absorbed: Vec<Absorbed>,
    /// The merge that closed the owner's last cart.
    pub last_merge: Option<Uuid>,
}

pub fn encode(header: &CartHeader) -> Vec<u8> {
    let mut writer = Writer::new(256);
    writer.optional(header.open.as_ref(), |writer, open| {
        write_cart(writer, &open.cart);
        writer.signed(open.base);
    });
    writer.unsigned(header.last_version);
    write_uuid(&mut writer, header.claim);
    writer.unsigned(header.absorbed.len() as u64);
    for absorbed in &header.absorbed {
        let (created_at, cart_id) = absorbed.cart;
        writer.time(created_at);
        writer.bytes(cart_id.as_bytes());
        writer.signed(absorbed.base);
        writer.unsigned(absorbed.cells.len() as u64);
        for (product_id, stamp) in &absorbed.cells {
            writer.text(product_id.as_str());
            // Cells were written shortly before the decision: the difference is short.
            writer.signed(absorbed.base - stamp);
        }
    }
    write_uuid(&mut writer, header.last_merge);
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<CartHeader, Damaged> {
    let mut reader = Reader::new(bytes, "cart header")?;
    let open = reader.optional(|reader| Ok(OpenCart { cart: read_cart(reader)?, base: reader.signed()? }))?;
    let last_version = reader.unsigned()?;
    let claim = reader.optional(|reader| reader.array().map(Uuid::from_bytes))?;
    let absorbed = reader.list(|reader| {
        let cart = (reader.time()?, CartId::from_bytes(reader.array()?));
        let base = reader.signed()?;
        let cells =
            reader.list(|reader| Ok((reader.id(ProductId::parse)?, base.wrapping_sub(reader.signed()?))))?;
        Ok(Absorbed { cart, base, cells })
    })?;
    let last_merge = reader.optional(|reader| reader.array().map(Uuid::from_bytes))?;
    reader.end()?;
    Ok(CartHeader { open, last_version, claim, absorbed, last_merge })
}

fn write_uuid(writer: &mut Writer, id: Option<Uuid>) {
    writer.optional(id.as_ref(), |writer, id| writer.bytes(id.as_bytes()));
}
