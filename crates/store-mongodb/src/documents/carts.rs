//! Carts in both shapes. Beside the papers' fields a cart has its `owner` (`u:anna`, `s:guest-7`), a `version`, the line
//! changes that have not moved to `cart_history`, and `purge_at`, when the document is no longer needed.
//!
//! A cart of another program has no `owner` and no `version` until our first write. One that has both a user and a
//! session belongs to the user.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, Document, doc};
use mw_domain::carts::CartLifetime;
use mw_domain::limits::{CART_HISTORY_DAYS, LINES_MAX, QUANTITY_MAX};
use mw_domain::{
    Cart, CartChange, CartId, CartLine, CartStatus, Owner, ProductId, SessionId, Timestamp, UserId,
};

use super::fields::{first, optional, required, whole};
use super::ids::{read_cart_id, read_id, read_order_id, to_bson_cart_id, to_bson_id, to_bson_order_id};
use super::times::{read_time, to_bson_time};
use super::{Shape, Unreadable};

pub(crate) const HISTORY_MS: i64 = CART_HISTORY_DAYS * 86_400_000;

/// What is read of a cart: everything except for its line changes, of which only the number is.
pub(crate) fn projection() -> Document {
    let mut projection: Document = [
        "owner",
        "user_id",
        "session_id",
        "items",
        "status",
        "created_at",
        "updated_at",
        "expires_at",
        "version",
        "merged_into",
        "order_id",
    ]
    .into_iter()
    .map(|field| (field.to_owned(), Bson::Int32(1)))
    .collect();
    projection.insert("history_size", doc! { "$size": { "$ifNull": ["$history", []] } });
    projection
}

/// What is read of a cart that is only shown: cheaper for the servers than naming the fields, and without `history_size`.
pub(crate) fn projection_without_history() -> Document {
    doc! { "history": 0 }
}

/// A cart as its document has it.
#[derive(Debug, Clone)]
pub(crate) struct StoredCart {
    pub(crate) cart: Cart,
    /// Line changes inside of the document.
    pub(crate) history_size: u64,
    /// Finds this document, on one shard under every shard key.
    pub(crate) filter: Document,
    /// The categories that the items name, by product.
    pub(crate) categories: BTreeMap<ProductId, String>,
}

/// The value of `owner`.
pub(crate) fn owner_key(owner: &Owner) -> String {
    match owner {
        Owner::User(id) => format!("u:{id}"),
        Owner::Session(id) => format!("s:{id}"),
    }
}

/// The owner of such a key.
pub(crate) fn read_owner_key(key: &str) -> Option<Owner> {
    let (kind, id) = key.split_once(':')?;
    match kind {
        "u" => UserId::parse(id).ok().map(Owner::User),
        "s" => SessionId::parse(id).ok().map(Owner::Session),
        _ => None,
    }
}

impl StoredCart {
    /// `lifetime` is that of a cart without `expires_at`.
    pub(crate) fn read(document: &Document, lifetime: &CartLifetime) -> Result<Self, Unreadable> {
        let owner = read_owner(document)?;
        let updated_at = optional(document, &["updated_at"], read_time)?;
        let created_at = optional(document, &["created_at"], read_time)?;
        let created_at = created_at.or(updated_at).ok_or(Unreadable::missing("created_at"))?;
        let updated_at = updated_at.unwrap_or(created_at);
        let expires_at = optional(document, &["expires_at"], read_time)?;
        let (lines, categories) = read_items(document, updated_at)?;
        let cart = Cart {
            cart_id: required(document, &["_id"], read_cart_id)?,
            status: required(document, &["status"], |status| CartStatus::parse(status.as_str()?))?,
            version: optional(document, &["version"], whole)?.unwrap_or_else(|| version_of(updated_at)),
            lines,
            created_at,
            updated_at,
            expires_at: expires_at.unwrap_or_else(|| lifetime.expiry(&owner, updated_at)),
            merged_into: optional(document, &["merged_into"], read_cart_id)?,
            order_id: optional(document, &["order_id"], read_order_id)?,
            owner,
        };
        let history_size = optional(document, &["history_size"], whole)?.unwrap_or(0);
        let field = |name: &str| document.get(name).cloned().unwrap_or(Bson::Null);
        let filter = ["_id", "owner", "user_id", "session_id"]
            .into_iter()
            .map(|name| (name.to_owned(), field(name)))
            .collect();
        Ok(Self { cart, history_size, filter, categories })
    }
}

