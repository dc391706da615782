//! Reads what the commands of a batch need, from the snapshot of its transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection};
use mw_domain::{OrderId, Owner, ProductId, ReservationId, ReservationStatus, Timestamp, ZoneStock};
use mw_store::idempotency::Outcome;
use mw_store::orders::Basket;
use mw_store::stock::decision::{BatchPlan, StockCommand, StockKey};
use mw_store::stock::ledger::{LedgerRow, LedgerState, RowKey, StockHeader, Transition};
use uuid::Uuid;

use super::{Batch, Changes, Offer, ProductState, StockState};
use crate::MongoStore;
use crate::documents::fields;
use crate::documents::ids::{plain_uuid, read_id, to_bson_id, to_bson_order_id};
use crate::documents::times::to_bson_time;
use crate::driver::transaction::Stop;
use crate::stock::command::{StockRequest, demands_of, keys_of};
use crate::stock::entries::{StockArray, StockEntry, read_entries};
use crate::stock::ledger::{read_row, row_id, rows_of};

/// Expired holds of one product and zone that one transaction releases.
const EXPIRED_MAX: i64 = 1_000;
/// Documents of one batch of a cursor: all that a transaction reads come in one response.
const CURSOR_BATCH: u32 = 10_000;

/// What the commands need to know of a product in a zone.
#[derive(Debug, Default)]
struct Wanted {
    /// A command's decision depends on holds that have expired.
    needs_expiry: bool,
    /// Operations whose rows are changed.
    op_ids: BTreeSet<Uuid>,
    /// Holds to release.
    expired: BTreeSet<Uuid>,
    /// All rows are removed: an import replaces them.
    is_replaced: bool,
}

impl<'a> Batch<'a> {
    pub(super) async fn load(
        store: &'a MongoStore,
        session: &mut ClientSession,
        requests: &[&StockRequest],
    ) -> Result<Self, Stop> {
        let now = requests.iter().map(|request| request.now()).max().unwrap_or(Timestamp::EPOCH);
        let mut batch = Self {
            store,
            now,
            products: HashMap::new(),
            stock: BTreeMap::new(),
            outcomes: HashMap::new(),
            orders: HashMap::new(),
            reservations: HashMap::new(),
            carts: HashMap::new(),
            changes: Changes { is_import: requests.iter().any(|it| it.is_import()), ..Changes::default() },
        };
        batch.load_outcomes(session, requests).await?;
        batch.load_orders(session, requests).await?;
        batch.load_reservations(session, requests).await?;
        batch.load_carts(session, requests).await?;
        let wanted = batch.wanted(requests);
        batch.load_products(session, wanted.keys()).await?;
        for (key, wanted) in wanted {
            batch.load_stock(session, key, wanted).await?;
        }
        Ok(batch)
    }

    async fn load_outcomes(
        &mut self,
        session: &mut ClientSession,
        requests: &[&StockRequest],
    ) -> Result<(), Stop> {
        let keys: BTreeSet<&str> =
            requests.iter().filter_map(|request| Some(request.identity()?.key.as_str())).collect();
        let keys: Vec<Bson> = keys.into_iter().map(Bson::from).collect();
        for document in find_by_id(session, &self.store.collections.idempotency_keys, keys).await? {
            let stored = crate::idempotency::read(&document)?;
            self.changes.stored_keys.insert(stored.identity.key.as_str().to_owned());
            self.outcomes.insert(stored.identity.key.as_str().to_owned(), stored);
        }
        Ok(())
    }

    /// The orders whose status changes, and those that replayed requests placed.
    async fn load_orders(
        &mut self,
        session: &mut ClientSession,
        requests: &[&StockRequest],
    ) -> Result<(), Stop> {
        let changed = requests.iter().filter_map(|request| match request {
            StockRequest::SetStatus(command) => Some(command.order_id),
            _ => None,
        });
        let placed = self.outcomes.values().filter_map(|stored| match stored.outcome {
            Outcome::Placed(order_id) => Some(order_id),
            _ => None,
        });
        let ids: BTreeSet<OrderId> = changed.chain(placed).collect();
        let ids: Vec<Bson> = ids.into_iter().map(to_bson_order_id).collect();
        let documents = find_by_id(session, &self.store.sales.orders, ids).await?;
        let mut stored: Vec<_> =
            documents.iter().filter_map(|document| self.store.readable_order(document)).collect();
        self.store.name_lines(session, &self.store.collections.products, &mut stored).await?;
        self.orders.extend(stored.into_iter().map(|stored| (stored.order.order_id, stored)));
        Ok(())
    }

