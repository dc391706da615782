//! The history of line changes. A change is noted in the document of its cart, in the statement that makes it; what does
//! not fit there moves to `cart_history`. A reader joins both.

use std::cmp::Reverse;

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use mw_domain::{CartChange, CartId, Owner, Timestamp};
use mw_store::{Page, PageRequest, Position, Refusal, Result};
use uuid::Uuid;

use super::of_owner;
use crate::MongoStore;
use crate::collections::CART_HISTORY;
use crate::documents::carts::{HISTORY_MS, StoredCart, history_document, owner_key, read_change};
use crate::documents::ids::read_cart_id;
use crate::documents::times::to_bson_time;
use crate::driver::transaction::Stop;

/// From this number of line changes on they move out of the document of their cart.
pub(super) const HISTORY_INLINE_MAX: u64 = 64;
/// The most line changes of one owner with one time and version: a merge of a full cart, read twice after an import.
const SAME_CHANGE_MAX: usize = 400;

/// Moves the line changes out of a cart. A failure leaves them where they are, and the next change tries again.
pub(super) async fn move_history(store: &MongoStore, stored: &StoredCart) {
    let mut attempts = store.transaction();
    loop {
        let mut session = match attempts.begin().await {
            Ok(session) => session,
            Err(error) => return tracing::debug!(%error, "move the history of a cart"),
        };
        let result = attempts.run(move_in(store, &mut session, stored)).await;
        match attempts.end(session, result).await {
            Ok(Some(())) => return,
            Ok(None) => {}
            Err(error) => return tracing::debug!(%error, "move the history of a cart"),
        }
    }
}

async fn move_in(store: &MongoStore, session: &mut ClientSession, stored: &StoredCart) -> Result<(), Stop> {
    let carts = &store.collections.carts;
    let find = carts.find_one(stored.filter.clone()).projection(doc! { "history": 1 });
    let Some(document) = find.session(&mut *session).await? else { return Ok(()) };
    let (cart_id, owner) = (stored.cart.cart_id, &stored.cart.owner);
    let moved: Vec<Document> = store
        .inline_history(&document, cart_id)
        .iter()
        .map(|change| history_document(owner, change))
        .collect();
    if moved.is_empty() {
        return Ok(());
    }
    store.collections.cart_history.insert_many(moved).session(&mut *session).await?;
    let empty: Vec<Bson> = Vec::new();
    let update = doc! { "$set": { "history": empty } };
    carts.update_one(stored.filter.clone(), update).session(session).await?;
    Ok(())
}

impl MongoStore {
    /// The line changes inside of the document of a cart.
    pub(crate) fn inline_history(&self, document: &Document, cart_id: CartId) -> Vec<CartChange> {
        let Ok(history) = document.get_array("history") else { return Vec::new() };
        let entries = history.iter().filter_map(Bson::as_document);
        entries.filter_map(|entry| self.readable(read_change(entry, cart_id))).collect()
    }
}

/// Newest first; the products of one change by id.
type SortKey = (Reverse<Timestamp>, Reverse<u64>, String, CartId);

fn sort_key(change: &CartChange) -> SortKey {
    (Reverse(change.at), Reverse(change.version), change.product_id.to_string(), change.cart_id)
}

pub(super) async fn changes(
    store: &MongoStore,
    owner: &Owner,
    now: Timestamp,
    page: &PageRequest,
) -> Result<Page<CartChange>> {
    let after = page.after.as_ref().map(read_position).transpose()?;
    let pipeline = pipeline(owner, now, after.as_ref(), page.limit + 1 + SAME_CHANGE_MAX);
    let documents = store.read_pipeline(store.collections.carts.aggregate(pipeline)).await?;
    let mut changes: Vec<(SortKey, CartChange)> = documents
        .iter()
        .filter_map(|document| {
            let cart_id = document.get("cart_id").and_then(read_cart_id)?;
            let change = store.readable(read_change(document, cart_id))?;
            Some((sort_key(&change), change))
        })
        .filter(|(key, _)| after.as_ref().is_none_or(|after| key > after))
        .collect();
    changes.sort_by(|(a, _), (b, _)| a.cmp(b));
    // An imported change may stand in both places.
    changes.dedup_by(|(a, _), (b, _)| a == b);
    let is_more = changes.len() > page.limit;
    changes.truncate(page.limit);
    let next = changes.last().filter(|_| is_more).map(|(key, _)| write_position(key));
    Ok(Page { items: changes.into_iter().map(|(_, change)| change).collect(), next })
}

/// The changes of both places from the position on. The server sorts as [`SortKey`] does, so cutting its list is safe.
fn pipeline(owner: &Owner, now: Timestamp, after: Option<&SortKey>, limit: usize) -> Vec<Document> {
    let mut at = doc! { "$gt": to_bson_time(now.plus_millis(-HISTORY_MS)) };
    if let Some((Reverse(until), ..)) = after {
        at.insert("$lte", to_bson_time(*until));
    }
    let mut wanted = doc! { "at": at };
    if let Some((Reverse(until), Reverse(version), ..)) = after {
        let until = to_bson_time(*until);
        wanted.insert(
            "$or",
            vec![doc! { "at": { "$lt": until } }, doc! { "version": { "$lte": version.cast_signed() } }],
        );
    }
    let entry = doc! { "$mergeObjects": ["$history", { "cart_id": "$_id" }] };
    let mut moved = doc! { "owner": owner_key(owner) };
    moved.extend(wanted.clone());
    vec![
        doc! { "$match": of_owner(owner) },
        doc! { "$unwind": "$history" },
        doc! { "$replaceWith": entry },
        doc! { "$match": wanted },
        doc! { "$unionWith": { "coll": CART_HISTORY, "pipeline": [{ "$match": moved }] } },
        doc! { "$set": { "product": { "$toString": "$product_id" } } },
        doc! { "$sort": { "at": -1, "version": -1, "product": 1, "cart_id": 1 } },
        doc! { "$limit": i64::try_from(limit).unwrap_or(i64::MAX) },
    ]
}

fn write_position((Reverse(at), Reverse(version), product, cart_id): &SortKey) -> Position {
    let at = at.as_millis().to_be_bytes();
    Position([&at[..], &version.to_be_bytes(), cart_id.as_bytes(), product.as_bytes()].concat())
}

fn read_position(position: &Position) -> Result<SortKey> {
    let invalid = || Refusal::InvalidCursor;
    let (at, rest) = position.0.split_first_chunk().ok_or_else(invalid)?;
    let (version, rest) = rest.split_first_chunk().ok_or_else(invalid)?;
    let (cart_id, product) = rest.split_first_chunk().ok_or_else(invalid)?;
    let product = std::str::from_utf8(product).map_err(|_| invalid())?;
    Ok((
        Reverse(Timestamp::from_millis(i64::from_be_bytes(*at))),
        Reverse(u64::from_be_bytes(*version)),
        product.to_owned(),
        CartId::new(Uuid::from_bytes(*cart_id)),
    ))
}
