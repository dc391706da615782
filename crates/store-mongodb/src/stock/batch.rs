//! The state of one transaction: what it has read, what its commands decide, and what it will write.
//!
//! [`load`] reads everything that the commands need from one snapshot, [`decide`] decides them one after the other, each on
//! top of the earlier ones, and [`write`] writes the result. A conflict with another writer runs all three again.

mod decide;
mod load;
mod write;

use std::collections::{BTreeMap, HashMap, HashSet};

use mongodb::ClientSession;
use mongodb::bson::Bson;
use mw_domain::{Cart, Level, Money, OrderId, ProductId, Reservation, ReservationId, Timestamp, UserId};
use mw_store::idempotency::{Outcome, StoredOutcome};
use mw_store::stock::SetOnHand;
use mw_store::stock::decision::{BatchPlan, StockKey};
use mw_store::stock::ledger::RowKey;
use mw_store::{RequestIdentity, Result, StoreError};

use crate::MongoStore;
use crate::documents::carts::StoredCart;
use crate::driver::transaction::Stop;
use crate::orders::documents::StoredOrder;
use crate::stock::command::{Settled, StockRequest};
use crate::stock::entries::{StockArray, StockEntry};

/// Name, price and category of a product.
#[derive(Debug, Clone)]
struct Offer {
    name: String,
    price: Money,
    category: Bson,
}

/// A product as the transaction sees it.
#[derive(Debug)]
struct ProductState {
    /// Whether the product has a document; otherwise its stock is in `unlisted_stock`.
    is_listed: bool,
    /// Whether there is a document for its stock, here or there.
    is_stored: bool,
    /// `None` where the product is not in the catalogue or its document cannot be read.
    offer: Option<Offer>,
    /// The shard key of the document may contain it.
    category: Option<Bson>,
    array: StockArray,
    /// Whether the document has the array, or a value in its place that must be replaced.
    has_array: bool,
    entries: Vec<StockEntry>,
}

/// A product in a zone as the transaction sees it.
#[derive(Debug)]
struct StockState {
    entry: Option<StockEntry>,
    plan: BatchPlan,
    before: Level,
    /// What other programs did to `quantity` since the service last wrote it.
    external: i64,
    /// Units that another program sold beyond what there was: `quantity` is below zero by them.
    deficit: i64,
    /// Ledger rows that are stored; others are inserted.
    stored_rows: HashSet<RowKey>,
}

#[derive(Debug)]
pub(crate) struct Batch<'a> {
    store: &'a MongoStore,
    /// The newest time of the commands: holds that end until then have expired.
    now: Timestamp,
    products: HashMap<ProductId, ProductState>,
    stock: BTreeMap<StockKey, StockState>,
    outcomes: HashMap<String, StoredOutcome>,
    orders: HashMap<OrderId, StoredOrder>,
    reservations: HashMap<ReservationId, Reservation>,
    /// Active carts as they were read, and as the commands leave them.
    carts: HashMap<UserId, Option<(StoredCart, Cart)>>,
    changes: Changes,
}

/// What the commands decided, beside the stock.
#[derive(Debug, Default)]
struct Changes {
    placed: Vec<OrderId>,
    moved: Vec<OrderId>,
    reserved: Vec<ReservationId>,
    closed: Vec<ReservationId>,
    /// Reservations of which a hold was released because it had expired.
    expired: Vec<ReservationId>,
    /// Whether records of another store are written.
    is_import: bool,
    /// Reservations of another store.
    imported: Vec<Reservation>,
    closed_carts: Vec<UserId>,
    outcomes: Vec<(RequestIdentity, Outcome)>,
    /// Idempotency keys that have a document, in use or expired.
    stored_keys: HashSet<String>,
    /// Orders in the shape `user` name the category of each unit.
    categories: HashMap<ProductId, Bson>,
}

impl MongoStore {
    /// Settles commands in one transaction. `None` for a command that must wait until more expired holds are released.
    pub(crate) async fn process_batch(
        &self,
        requests: &[&StockRequest],
    ) -> Result<Vec<Option<Result<Settled>>>> {
        let mut attempts = self.transaction();
        loop {
            let mut session = attempts.begin().await?;
            let settled = attempts
                .run(async {
                    let mut batch = Batch::load(self, &mut session, requests).await?;
                    let mut decided = Vec::with_capacity(requests.len());
                    for request in requests {
                        decided.push(batch.decide(request));
                    }
                    let expired = batch.write(&mut session).await?;
                    Ok::<_, Stop>((decided, expired))
                })
                .await;
            // A crash before the commit leaves nothing of the batch, after it all of it.
            if let Some((mut decided, expired)) = attempts.end(session, settled).await? {
                let first = decided.iter_mut().find(|result| matches!(result, Some(Ok(Settled::Expired(_)))));
                if let Some(result) = first {
                    *result = Some(Ok(Settled::Expired(expired)));
                }
                self.compact_what_is_due();
                return Ok(decided);
            }
        }
    }
}

impl MongoStore {
    /// Sets units on hand inside of a transaction that changes more. `false` if it must wait until more expired holds are
    /// released: the transaction is not to be committed then.
    pub(crate) async fn set_stock_in(
        &self,
        session: &mut ClientSession,
        commands: Vec<SetOnHand>,
    ) -> Result<bool, Stop> {
        if commands.is_empty() {
            return Ok(true);
        }
        let requests: Vec<StockRequest> =
            commands.into_iter().map(|command| StockRequest::SetOnHand(Box::new(command))).collect();
        let requests: Vec<&StockRequest> = requests.iter().collect();
        let mut batch = Batch::load(self, session, &requests).await?;
        for request in requests {
            match batch.decide(request) {
                None => return Ok(false),
                Some(decided) => decided.map(drop)?,
            }
        }
        batch.write(session).await?;
        Ok(true)
    }
}

impl Batch<'_> {
    /// The user's cart as the commands so far leave it.
    fn cart_of(&self, user_id: &UserId) -> Option<&Cart> {
        let (_, cart) = self.carts.get(user_id)?.as_ref()?;
        Some(cart)
    }

    fn stock_of(&mut self, key: &StockKey) -> Result<&mut StockState> {
        let missing = || {
            StoreError::Corrupt(format!("change stock of {} in {}: not read", key.product_id, key.geo_zone))
        };
        self.stock.get_mut(key).ok_or_else(missing)
    }
}
