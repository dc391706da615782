//! Orders with incompressible bytes, in a collection by shard key: as the shop's papers have them, and as they warn of.

use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::{StreamExt, stream};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Document, doc};
use mongodb::options::{CollectionOptions, WriteConcern};
use mongodb::{Client, Collection};
use uuid::Uuid;

pub(crate) const DATABASE: &str = "growth";
/// Orders that a collection is filled with.
const ORDERS: i64 = 30_000;
/// Random ids in a document, as payload.
const PAYLOAD_IDS: usize = 64;
const BATCH: i64 = 500;
/// Batches at the same time.
const CONCURRENT: usize = 2;
/// One of so many operations of the prober is an insert; the others are reads.
const INSERT_OF: i64 = 4;

/// What a collection is sharded by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    HashedUser,
    RangeUser,
    /// Ascending ids, as an order number or an `ObjectId` is.
    RangeOrder,
}

impl Key {
    pub(crate) const ALL: [Self; 3] = [Self::HashedUser, Self::RangeUser, Self::RangeOrder];

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::HashedUser => "hashed user_id",
            Self::RangeUser => "range of user_id",
            Self::RangeOrder => "range of the order number",
        }
    }

    pub(crate) fn document(self) -> Document {
        match self {
            Self::HashedUser => doc! { "user_id": "hashed" },
            Self::RangeUser => doc! { "user_id": 1 },
            Self::RangeOrder => doc! { "number": 1 },
        }
    }

    const fn collection(self) -> &'static str {
        match self {
            Self::HashedUser => "hashed_user",
            Self::RangeUser => "range_user",
            Self::RangeOrder => "range_order",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Orders {
    key: Key,
    collection: Collection<Document>,
    /// The number of the next order.
    next: AtomicI64,
}

impl Orders {
    pub(crate) fn new(client: &Client, key: Key) -> Self {
        let options = CollectionOptions::builder().write_concern(WriteConcern::majority()).build();
        let collection = client.database(DATABASE).collection_with_options(key.collection(), options);
        Self { key, collection, next: AtomicI64::new(0) }
    }

    pub(crate) const fn key(&self) -> Key {
        self.key
    }

    /// The name with its database.
    pub(crate) fn namespace(&self) -> String {
        self.collection.namespace().to_string()
    }

    pub(crate) async fn fill(&self) {
        let batches = stream::iter((0..ORDERS / BATCH).map(|batch| batch * BATCH));
        let insert = |first: i64| async move {
            let orders = (first..first + BATCH).map(|number| order(number, false));
            self.collection.insert_many(orders).await.unwrap();
        };
        batches.map(insert).buffered(CONCURRENT).collect::<Vec<()>>().await;
        self.next.store(ORDERS, Ordering::SeqCst);
    }

    /// Inserts the next order, or reads one of those before it; whether it succeeded.
    pub(crate) async fn probe(&self) -> bool {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        if number % INSERT_OF == 0 {
            return self.collection.insert_one(order(number, true)).await.is_ok();
        }
        let known = number.wrapping_mul(7_919) % ORDERS;
        let filter = doc! { "user_id": user_id(known), "number": known };
        self.collection.find_one(filter).await.is_ok_and(|found| found.is_some())
    }

    /// Counts the prober's orders on the shard that is asked.
    pub(crate) fn count_probed(&self) -> Document {
        doc! { "count": self.collection.name(), "query": { "probed": true } }
    }
}

/// Many users, in no order.
fn user_id(number: i64) -> String {
    let spread = number.wrapping_mul(0x5851_f42d_4c95_7f2d).unsigned_abs();
    format!("u-{spread:016x}")
}

fn order(number: i64, is_probed: bool) -> Document {
    let bytes: Vec<u8> = (0..PAYLOAD_IDS).flat_map(|_| Uuid::new_v4().into_bytes()).collect();
    let payload = Binary { subtype: BinarySubtype::Generic, bytes };
    let mut order = doc! { "user_id": user_id(number), "number": number, "payload": payload };
    if is_probed {
        order.insert("probed", true);
    }
    order
}
