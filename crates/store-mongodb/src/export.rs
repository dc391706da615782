//! Export and import of the whole shop as records. Sums and indexes are not exported: an import builds them again.
//!
//! An export is one snapshot of the database, spooled to a temporary file before its first page is read. The servers keep
//! the history of a snapshot for `minSnapshotHistoryWindowInSeconds`; a larger shop needs a larger window.

mod stock;

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection};
use mw_codec::spool::Spool;
use mw_domain::{Cart, CartChange, Order, OrderEvent, Owner, Product};
use mw_store::export::{Checkpoint, Export, ExportImport, Record};
use mw_store::{Freshness, Result, StoreError};

use crate::MongoStore;
use crate::documents::carts::{
    StoredCart, history_document, new_document, owner_key, read_change, read_owner_key,
};
use crate::documents::fields;
use crate::documents::ids::{read_cart_id, to_bson_cart_id, to_bson_id};
use crate::documents::times::to_bson_time;
use crate::documents::{products, sessions};
use crate::driver::certainty;
use crate::driver::transaction::Stop;
use crate::orders::documents::StoredOrder;
use crate::stock::command::{ImportStock, StockRequest};

/// Records that are written at the same time.
const CONCURRENT_WRITES: usize = 16;

#[async_trait]
impl ExportImport for MongoStore {
    async fn export(&self) -> Result<Box<dyn Export>> {
        let session = self.snapshot_session().await;
        let mut session = session.map_err(|error| certainty::of_read(&error))?;
        let mut spool = Spool::new()?;
        self.export_all(&mut session, &mut spool).await.map_err(|stop| match stop {
            Stop::Store(error) => error,
            Stop::Driver(error) => certainty::of_read(&error),
        })?;
        Ok(Box::new(spool.finish()?))
    }

