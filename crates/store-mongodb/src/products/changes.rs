//! Changes of the catalogue. Replacing a product is one statement; creating and deleting one moves its stock too.

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use mongodb::options::ReturnDocument;
use mw_codec::changes::ChangeRef;
use mw_domain::products::ProductPatch;
use mw_domain::{Product, ProductId, Timestamp};
use mw_store::changes::Topic;
use mw_store::idempotency::StoredValue as _;
use mw_store::products::{ImportProduct, Imported, Put};
use mw_store::stock::SetOnHand;
use mw_store::{Done, Refusal, Result, StoreError};

use super::by_id;
use crate::MongoStore;
use crate::documents::products;
use crate::driver::transaction::Stop;

/// Rounds of an import that waits until expired holds are released.
const ROUNDS_MAX: usize = 64;
/// Expired holds that are released before an import is tried again.
const EXPIRED_MAX: usize = 1_000;

/// Finds a product's document again, on one shard under every shard key.
fn same(product_id: &ProductId, before: &Document) -> Document {
    let mut filter = by_id(product_id);
    if let Some(category) = before.get("category") {
        filter.insert("category", category.clone());
    }
    filter
}

pub(super) async fn put(store: &MongoStore, product: Product) -> Result<Put> {
    // A change of the shard key needs its old value in the filter, which only a read can tell.
    if store.options.shard_keys.products.begins_with("_id") && !store.feed.writes(Topic::Products) {
        let replace = store
            .collections
            .products
            .find_one_and_update(by_id(&product.product_id), products::update(&product, store.options.shape))
            .projection(doc! { "created_at": 1 })
            .return_document(ReturnDocument::Before);
        if let Some(before) = store.write(replace).await? {
            let created_at = products::created_at(&before);
            return Ok(Put { product: Product { created_at, ..product }, created: false });
        }
    }
    let mut attempts = store.transaction();
    loop {
        let mut session = attempts.begin().await?;
        let result = attempts.run(put_recorded_in(store, &mut session, &product)).await;
        if let Some(put) = attempts.end(session, result).await? {
            return Ok(put);
        }
    }
}

async fn put_recorded_in(
    store: &MongoStore,
    session: &mut ClientSession,
    product: &Product,
) -> Result<Put, Stop> {
    let put = store.put_in(session, product).await?;
    store.record(session, [ChangeRef::ProductPut(&put.product)]).await?;
    Ok(put)
}

impl MongoStore {
    /// Creates or replaces a product; one that is created takes over the stock that was kept without it.
    pub(crate) async fn put_in(&self, session: &mut ClientSession, product: &Product) -> Result<Put, Stop> {
        let shape = self.options.shape;
        let (id, collection) = (&product.product_id, &self.collections.products);
        let find = collection.find_one(by_id(id)).projection(doc! { "created_at": 1, "category": 1 });
        if let Some(before) = find.session(&mut *session).await? {
            collection
                .update_one(same(id, &before), products::update(product, shape))
                .session(session)
                .await?;
            let product = Product { created_at: products::created_at(&before), ..product.clone() };
            return Ok(Put { product, created: false });
        }
        if !self.options.shard_keys.products.begins_with("_id") {
            let created = doc! { "$inc": { "created": 1 } };
            let ids = &self.collections.product_ids;
            ids.update_one(by_id(id), created).upsert(true).session(&mut *session).await?;
        }
        let mut document = products::new_document(product, shape);
        if let Some((field, entries)) = self.list_stock(session, id, shape).await? {
            document.insert(field, entries);
        }
        collection.insert_one(document).session(session).await?;
        Ok(Put { product: product.clone(), created: true })
    }
}

pub(super) async fn patch(
    store: &MongoStore,
    product_id: &ProductId,
    patch: &ProductPatch,
    now: Timestamp,
) -> Result<Product> {
    let mut attempts = store.transaction();
    loop {
        let mut session = attempts.begin().await?;
        let result = attempts.run(patch_in(store, &mut session, product_id, patch, now)).await;
        if let Some(product) = attempts.end(session, result).await? {
            return Ok(product);
        }
    }
}

