//! Products in both shapes, without their stock. Attributes are `{k: v}` in shape `customer` and `[{key, value}]` in shape
//! `user`. A key that cannot be the name of a field stands in `more_attributes`, which has the form of shape `user`.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, Document, doc};
use mw_domain::{Attributes, Category, Product, ProductId, Timestamp};

use super::fields::{first, money, optional, required, text};
use super::ids::{read_id, to_bson_id};
use super::money::to_decimal;
use super::times::{read_time, to_bson_time};
use super::{Shape, Unreadable};

const MORE_ATTRIBUTES: &str = "more_attributes";

pub(crate) fn read(document: &Document) -> Result<Product, Unreadable> {
    let created_at = optional(document, &["created_at"], read_time)?.unwrap_or_else(|| made_at(document));
    let product = Product {
        product_id: required(document, &["_id"], |id| read_id(id, ProductId::parse))?,
        name: text(document, &["name"])?.ok_or(Unreadable::missing("name"))?,
        category: required(document, &["category"], |category| Category::parse(category.as_str()?).ok())?,
        price: money(document, &["price"])?,
        description: text(document, &["description"])?.unwrap_or_default(),
        attributes: read_attributes(document)?,
        created_at,
        updated_at: optional(document, &["updated_at"], read_time)?.unwrap_or(created_at),
    };
    product.check().map_err(|_| Unreadable::invalid("a field of the product"))?;
    Ok(product)
}

/// When a product of another program was created, as its id tells.
fn made_at(document: &Document) -> Timestamp {
    match document.get("_id") {
        Some(Bson::ObjectId(id)) => Timestamp::from_millis(id.timestamp().timestamp_millis()),
        _ => Timestamp::EPOCH,
    }
}

/// `created_at` of a document, as [`read`] reads it.
pub(crate) fn created_at(document: &Document) -> Timestamp {
    document.get("created_at").and_then(read_time).unwrap_or_else(|| made_at(document))
}

/// The fields that the catalogue writes, as `$set` and `$unset` take them.
pub(crate) fn update(product: &Product, shape: Shape) -> Document {
    let mut set = doc! {
        "name": &product.name,
        "category": product.category.as_str(),
        "price": to_decimal(product.price),
        "description": &product.description,
        "updated_at": to_bson_time(product.updated_at),
    };
    let more = write_attributes(&mut set, &product.attributes, shape);
    let mut update = doc! { "$set": set };
    if !more {
        update.insert("$unset", doc! { MORE_ATTRIBUTES: "" });
    }
    update
}

/// The document of a new product, without stock.
pub(crate) fn new_document(product: &Product, shape: Shape) -> Document {
    let mut document = doc! {
        "_id": to_bson_id(product.product_id.as_str()),
        "name": &product.name,
        "category": product.category.as_str(),
        "price": to_decimal(product.price),
        "description": &product.description,
        "created_at": to_bson_time(product.created_at),
        "updated_at": to_bson_time(product.updated_at),
    };
    write_attributes(&mut document, &product.attributes, shape);
    document
}

/// Returns whether some attributes stand apart.
fn write_attributes(document: &mut Document, attributes: &Attributes, shape: Shape) -> bool {
    let pair = |(key, value): (&str, &str)| Bson::from(doc! { "key": key, "value": value });
    if shape == Shape::User {
        document.insert("attributes", attributes.iter().map(pair).collect::<Vec<_>>());
        return false;
    }
    let named = attributes.iter().filter(|(key, _)| is_field_name(key));
    let named: Document = named.map(|(key, value)| (key.to_owned(), Bson::from(value))).collect();
    document.insert("attributes", named);
    let more: Vec<Bson> = attributes.iter().filter(|(key, _)| !is_field_name(key)).map(pair).collect();
    let is_more = !more.is_empty();
    if is_more {
        document.insert(MORE_ATTRIBUTES, more);
    }
    is_more
}

/// Whether queries can name a field so.
fn is_field_name(key: &str) -> bool {
    !key.starts_with('$') && !key.contains(['.', '\0'])
}

fn read_attributes(document: &Document) -> Result<Attributes, Unreadable> {
    let mut attributes: BTreeMap<String, String> = BTreeMap::new();
    for field in ["attributes", MORE_ATTRIBUTES] {
        match first(document, &[field]) {
            None => {}
            Some(Bson::Document(named)) => {
                attributes.extend(named.iter().filter_map(|(key, value)| Some((key.clone(), plain(value)?))));
            }
            Some(Bson::Array(pairs)) => attributes.extend(pairs.iter().filter_map(|pair| {
                let pair = pair.as_document()?;
                Some((pair.get_str("key").ok()?.to_owned(), plain(pair.get("value")?)?))
            })),
            Some(_) => return Err(Unreadable::invalid("attributes")),
        }
    }
    Ok(attributes.into())
}

/// The text of a plain value; other programs also write numbers. Nested values are no attribute of ours and are left out.
fn plain(value: &Bson) -> Option<String> {
    match value {
        Bson::String(text) => Some(text.clone()),
        Bson::Boolean(value) => Some(value.to_string()),
        Bson::Int32(number) => Some(number.to_string()),
        Bson::Int64(number) => Some(number.to_string()),
        Bson::Double(number) => Some(number.to_string()),
        Bson::Decimal128(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;
    use mw_domain::Money;

    use super::*;

    fn product() -> Product {
        Product {
            product_id: ProductId::parse("p").unwrap(),
            name: "$name".to_owned(),
            category: Category::parse("Телефоны").unwrap(),
            price: Money::from_minor(1_999),
            description: "d".to_owned(),
            attributes: [("a.b", "1"), ("$c", "2"), ("colour", "black"), ("n\0l", "3")].into(),
            created_at: Timestamp::from_millis(5),
            updated_at: Timestamp::from_millis(7),
        }
    }

    #[test]
    fn a_product_reads_back_in_both_shapes() {
        for shape in [Shape::Customer, Shape::User] {
            assert_eq!(read(&new_document(&product(), shape)), Ok(product()), "{shape:?}");
        }
        let customer = new_document(&product(), Shape::Customer);
        assert_eq!(customer.get_document("attributes").unwrap(), &doc! { "colour": "black" });
    }

    #[test]
    fn products_of_other_programs_are_read() {
        let id = ObjectId::parse_str("507f1f77bcf86cd799439011").unwrap();
        let document = doc! {
            "_id": id, "name": "Phone", "category": "phones", "price": 19.99,
            "attributes": [{ "key": "memory", "value": 128 }, { "key": "colour", "value": "black" }, { "key": "x" }],
            "stock": [{ "zone": "north", "quantity": 5 }],
        };
        let read_product = read(&document).unwrap();
        assert_eq!(read_product.product_id.as_str(), "507f1f77bcf86cd799439011");
        assert_eq!(read_product.price, Money::from_minor(1_999));
        assert_eq!(read_product.attributes, [("colour", "black"), ("memory", "128")].into());
        assert_eq!(read_product.created_at.as_millis(), id.timestamp().timestamp_millis());
        assert_eq!(read_product.description, "");
        for (field, value) in [("name", Bson::Null), ("price", Bson::from(0.001)), ("category", 5.into())] {
            let mut broken = document.clone();
            broken.insert(field, value);
            assert!(read(&broken).is_err(), "{field}");
        }
    }
}
