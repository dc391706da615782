//! Writes what the commands of a batch decided, inside of its transaction.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection};
use mw_codec::changes::ChangeRef;
use mw_domain::{Cart, OrderId, ReservationStatus, ZoneStock};
use mw_store::stock::decision::StockKey;
use mw_store::{Result, StoreError};

use super::{Batch, ProductState, StockState};
use crate::MongoStore;
use crate::collections::{IDEMPOTENCY_KEYS, ORDERS, PRODUCTS};
use crate::documents::carts::StoredCart;
use crate::documents::ids::{plain_uuid, to_bson_id};
use crate::documents::times::to_bson_time;
use crate::driver::transaction::Stop;
use crate::sales::{LEDGER, RESERVATIONS, UNLISTED_STOCK};
use crate::stock::entries::{StockEntry, new_entry};
use crate::stock::ledger::{external_document, row_document, row_id};

/// Statements of one command to the server.
const STATEMENTS_MAX: usize = 1_000;

impl Batch<'_> {
    /// Returns how many reservations expired.
    pub(super) async fn write(self, session: &mut ClientSession) -> Result<usize, Stop> {
        self.write_stock(session).await?;
        self.write_ledger(session).await?;
        let expired = self.write_reservations(session).await?;
        self.write_orders(session).await?;
        self.write_carts(session).await?;
        self.write_outcomes(session).await?;
        self.record_changes(session).await?;
        Ok(expired)
    }

    /// Notes what the batch changes. An import is no change.
    async fn record_changes(&self, session: &mut ClientSession) -> Result<(), Stop> {
        if self.changes.is_import {
            return Ok(());
        }
        let stock: Vec<ZoneStock> =
            self.stock.iter().filter_map(|(key, state)| state.shown_change(key)).collect();
        let mut steps: BTreeMap<OrderId, u64> = BTreeMap::new();
        for order_id in self.changes.placed.iter().chain(&self.changes.moved) {
            *steps.entry(*order_id).or_default() += 1;
        }
        let orders = steps.into_iter().flat_map(|(order_id, count)| {
            let version = self.orders.get(&order_id).map_or(0, |stored| stored.order.version);
            (version - version.min(count)..version)
                .map(move |before| ChangeRef::Order { order_id, version: before + 1 })
        });
        let carts = self.closed_carts().map(|(_, cart)| ChangeRef::CartClosed(cart));
        let changes = stock.iter().map(ChangeRef::Stock).chain(orders).chain(carts);
        self.store.record(session, changes).await
    }

    /// The carts that became orders: as they were read, and as they are now.
    fn closed_carts(&self) -> impl Iterator<Item = &(StoredCart, Cart)> {
        self.changes.closed_carts.iter().filter_map(|user_id| self.carts.get(user_id)?.as_ref())
    }

    /// A key that is stored has expired and is replaced; of two requests that insert a key one begins again.
    async fn write_outcomes(&self, session: &mut ClientSession) -> Result<(), Stop> {
        let (mut inserted, mut replaced) = (Vec::new(), Vec::new());
        for (identity, outcome) in &self.changes.outcomes {
            let document = crate::idempotency::write(identity, outcome);
            if self.changes.stored_keys.contains(identity.key.as_str()) {
                replaced.push(doc! { "q": { "_id": identity.key.as_str() }, "u": document });
            } else {
                inserted.push(document);
            }
        }
        insert(session, &self.store.collections.idempotency_keys, inserted).await?;
        self.store.update(session, IDEMPOTENCY_KEYS, replaced).await
    }

    async fn write_stock(&self, session: &mut ClientSession) -> Result<(), Stop> {
        let (mut listed, mut unlisted, mut inserted) = (Vec::new(), Vec::new(), Vec::new());
        for (product_id, product) in &self.products {
            let is_of = |key: &StockKey| key.product_id == *product_id;
            let changed: Vec<(&StockKey, &StockState)> =
                self.stock.iter().filter(|(key, state)| is_of(key) && state.plan.is_changed).collect();
            if changed.is_empty() {
                continue;
            }
            let id = to_bson_id(product_id.as_str());
            if !product.is_stored {
                let entries: Vec<Bson> = changed
                    .iter()
                    .map(|(key, state)| new_entry(product.array, &state.after(key)).into())
                    .collect();
                inserted.push(doc! { "_id": id, product.array.field(): entries });
                continue;
            }
            for update in product.updates(&changed) {
                let mut filter = doc! { "_id": id.clone() };
                if !product.is_listed {
                    unlisted.push(doc! { "q": filter, "u": update });
                    continue;
                }
                if let Some(category) = &product.category {
                    // It may be the shard key: with it the statement goes to one shard.
                    filter.insert("category", category.clone());
                }
                listed.push(doc! { "q": filter, "u": update });
            }
        }
        self.store.update(session, PRODUCTS, listed).await?;
        self.store.update(session, UNLISTED_STOCK, unlisted).await?;
        insert(session, &self.store.sales.unlisted_stock, inserted).await
    }

    async fn write_ledger(&self, session: &mut ClientSession) -> Result<(), Stop> {
        let (mut inserted, mut replaced, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        for (key, state) in self.stock.iter().filter(|(_, state)| state.plan.is_changed) {
            self.store.written_rows.add(key, state.plan.writes.len());
            if state.external != 0 {
                inserted.push(external_document(key, state.external, self.now));
            }
            for (row_key, row) in &state.plan.writes {
                let is_stored = state.stored_rows.contains(row_key);
                match row {
                    Some(row) if is_stored => replaced.push(doc! {
                        "q": { "_id": row_id(key, row.op_id) },
                        "u": row_document(key, row),
                    }),
                    Some(row) => inserted.push(row_document(key, row)),
                    None if is_stored => removed.push(Bson::from(row_id(key, row_key.1))),
                    None => {}
                }
            }
        }
        let ledger = &self.store.sales.ledger;
        // A hold that gets another end is removed and inserted under the same id.
        if !removed.is_empty() {
            ledger.delete_many(doc! { "_id": { "$in": removed } }).session(&mut *session).await?;
        }
        insert(session, ledger, inserted).await?;
        self.store.update(session, LEDGER, replaced).await
    }

    async fn write_reservations(&self, session: &mut ClientSession) -> Result<usize, Stop> {
        let reservations = &self.store.sales.reservations;
        let reserved: Vec<Document> = self
            .changes
            .reserved
            .iter()
            .filter_map(|id| self.reservations.get(id))
            .map(crate::reservations::documents::write)
            .collect();
        insert(session, reservations, reserved).await?;
        for imported in &self.changes.imported {
            let document = crate::reservations::documents::write(imported);
            let filter = doc! { "_id": plain_uuid(imported.reservation_id.uuid()) };
            reservations.replace_one(filter, document).upsert(true).session(&mut *session).await?;
        }
        // A reservation that this very batch made is closed by its insert: its status is the last one.
        let closed = self.changes.closed.iter().filter(|id| !self.changes.reserved.contains(id));
        let closed = closed.filter_map(|id| self.reservations.get(id)).map(|hold| {
            let status = doc! { "$set": { "status": hold.status.as_str() } };
            doc! { "q": { "_id": plain_uuid(hold.reservation_id.uuid()) }, "u": status }
        });
        self.store.update(session, RESERVATIONS, closed.collect()).await?;
        if self.changes.expired.is_empty() {
            return Ok(0);
        }
        let ids: Vec<Bson> = self.changes.expired.iter().map(|id| plain_uuid(id.uuid())).collect();
        let filter = doc! { "_id": { "$in": ids }, "status": ReservationStatus::Held.as_str() };
        let status = doc! { "$set": { "status": ReservationStatus::Expired.as_str() } };
        let expired = reservations.update_many(filter, status).session(session).await?;
        Ok(usize::try_from(expired.modified_count).unwrap_or(usize::MAX))
    }

    async fn write_orders(&self, session: &mut ClientSession) -> Result<(), Stop> {
        let shape = self.store.options.shape;
        let placed: Vec<Document> = self
            .changes
            .placed
            .iter()
            .filter_map(|id| self.orders.get(id))
            .map(|stored| stored.document(shape, &self.changes.categories))
            .collect();
        insert(session, &self.store.sales.orders, placed).await?;
        let moved = self.changes.moved.iter().filter(|id| !self.changes.placed.contains(id));
        let moved = moved
            .filter_map(|id| self.orders.get(id))
            .map(crate::orders::documents::StoredOrder::status_update);
        self.store.update(session, ORDERS, moved.collect()).await
    }

    async fn write_carts(&self, session: &mut ClientSession) -> Result<(), Stop> {
        for (stored, cart) in self.closed_carts() {
            self.store.save_cart_in(session, Some(stored), cart, &BTreeMap::new(), &[]).await?;
        }
        Ok(())
    }
}

