//! Line changes. The usual case is one statement: an update of the active cart by an aggregation pipeline, which decides,
//! changes, and notes the change at once. Where there is no active cart of ours a transaction takes over or opens one.

use std::collections::BTreeMap;

use mongodb::action::FindOneAndUpdate;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::options::ReturnDocument;
use mw_codec::changes::ChangeRef;
use mw_domain::carts::CartLifetime;
use mw_domain::limits::LINES_MAX;
use mw_domain::{Cart, Owner, ProductId, Timestamp};
use mw_store::carts::{RemoveLine, SetLine, check_version};
use mw_store::changes::Topic;
use mw_store::{Refusal, Result, StoreError};

use super::active_of;
use super::history::{HISTORY_INLINE_MAX, move_history};
use crate::documents::Shape;
use crate::documents::carts::{HISTORY_MS, StoredCart, projection};
use crate::documents::ids::to_bson_id;
use crate::documents::times::to_bson_time;
use crate::driver::transaction::Stop;
use crate::{MongoStore, documents};
use mongodb::ClientSession;

pub(super) async fn set_line(store: &MongoStore, command: &SetLine) -> Result<Cart> {
    let category = store.category_in_shape(&command.product_id).await?;
    // Version 0 expects that there is no cart: no update can find it.
    if command.expected_version != Some(0) {
        let pipeline = set_pipeline(command, category.as_deref());
        if let Some(stored) =
            update_active(store, &command.owner, command.expected_version, command.now, pipeline).await?
        {
            let is_set = stored.cart.lines.iter().any(|line| line.product_id == command.product_id);
            return if is_set { Ok(stored.cart) } else { Err(Refusal::CartTooLarge.into()) };
        }
    }
    let mut attempts = store.transaction();
    loop {
        let mut session = attempts.begin().await?;
        let result = attempts.run(set_in(store, &mut session, command, category.as_deref())).await;
        if let Some(cart) = attempts.end(session, result).await? {
            return Ok(cart);
        }
    }
}

/// Opens a cart, or changes one that another program or another request has opened.
async fn set_in(
    store: &MongoStore,
    session: &mut ClientSession,
    command: &SetLine,
    category: Option<&str>,
) -> Result<Cart, Stop> {
    let active = store.active_in(session, &command.owner, command.now).await?;
    check_version(active.as_ref().map(|stored| &stored.cart), command.expected_version)?;
    let mut categories: BTreeMap<ProductId, String> = BTreeMap::new();
    if let Some(category) = category {
        categories.insert(command.product_id.clone(), category.to_owned());
    }
    let mut cart = match &active {
        Some(stored) => stored.cart.clone(),
        None => store.open_cart_in(session, command.new_cart_id, &command.owner, command.now).await?,
    };
    cart.set_line(command.product_id.clone(), command.quantity, command.now, &command.lifetime)
        .map_err(StoreError::from)?;
    let changes = [cart.line_history(&command.product_id)];
    store.save_cart_in(session, active.as_ref(), &cart, &categories, &changes).await?;
    store.record(session, [ChangeRef::Cart(&cart)]).await?;
    Ok(cart)
}

pub(super) async fn remove_line(store: &MongoStore, command: &RemoveLine) -> Result<Option<Cart>> {
    if command.expected_version != Some(0) {
        let pipeline = remove_pipeline(command);
        let updated =
            update_active(store, &command.owner, command.expected_version, command.now, pipeline).await?;
        if let Some(stored) = updated {
            return Ok(Some(stored.cart));
        }
    }
    let mut attempts = store.transaction();
    loop {
        let mut session = attempts.begin().await?;
        let result = attempts.run(remove_in(store, &mut session, command)).await;
        if let Some(cart) = attempts.end(session, result).await? {
            return Ok(cart);
        }
    }
}

async fn remove_in(
    store: &MongoStore,
    session: &mut ClientSession,
    command: &RemoveLine,
) -> Result<Option<Cart>, Stop> {
    let active = store.active_in(session, &command.owner, command.now).await?;
    check_version(active.as_ref().map(|stored| &stored.cart), command.expected_version)?;
    let Some(stored) = active else { return Ok(None) };
    let mut cart = stored.cart.clone();
    if cart.remove_line(&command.product_id, command.now, &command.lifetime) {
        let changes = [cart.line_history(&command.product_id)];
        store.save_cart_in(session, Some(&stored), &cart, &BTreeMap::new(), &changes).await?;
        store.record(session, [ChangeRef::Cart(&cart)]).await?;
    }
    Ok(Some(cart))
}

/// Updates the owner's active cart; `None` if there is none, or not of the expected version.
async fn update_active(
    store: &MongoStore,
    owner: &Owner,
    expected_version: Option<u64>,
    now: Timestamp,
    pipeline: Vec<Document>,
) -> Result<Option<StoredCart>> {
    let mut filter = active_of(owner, now);
    if let Some(version) = expected_version {
        filter.insert("version", version.cast_signed());
    }
    let stored = if store.feed.writes(Topic::Carts) {
        let mut attempts = store.transaction();
        loop {
            let mut session = attempts.begin().await?;
            let update = update_recorded_in(store, &mut session, filter.clone(), pipeline.clone());
            let result = attempts.run(update).await;
            if let Some(stored) = attempts.end(session, result).await? {
                break stored;
            }
        }
    } else {
        let update = update_of(store, filter, pipeline);
        match store.write(update).await? {
            // The change is applied: whatever fails from here on leaves the caller to read it.
            Some(document) => Some(read_updated(store, &document)?),
            None => None,
        }
    };
    if let Some(stored) = stored.as_ref().filter(|stored| stored.history_size >= HISTORY_INLINE_MAX) {
        move_history(store, stored).await;
    }
    Ok(stored)
}

