//! Validators of the collections that other programs write too: the papers' fields in either shape. They warn in the log of
//! the server and refuse nothing.

use mongodb::bson::{Bson, Document, doc};

use crate::collections::{CARTS, ORDERS, PRODUCTS};

pub(super) fn of(collection: &str) -> Option<Document> {
    let schema = match collection {
        ORDERS => orders(),
        PRODUCTS => products(),
        CARTS => carts(),
        _ => return None,
    };
    Some(doc! { "$jsonSchema": schema })
}

/// Ids are `ObjectIds` or text, and the service's own orders have UUIDs.
const ID: [&str; 3] = ["objectId", "string", "binData"];
/// Decimals are written; doubles and ints of other programs are read too.
const NUMBER: [&str; 4] = ["decimal", "double", "int", "long"];

fn types(types: &[&str]) -> Document {
    doc! { "bsonType": types.to_vec() }
}

fn items(required: &[&str], properties: Document) -> Document {
    let item = doc! { "bsonType": "object", "required": required.to_vec(), "properties": properties };
    doc! { "bsonType": "array", "items": item }
}

/// The fields of one shape or of the other.
fn either(customer: &[&str], user: &[&str]) -> Vec<Bson> {
    [customer, user].map(|fields| doc! { "required": fields.to_vec() }.into()).to_vec()
}

fn orders() -> Document {
    let line = doc! { "product_id": types(&ID), "price": types(&NUMBER), "quantity": types(&NUMBER) };
    doc! {
        "bsonType": "object",
        "required": ["items", "status"],
        "anyOf": either(
            &["customer_id", "created_at", "total", "geozone"],
            &["user_id", "order_date", "total_price", "geo_zone"],
        ),
        "properties": {
            "_id": types(&ID),
            "customer_id": types(&ID),
            "user_id": types(&ID),
            "created_at": types(&["date"]),
            "order_date": types(&["date"]),
            "items": items(&["product_id", "price"], line),
            "status": types(&["string"]),
            "total": types(&NUMBER),
            "total_price": types(&NUMBER),
            "geozone": types(&["string"]),
            "geo_zone": types(&["string"]),
        },
    }
}

fn products() -> Document {
    doc! {
        "bsonType": "object",
        "required": ["name", "category", "price"],
        "properties": {
            "_id": types(&ID),
            "name": types(&["string"]),
            "category": types(&["string"]),
            "price": types(&NUMBER),
            "stocks": items(&["geozone", "quantity"], doc! {
                "geozone": types(&["string"]), "quantity": types(&NUMBER),
            }),
            "stock": items(&["zone", "quantity"], doc! {
                "zone": types(&["string"]), "quantity": types(&NUMBER),
            }),
            "attributes": types(&["object", "array"]),
        },
    }
}

fn carts() -> Document {
    let line = doc! { "product_id": types(&ID), "quantity": types(&NUMBER) };
    doc! {
        "bsonType": "object",
        "required": ["items", "status"],
        "anyOf": either(&["session_id"], &["user_id"]),
        "properties": {
            "_id": types(&ID),
            "user_id": types(&["objectId", "string", "null"]),
            "session_id": types(&["string", "null"]),
            "items": items(&["product_id", "quantity"], line),
            "status": { "enum": ["active", "ordered", "abandoned"] },
            "created_at": types(&["date"]),
            "updated_at": types(&["date"]),
            "expires_at": types(&["date", "null"]),
        },
    }
}
