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

/// A row of a closed cart that the next decision writes, with the cart as it is until then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutboxRow {
    /// The creation and the id of the cart.
    pub cart: (Timestamp, CartId),
    /// The write timestamp of the row.
    pub stamp: i64,
    /// `None` deletes the row: the cart was opened again.
    pub closed: Option<ClosedCart>,
}

/// A closed cart, and the merge that closed it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClosedCart {
    pub cart: Cart,
    pub merge_id: Option<Uuid>,
}

/// A partition with rows of closed carts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClosedBucket {
    pub bucket: i32,
    /// The last of its carts expires then.
    pub until: Timestamp,
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
    /// The rows of the carts that the last decision closed or opened again.
    pub outbox: Vec<OutboxRow>,
    /// The highest write timestamp of an outbox so far.
    pub last_stamp: i64,
    /// Where the owner's closed carts have rows, newest first.
    pub closed_buckets: Vec<ClosedBucket>,
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
    // A header of a release before closed carts had partitions of their own ends here.
    if header.last_stamp != 0 || !header.outbox.is_empty() || !header.closed_buckets.is_empty() {
        write_closed(&mut writer, header);
    }
    writer.done()
}

fn write_closed(writer: &mut Writer, header: &CartHeader) {
    writer.signed(header.last_stamp);
    writer.unsigned(header.outbox.len() as u64);
    for OutboxRow { cart: (created_at, cart_id), stamp, closed } in &header.outbox {
        writer.time(*created_at);
        writer.bytes(cart_id.as_bytes());
        writer.signed(*stamp);
        writer.optional(closed.as_ref(), |writer, closed| {
            write_cart(writer, &closed.cart);
            write_uuid(writer, closed.merge_id);
        });
    }
    writer.unsigned(header.closed_buckets.len() as u64);
    for ClosedBucket { bucket, until } in &header.closed_buckets {
        writer.signed(i64::from(*bucket));
        writer.time(*until);
    }
}

fn read_outbox_row(reader: &mut Reader<'_>) -> Result<OutboxRow, Damaged> {
    let cart = (reader.time()?, CartId::from_bytes(reader.array()?));
    let stamp = reader.signed()?;
    let closed = reader.optional(|reader| {
        let cart = read_cart(reader)?;
        Ok(ClosedCart { cart, merge_id: read_uuid(reader)? })
    })?;
    Ok(OutboxRow { cart, stamp, closed })
}

fn read_closed_bucket(reader: &mut Reader<'_>) -> Result<ClosedBucket, Damaged> {
    let bucket = i32::try_from(reader.signed()?).map_err(|_| reader.damaged())?;
    Ok(ClosedBucket { bucket, until: reader.time()? })
}

pub fn decode(bytes: &[u8]) -> Result<CartHeader, Damaged> {
    let mut reader = Reader::new(bytes, "cart header")?;
    let open = reader.optional(|reader| Ok(OpenCart { cart: read_cart(reader)?, base: reader.signed()? }))?;
    let last_version = reader.unsigned()?;
    let claim = read_uuid(&mut reader)?;
    let absorbed = reader.list(|reader| {
        let cart = (reader.time()?, CartId::from_bytes(reader.array()?));
        let base = reader.signed()?;
        let cells =
            reader.list(|reader| Ok((reader.id(ProductId::parse)?, base.wrapping_sub(reader.signed()?))))?;
        Ok(Absorbed { cart, base, cells })
    })?;
    let last_merge = read_uuid(&mut reader)?;
    let (mut last_stamp, mut outbox, mut closed_buckets) = (0, Vec::new(), Vec::new());
    if !reader.is_at_end() {
        last_stamp = reader.signed()?;
        outbox = reader.list(read_outbox_row)?;
        closed_buckets = reader.list(read_closed_bucket)?;
    }
    reader.end()?;
    Ok(CartHeader { open, last_version, claim, absorbed, last_merge, outbox, last_stamp, closed_buckets })
}

fn read_uuid(reader: &mut Reader<'_>) -> Result<Option<Uuid>, Damaged> {
    reader.optional(|reader| reader.array().map(Uuid::from_bytes))
}

fn write_uuid(writer: &mut Writer, id: Option<Uuid>) {
    writer.optional(id.as_ref(), |writer, id| writer.bytes(id.as_bytes()));
}
