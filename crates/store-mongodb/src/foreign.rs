//! Reads documents of any program for a migration: the same readers as the engine's own, and the limits of the API beside
//! them. What breaks a limit is unreadable, with the field and the value.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, Document};
use mw_domain::carts::CartLifetime;
use mw_domain::limits::{LINES_MAX, ON_HAND_MAX, QUANTITY_MAX, TEXT_CHARS_MAX, check_quantity, check_text};
use mw_domain::{Cart, CartId, GeoZone, Order, OrderEvent, OrderId, Product, ProductId, Timestamp};

use crate::documents::{Unreadable, carts, fields, ids, products};
use crate::orders::documents::StoredOrder;
use crate::statuses::Statuses;
use crate::stock::entries::StockArray;

/// Why a document cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Unacceptable {
    pub field: String,
    pub problem: String,
}

impl Unacceptable {
    fn new(field: &str, problem: impl Into<String>) -> Self {
        Self { field: field.to_owned(), problem: problem.into() }
    }

    fn of(document: &Document, unreadable: &Unreadable) -> Self {
        let value = document.get(unreadable.field).filter(|value| is_short(value));
        let problem = match value {
            Some(value) => format!("{}: {value}", unreadable.problem),
            None => unreadable.problem.to_owned(),
        };
        Self::new(unreadable.field, problem)
    }
}

/// Whether a value fits into a message.
fn is_short(value: &Bson) -> bool {
    const SHOWN_CHARS_MAX: usize = 100;
    match value {
        Bson::String(text) => text.len() <= SHOWN_CHARS_MAX,
        Bson::Array(_) | Bson::Document(_) | Bson::Binary(_) => false,
        _ => true,
    }
}

/// An order of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadOrder {
    pub order: Order,
    /// Oldest first.
    pub events: Vec<OrderEvent>,
    /// Whether a line has no name in the document; such a line has its product's id as its name.
    pub lacks_names: bool,
}

/// A product of a document with its stock: what can be sold, by zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadProduct {
    pub product: Product,
    pub sellable: BTreeMap<GeoZone, u64>,
}

pub fn order(document: &Document, statuses: &Statuses) -> Result<ReadOrder, Unacceptable> {
    let StoredOrder { order, events, lacks_names, .. } = StoredOrder::read(document, statuses)
        .map_err(|unreadable| Unacceptable::of(document, &unreadable))?;
    if order.lines.len() > LINES_MAX {
        return Err(Unacceptable::new("items", format!("more than {LINES_MAX} lines")));
    }
    if let Some(line) = order.lines.iter().find(|line| line.quantity > QUANTITY_MAX) {
        let problem = format!("more than {QUANTITY_MAX} units of {}", line.product_id);
        return Err(Unacceptable::new("items", problem));
    }
    for (field, text) in
        [("delivery_address", &order.delivery_address), ("payment_method", &order.payment_method)]
    {
        if let Some(text) = text {
            check_text(field, text, TEXT_CHARS_MAX)
                .map_err(|invalid| Unacceptable::new(field, invalid.detail))?;
        }
    }
    check_time("created_at", order.created_at)?;
    check_time("updated_at", order.updated_at)?;
    Ok(ReadOrder { order, events, lacks_names })
}

pub fn product(document: &Document) -> Result<ReadProduct, Unacceptable> {
    let product = products::read(document).map_err(|unreadable| Unacceptable::of(document, &unreadable))?;
    check_time("created_at", product.created_at)?;
    check_time("updated_at", product.updated_at)?;
    Ok(ReadProduct { product, sellable: sellable(document)? })
}

/// The stock entries. Stricter than the engine, which serves what it can: here every entry must be a count of units.
fn sellable(document: &Document) -> Result<BTreeMap<GeoZone, u64>, Unacceptable> {
    let mut sellable = BTreeMap::new();
    for array in StockArray::ALL {
        let field = array.field();
        let entries = match fields::first(document, &[field]) {
            None => continue,
            Some(Bson::Array(entries)) => entries,
            Some(_) => return Err(Unacceptable::new(field, "not a list")),
        };
        for entry in entries {
            let entry =
                entry.as_document().ok_or_else(|| Unacceptable::new(field, "an entry is no document"))?;
            let zone = entry.get(array.zone_field());
            let zone = zone.and_then(|zone| GeoZone::parse(zone.as_str()?).ok()).ok_or_else(|| {
                let value = zone.map_or_else(|| "missing".to_owned(), |zone| format!("{zone}"));
                Unacceptable::new(&format!("{field}.{}", array.zone_field()), format!("no zone: {value}"))
            })?;
            let quantity = entry.get("quantity");
            let units = quantity.and_then(fields::whole).filter(|units| *units <= ON_HAND_MAX);
            let units = units.ok_or_else(|| {
                let value = quantity.map_or_else(|| "missing".to_owned(), |value| format!("{value}"));
                let problem = format!("not a count of units in zone {zone}: {value}");
                Unacceptable::new(&format!("{field}.quantity"), problem)
            })?;
            if sellable.insert(zone.clone(), units).is_some() {
                return Err(Unacceptable::new(field, format!("two entries for zone {zone}")));
            }
        }
    }
    Ok(sellable)
}