async fn patch_in(
    store: &MongoStore,
    session: &mut ClientSession,
    product_id: &ProductId,
    patch: &ProductPatch,
    now: Timestamp,
) -> Result<Product, Stop> {
    let before = readable_in(store, session, product_id).await?;
    let (before, mut product) = before.ok_or_else(|| Refusal::ProductNotFound(product_id.clone()))?;
    product.patch(patch.clone(), now);
    product.check().map_err(StoreError::from)?;
    let update = products::update(&product, store.options.shape);
    let collection = &store.collections.products;
    collection.update_one(same(product_id, &before), update).session(&mut *session).await?;
    store.record(session, [ChangeRef::ProductPut(&product)]).await?;
    Ok(product)
}

/// A product with its document; `None` also if the document cannot be read.
async fn readable_in(
    store: &MongoStore,
    session: &mut ClientSession,
    product_id: &ProductId,
) -> Result<Option<(Document, Product)>, Stop> {
    let document = store.collections.products.find_one(by_id(product_id)).session(session).await?;
    Ok(document.and_then(|document| {
        let product = store.readable(products::read(&document))?;
        Some((document, product))
    }))
}

pub(super) async fn delete(store: &MongoStore, product_id: &ProductId, now: Timestamp) -> Result<()> {
    let mut attempts = store.transaction();
    loop {
        let mut session = attempts.begin().await?;
        let result = attempts.run(delete_in(store, &mut session, product_id, now)).await;
        if attempts.end(session, result).await?.is_some() {
            return Ok(());
        }
    }
}

async fn delete_in(
    store: &MongoStore,
    session: &mut ClientSession,
    product_id: &ProductId,
    now: Timestamp,
) -> Result<(), Stop> {
    let known = readable_in(store, session, product_id).await?;
    let (document, _) = known.ok_or_else(|| Refusal::ProductNotFound(product_id.clone()))?;
    store.collections.products.delete_one(same(product_id, &document)).session(&mut *session).await?;
    store.unlist_stock(session, product_id, &document).await?;
    store.record(session, [ChangeRef::ProductDeleted(product_id, now)]).await
}

pub(super) async fn import(store: &MongoStore, command: &ImportProduct) -> Result<Done<Imported>> {
    for _ in 0..ROUNDS_MAX {
        let mut attempts = store.transaction();
        let decided = loop {
            let mut session = attempts.begin().await?;
            let result = attempts.run(import_in(store, &mut session, command)).await;
            let result = match result {
                Ok(Some(done)) => Ok(done),
                // More holds have expired than one transaction releases: nothing is committed.
                Ok(None) => Err(Stop::Store(StoreError::Overloaded)),
                Err(stop) => Err(stop),
            };
            match attempts.end(session, result).await {
                Ok(None) => {}
                Ok(Some(done)) => break Some(done),
                Err(StoreError::Overloaded) => break None,
                Err(error) => return Err(error),
            }
        };
        if let Some(done) = decided {
            return Ok(done);
        }
        mw_store::Stock::expire_reservations(store, command.now, EXPIRED_MAX).await?;
    }
    Err(StoreError::Overloaded)
}

/// `None`: the import must wait until more expired holds are released.
async fn import_in(
    store: &MongoStore,
    session: &mut ClientSession,
    command: &ImportProduct,
) -> Result<Option<Done<Imported>>, Stop> {
    let identity = command.identity.as_ref();
    if let Some(first) = store.replay(session, identity, command.now).await? {
        return Ok(Some(first));
    }
    let put = put_recorded_in(store, session, &command.product).await?;
    let product_id = command.product.product_id.clone();
    let stock = command.stock.iter().map(|(geo_zone, on_hand)| SetOnHand {
        product_id: product_id.clone(),
        geo_zone: geo_zone.clone(),
        on_hand: *on_hand,
        expected_on_hand: None,
        op: command.op,
        now: command.now,
    });
    if !store.set_stock_in(session, stock.collect()).await? {
        return Ok(None);
    }
    let imported = Imported { product_id, created: put.created };
    store.store_outcome(session, identity, || imported.to_outcome()).await?;
    Ok(Some(Done::first(imported)))
}