fn update_of(
    store: &MongoStore,
    filter: Document,
    pipeline: Vec<Document>,
) -> FindOneAndUpdate<'_, Document> {
    let update = store.collections.carts.find_one_and_update(filter, pipeline);
    update.projection(projection()).return_document(ReturnDocument::After)
}

fn read_updated(store: &MongoStore, document: &Document) -> Result<StoredCart> {
    StoredCart::read(document, &store.options.cart_lifetime).map_err(|unreadable| {
        StoreError::Corrupt(format!("read cart {:?}: {unreadable}", document.get("_id")))
    })
}

/// Updates a cart and notes the change, if it is one.
async fn update_recorded_in(
    store: &MongoStore,
    session: &mut ClientSession,
    filter: Document,
    pipeline: Vec<Document>,
) -> Result<Option<StoredCart>, Stop> {
    let find = store.collections.carts.find_one(filter.clone()).projection(doc! { "version": 1 });
    let Some(before) = find.session(&mut *session).await? else { return Ok(None) };
    let update = update_of(store, filter, pipeline).session(&mut *session).await?;
    let Some(document) = update else { return Ok(None) };
    let stored = read_updated(store, &document)?;
    if before.get("version") != document.get("version") {
        store.record(session, [ChangeRef::Cart(&stored.cart)]).await?;
    }
    Ok(Some(stored))
}

/// Sets the line, unless that would be one line too many: then the cart stays as it is.
fn set_pipeline(command: &SetLine, category: Option<&str>) -> Vec<Document> {
    let id = to_bson_id(command.product_id.as_str());
    let mut line = doc! {
        "product_id": id.clone(),
        "quantity": i64::from(command.quantity),
        "updated_at": to_bson_time(command.now),
    };
    if let Some(category) = category {
        line.insert("category", doc! { "$literal": category });
    }
    let same =
        doc! { "$filter": { "input": "$$items", "cond": { "$eq": ["$$this.product_id", id.clone()] } } };
    // Fields that another program put beside the quantity stay.
    let line = doc! { "$mergeObjects": [{ "$first": same }, line] };
    let change = Change {
        items: doc! { "$concatArrays": ["$$others", [line]] },
        quantity: command.quantity,
        owner: &command.owner,
        lifetime: &command.lifetime,
        now: command.now,
    };
    let lines_max = i32::try_from(LINES_MAX).unwrap_or(i32::MAX);
    let allowed = doc! { "$or": [
        { "$lt": [{ "$size": "$$others" }, { "$size": "$$items" }] },
        { "$lt": [{ "$size": "$$items" }, lines_max] },
    ] };
    change.pipeline(&id, allowed)
}

/// Removes the line; a cart without it stays as it is.
fn remove_pipeline(command: &RemoveLine) -> Vec<Document> {
    let id = to_bson_id(command.product_id.as_str());
    let change = Change {
        items: doc! { "$ifNull": ["$$others", []] },
        quantity: 0,
        owner: &command.owner,
        lifetime: &command.lifetime,
        now: command.now,
    };
    change.pipeline(&id, doc! { "$lt": [{ "$size": "$$others" }, { "$size": "$$items" }] })
}

/// A change of one line, as expressions over the cart. They see `$$items` (all lines) and `$$others` (those of other products).
struct Change<'a> {
    items: Document,
    quantity: u32,
    owner: &'a Owner,
    lifetime: &'a CartLifetime,
    now: Timestamp,
}

impl Change<'_> {
    /// Changes the cart where the condition holds. This is [`Cart::set_line`] and [`Cart::remove_line`] in the server's language.
    fn pipeline(&self, id: &Bson, allowed: Document) -> Vec<Document> {
        let now: DateTime = to_bson_time(self.now);
        let life_ms = self.lifetime.expiry(self.owner, Timestamp::EPOCH).as_millis();
        let updated_at = doc! { "$max": ["$updated_at", now] };
        let expires_at = doc! { "$add": [updated_at.clone(), life_ms] };
        let forgotten_at = doc! { "$add": [updated_at.clone(), HISTORY_MS] };
        let version = doc! { "$add": ["$version", 1_i64] };
        let entry = doc! {
            "at": updated_at.clone(),
            "version": version.clone(),
            "product_id": id.clone(),
            "quantity": i64::from(self.quantity),
        };
        let changed = doc! {
            "items": self.items.clone(),
            "updated_at": updated_at,
            "expires_at": expires_at.clone(),
            "version": version,
            "purge_at": { "$max": [expires_at, forgotten_at] },
            "history": { "$concatArrays": [{ "$ifNull": ["$history", []] }, [entry]] },
        };
        let others =
            doc! { "$filter": { "input": "$$items", "cond": { "$ne": ["$$this.product_id", id.clone()] } } };
        let decided = doc! { "$cond": [allowed, { "$mergeObjects": ["$$ROOT", changed] }, "$$ROOT"] };
        let with_others = doc! { "$let": { "vars": { "others": others }, "in": decided } };
        let items = doc! { "$ifNull": ["$items", []] };
        vec![doc! { "$replaceWith": { "$let": { "vars": { "items": items }, "in": with_others } } }]
    }
}

impl MongoStore {
    /// The category of a product for the items of a cart, which have one in shape `user` alone.
    async fn category_in_shape(&self, product_id: &ProductId) -> Result<Option<String>> {
        if self.options.shape != Shape::User {
            return Ok(None);
        }
        let find = self
            .collections
            .products
            .find_one(doc! { "_id": to_bson_id(product_id.as_str()) })
            .projection(doc! { "category": 1 });
        let product = self.read(find).await?;
        Ok(product.and_then(|product| documents::fields::text(&product, &["category"]).ok().flatten()))
    }
}
