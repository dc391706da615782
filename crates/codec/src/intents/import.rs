//! The intent of importing a product with its stock: the whole command.

use mw_domain::GeoZone;
use mw_store::products::ImportProduct;
use uuid::Uuid;

use crate::idempotency::{read_key, write_key};
use crate::{Damaged, Reader, Writer, products};

pub fn encode(command: &ImportProduct) -> Vec<u8> {
    let ImportProduct { product, stock, op, now, identity } = command;
    let mut writer = Writer::new(256);
    products::write(&mut writer, product);
    writer.unsigned(stock.len() as u64);
    for (zone, on_hand) in stock {
        writer.text(zone.as_str());
        writer.unsigned(*on_hand);
    }
    writer.bytes(op.as_bytes());
    writer.time(*now);
    writer.optional(identity.as_ref(), |writer, identity| {
        writer.time(identity.keep_until);
        write_key(writer, identity);
    });
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<ImportProduct, Damaged> {
    let mut reader = Reader::new(bytes, "import intent")?;
    let command = ImportProduct {
        product: products::read(&mut reader)?,
        stock: reader.list(|reader| Ok((reader.id(GeoZone::parse)?, reader.unsigned()?)))?,
        op: Uuid::from_bytes(reader.array()?),
        now: reader.time()?,
        identity: reader.optional(|reader| {
            let keep_until = reader.time()?;
            read_key(reader, keep_until)
        })?,
    };
    reader.end()?;
    Ok(command)
}