    async fn load_reservations(
        &mut self,
        session: &mut ClientSession,
        requests: &[&StockRequest],
    ) -> Result<(), Stop> {
        let ids: BTreeSet<ReservationId> = requests
            .iter()
            .flat_map(|request| match request {
                StockRequest::Close(command) => vec![command.reservation_id],
                // An imported hold takes its end from its reservation.
                StockRequest::ImportStock(import) => {
                    import.ledger.iter().map(|movement| ReservationId::new(movement.op)).collect()
                }
                _ => Vec::new(),
            })
            .collect();
        let ids: Vec<Bson> = ids.into_iter().map(|id| plain_uuid(id.uuid())).collect();
        for document in find_by_id(session, &self.store.sales.reservations, ids).await? {
            let reservation = crate::reservations::documents::read(&document)?;
            self.reservations.insert(reservation.reservation_id, reservation);
        }
        Ok(())
    }

    async fn load_carts(
        &mut self,
        session: &mut ClientSession,
        requests: &[&StockRequest],
    ) -> Result<(), Stop> {
        for request in requests {
            let StockRequest::Place(command) = request else { continue };
            if !matches!(command.basket, Basket::Cart { .. }) || self.carts.contains_key(&command.user_id) {
                continue;
            }
            let owner = Owner::User(command.user_id.clone());
            let stored = self.store.active_in(session, &owner, command.now).await?;
            let cart = stored.map(|stored| {
                let cart = stored.cart.clone();
                (stored, cart)
            });
            self.carts.insert(command.user_id.clone(), cart);
        }
        Ok(())
    }

    /// Every product and zone that the commands touch.
    fn wanted(&self, requests: &[&StockRequest]) -> BTreeMap<StockKey, Wanted> {
        let mut wanted: BTreeMap<StockKey, Wanted> = BTreeMap::new();
        for request in requests {
            for key in self.keys_that_expire(request) {
                wanted.entry(key).or_default().needs_expiry = true;
            }
            let (keys, op_id) = match request {
                StockRequest::SetStatus(command) => match self.orders.get(&command.order_id) {
                    Some(stored) => {
                        (keys_of(&demands_of(&stored.order), &stored.order.geo_zone), command.order_id.uuid())
                    }
                    None => continue,
                },
                StockRequest::Close(command) => match self.reservations.get(&command.reservation_id) {
                    Some(hold) => (keys_of(&hold.lines, &hold.geo_zone), command.reservation_id.uuid()),
                    None => continue,
                },
                StockRequest::ImportStock(import) => {
                    let ZoneStock { product_id, geo_zone, .. } = import.stock.clone();
                    wanted.entry(StockKey { product_id, geo_zone }).or_default().is_replaced = true;
                    continue;
                }
                StockRequest::ImportReservation(hold) if hold.status == ReservationStatus::Held => {
                    (keys_of(&hold.lines, &hold.geo_zone), hold.reservation_id.uuid())
                }
                StockRequest::ExpireHolds { key, op_ids, .. } => {
                    wanted.entry(key.clone()).or_default().expired.extend(op_ids);
                    continue;
                }
                _ => continue,
            };
            for key in keys {
                wanted.entry(key).or_default().op_ids.insert(op_id);
            }
        }
        wanted
    }

    async fn load_products(
        &mut self,
        session: &mut ClientSession,
        keys: impl Iterator<Item = &StockKey>,
    ) -> Result<(), Stop> {
        let ids: BTreeSet<&ProductId> = keys.map(|key| &key.product_id).collect();
        let mut missing: HashSet<ProductId> = ids.iter().map(|id| (*id).clone()).collect();
        let ids: Vec<Bson> = ids.into_iter().map(|id| to_bson_id(id.as_str())).collect();
        let shape = self.store.options.shape;
        let projection = doc! { "name": 1, "category": 1, "price": 1, "stocks": 1, "stock": 1 };
        let filter = doc! { "_id": { "$in": ids } };
        let found = find(session, &self.store.collections.products, filter, Some(projection)).await?;
        for document in &found {
            let Some(product_id) = document.get("_id").and_then(|id| read_id(id, ProductId::parse)) else {
                continue;
            };
            missing.remove(&product_id);
            let mut product = ProductState::read(document, StockArray::of_document(document, shape));
            (product.is_listed, product.is_stored) = (true, true);
            product.category = document.get("category").cloned();
            product.offer = read_offer(document);
            self.products.insert(product_id, product);
        }
        let unlisted: Vec<Bson> = missing.iter().map(|id| to_bson_id(id.as_str())).collect();
        for document in find_by_id(session, &self.store.sales.unlisted_stock, unlisted).await? {
            let Some(product_id) = document.get("_id").and_then(|id| read_id(id, ProductId::parse)) else {
                continue;
            };
            missing.remove(&product_id);
            let mut product = ProductState::read(&document, StockArray::of_document(&document, shape));
            product.is_stored = true;
            self.products.insert(product_id, product);
        }
        for product_id in missing {
            self.products
                .insert(product_id, ProductState::read(&Document::new(), StockArray::of_shape(shape)));
        }
        Ok(())
    }

