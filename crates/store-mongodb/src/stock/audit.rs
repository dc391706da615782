//! The stock audit: every stock entry against its ledger, and every open hold against its order or reservation.
//!
//! The audit reads only, a few products at a time, each time from one snapshot, so sales do not disturb it. What other
//! programs did to `quantity` since the service last wrote it is an external movement, not a drift.

use std::collections::{BTreeMap, HashSet};

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection};
use mw_domain::stock::Delta;
use mw_domain::{Level, OrderId, OrderStatus, ProductId, ReservationStatus};
use mw_store::stock::decision::StockKey;
use mw_store::stock::ledger::LedgerState;
use mw_store::stock::{Audit, Drift};
use mw_store::{Result, StoreError};
use uuid::Uuid;

use crate::MongoStore;
use crate::documents::ids::{plain_uuid, read_id, read_order_id, read_plain_uuid, to_bson_order_id};
use crate::driver::certainty;
use crate::orders::documents::SERVICE;
use crate::stock::entries::{StockEntry, whole_units};
use crate::stock::entries_of;
use crate::stock::expiry::{group, read_row_id, read_sum};
use crate::stock::ledger::{of_products, read_key};

/// Products that are audited from one snapshot.
const PRODUCTS_AT_ONCE: usize = 100;
/// Orders and reservations of open holds that one query reads.
const OWNERS_AT_ONCE: usize = 1_000;

type DriverResult<T> = Result<T, mongodb::error::Error>;

/// The sums of a product in a zone.
#[derive(Debug, Default)]
struct Sums {
    on_hand: i64,
    reserved: u64,
    /// Units of holds whose order or reservation is open.
    held: u64,
    movements: u64,
    external: u64,
}

impl MongoStore {
    pub(super) async fn audit_stock(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        let mut audit = Audit::default();
        for collection in [&self.collections.products, &self.sales.unlisted_stock] {
            let walk = async {
                let ids = collection.find(doc! {}).projection(doc! { "_id": 1 }).await?;
                let mut chunks = ids.try_ready_chunks(PRODUCTS_AT_ONCE);
                while let Some(ids) = chunks.try_next().await.map_err(|failed| failed.1)? {
                    let ids = ids.into_iter().filter_map(|mut id| id.remove("_id")).collect();
                    self.audit_products(collection, ids, &mut audit, progress).await?;
                }
                Ok::<_, AuditError>(())
            };
            walk.await.map_err(AuditError::into_store_error)?;
        }
        Ok(audit)
    }