/// The version of a cart that has none: it grows with every change of its program.
fn version_of(updated_at: Timestamp) -> u64 {
    u64::try_from(updated_at.as_millis()).unwrap_or(0).saturating_mul(1_000).max(1)
}

fn read_owner(document: &Document) -> Result<Owner, Unreadable> {
    let user = optional(document, &["user_id"], |id| read_id(id, UserId::parse))?;
    if let Some(user) = user {
        return Ok(Owner::User(user));
    }
    required(document, &["session_id"], |id| SessionId::parse(id.as_str()?).ok()).map(Owner::Session)
}

/// The lines by product id, and the categories that they name.
fn read_items(
    document: &Document,
    updated_at: Timestamp,
) -> Result<(Vec<CartLine>, BTreeMap<ProductId, String>), Unreadable> {
    let invalid = || Unreadable::invalid("items");
    let items = match first(document, &["items"]) {
        None => return Ok((Vec::new(), BTreeMap::new())),
        Some(items) => items.as_array().ok_or_else(invalid)?,
    };
    let mut lines: BTreeMap<ProductId, CartLine> = BTreeMap::new();
    let mut categories = BTreeMap::new();
    for item in items {
        let item = item.as_document().ok_or_else(invalid)?;
        let product_id = required(item, &["product_id"], |id| read_id(id, ProductId::parse))?;
        let units = optional(item, &["quantity"], whole)?.unwrap_or(1);
        let quantity = u32::try_from(units).map_err(|_| invalid())?;
        let changed_at = optional(item, &["updated_at"], read_time)?.unwrap_or(updated_at);
        if let Ok(category) = item.get_str("category") {
            categories.insert(product_id.clone(), category.to_owned());
        }
        // A program that writes one item per unit repeats the product.
        let line = lines.entry(product_id.clone()).or_insert(CartLine {
            product_id,
            quantity: 0,
            updated_at: changed_at,
        });
        line.quantity = line.quantity.saturating_add(quantity);
        line.updated_at = line.updated_at.max(changed_at);
    }
    let is_in_limits = |line: &CartLine| (1..=QUANTITY_MAX).contains(&line.quantity);
    if lines.len() > LINES_MAX || !lines.values().all(is_in_limits) {
        return Err(invalid());
    }
    Ok((lines.into_values().collect(), categories))
}

fn write_items(cart: &Cart, shape: Shape, categories: &BTreeMap<ProductId, String>) -> Vec<Document> {
    let item = |line: &CartLine| {
        let mut item = doc! {
            "product_id": to_bson_id(line.product_id.as_str()),
            "quantity": i64::from(line.quantity),
        };
        let category = categories.get(&line.product_id).filter(|_| shape == Shape::User);
        if let Some(category) = category {
            item.insert("category", category);
        }
        item.insert("updated_at", to_bson_time(line.updated_at));
        item
    };
    cart.lines.iter().map(item).collect()
}

/// When neither the cart nor its line changes are read any more.
fn purge_at(cart: &Cart) -> Timestamp {
    cart.expires_at.max(cart.updated_at.plus_millis(HISTORY_MS))
}

/// The fields that a change writes.
pub(crate) fn changed_fields(
    cart: &Cart,
    shape: Shape,
    categories: &BTreeMap<ProductId, String>,
) -> Document {
    let mut fields = doc! {
        "owner": owner_key(&cart.owner),
        "items": write_items(cart, shape, categories),
        "status": cart.status.as_str(),
        "updated_at": to_bson_time(cart.updated_at),
        "expires_at": to_bson_time(cart.expires_at),
        "version": cart.version.cast_signed(),
        "purge_at": to_bson_time(purge_at(cart)),
    };
    if let Some(merged_into) = cart.merged_into {
        fields.insert("merged_into", to_bson_cart_id(merged_into));
    }
    if let Some(order_id) = cart.order_id {
        fields.insert("order_id", to_bson_order_id(order_id));
    }
    fields
}

/// A whole new document.
pub(crate) fn new_document(
    cart: &Cart,
    shape: Shape,
    categories: &BTreeMap<ProductId, String>,
    changes: &[CartChange],
) -> Document {
    let mut document = doc! { "_id": to_bson_cart_id(cart.cart_id) };
    match &cart.owner {
        Owner::User(user) => document.insert("user_id", to_bson_id(user.as_str())),
        Owner::Session(session) => document.insert("session_id", session.as_str()),
    };
    document.insert("created_at", to_bson_time(cart.created_at));
    document.extend(changed_fields(cart, shape, categories));
    document.insert("history", changes.iter().map(history_entry).collect::<Vec<_>>());
    document
}