/// A cart; `lifetime` is that of one without `expires_at`.
pub fn cart(document: &Document, lifetime: &CartLifetime) -> Result<Cart, Unacceptable> {
    let read = carts::StoredCart::read(document, lifetime);
    let cart = read.map_err(|unreadable| Unacceptable::of(document, &unreadable))?.cart;
    for (field, at) in [("created_at", cart.created_at), ("updated_at", cart.updated_at)] {
        check_time(field, at)?;
    }
    for line in &cart.lines {
        check_quantity("items", u64::from(line.quantity))
            .map_err(|invalid| Unacceptable::new("items", invalid.detail))?;
    }
    Ok(cart)
}

fn check_time(field: &str, at: Timestamp) -> Result<(), Unacceptable> {
    if (Timestamp::EPOCH..=Timestamp::MAX).contains(&at) {
        return Ok(());
    }
    Err(Unacceptable::new(field, "before 1970 or after 9999"))
}

/// What an `_id` of each collection stands for, whatever the rest of its document is.
pub fn product_id(id: &Bson) -> Option<ProductId> {
    ids::read_id(id, ProductId::parse)
}

pub fn order_id(id: &Bson) -> Option<OrderId> {
    ids::read_order_id(id)
}

pub fn cart_id(id: &Bson) -> Option<CartId> {
    ids::read_cart_id(id)
}

/// The `_id` that stands for a thing of the shop.
pub fn id_of_product(id: &ProductId) -> Bson {
    ids::to_bson_id(id.as_str())
}

pub fn id_of_order(id: OrderId) -> Bson {
    ids::to_bson_order_id(id)
}

pub fn id_of_cart(id: CartId) -> Bson {
    ids::to_bson_cart_id(id)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, doc};

    use super::*;

    fn order_document() -> Document {
        doc! { "_id": mongodb::bson::oid::ObjectId::new(), "customer_id": "anna", "status": "new", "total": 5,
        "created_at": DateTime::from_millis(5), "geozone": "north",
        "items": [{ "product_id": "p", "price": 5, "quantity": 1 }] }
    }

    fn refused(change: impl FnOnce(&mut Document)) -> String {
        let mut document = order_document();
        change(&mut document);
        order(&document, &Statuses::default()).unwrap_err().to_string()
    }

    #[test]
    fn an_order_outside_the_limits_of_the_api_is_unacceptable_with_its_value() {
        assert!(order(&order_document(), &Statuses::default()).is_ok());
        let status = refused(|it| drop(it.insert("status", "lost")));
        assert_eq!(status, "status: not a value that the shop can have: \"lost\"");
        let items: Vec<Document> =
            (0..101).map(|at| doc! { "product_id": format!("p{at}"), "price": 1, "quantity": 1 }).collect();
        assert_eq!(refused(|it| drop(it.insert("items", items))), "items: more than 100 lines");
        let many = [doc! { "product_id": "p", "price": 1, "quantity": 10_001 }];
        assert_eq!(
            refused(|it| drop(it.insert("items", many.to_vec()))),
            "items: more than 10000 units of p"
        );
        assert!(refused(|it| drop(it.insert("total", 1.005))).starts_with("total: "));
        let early = refused(|it| drop(it.insert("created_at", DateTime::from_millis(-1))));
        assert_eq!(early, "created_at: before 1970 or after 9999");
    }

    #[test]
    fn every_stock_entry_must_be_a_count_of_units() {
        let of = |stocks: Vec<Document>| {
            product(&doc! { "_id": "p", "name": "P", "category": "c", "price": 1, "stocks": stocks })
        };
        let good = of(vec![doc! { "geozone": "north", "quantity": 5.0 }]).unwrap();
        assert_eq!(good.sellable, BTreeMap::from([(GeoZone::parse("north").unwrap(), 5)]));
        for (stocks, problem) in [
            (doc! { "geozone": "Москва", "quantity": 1 }, "stocks.geozone: no zone: \"Москва\""),
            (doc! { "geozone": "n", "quantity": -1 }, "stocks.quantity: not a count of units in zone n: -1"),
            (
                doc! { "geozone": "n", "quantity": 1.5 },
                "stocks.quantity: not a count of units in zone n: 1.5",
            ),
        ] {
            assert_eq!(of(vec![stocks]).unwrap_err().to_string(), problem);
        }
        let twice = doc! { "geozone": "n", "quantity": 1 };
        assert_eq!(of(vec![twice.clone(), twice]).unwrap_err().to_string(), "stocks: two entries for zone n");
    }
}