impl ProductState {
    /// The updates of the document that holds the stock: one for the entries it has, one for new entries.
    fn updates(&self, changed: &[(&StockKey, &StockState)]) -> Vec<Document> {
        let (mut inc, mut set, mut unset) = (Document::new(), Document::new(), Document::new());
        let mut added = Vec::new();
        for (key, state) in changed {
            let after = state.after(key);
            let Some(before) = &state.entry else {
                added.push(Bson::from(new_entry(self.array, &after)));
                continue;
            };
            let path = |field: &str| format!("{}.{}.{field}", self.array.field(), before.index);
            // Another program's number keeps its type and its fraction.
            inc.insert(path("quantity"), increment(after.quantity - before.quantity));
            set.insert(path("reserved"), after.reserved.cast_signed());
            set.insert(path("recorded"), after.recorded.unwrap_or_default());
            set.insert(path("updated_at"), to_bson_time(after.updated_at));
            match after.hold_end {
                Some(end) => set.insert(path("hold_end"), to_bson_time(end)),
                None => unset.insert(path("hold_end"), ""),
            };
        }
        let mut updates = Vec::new();
        if !set.is_empty() {
            let mut update = doc! { "$inc": inc, "$set": set };
            if !unset.is_empty() {
                update.insert("$unset", unset);
            }
            updates.push(update);
        }
        if !added.is_empty() {
            let field = self.array.field();
            updates.push(if self.has_array {
                doc! { "$push": { field: { "$each": added } } }
            } else {
                doc! { "$set": { field: added } }
            });
        }
        updates
    }
}

