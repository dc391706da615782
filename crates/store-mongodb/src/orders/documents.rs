//! Orders as documents, in both shapes. What the service adds: `version`, `events`, `updated_at`, `pay_by`, `placed_by`,
//! delivery address, payment method, and the names of the lines.
//!
//! An order of another program has none of them: its version is 1, its only event is its creation, and it has no payment
//! window. Its lines are named after the products, or else by their ids.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, doc};
use mw_domain::orders::EventKind;
use mw_domain::{
    GeoZone, Money, Order, OrderEvent, OrderLine, OrderStatus, ProductId, Timestamp, UserId, orders,
};

use crate::documents::ids::{read_id, read_order_id, to_bson_id, to_bson_order_id};
use crate::documents::money::to_decimal;
use crate::documents::times::{read_time, to_bson_time};
use crate::documents::{Shape, Unreadable, fields};
use crate::statuses::Statuses;

/// Units of an order in the shape `user`, which has an item per unit: a document has 16 MB.
pub(crate) const UNITS_MAX: u64 = 100_000;
/// The value of `placed_by` in orders that hold their units in the ledger and have a payment window.
pub(crate) const SERVICE: &str = "mw";

/// An order with what its document says beside it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredOrder {
    pub(crate) order: Order,
    /// Oldest first.
    pub(crate) events: Vec<OrderEvent>,
    /// Whether the service placed it: its units are holds of the ledger.
    pub(crate) is_ours: bool,
    /// Whether a line has no name in the document.
    pub(crate) lacks_names: bool,
    /// The field and value of the user: part of the shard key.
    pub(crate) user: (&'static str, Bson),
}

impl StoredOrder {
    /// An order that is placed now.
    pub(crate) fn placed(order: Order, shape: Shape) -> Self {
        let user = (shape.user_field(), to_bson_id(order.user_id.as_str()));
        Self { events: vec![order.created_event()], order, is_ours: true, lacks_names: false, user }
    }

    /// The document of an order that the service writes whole.
    pub(crate) fn document(&self, shape: Shape, categories: &HashMap<ProductId, Bson>) -> Document {
        let order = &self.order;
        let user = to_bson_id(order.user_id.as_str());
        let (id, status) = (to_bson_order_id(order.order_id), order.status.as_str());
        let (created, total) = (to_bson_time(order.created_at), to_decimal(order.total));
        let mut document = match shape {
            Shape::Customer => doc! {
                "_id": id, "customer_id": user, "created_at": created, "items": counted_items(&order.lines),
                "status": status, "total": total, "geozone": order.geo_zone.as_str(),
            },
            Shape::User => doc! {
                "_id": id, "user_id": user, "order_date": created, "items": unit_items(&order.lines, categories),
                "status": status, "total_price": total, "geo_zone": order.geo_zone.as_str(),
                "line_names": line_names(&order.lines),
            },
        };
        if self.is_ours {
            document.insert("placed_by", SERVICE);
            document.insert("pay_by", to_bson_time(order.pay_by));
        }
        for (field, text) in
            [("delivery_address", &order.delivery_address), ("payment_method", &order.payment_method)]
        {
            if let Some(text) = text {
                document.insert(field, text.as_str());
            }
        }
        document.extend(self.state());
        document
    }

    /// The fields that every step changes, beside the status.
    fn state(&self) -> Document {
        doc! {
            "version": self.order.version.cast_signed(),
            "updated_at": to_bson_time(self.order.updated_at),
            "events": self.events.iter().map(event_document).collect::<Vec<Bson>>(),
        }
    }

    /// The statement that writes a step.
    pub(crate) fn status_update(&self) -> Document {
        let mut state = self.state();
        state.insert("status", self.order.status.as_str());
        doc! { "q": self.filter(), "u": { "$set": state } }
    }

    /// Finds the document, on one shard.
    pub(crate) fn filter(&self) -> Document {
        let (field, user) = &self.user;
        doc! { "_id": to_bson_order_id(self.order.order_id), *field: user.clone() }
    }