    /// The figures of a product in a zone, before any command.
    async fn figures(
        &self,
        session: &mut ClientSession,
        key: &StockKey,
    ) -> Result<(StockState, StockHeader), Stop> {
        let product = self.products.get(&key.product_id);
        let entry = product.and_then(|it| it.entries.iter().find(|entry| entry.geo_zone == key.geo_zone));
        let level = entry.map(StockEntry::level).unwrap_or_default();
        let mut state = StockState {
            before: level,
            external: 0,
            deficit: entry.map_or(0, |entry| (-entry.quantity).max(0)),
            stored_rows: HashSet::new(),
            plan: BatchPlan::new(key.clone(), StockHeader::default(), HashMap::new(), None),
            entry: entry.cloned(),
        };
        let mut header = StockHeader { level, ..StockHeader::default() };
        if let Some(entry) = &state.entry {
            header.rev = Some(0);
            header.earliest_hold_end = entry.hold_end;
            header.updated_at = entry.updated_at;
        }
        match state.entry.as_ref().map(|entry| (entry.quantity, entry.recorded)) {
            Some((quantity, Some(recorded))) => state.external = quantity - recorded,
            unrecorded => {
                // Another program wrote the entry as a whole, or there is none: the ledger says what is reserved.
                let sum = self.store.ledger_sum(session, key).await?;
                let quantity = unrecorded.map_or(0, |(quantity, _)| quantity);
                header.level.reserved = sum.held;
                header.level.on_hand = u64::try_from(quantity).unwrap_or_default() + sum.held;
                header.earliest_hold_end = sum.earliest_hold_end;
                state.before = header.level;
                state.external = quantity + sum.held.cast_signed() - sum.on_hand;
            }
        }
        Ok((state, header))
    }

    async fn load_stock(
        &mut self,
        session: &mut ClientSession,
        key: StockKey,
        wanted: Wanted,
    ) -> Result<(), Stop> {
        let (mut state, header) = self.figures(session, &key).await?;
        let may_be_expired = header.earliest_hold_end.is_some_and(|earliest| self.now >= earliest);
        let (mut expired, mut next_hold_end) = (Vec::new(), None);
        let must_expire = may_be_expired && wanted.needs_expiry || !wanted.expired.is_empty();
        if must_expire {
            expired = self.expired_rows(session, &key, &wanted).await?;
            next_hold_end = self.next_hold_end(session, &key, &expired).await?;
        }
        if wanted.is_replaced {
            self.store.sales.ledger.delete_many(doc! { "_id": rows_of(&key) }).session(&mut *session).await?;
            (state.external, state.deficit) = (0, 0);
        }
        let op_ids = wanted.op_ids.iter().map(|op_id| row_id(&key, *op_id).into()).collect();
        let mut rows: HashMap<RowKey, Option<LedgerRow>> = HashMap::new();
        let stored = find_by_id(session, &self.store.sales.ledger, op_ids).await?;
        for row in stored.iter().map(read_row).chain(expired.iter().cloned().map(Ok)) {
            let row = row?;
            state.stored_rows.insert(row.key());
            rows.insert(row.key(), Some(row));
        }
        state.plan = BatchPlan::new(key.clone(), header, rows, next_hold_end);
        for row in &expired {
            release_expired(&mut state.plan, row, self.now);
            let reservation_id = ReservationId::new(row.op_id);
            self.changes.expired.push(reservation_id);
            // It is over for all its products, also for a command of this batch whose clock is behind.
            if let Some(hold) = self.reservations.get_mut(&reservation_id)
                && hold.status == ReservationStatus::Held
            {
                hold.status = ReservationStatus::Expired;
            }
        }
        if must_expire {
            state.plan.decide(&StockCommand::RaiseEarliestHoldEnd, self.now);
        }
        self.stock.insert(key, state);
        Ok(())
    }

