//! The collections of stock, reservations and orders, and the indexes that their statements need.

use mongodb::bson::{Document, doc};
use mongodb::options::{CollectionOptions, ReadConcern, SessionOptions};
use mongodb::{ClientSession, Collection, Database};

use crate::MongoStore;
use crate::collections::{IndexSpec, ORDERS, named};

/// One document per stock operation.
pub const LEDGER: &str = "stock_ledger";
/// The stock of products that have no document: `{_id: product, stocks: […]}` as in a product. The shop's other programs do
/// not look here, and a product that is put again takes its stock back.
pub const UNLISTED_STOCK: &str = "unlisted_stock";
pub const RESERVATIONS: &str = "reservations";
/// The progress of imports.
pub const IMPORTS: &str = "imports";

#[derive(Debug, Clone)]
pub(crate) struct SalesCollections {
    pub(crate) orders: Collection<Document>,
    pub(crate) ledger: Collection<Document>,
    pub(crate) unlisted_stock: Collection<Document>,
    pub(crate) reservations: Collection<Document>,
    pub(crate) imports: Collection<Document>,
}

impl SalesCollections {
    pub(crate) fn new(database: &Database) -> Self {
        let collection = |name| named(database, name);
        Self {
            orders: collection(ORDERS),
            ledger: collection(LEDGER),
            unlisted_stock: collection(UNLISTED_STOCK),
            reservations: collection(RESERVATIONS),
            imports: collection(IMPORTS),
        }
    }
}

impl MongoStore {
    /// A collection for reads in a session of one snapshot.
    pub(crate) fn snapshot_of(&self, collection: &Collection<Document>) -> Collection<Document> {
        let options = CollectionOptions::builder().read_concern(ReadConcern::snapshot()).build();
        self.collections.database.collection_with_options(collection.name(), options)
    }

    /// A session whose reads all see one snapshot.
    pub(crate) async fn snapshot_session(&self) -> Result<ClientSession, mongodb::error::Error> {
        let options = SessionOptions::builder().snapshot(true).build();
        self.client.start_session().with_options(options).await
    }
}

/// The indexes of stock, reservations and orders. Those of one shape leave the documents of the other out.
pub fn indexes() -> Vec<IndexSpec> {
    let held = |fields: Document| {
        let mut partial = doc! { "state": "held" };
        partial.extend(fields);
        Some(partial)
    };
    let of_shape = |field: &str| Some(doc! { field: { "$exists": true } });
    vec![
        IndexSpec {
            partial: of_shape("customer_id"),
            ..IndexSpec::plain(
                ORDERS,
                "customer_created",
                doc! { "customer_id": 1, "created_at": -1, "_id": -1 },
            )
        },
        IndexSpec {
            partial: of_shape("user_id"),
            ..IndexSpec::plain(ORDERS, "user_ordered", doc! { "user_id": 1, "order_date": -1, "_id": -1 })
        },
        IndexSpec {
            partial: of_shape("created_at"),
            ..IndexSpec::plain(ORDERS, "created", doc! { "created_at": -1, "_id": -1 })
        },
        IndexSpec {
            partial: of_shape("order_date"),
            ..IndexSpec::plain(ORDERS, "ordered", doc! { "order_date": -1, "_id": -1 })
        },
        IndexSpec {
            partial: of_shape("created_at"),
            ..IndexSpec::plain(ORDERS, "zone_created", doc! { "geozone": 1, "created_at": -1, "_id": -1 })
        },
        IndexSpec {
            partial: of_shape("order_date"),
            ..IndexSpec::plain(ORDERS, "zone_ordered", doc! { "geo_zone": 1, "order_date": -1, "_id": -1 })
        },
        // Unpaid orders that the service placed: an order leaves the index with its first step.
        IndexSpec {
            partial: Some(doc! { "status": "created", "pay_by": { "$exists": true } }),
            ..IndexSpec::plain(ORDERS, "unpaid", doc! { "pay_by": 1 })
        },
        IndexSpec {
            partial: held(doc! { "until": { "$exists": true } }),
            ..IndexSpec::plain(LEDGER, "hold_end", doc! { "until": 1 })
        },
        IndexSpec {
            partial: held(doc! { "until": { "$exists": true } }),
            ..IndexSpec::plain(
                LEDGER,
                "product_hold_end",
                doc! { "_id.product": 1, "_id.zone": 1, "until": 1 },
            )
        },
        IndexSpec::plain(RESERVATIONS, "purge_at", doc! { "purge_at": 1 }),
    ]
}