    pub(crate) fn read(document: &Document, statuses: &Statuses) -> Result<Self, Unreadable> {
        let shape = Shape::of_order(document);
        let user = document.get(shape.user_field()).cloned().unwrap_or(Bson::Null);
        let created_at = fields::time(document, &["created_at", "order_date"])?;
        let (lines, lacks_names) = read_lines(document)?;
        let total =
            match fields::optional(document, &["total", "total_price"], crate::documents::money::read_money)?
            {
                Some(total) => total,
                None => orders::total(&lines).ok_or(Unreadable::invalid("total"))?,
            };
        let is_ours = document.get_str("placed_by").is_ok_and(|by| by == SERVICE);
        let order = Order {
            order_id: fields::required(document, &["_id"], read_order_id)?,
            user_id: fields::required(document, &["customer_id", "user_id"], |id| {
                read_id(id, UserId::parse)
            })?,
            status: fields::required(document, &["status"], |word| statuses.read(word.as_str()?))?,
            geo_zone: fields::required(document, &["geozone", "geo_zone"], |zone| {
                GeoZone::parse(zone.as_str()?).ok()
            })?,
            lines,
            total,
            delivery_address: fields::text(document, &["delivery_address"])?,
            payment_method: fields::text(document, &["payment_method"])?,
            created_at,
            updated_at: fields::optional(document, &["updated_at"], read_time)?.unwrap_or(created_at),
            version: fields::optional(document, &["version"], fields::whole)?.unwrap_or(1),
            // The payment window counts for orders of the service alone.
            pay_by: fields::optional(document, &["pay_by"], read_time)?.unwrap_or(Timestamp::MAX),
        };
        let events = match document.get_array("events") {
            Ok(events) if is_ours || !events.is_empty() => {
                let events = events.iter().map(read_event).collect::<Option<Vec<_>>>();
                events.ok_or(Unreadable::invalid("events"))?
            }
            _ => vec![order.created_event()],
        };
        Ok(Self { order, events, is_ours, lacks_names, user: (shape.user_field(), user) })
    }
}

impl Shape {
    /// The shape of an order's document.
    pub(crate) fn of_order(document: &Document) -> Self {
        if document.contains_key("customer_id") { Self::Customer } else { Self::User }
    }

    pub(crate) const fn user_field(self) -> &'static str {
        match self {
            Self::Customer => "customer_id",
            Self::User => "user_id",
        }
    }

    pub(crate) const fn created_field(self) -> &'static str {
        match self {
            Self::Customer => "created_at",
            Self::User => "order_date",
        }
    }

    pub(crate) const fn order_zone_field(self) -> &'static str {
        match self {
            Self::Customer => "geozone",
            Self::User => "geo_zone",
        }
    }
}

fn counted_items(lines: &[OrderLine]) -> Vec<Bson> {
    let item = |line: &OrderLine| {
        doc! {
            "product_id": to_bson_id(line.product_id.as_str()),
            "price": to_decimal(line.price),
            "quantity": i64::from(line.quantity),
            "name": line.name.as_str(),
        }
    };
    lines.iter().map(|line| item(line).into()).collect()
}

fn unit_items(lines: &[OrderLine], categories: &HashMap<ProductId, Bson>) -> Vec<Bson> {
    let mut items = Vec::new();
    for line in lines {
        let item = doc! {
            "product_id": to_bson_id(line.product_id.as_str()),
            "category": categories.get(&line.product_id).cloned().unwrap_or(Bson::Null),
            "price": to_decimal(line.price),
        };
        items.extend((0..line.quantity).map(|_| Bson::from(item.clone())));
    }
    items
}

fn line_names(lines: &[OrderLine]) -> Vec<Bson> {
    lines.iter().map(|line| line.name.as_str().into()).collect()
}

/// The lines: items with a quantity, or units to be counted. Returns whether a line has no name.
fn read_lines(document: &Document) -> Result<(Vec<OrderLine>, bool), Unreadable> {
    let items = document.get_array("items").map_err(|_| Unreadable::missing("items"))?;
    let mut lines: Vec<OrderLine> = Vec::new();
    let mut lacks_names = false;
    for item in items {
        let item = item.as_document().ok_or(Unreadable::invalid("items"))?;
        let product_id: ProductId =
            fields::required(item, &["product_id"], |id| read_id(id, ProductId::parse))?;
        let price: Money = fields::money(item, &["price"])?;
        let counted = fields::optional(item, &["quantity"], fields::whole)?;
        let quantity = u32::try_from(counted.unwrap_or(1)).map_err(|_| Unreadable::invalid("quantity"))?;
        if quantity == 0 {
            return Err(Unreadable::invalid("quantity"));
        }
        let known = lines.iter_mut().find(|line| line.product_id == product_id && line.price == price);
        if let (None, Some(known)) = (counted, known) {
            known.quantity = known.quantity.saturating_add(1);
            continue;
        }
        let name = fields::text(item, &["name"])?;
        let named = document.get_array("line_names").ok().and_then(|names| names.get(lines.len())?.as_str());
        let name = name.or_else(|| named.map(str::to_owned));
        lacks_names |= name.is_none();
        let name = name.unwrap_or_else(|| product_id.to_string());
        lines.push(OrderLine { product_id, name, price, quantity });
    }
    if lines.is_empty() { Err(Unreadable::invalid("items")) } else { Ok((lines, lacks_names)) }
}

