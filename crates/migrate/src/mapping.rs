//! What a document of the source becomes in the target, or why it cannot be taken and what to do about it.

use std::collections::{BTreeMap, HashMap};

use mongodb::bson::{Bson, Document};
use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, OrderStatus, Product, Timestamp};
use mw_store_mongodb::foreign::{self, ReadOrder, ReadProduct, Unacceptable};
use mw_store_mongodb::statuses::Statuses;

use crate::key::Kind;

/// How documents are read.
#[derive(Debug, Clone)]
pub struct Settings {
    pub statuses: Statuses,
    /// The names that zones get in the target, by their names at the source.
    pub zones: BTreeMap<String, String>,
    /// The life of a cart without `expires_at`.
    pub cart_lifetime: CartLifetime,
}

/// Why a document is not in the target, or not as it is at the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub advice: String,
    /// Whether the cutover waits for it.
    pub blocking: bool,
}

/// What a document stands for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// There is no such document.
    Absent,
    Rejected(Rejection),
    Product(Box<ReadProduct>),
    Order(Box<ReadOrder>),
    Cart(Box<Cart>),
}

/// Reads a document of the source.
pub(crate) fn map(kind: Kind, document: Option<&Document>, settings: &Settings) -> Outcome {
    let Some(document) = document else { return Outcome::Absent };
    let mut renamed;
    let document = if settings.zones.is_empty() {
        document
    } else {
        renamed = document.clone();
        rename_zones(&mut renamed, &settings.zones);
        &renamed
    };
    let read = match kind {
        Kind::Products => foreign::product(document).map(|it| Outcome::Product(Box::new(it))),
        Kind::Orders => foreign::order(document, &settings.statuses).map(|it| Outcome::Order(Box::new(it))),
        Kind::Carts => foreign::cart(document, &settings.cart_lifetime).map(|it| Outcome::Cart(Box::new(it))),
    };
    read.unwrap_or_else(|why| {
        Outcome::Rejected(Rejection { advice: advice(kind, &why), reason: why.to_string(), blocking: true })
    })
}

/// Gives the configured names to the zones of an order or of a product's stock, in either shape.
fn rename_zones(document: &mut Document, zones: &BTreeMap<String, String>) {
    for field in ["geozone", "geo_zone", "zone"] {
        if let Some(Bson::String(zone)) = document.get_mut(field)
            && let Some(name) = zones.get(zone)
        {
            zone.clone_from(name);
        }
    }
    for field in ["stocks", "stock"] {
        let Some(Bson::Array(entries)) = document.get_mut(field) else { continue };
        for entry in entries.iter_mut().filter_map(Bson::as_document_mut) {
            rename_zones(entry, zones);
        }
    }
}

fn advice(kind: Kind, why: &Unacceptable) -> String {
    let field = why.field.as_str();
    if field == "_id" || field.ends_with("_id") {
        return "ids of the shop are 1 to 128 characters of A-Z a-z 0-9 . _ : ~ - or an ObjectId (of orders and carts: a UUID or an \
                ObjectId): write the document again under such an id"
            .to_owned();
    }
    if field == "status" && kind == Kind::Orders {
        let known = OrderStatus::ALL.map(OrderStatus::as_str).join(", ");
        return format!(
            "say what the word means: \"word\" = one of {known} under [migration.statuses]; then run again"
        );
    }
    if field.contains("zone") {
        return "give the zone a name of A-Z a-z 0-9 . _ : ~ - under [migration.zones]; then run again"
            .to_owned();
    }
    if ["price", "total", "total_price"].contains(&field) {
        return "amounts have at most two decimals and are not negative: correct the amount at the source"
            .to_owned();
    }
    "correct the document at the source: it is taken as soon as it is acceptable".to_owned()
}

/// The names of lines that their documents do not name.
pub(crate) fn name_lines(order: &mut ReadOrder, names: &HashMap<String, String>) {
    if !order.lacks_names {
        return;
    }
    for line in &mut order.order.lines {
        if line.name == line.product_id.as_str()
            && let Some(name) = names.get(line.product_id.as_str())
        {
            line.name.clone_from(name);
        }
    }
}

/// Whether the stored order is that of the document. Names that the document does not have are those that the products had
/// when the order was taken.
pub(crate) fn is_same_order(
    expected: &ReadOrder,
    order: &mw_domain::Order,
    events: &[mw_domain::OrderEvent],
) -> bool {
    let mut expected = expected.clone();
    if expected.lacks_names && expected.order.lines.len() == order.lines.len() {
        for (line, stored) in expected.order.lines.iter_mut().zip(&order.lines) {
            line.name.clone_from(&stored.name);
        }
    }
    expected.order == *order && expected.events == events
}

pub(crate) fn is_same_product(expected: &Product, stored: &Product) -> bool {
    expected == stored
}

/// A cart that has ended is left out: no request would see it.
pub(crate) fn is_left_out(cart: &Cart, now: Timestamp) -> bool {
    cart.is_expired(now)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, doc};

    use super::*;

    fn settings() -> Settings {
        Settings {
            statuses: Statuses::default(),
            zones: BTreeMap::from([("Москва".to_owned(), "moscow".to_owned())]),
            cart_lifetime: CartLifetime { user_ms: 1_000, guest_ms: 1_000 },
        }
    }

    fn rejected(kind: Kind, document: &Document) -> Rejection {
        match map(kind, Some(document), &settings()) {
            Outcome::Rejected(rejection) => rejection,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn zones_are_renamed_in_both_shapes() {
        let product = doc! { "_id": "p", "name": "P", "category": "c", "price": 1,
        "stocks": [{ "geozone": "Москва", "quantity": 1 }], "stock": [{ "zone": "north", "quantity": 2 }] };
        let Outcome::Product(read) = map(Kind::Products, Some(&product), &settings()) else { panic!() };
        let zones: Vec<&str> = read.sellable.keys().map(mw_domain::GeoZone::as_str).collect();
        assert_eq!(zones, ["moscow", "north"]);
        let order = doc! { "_id": mongodb::bson::oid::ObjectId::new(), "user_id": "a", "status": "sent",
        "order_date": DateTime::from_millis(5), "geo_zone": "Москва", "items": [{ "product_id": "p", "price": 1 }] };
        let Outcome::Order(read) = map(Kind::Orders, Some(&order), &settings()) else { panic!() };
        assert_eq!(read.order.geo_zone.as_str(), "moscow");
        assert_eq!(read.order.status, OrderStatus::Shipped);
    }

    #[test]
    fn a_rejection_says_what_to_do() {
        let order = doc! { "_id": mongodb::bson::oid::ObjectId::new(), "user_id": "a", "status": "lost",
        "order_date": DateTime::from_millis(5), "geo_zone": "n", "items": [{ "product_id": "p", "price": 1 }] };
        let status = rejected(Kind::Orders, &order);
        assert!(
            status.reason.contains("\"lost\"") && status.advice.contains("[migration.statuses]"),
            "{status:?}"
        );
        let zone = doc! { "geo_zone": "St Petersburg", "status": "new" };
        let mut other = order.clone();
        other.extend(zone);
        assert!(rejected(Kind::Orders, &other).advice.contains("[migration.zones]"));
        let price = doc! { "_id": "p", "name": "P", "category": "c", "price": 1.005 };
        assert!(rejected(Kind::Products, &price).advice.contains("two decimals"));
        assert_eq!(map(Kind::Orders, None, &settings()), Outcome::Absent);
    }
}
