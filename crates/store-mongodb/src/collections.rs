//! The collections of the database and the indexes that the engine's statements need.
//!
//! `orders`, `products` and `carts` are shared with the shop's other programs; the rest is the engine's own.

use mongodb::bson::{Document, doc};
use mongodb::options::{CollectionOptions, ReadConcern, WriteConcern};
use mongodb::{Collection, Database};

pub const ORDERS: &str = "orders";
pub const PRODUCTS: &str = "products";
pub const CARTS: &str = "carts";
/// One document per owner of carts: it serialises opening and closing them.
pub const CART_OWNERS: &str = "cart_owners";
/// Line changes that no longer fit into the document of their cart.
pub const CART_HISTORY: &str = "cart_history";
/// One document per product that was created, where the shard key of products is not `_id`.
pub const PRODUCT_IDS: &str = "product_ids";
pub const SESSIONS: &str = "user_sessions";
pub const IDEMPOTENCY_KEYS: &str = "idempotency_keys";
pub const SETTINGS: &str = "settings";

/// The collections of carts, products, sessions and idempotency keys.
#[derive(Debug, Clone)]
pub(crate) struct Collections {
    pub(crate) database: Database,
    pub(crate) products: Collection<Document>,
    pub(crate) product_ids: Collection<Document>,
    pub(crate) carts: Collection<Document>,
    pub(crate) cart_owners: Collection<Document>,
    pub(crate) cart_history: Collection<Document>,
    pub(crate) sessions: Collection<Document>,
    pub(crate) idempotency_keys: Collection<Document>,
    pub(crate) settings: Collection<Document>,
}

impl Collections {
    pub(crate) fn new(database: &Database) -> Self {
        let collection = |name| named(database, name);
        Self {
            products: collection(PRODUCTS),
            product_ids: collection(PRODUCT_IDS),
            carts: collection(CARTS),
            cart_owners: collection(CART_OWNERS),
            cart_history: collection(CART_HISTORY),
            sessions: collection(SESSIONS),
            idempotency_keys: collection(IDEMPOTENCY_KEYS),
            settings: collection(SETTINGS),
            database: database.clone(),
        }
    }
}

/// A collection whose reads show what the majority has and whose writes wait for the majority.
pub(crate) fn named(database: &Database, name: &str) -> Collection<Document> {
    let options = CollectionOptions::builder()
        .read_concern(ReadConcern::majority())
        .write_concern(WriteConcern::majority())
        .build();
    database.collection_with_options(name, options)
}

/// An index that statements of the engine need.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexSpec {
    pub collection: &'static str,
    pub name: &'static str,
    pub keys: Document,
    /// Deletes a document once the time in the first field is over.
    pub ttl: bool,
    /// Indexes only the documents that match.
    pub partial: Option<Document>,
}

impl IndexSpec {
    pub(crate) const fn plain(collection: &'static str, name: &'static str, keys: Document) -> Self {
        Self { collection, name, keys, ttl: false, partial: None }
    }

    pub(crate) fn ttl(collection: &'static str, name: &'static str, field: &str) -> Self {
        Self { collection, name, keys: doc! { field: 1 }, ttl: true, partial: None }
    }
}

/// The indexes of carts, products, sessions and idempotency keys.
pub fn indexes() -> Vec<IndexSpec> {
    vec![
        IndexSpec::plain(PRODUCTS, "category_price", doc! { "category": 1, "price": 1, "_id": 1 }),
        // Documents of other programs whose prices are doubles: they are compared as money, apart from the others.
        IndexSpec {
            partial: Some(doc! { "price": { "$type": "double" } }),
            ..IndexSpec::plain(PRODUCTS, "category_double_price", doc! { "category": 1, "price": 1 })
        },
        IndexSpec::plain(CARTS, "owner_status", doc! { "owner": 1, "status": 1 }),
        IndexSpec::plain(CARTS, "user_status", doc! { "user_id": 1, "status": 1 }),
        IndexSpec::plain(CARTS, "session_status", doc! { "session_id": 1, "status": 1 }),
        IndexSpec::plain(CARTS, "status_updated", doc! { "status": 1, "updated_at": 1, "_id": 1 }),
        // Not `expires_at`: the history of a guest's cart outlives the cart.
        IndexSpec::ttl(CARTS, "purge_at", "purge_at"),
        IndexSpec::ttl(CART_OWNERS, "purge_at", "purge_at"),
        IndexSpec::plain(CART_HISTORY, "owner_at", doc! { "owner": 1, "at": -1, "version": -1 }),
        IndexSpec::ttl(CART_HISTORY, "purge_at", "purge_at"),
        IndexSpec::plain(SESSIONS, "user_created", doc! { "user_id": 1, "created_at": -1, "_id": 1 }),
        IndexSpec::ttl(SESSIONS, "expires_at", "expires_at"),
        IndexSpec::ttl(IDEMPOTENCY_KEYS, "keep_until", "keep_until"),
    ]
}