    /// The holds that this transaction releases because they have expired.
    async fn expired_rows(
        &self,
        session: &mut ClientSession,
        key: &StockKey,
        wanted: &Wanted,
    ) -> Result<Vec<LedgerRow>, Stop> {
        let mut filter = open_holds(key, doc! { "$lte": to_bson_time(self.now) });
        if !wanted.needs_expiry {
            let op_ids: Vec<Bson> = wanted.expired.iter().map(|op_id| plain_uuid(*op_id)).collect();
            filter.insert("_id.op", doc! { "$in": op_ids });
        }
        let ledger = &self.store.sales.ledger;
        let mut cursor = ledger
            .find(filter)
            .sort(doc! { "until": 1 })
            .limit(EXPIRED_MAX)
            .batch_size(CURSOR_BATCH)
            .session(&mut *session)
            .await?;
        let mut rows = Vec::new();
        while let Some(document) = cursor.next(session).await {
            rows.push(read_row(&document?)?);
        }
        Ok(rows)
    }

    /// When the next open hold ends, beside those that are released now.
    async fn next_hold_end(
        &self,
        session: &mut ClientSession,
        key: &StockKey,
        released: &[LedgerRow],
    ) -> Result<Option<Timestamp>, Stop> {
        let released: Vec<Bson> = released.iter().map(|row| plain_uuid(row.op_id)).collect();
        let mut filter = open_holds(key, doc! { "$exists": true });
        filter.insert("_id.op", doc! { "$nin": released });
        let next =
            self.store.sales.ledger.find_one(filter).sort(doc! { "until": 1 }).session(session).await?;
        Ok(next.as_ref().map(read_row).transpose()?.map(|row| row.until))
    }
}

/// Releases a hold. One whose units the figures do not explain is closed without them instead of blocking the others.
fn release_expired(plan: &mut BatchPlan, row: &LedgerRow, now: Timestamp) {
    let quantity = u32::try_from(row.quantity).unwrap_or_default();
    let command = StockCommand::Advance {
        until: row.until,
        op_id: row.op_id,
        quantity,
        transition: Transition::Release,
    };
    plan.decide(&command, now);
    if let Some((op_id, delta)) = plan.out_of_bounds.take() {
        tracing::error!(%op_id, ?delta, "close an expired hold whose units are not reserved; run `mw stock audit`");
        plan.decide(&StockCommand::Clear { rows: vec![row.clone()] }, now);
    }
}

/// The open holds of a product and zone whose end matches.
pub(crate) fn open_holds(key: &StockKey, until: Document) -> Document {
    doc! {
        "_id.product": to_bson_id(key.product_id.as_str()),
        "_id.zone": key.geo_zone.as_str(),
        "state": LedgerState::Held.as_str(),
        "until": until,
    }
}

impl ProductState {
    fn read(document: &Document, array: StockArray) -> Self {
        Self {
            is_listed: false,
            is_stored: false,
            offer: None,
            category: None,
            array,
            has_array: !document.contains_key(array.field()) || document.get_array(array.field()).is_ok(),
            entries: read_entries(document, array),
        }
    }
}

/// `None` where name or price cannot be read: such a product is not for sale.
fn read_offer(document: &Document) -> Option<Offer> {
    Some(Offer {
        name: fields::text(document, &["name"]).ok()??,
        price: fields::money(document, &["price"]).ok()?,
        category: document.get("category").cloned().unwrap_or(Bson::Null),
    })
}

async fn find_by_id(
    session: &mut ClientSession,
    collection: &Collection<Document>,
    ids: Vec<Bson>,
) -> Result<Vec<Document>, Stop> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    find(session, collection, doc! { "_id": { "$in": ids } }, None).await
}

async fn find(
    session: &mut ClientSession,
    collection: &Collection<Document>,
    filter: Document,
    projection: Option<Document>,
) -> Result<Vec<Document>, Stop> {
    let mut found = Vec::new();
    let query = collection.find(filter).batch_size(CURSOR_BATCH).session(&mut *session);
    let mut cursor = match projection {
        Some(projection) => query.projection(projection).await?,
        None => query.await?,
    };
    while let Some(document) = cursor.next(session).await {
        found.push(document?);
    }
    Ok(found)
}