    async fn audit_products(
        &self,
        collection: &Collection<Document>,
        ids: Vec<Bson>,
        audit: &mut Audit,
        progress: &(dyn for<'a> Fn(u64) + Send + Sync),
    ) -> Result<(), AuditError> {
        let mut session = self.snapshot_session().await?;
        let filter = doc! { "_id": { "$in": ids.clone() } };
        let projection = doc! { "stocks": 1, "stock": 1 };
        let query =
            self.snapshot_of(collection).find(filter).projection(projection).session(&mut session).await?;
        let documents = drain(query, &mut session).await?;
        let sums = self.sums(&mut session, &ids).await?;
        for document in &documents {
            let Some(product_id) = document.get("_id").and_then(|id| read_id(id, ProductId::parse)) else {
                continue;
            };
            for entry in entries_of(document, self) {
                let key = StockKey { product_id: product_id.clone(), geo_zone: entry.geo_zone.clone() };
                report(key, &entry, &sums, audit);
                progress(audit.levels);
            }
        }
        Ok(())
    }

    async fn sums(
        &self,
        session: &mut ClientSession,
        ids: &[Bson],
    ) -> Result<BTreeMap<StockKey, Sums>, AuditError> {
        let mut sums: BTreeMap<StockKey, Sums> = BTreeMap::new();
        let rows = of_products(ids);
        let pipeline = vec![
            doc! { "$match": rows.clone() },
            group(Bson::Document(doc! { "product": "$_id.product", "zone": "$_id.zone" })),
        ];
        let query = self.snapshot_of(&self.sales.ledger).aggregate(pipeline).session(&mut *session).await?;
        for document in drain(query, session).await? {
            let Some(key) = document.get_document("_id").ok().and_then(read_key) else { continue };
            let sum = read_sum(&document)?;
            let count = |field| document.get(field).and_then(whole_units).map_or(0, i64::unsigned_abs);
            sums.insert(
                key,
                Sums {
                    on_hand: sum.on_hand,
                    reserved: sum.held,
                    held: 0,
                    movements: count("movements"),
                    external: count("external"),
                },
            );
        }
        let mut open = rows;
        open.insert("state", LedgerState::Held.as_str());
        let query = self.snapshot_of(&self.sales.ledger).find(open).session(&mut *session).await?;
        let held = drain(query, session).await?;
        for rows in held.chunks(OWNERS_AT_ONCE) {
            let rows: Vec<(StockKey, Uuid, i64)> = rows
                .iter()
                .map(|row| {
                    let (key, op_id) = read_row_id(row)?;
                    Ok((key, op_id, row.get("quantity").and_then(whole_units).unwrap_or_default()))
                })
                .collect::<Result<_>>()?;
            let owners = self.open_owners(session, &rows).await?;
            for (key, op_id, quantity) in rows {
                if let (true, Some(sum)) = (owners.contains(&op_id), sums.get_mut(&key)) {
                    sum.held += quantity.unsigned_abs();
                }
            }
        }
        Ok(sums)
    }

    /// The operations whose order waits for payment or whose reservation is open. A reservation that has expired counts: the write of
    /// one of its products has closed it, and its other holds are released by the next expiry.
    async fn open_owners(
        &self,
        session: &mut ClientSession,
        rows: &[(StockKey, Uuid, i64)],
    ) -> DriverResult<HashSet<Uuid>> {
        let ids: Vec<Bson> =
            rows.iter().map(|(_, op_id, _)| to_bson_order_id(OrderId::new(*op_id))).collect();
        let words: Vec<&str> = self.options.statuses.words(OrderStatus::Created).collect();
        let filter = doc! { "_id": { "$in": ids }, "status": { "$in": words }, "placed_by": SERVICE };
        let query = self
            .snapshot_of(&self.sales.orders)
            .find(filter)
            .projection(doc! { "_id": 1 })
            .session(&mut *session)
            .await?;
        let orders = drain(query, session).await?;
        let ids: Vec<Bson> = rows.iter().map(|(_, op_id, _)| plain_uuid(*op_id)).collect();
        let statuses = [ReservationStatus::Held.as_str(), ReservationStatus::Expired.as_str()];
        let filter = doc! { "_id": { "$in": ids }, "status": { "$in": statuses.as_slice() } };
        let query = self
            .snapshot_of(&self.sales.reservations)
            .find(filter)
            .projection(doc! { "_id": 1 })
            .session(&mut *session)
            .await?;
        let reservations = drain(query, session).await?;
        let orders = orders.iter().filter_map(|it| read_order_id(it.get("_id")?).map(OrderId::uuid));
        let reservations = reservations.iter().filter_map(|it| read_plain_uuid(it.get("_id")?));
        Ok(orders.chain(reservations).collect())
    }
}

/// Counts an entry and reports it if the ledger does not explain it.
fn report(key: StockKey, entry: &StockEntry, sums: &BTreeMap<StockKey, Sums>, audit: &mut Audit) {
    let none = Sums::default();
    let sum = sums.get(&key).unwrap_or(&none);
    // An entry that another program wrote as a whole has lost what is reserved; the ledger has it.
    let reserved = if entry.recorded.is_some() { entry.reserved } else { sum.reserved };
    let on_hand = entry.quantity + reserved.cast_signed();
    let pending = entry.recorded.map_or(on_hand - sum.on_hand, |recorded| entry.quantity - recorded);
    let ledger = Delta { on_hand: sum.on_hand + pending, reserved: sum.reserved.cast_signed() };
    audit.levels += 1;
    audit.movements += sum.movements + u64::from(pending != 0);
    audit.external += sum.external + u64::from(pending != 0);
    let is_explained = ledger == Delta { on_hand, reserved: reserved.cast_signed() } && sum.held == reserved;
    if !is_explained {
        let recorded = Level { on_hand: u64::try_from(on_hand).unwrap_or_default(), reserved };
        let StockKey { product_id, geo_zone } = key;
        audit.drifts.push(Drift { product_id, geo_zone, recorded, ledger, held: sum.held });
    }
}

async fn drain(
    mut cursor: mongodb::SessionCursor<Document>,
    session: &mut ClientSession,
) -> DriverResult<Vec<Document>> {
    let mut documents = Vec::new();
    while let Some(document) = cursor.next(session).await {
        documents.push(document?);
    }
    Ok(documents)
}

enum AuditError {
    Driver(mongodb::error::Error),
    Store(StoreError),
}

impl From<mongodb::error::Error> for AuditError {
    fn from(error: mongodb::error::Error) -> Self {
        Self::Driver(error)
    }
}

impl From<StoreError> for AuditError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl AuditError {
    fn into_store_error(self) -> StoreError {
        match self {
            Self::Driver(error) => certainty::of_read(&error),
            Self::Store(error) => error,
        }
    }
}
