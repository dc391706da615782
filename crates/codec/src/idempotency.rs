//! Stored outcomes of idempotency keys.

use mw_domain::carts::MergeChange;
use mw_domain::{IdempotencyKey, OrderId, ProductId, Timestamp};
use mw_store::carts::Merged;
use mw_store::idempotency::{Outcome, StoredOutcome};
use mw_store::sessions::LoggedIn;
use mw_store::{Fingerprint, RequestIdentity};

use crate::{Damaged, Reader, Writer, carts, orders, sessions, stock};

pub fn encode(identity: &RequestIdentity, outcome: &Outcome) -> Vec<u8> {
    let mut writer = Writer::expiring(96, identity.keep_until);
    write_key(&mut writer, identity);
    write_outcome(&mut writer, outcome);
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<StoredOutcome, Damaged> {
    let (mut reader, keep_until) = Reader::expiring(bytes, "idempotency key")?;
    let identity = read_key(&mut reader, keep_until)?;
    let outcome = read_outcome(&mut reader)?;
    reader.end()?;
    Ok(StoredOutcome { identity, outcome })
}

/// The key and the fingerprint; `keep_until` is stored separately.
pub fn write_key(writer: &mut Writer, identity: &RequestIdentity) {
    writer.text(identity.key.as_str());
    writer.bytes(&identity.fingerprint.0);
}

pub fn read_key(reader: &mut Reader<'_>, keep_until: Timestamp) -> Result<RequestIdentity, Damaged> {
    let key = reader.id(IdempotencyKey::restore)?;
    Ok(RequestIdentity { key, fingerprint: Fingerprint(reader.array()?), keep_until })
}

/// An outcome alone, for rows that store the key and its expiry separately.
pub fn encode_outcome(outcome: &Outcome) -> Vec<u8> {
    let mut writer = Writer::new(96);
    write_outcome(&mut writer, outcome);
    writer.done()
}

pub fn decode_outcome(bytes: &[u8]) -> Result<Outcome, Damaged> {
    let mut reader = Reader::new(bytes, "remembered outcome")?;
    let outcome = read_outcome(&mut reader)?;
    reader.end()?;
    Ok(outcome)
}

pub fn write_outcome(writer: &mut Writer, outcome: &Outcome) {
    match outcome {
        Outcome::Cart(cart) => {
            writer.byte(0);
            carts::write(writer, cart);
        }
        Outcome::Merged(merged) => {
            writer.byte(1);
            writer.optional(merged.cart.as_ref(), carts::write);
            writer.unsigned(merged.changes.len() as u64);
            for change in &merged.changes {
                writer.text(change.product_id.as_str());
                writer.unsigned(u64::from(change.from));
                writer.unsigned(u64::from(change.to));
            }
        }
        Outcome::Session(session) => {
            writer.byte(2);
            sessions::write(writer, session);
        }
        Outcome::LoggedIn(logged_in) => {
            writer.byte(3);
            sessions::write(writer, &logged_in.session);
            writer.optional(logged_in.cart.as_ref(), carts::write);
        }
        Outcome::Stock(zone_stock) => {
            writer.byte(4);
            stock::write_zone(writer, zone_stock);
        }
        Outcome::Reservation(reservation) => {
            writer.byte(5);
            stock::write_reservation(writer, reservation);
        }
        Outcome::Placed(order_id) => {
            writer.byte(6);
            writer.bytes(order_id.as_bytes());
        }
        Outcome::Order(order) => {
            writer.byte(7);
            orders::write(writer, order);
        }
        Outcome::Imported { product_id, created } => {
            writer.byte(8);
            writer.text(product_id.as_str());
            writer.byte(u8::from(*created));
        }
    }
}

pub fn read_outcome(reader: &mut Reader<'_>) -> Result<Outcome, Damaged> {
    Ok(match reader.byte()? {
        0 => Outcome::Cart(carts::read(reader)?),
        1 => Outcome::Merged(Merged {
            cart: reader.optional(carts::read)?,
            changes: reader.list(|reader| {
                Ok(MergeChange {
                    product_id: reader.id(ProductId::parse)?,
                    from: reader.small()?,
                    to: reader.small()?,
                })
            })?,
        }),
        2 => Outcome::Session(sessions::read(reader)?),
        3 => Outcome::LoggedIn(LoggedIn {
            session: sessions::read(reader)?,
            cart: reader.optional(carts::read)?,
        }),
        4 => Outcome::Stock(stock::read_zone(reader)?),
        5 => Outcome::Reservation(stock::read_reservation(reader)?),
        6 => Outcome::Placed(OrderId::from_bytes(reader.array()?)),
        7 => Outcome::Order(orders::read(reader)?),
        8 => Outcome::Imported { product_id: reader.id(ProductId::parse)?, created: reader.byte()? != 0 },
        _ => return Err(reader.damaged()),
    })
}