fn event_document(event: &OrderEvent) -> Bson {
    let mut document = doc! { "at": to_bson_time(event.at), "to": event.to.as_str() };
    if let Some(from) = event.from {
        document.insert("from", from.as_str());
    }
    if let Some(note) = &event.note {
        document.insert("note", note.as_str());
    }
    document.into()
}

fn read_event(event: &Bson) -> Option<OrderEvent> {
    let event = event.as_document()?;
    let from = match event.get("from") {
        Some(from) => Some(OrderStatus::parse(from.as_str()?)?),
        None => None,
    };
    Some(OrderEvent {
        at: read_time(event.get("at")?)?,
        kind: if from.is_some() { EventKind::Status } else { EventKind::Created },
        from,
        to: OrderStatus::parse(event.get_str("to").ok()?)?,
        note: event.get_str("note").ok().map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::oid::ObjectId;
    use mw_domain::OrderId;

    fn placed() -> StoredOrder {
        let line = |name: &str, minor, quantity| OrderLine {
            product_id: ProductId::parse(name).unwrap(),
            name: format!("The {name}"),
            price: Money::from_minor(minor),
            quantity,
        };
        let lines = vec![line("b", 250, 3), line("a", 100, 1)];
        let mut stored = StoredOrder::placed(
            Order {
                order_id: OrderId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap(),
                user_id: UserId::parse("anna").unwrap(),
                status: OrderStatus::Created,
                geo_zone: GeoZone::parse("north").unwrap(),
                lines,
                total: Money::from_minor(850),
                delivery_address: Some("Невский 1".to_owned()),
                payment_method: None,
                created_at: Timestamp::from_millis(5),
                updated_at: Timestamp::from_millis(5),
                version: 1,
                pay_by: Timestamp::from_millis(900),
            },
            Shape::Customer,
        );
        let event =
            stored.order.advance(OrderStatus::Paid, Some("card".to_owned()), Timestamp::from_millis(6));
        stored.events.push(event);
        stored
    }

    #[test]
    fn an_order_reads_back_in_both_shapes() {
        let stored = placed();
        for shape in [Shape::Customer, Shape::User] {
            let document = stored.document(shape, &HashMap::new());
            let read = StoredOrder::read(&document, &Statuses::default()).unwrap();
            assert_eq!((&read.order, &read.events), (&stored.order, &stored.events));
            assert!(read.is_ours && !read.lacks_names);
            assert_eq!(read.user.0, shape.user_field());
        }
        let units = stored.document(Shape::User, &HashMap::new());
        assert_eq!(units.get_array("items").unwrap().len(), 4, "an item per unit");
    }

    #[test]
    fn orders_of_other_programs_are_read() {
        let id = ObjectId::parse_str("507f1f77bcf86cd799439011").unwrap();
        let units = doc! {
            "_id": id, "user_id": id, "order_date": to_bson_time(Timestamp::from_millis(7)),
            "items": [
                { "product_id": "p", "category": "c", "price": 19.99 },
                { "product_id": "q", "category": "c", "price": 5 },
                { "product_id": "p", "category": "c", "price": 19.99 },
            ],
            "status": "pending", "total_price": 44.98, "geo_zone": "north",
        };
        let read = StoredOrder::read(&units, &Statuses::default()).unwrap();
        assert_eq!(read.order.order_id.object_id().as_deref(), Some("507f1f77bcf86cd799439011"));
        let quantities: Vec<u32> = read.order.lines.iter().map(|line| line.quantity).collect();
        assert_eq!((quantities, read.order.total), (vec![2, 1], Money::from_minor(4_498)));
        assert_eq!((read.order.status, read.order.version), (OrderStatus::Created, 1));
        assert!(!read.is_ours && read.lacks_names);
        assert_eq!(read.events.len(), 1);
    }

    #[test]
    fn an_order_that_the_shop_cannot_have_is_unreadable() {
        let good = placed().document(Shape::Customer, &HashMap::new());
        for (field, value) in [
            ("_id", Bson::from("text")),
            ("status", Bson::from("lost")),
            ("geozone", Bson::Null),
            ("items", Bson::Array(Vec::new())),
            ("total", Bson::from("much")),
        ] {
            let mut bad = good.clone();
            bad.insert(field, value);
            assert!(StoredOrder::read(&bad, &Statuses::default()).is_err(), "{field}");
        }
    }
}