/// A line change inside of its cart.
pub(crate) fn history_entry(change: &CartChange) -> Document {
    doc! {
        "at": to_bson_time(change.at),
        "version": change.version.cast_signed(),
        "product_id": to_bson_id(change.product_id.as_str()),
        "quantity": i64::from(change.quantity),
    }
}

/// A line change in `cart_history`. The same change always has the same `_id`.
pub(crate) fn history_document(owner: &Owner, change: &CartChange) -> Document {
    let owner = owner_key(owner);
    doc! {
        "_id": {
            "owner": &owner,
            "cart": to_bson_cart_id(change.cart_id),
            "version": change.version.cast_signed(),
            "product": to_bson_id(change.product_id.as_str()),
        },
        "owner": owner,
        "cart_id": to_bson_cart_id(change.cart_id),
        "at": to_bson_time(change.at),
        "version": change.version.cast_signed(),
        "product_id": to_bson_id(change.product_id.as_str()),
        "quantity": i64::from(change.quantity),
        "purge_at": to_bson_time(change.at.plus_millis(HISTORY_MS)),
    }
}

/// A line change of either place, with the `cart_id` beside it.
pub(crate) fn read_change(document: &Document, cart_id: CartId) -> Result<CartChange, Unreadable> {
    let quantity = required(document, &["quantity"], whole)?;
    Ok(CartChange {
        at: required(document, &["at"], read_time)?,
        cart_id,
        version: required(document, &["version"], whole)?,
        product_id: required(document, &["product_id"], |id| read_id(id, ProductId::parse))?,
        quantity: u32::try_from(quantity).map_err(|_| Unreadable::invalid("quantity"))?,
    })
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;
    use uuid::Uuid;

    use super::*;

    const LIFETIME: CartLifetime = CartLifetime { user_ms: 1_000, guest_ms: 500 };

    fn read(document: &Document) -> Result<Cart, Unreadable> {
        StoredCart::read(document, &LIFETIME).map(|stored| stored.cart)
    }

    #[test]
    fn a_cart_reads_back_in_both_shapes() {
        for owner in ["u:anna", "s:507f1f77bcf86cd799439011", "u:507f1f77bcf86cd799439011"] {
            let owner = read_owner_key(owner).unwrap();
            let now = Timestamp::from_millis(9);
            let mut cart = Cart::open(CartId::new(Uuid::from_u128(7)), owner, now, 0);
            cart.set_line(ProductId::parse("b").unwrap(), 2, now, &LIFETIME).unwrap();
            cart.set_line(ProductId::parse("a").unwrap(), 1, now, &LIFETIME).unwrap();
            cart.merged_into = Some(CartId::new(Uuid::from_u128(8)));
            for shape in [Shape::Customer, Shape::User] {
                let document = new_document(&cart, shape, &BTreeMap::new(), &[]);
                let stored = StoredCart::read(&document, &LIFETIME).unwrap();
                assert_eq!(stored.cart, cart);
            }
        }
    }

    #[test]
    fn carts_of_other_programs_are_read() {
        let at = |ms| to_bson_time(Timestamp::from_millis(ms));
        let document = doc! {
            "_id": ObjectId::parse_str("507f1f77bcf86cd799439011").unwrap(),
            "user_id": "anna", "session_id": "s", "status": "active",
            "items": [{ "product_id": "b", "quantity": 2.0 }, { "product_id": "a" }, { "product_id": "a" }],
            "created_at": at(5), "updated_at": at(7),
        };
        let stored = StoredCart::read(&document, &LIFETIME).unwrap();
        assert_eq!(stored.filter.get("owner"), Some(&Bson::Null));
        let cart = stored.cart;
        assert_eq!(cart.owner, read_owner_key("u:anna").unwrap(), "a cart with both belongs to the user");
        let lines: Vec<_> = cart.lines.iter().map(|line| (line.product_id.as_str(), line.quantity)).collect();
        assert_eq!(lines, [("a", 2), ("b", 2)]);
        assert_eq!((cart.expires_at, cart.version), (Timestamp::from_millis(1_007), 7_000));

        for (field, value) in [
            ("_id", Bson::from("text")),
            ("status", "lost".into()),
            ("items", doc! {}.into()),
            ("items", vec![doc! { "product_id": "a", "quantity": 0 }].into()),
            ("created_at", 5.into()),
        ] {
            let mut broken = document.clone();
            broken.insert(field, value);
            assert!(read(&broken).is_err(), "{field}");
        }
    }
}