    /// Every record may be imported again, so an interrupted import goes on from its last checkpoint.
    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
        // A crash in here leaves some records of the page imported and the checkpoint before it; the client repeats the
        // page, and each record overwrites itself.
        // Stock lies in its product, and a reservation gives the holds that come with the stock their end. Two transactions at the same
        // time would not see one another, as they write different documents.
        let (products, rest): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| matches!(record, Record::Product(_)));
        let (holds, rest): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|record| matches!(record, Record::Reservation(_)));
        for phase in [products, rest, holds] {
            let writes: Vec<_> = phase.into_iter().map(|record| self.import_record(record)).collect();
            let written = stream::iter(writes).buffer_unordered(CONCURRENT_WRITES).try_collect::<()>();
            written.await.map_err(StoreError::after_first_effect)?;
        }
        let done = i64::try_from(checkpoint.done).unwrap_or(i64::MAX);
        let filter = doc! { "_id": checkpoint.import };
        let update = doc! { "$max": { "done": done } };
        self.write(self.sales.imports.update_one(filter, update).upsert(true)).await.map(drop)
    }

    async fn import_progress(&self, import: &str) -> Result<u64> {
        let criteria = self.reads.criteria(Freshness::Latest);
        let query = self.sales.imports.find_one(doc! { "_id": import }).selection_criteria(criteria);
        let found = self.read(query).await?;
        Ok(found.and_then(|found| found.get("done").and_then(fields::whole)).unwrap_or(0))
    }

    async fn is_empty(&self) -> Result<bool> {
        let criteria = self.reads.criteria(Freshness::Latest);
        for collection in self.exported() {
            let query = collection.find_one(doc! {}).selection_criteria(criteria.clone());
            if self.read(query).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl MongoStore {
    /// The collections that records are read from.
    fn exported(&self) -> [&Collection<Document>; 8] {
        [
            &self.collections.products,
            &self.sales.unlisted_stock,
            &self.collections.carts,
            &self.collections.cart_history,
            &self.collections.sessions,
            &self.sales.reservations,
            &self.sales.orders,
            &self.collections.idempotency_keys,
        ]
    }

    async fn export_all(&self, session: &mut ClientSession, spool: &mut Spool) -> Result<(), Stop> {
        for collection in [&self.collections.products, &self.sales.unlisted_stock] {
            self.export_stock(session, collection, spool).await?;
        }
        let mut cursor =
            self.snapshot_of(&self.collections.products).find(doc! {}).session(&mut *session).await?;
        while let Some(document) = cursor.next(session).await {
            if let Some(product) = self.readable(products::read(&document?)) {
                spool.push(&Record::Product(product))?;
            }
        }
        self.export_carts(session, spool).await?;
        let mut cursor =
            self.snapshot_of(&self.collections.sessions).find(doc! {}).session(&mut *session).await?;
        while let Some(document) = cursor.next(session).await {
            if let Some(found) = self.readable(sessions::read(&document?)) {
                spool.push(&Record::Session(found))?;
            }
        }
        let mut cursor =
            self.snapshot_of(&self.sales.reservations).find(doc! {}).session(&mut *session).await?;
        while let Some(document) = cursor.next(session).await {
            spool.push(&Record::Reservation(crate::reservations::documents::read(&document?)?))?;
        }
        self.export_orders(session, spool).await?;
        let mut cursor =
            self.snapshot_of(&self.collections.idempotency_keys).find(doc! {}).session(&mut *session).await?;
        while let Some(document) = cursor.next(session).await {
            spool.push(&Record::StoredOutcome(crate::idempotency::read(&document?)?))?;
        }
        Ok(())
    }

    async fn export_carts(&self, session: &mut ClientSession, spool: &mut Spool) -> Result<(), Stop> {
        let mut cursor =
            self.snapshot_of(&self.collections.carts).find(doc! {}).session(&mut *session).await?;
        while let Some(document) = cursor.next(session).await {
            let document = document?;
            let stored = self.readable(StoredCart::read(&document, &self.options.cart_lifetime));
            let Some(StoredCart { cart, .. }) = stored else { continue };
            let (owner, cart_id) = (cart.owner.clone(), cart.cart_id);
            spool.push(&Record::Cart(cart))?;
            for change in self.inline_history(&document, cart_id) {
                spool.push(&Record::CartChange { owner: owner.clone(), change })?;
            }
        }
        let mut cursor =
            self.snapshot_of(&self.collections.cart_history).find(doc! {}).session(&mut *session).await?;
        while let Some(document) = cursor.next(session).await {
            let document = document?;
            let owner = document.get_str("owner").ok().and_then(read_owner_key);
            let cart_id = document.get("cart_id").and_then(read_cart_id);
            let Some((owner, cart_id)) = owner.zip(cart_id) else { continue };
            if let Some(change) = self.readable(read_change(&document, cart_id)) {
                spool.push(&Record::CartChange { owner, change })?;
            }
        }
        Ok(())
    }

    async fn export_orders(&self, session: &mut ClientSession, spool: &mut Spool) -> Result<(), Stop> {
        let products = self.snapshot_of(&self.collections.products);
        let mut cursor = self.snapshot_of(&self.sales.orders).find(doc! {}).session(&mut *session).await?;
        while let Some(document) = cursor.next(session).await {
            let mut stored: Vec<StoredOrder> = self.readable_order(&document?).into_iter().collect();
            self.name_lines(session, &products, &mut stored).await?;
            for StoredOrder { order, events, .. } in stored {
                spool.push(&Record::Order { order, events })?;
            }
        }
        Ok(())
    }

    async fn import_record(&self, record: Record) -> Result<()> {
        match record {
            Record::Product(product) => self.import_catalogue_record(&product).await,
            Record::Stock { stock, ledger } => {
                let import = StockRequest::ImportStock(Box::new(ImportStock { stock, ledger }));
                self.submit(import, Vec::new(), 0).await.map(drop)
            }
            // The caller joins the parts of a ledger first: `imports_ledger_parts` is false.
            Record::Ledger { product_id, geo_zone, .. } => Err(StoreError::Unavailable(format!(
                "import stock of {product_id} in {geo_zone}: a part of its ledger without its stock level"
            ))),
            Record::Cart(cart) => self.import_cart(&cart).await,
            Record::CartChange { owner, change } => self.import_cart_change(&owner, &change).await,
            Record::Session(session) => {
                let filter = doc! { "_id": session.session_id.as_str() };
                let document = sessions::write(&session);
                self.write(self.collections.sessions.replace_one(filter, document).upsert(true))
                    .await
                    .map(drop)
            }
            Record::Reservation(reservation) => {
                let import = StockRequest::ImportReservation(Box::new(reservation));
                self.submit(import, Vec::new(), 0).await.map(drop)
            }
            Record::Order { order, events } => self.import_order(order, events).await,
            Record::StoredOutcome(stored) => {
                let document = crate::idempotency::write(&stored.identity, &stored.outcome);
                let filter = doc! { "_id": stored.identity.key.as_str() };
                let keys = &self.collections.idempotency_keys;
                self.write(keys.replace_one(filter, document).upsert(true)).await.map(drop)
            }
        }
    }

    /// Replaces a product whole, its creation time too; its stock stays.
    async fn import_catalogue_record(&self, product: &Product) -> Result<()> {
        let mut attempts = self.transaction();
        loop {
            let mut session = attempts.begin().await?;
            let imported = attempts
                .run(async {
                    self.put_in(&mut session, product).await?;
                    let id = to_bson_id(product.product_id.as_str());
                    let filter = doc! { "_id": id, "category": product.category.as_str() };
                    let created = doc! { "$set": { "created_at": to_bson_time(product.created_at) } };
                    self.collections.products.update_one(filter, created).session(&mut session).await?;
                    Ok::<_, Stop>(())
                })
                .await;
            if attempts.end(session, imported).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Replaces a cart whole; its line changes are records of their own.
    async fn import_cart(&self, cart: &Cart) -> Result<()> {
        let mut attempts = self.transaction();
        loop {
            let mut session = attempts.begin().await?;
            let imported = attempts.run(self.import_cart_in(&mut session, cart)).await;
            if attempts.end(session, imported).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn import_cart_in(&self, session: &mut ClientSession, cart: &Cart) -> Result<(), Stop> {
        let carts = &self.collections.carts;
        let filter = doc! { "_id": to_bson_cart_id(cart.cart_id) };
        let before = carts.find_one_and_delete(filter).session(&mut *session).await?;
        let history = before.as_ref().and_then(|before| before.get_array("history").ok()).cloned();
        let mut document = new_document(cart, self.options.shape, &BTreeMap::new(), &[]);
        document.insert("history", history.unwrap_or_default());
        carts.insert_one(document).session(&mut *session).await?;
        // Carts that are opened later have higher versions.
        let owner = doc! { "_id": owner_key(&cart.owner) };
        let version = doc! { "$max": { "version": cart.version.cast_signed() } };
        self.collections.cart_owners.update_one(owner, version).upsert(true).session(session).await?;
        Ok(())
    }

    /// A change that stands in its cart's document is there already.
    async fn import_cart_change(&self, owner: &Owner, change: &CartChange) -> Result<()> {
        let filter = doc! { "_id": to_bson_cart_id(change.cart_id) };
        let query = self.collections.carts.find_one(filter).projection(doc! { "history": 1 });
        let query = query.selection_criteria(self.reads.criteria(Freshness::Latest));
        if let Some(cart) = self.read(query).await?
            && self.inline_history(&cart, change.cart_id).contains(change)
        {
            return Ok(());
        }
        let document = history_document(owner, change);
        let id = document.get("_id").cloned().unwrap_or(Bson::Null);
        // The shard key is the owner.
        let filter = doc! { "_id": id, "owner": owner_key(owner) };
        self.write(self.collections.cart_history.replace_one(filter, document).upsert(true)).await.map(drop)
    }

    /// An imported order holds its units as one that the service placed.
    async fn import_order(&self, order: Order, events: Vec<OrderEvent>) -> Result<()> {
        let stored = StoredOrder { events, ..StoredOrder::placed(order, self.options.shape) };
        let document = stored.document(self.options.shape, &HashMap::new());
        let filter = stored.filter();
        self.write(self.sales.orders.replace_one(filter, document).upsert(true)).await.map(drop)
    }
}
