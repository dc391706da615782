//! An export record as bytes: the tag of its kind, then the noun.

use mw_domain::{GeoZone, ProductId};
use mw_store::export::Record;
use mw_store::idempotency::StoredOutcome;

use crate::{Damaged, Reader, Writer, carts, idempotency, orders, products, sessions, stock};

const WHAT: &str = "record";

pub fn encode(record: &Record) -> Vec<u8> {
    let mut writer = Writer::new(256);
    match record {
        Record::Product(product) => {
            writer.byte(0);
            products::write(&mut writer, product);
        }
        Record::Stock { stock, ledger } => {
            writer.byte(1);
            stock::write_zone(&mut writer, stock);
            writer.unsigned(ledger.len() as u64);
            for movement in ledger {
                stock::write_movement(&mut writer, movement);
            }
        }
        Record::Ledger { product_id, geo_zone, ledger } => {
            writer.byte(8);
            writer.text(product_id.as_str());
            writer.text(geo_zone.as_str());
            writer.unsigned(ledger.len() as u64);
            for movement in ledger {
                stock::write_movement(&mut writer, movement);
            }
        }
        Record::Cart(cart) => {
            writer.byte(2);
            carts::write(&mut writer, cart);
        }
        Record::CartChange { owner, change } => {
            writer.byte(3);
            carts::write_owner(&mut writer, owner);
            carts::write_change(&mut writer, change);
        }
        Record::Session(session) => {
            writer.byte(4);
            sessions::write(&mut writer, session);
        }
        Record::Reservation(reservation) => {
            writer.byte(5);
            stock::write_reservation(&mut writer, reservation);
        }
        Record::Order { order, events } => {
            writer.byte(6);
            orders::write(&mut writer, order);
            orders::write_events(&mut writer, events);
        }
        Record::StoredOutcome(StoredOutcome { identity, outcome }) => {
            writer.byte(7);
            writer.time(identity.keep_until);
            idempotency::write_key(&mut writer, identity);
            idempotency::write_outcome(&mut writer, outcome);
        }
    }
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<Record, Damaged> {
    let mut reader = Reader::new(bytes, WHAT)?;
    let record = read(&mut reader)?;
    reader.end()?;
    Ok(record)
}

fn read(reader: &mut Reader<'_>) -> Result<Record, Damaged> {
    Ok(match reader.byte()? {
        0 => Record::Product(products::read(reader)?),
        1 => Record::Stock { stock: stock::read_zone(reader)?, ledger: reader.list(stock::read_movement)? },
        2 => Record::Cart(carts::read(reader)?),
        3 => Record::CartChange { owner: carts::read_owner(reader)?, change: carts::read_change(reader)? },
        4 => Record::Session(sessions::read(reader)?),
        5 => Record::Reservation(stock::read_reservation(reader)?),
        6 => Record::Order { order: orders::read(reader)?, events: orders::read_events(reader)? },
        7 => {
            let keep_until = reader.time()?;
            Record::StoredOutcome(StoredOutcome {
                identity: idempotency::read_key(reader, keep_until)?,
                outcome: idempotency::read_outcome(reader)?,
            })
        }
        8 => Record::Ledger {
            product_id: reader.id(ProductId::parse)?,
            geo_zone: reader.id(GeoZone::parse)?,
            ledger: reader.list(stock::read_movement)?,
        },
        _ => return Err(reader.damaged()),
    })
}