impl StockState {
    /// The stock that readers see after the batch, if it is another one.
    fn shown_change(&self, key: &StockKey) -> Option<ZoneStock> {
        let after = self.plan.is_changed.then(|| self.after(key))?;
        let visible = |entry: &StockEntry| (entry.level(), entry.updated_at);
        let is_same = self.external == 0
            && self.entry.as_ref().is_some_and(|before| visible(before) == visible(&after));
        (!is_same).then(|| ZoneStock {
            product_id: key.product_id.clone(),
            geo_zone: key.geo_zone.clone(),
            level: after.level(),
            updated_at: after.updated_at,
        })
    }

    /// The entry as the batch leaves it.
    fn after(&self, key: &StockKey) -> StockEntry {
        let header = &self.plan.header;
        let sold = |level: mw_domain::Level| level.available().cast_signed();
        let quantity = match &self.entry {
            Some(entry) => {
                let base = if self.deficit == 0 { entry.quantity.max(0) } else { entry.quantity };
                base + sold(header.level) - sold(self.before)
            }
            None => sold(header.level),
        };
        StockEntry {
            index: 0,
            geo_zone: key.geo_zone.clone(),
            quantity,
            reserved: header.level.reserved,
            recorded: Some(quantity),
            hold_end: header.earliest_hold_end,
            updated_at: header.updated_at,
        }
    }
}

/// An increment in the narrowest type: the number that another program wrote keeps its own.
fn increment(units: i64) -> Bson {
    i32::try_from(units).map_or(Bson::Int64(units), Bson::Int32)
}

async fn insert(
    session: &mut ClientSession,
    collection: &Collection<Document>,
    documents: Vec<Document>,
) -> Result<(), Stop> {
    if !documents.is_empty() {
        collection.insert_many(documents).session(session).await?;
    }
    Ok(())
}

impl MongoStore {
    /// Sends update statements `{q, u}` of one collection. Each must find its document.
    pub(crate) async fn update(
        &self,
        session: &mut ClientSession,
        collection: &str,
        statements: Vec<Document>,
    ) -> Result<(), Stop> {
        for statements in statements.chunks(STATEMENTS_MAX) {
            let command = doc! { "update": collection, "updates": statements.to_vec(), "ordered": true };
            let result = self.collections.database.run_command(command).session(&mut *session).await?;
            let failed = result.get_array("writeErrors").ok().and_then(|errors| errors.first().cloned());
            if let Some(failed) = failed {
                return Err(StoreError::Unavailable(format!("update {collection}: {failed}")).into());
            }
            let matched = result.get_i32("n").unwrap_or_default();
            if usize::try_from(matched) != Ok(statements.len()) {
                let detail =
                    format!("update {collection}: {matched} of {} documents found", statements.len());
                return Err(StoreError::Unavailable(detail).into());
            }
        }
        Ok(())
    }
}
