//! Stored products. The fields that an order needs come first, so that placing one reads no description.

use mw_domain::{Category, Money, Product, ProductId};

use crate::{Damaged, Reader, Writer};

const WHAT: &str = "product";

pub fn encode(product: &Product) -> Vec<u8> {
    let mut writer =
        Writer::new(128 + product.name.len() + product.description.len() + product.attributes.text_len());
    write(&mut writer, product);
    writer.done()
}

pub fn write(writer: &mut Writer, product: &Product) {
    writer.text(&product.name);
    writer.signed(product.price.as_minor());
    writer.text(product.product_id.as_str());
    writer.text(product.category.as_str());
    writer.text(&product.description);
    writer.text_map(product.attributes.iter());
    writer.time(product.created_at);
    writer.time(product.updated_at);
}

pub fn decode(bytes: &[u8]) -> Result<Product, Damaged> {
    let mut reader = Reader::new(bytes, WHAT)?;
    let product = read(&mut reader)?;
    reader.end()?;
    Ok(product)
}

pub fn read(reader: &mut Reader<'_>) -> Result<Product, Damaged> {
    let name = reader.text()?.to_owned();
    let price = Money::from_minor(reader.signed()?);
    Ok(Product {
        product_id: reader.id(ProductId::parse)?,
        name,
        category: reader.id(Category::parse)?,
        price,
        description: reader.text()?.to_owned(),
        attributes: reader.attributes()?,
        created_at: reader.time()?,
        updated_at: reader.time()?,
    })
}

/// Name and price only.
pub fn decode_tag(bytes: &[u8]) -> Result<(String, Money), Damaged> {
    let mut reader = Reader::new(bytes, WHAT)?;
    Ok((reader.text()?.to_owned(), Money::from_minor(reader.signed()?)))
}
