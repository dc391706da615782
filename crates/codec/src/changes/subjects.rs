//! What a row of the change feed refers to, on an engine whose readers read the resources themselves.

use mw_domain::{GeoZone, OrderId, ProductId};

use crate::{Damaged, Reader, Writer};

/// A resource that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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
    Product(ProductId),
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
            Subject::Product(product_id) => {
                writer.byte(2);
                writer.text(product_id.as_str());
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
            2 => Subject::Product(reader.id(ProductId::parse)?),
            _ => return Err(reader.damaged()),
        })
    })?;
    reader.end()?;
    Ok(subjects)
}
