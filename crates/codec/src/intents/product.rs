//! The intent of changing a product: the data that recovery needs to update its listing.

use mw_domain::{Category, Money, ProductId};

use crate::{Damaged, Reader, Writer};

/// The row of a product in the listing of its category, without the product's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListingKey {
    pub category: Category,
    /// The partition of the category.
    pub band: i32,
    pub price: Money,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProductIntent {
    pub product_id: ProductId,
    /// The listing row of the product before the change.
    pub previous: Option<ListingKey>,
    /// The product's revision after the change.
    pub rev: i64,
}

pub fn encode(intent: &ProductIntent) -> Vec<u8> {
    let mut writer = Writer::new(160);
    writer.text(intent.product_id.as_str());
    writer.optional(intent.previous.as_ref(), |writer, key| {
        writer.text(key.category.as_str());
        writer.signed(i64::from(key.band));
        writer.signed(key.price.as_minor());
    });
    writer.signed(intent.rev);
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<ProductIntent, Damaged> {
    let mut reader = Reader::new(bytes, "product intent")?;
    let product_id = reader.id(ProductId::parse)?;
    let previous = reader.optional(|reader| {
        Ok(ListingKey {
            category: reader.id(Category::parse)?,
            band: i32::try_from(reader.signed()?).map_err(|_| reader.damaged())?,
            price: Money::from_minor(reader.signed()?),
        })
    })?;
    let rev = reader.signed()?;
    reader.end()?;
    Ok(ProductIntent { product_id, previous, rev })
}
