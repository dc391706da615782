//! What a row of the change feed refers to, on an engine whose readers read the resources themselves. A product is stored whole:
//! every step of it is reported, and its row has only the last one.

use mw_domain::{GeoZone, OrderId, Product, ProductId};

use crate::{Damaged, Reader, Writer, products};

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
            _ => return Err(reader.damaged()),
        })
    })?;
    reader.end()?;
    Ok(subjects)
}
