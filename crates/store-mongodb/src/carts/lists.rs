//! Lists of carts: those of an owner, and the idle ones of the whole shop.

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};
use mw_domain::{Cart, CartId, CartStatus, Owner, Timestamp};
use mw_store::{Freshness, Page, PageRequest, Position, Refusal, Result};
use uuid::Uuid;

use super::{foreign_of_owner, of_owner};
use crate::MongoStore;
use crate::documents::carts::projection;
use crate::documents::ids::{plain_uuid, to_bson_cart_id};
use crate::documents::times::{read_time, to_bson_time};
use crate::policy::Call;

/// The most carts of one owner that are read where other programs wrote them.
const FOREIGN_LISTED_MAX: usize = 1_000;
/// Queries of one page of idle carts.
const IDLE_READS_MAX: usize = 8;

/// Newest first, then by id, descending.
pub(super) async fn carts(
    store: &MongoStore,
    owner: &Owner,
    now: Timestamp,
    page: &PageRequest,
) -> Result<Page<Cart>> {
    let after = page.after.as_ref().map(read_cart_position).transpose()?;
    let criteria = store.reads.criteria(Freshness::Latest);
    let mut filter = of_owner(owner);
    filter.insert("expires_at", doc! { "$gt": to_bson_time(now) });
    if let Some((created_at, cart_id)) = after {
        let created_at = to_bson_time(created_at);
        let id = to_bson_cart_id(cart_id);
        filter.insert(
            "$or",
            vec![
                doc! { "created_at": { "$lt": created_at } },
                doc! { "created_at": created_at, "$expr": { "$lt": ["$_id", { "$literal": id }] } },
            ],
        );
    }
    let carts = &store.collections.carts;
    let own = carts
        .find(filter)
        .sort(doc! { "created_at": -1, "_id": -1 })
        .projection(projection())
        .selection_criteria(criteria.clone());
    let mut documents = store.read_all(own, page.limit + 1).await?;
    let foreign = carts.find(foreign_of_owner(owner)).projection(projection()).selection_criteria(criteria);
    documents.extend(store.read_all(foreign, FOREIGN_LISTED_MAX).await?);
    let mut listed: Vec<Cart> = documents
        .iter()
        .filter_map(|document| store.read_cart(document))
        .map(|stored| stored.cart)
        .filter(|cart| !cart.is_expired(now))
        .filter(|cart| after.is_none_or(|after| (cart.created_at, cart.cart_id) < after))
        .collect();
    listed.sort_by_key(|cart| std::cmp::Reverse((cart.created_at, cart.cart_id)));
    let is_more = listed.len() > page.limit;
    listed.truncate(page.limit);
    let next = listed.last().filter(|_| is_more).map(write_cart_position);
    Ok(Page { items: listed, next })
}

fn write_cart_position(cart: &Cart) -> Position {
    Position([&cart.created_at.as_millis().to_be_bytes()[..], cart.cart_id.as_bytes()].concat())
}

fn read_cart_position(position: &Position) -> Result<(Timestamp, CartId)> {
    let (at, id) = position.0.split_first_chunk().ok_or(Refusal::InvalidCursor)?;
    let id: [u8; 16] = id.try_into().map_err(|_| Refusal::InvalidCursor)?;
    Ok((Timestamp::from_millis(i64::from_be_bytes(*at)), CartId::new(Uuid::from_bytes(id))))
}

/// Where a page of idle carts ended: in the active ones or in the abandoned ones, by the time of their last change and `_id`.
#[derive(Debug, Clone, PartialEq)]
struct IdlePosition {
    status: CartStatus,
    after: Option<(Timestamp, Bson)>,
}

/// First the active carts, then the abandoned ones, each by the time of their last change. A page is shorter where many
/// carts that it has read are merged or expired.
pub(super) async fn idle(
    store: &MongoStore,
    idle_since: Timestamp,
    now: Timestamp,
    page: &PageRequest,
) -> Result<Page<Cart>> {
    let start = IdlePosition { status: CartStatus::Active, after: None };
    let mut position = page.after.as_ref().map_or(Ok(start), read_idle_position)?;
    let mut items: Vec<Cart> = Vec::new();
    for _ in 0..IDLE_READS_MAX {
        let (carts, next) = idle_from(store, &position, idle_since, page.limit - items.len()).await?;
        items.extend(carts.into_iter().filter(|cart| cart.is_idle(idle_since) && !cart.is_expired(now)));
        match next {
            None => return Ok(Page { items, next: None }),
            Some(next) => position = next,
        }
        if items.len() >= page.limit {
            break;
        }
    }
    Ok(Page { items, next: Some(write_idle_position(&position)) })
}

/// The next `wanted` carts of one status, and where to go on.
async fn idle_from(
    store: &MongoStore,
    position: &IdlePosition,
    idle_since: Timestamp,
    wanted: usize,
) -> Result<(Vec<Cart>, Option<IdlePosition>)> {
    let find = store
        .collections
        .carts
        .find(idle_filter(position, idle_since))
        .sort(doc! { "updated_at": 1, "_id": 1 })
        .projection(projection())
        .selection_criteria(store.reads.criteria_of(Call::CartScan));
    let documents = store.read_all(find, wanted).await?;
    let last = documents.last().filter(|_| documents.len() >= wanted).and_then(idle_end);
    let next = match (last, position.status) {
        (Some(after), status) => Some(IdlePosition { status, after: Some(after) }),
        (None, CartStatus::Active) => Some(IdlePosition { status: CartStatus::Abandoned, after: None }),
        (None, _) => None,
    };
    let carts = documents.iter().filter_map(|document| store.read_cart(document)).map(|stored| stored.cart);
    Ok((carts.collect(), next))
}

fn idle_filter(position: &IdlePosition, idle_since: Timestamp) -> Document {
    let mut updated_at = doc! {};
    if position.status == CartStatus::Active {
        updated_at.insert("$lte", to_bson_time(idle_since));
    }
    let mut filter = doc! {
        "status": position.status.as_str(),
        "_id": { "$type": ["binData", "objectId"] },
    };
    if let Some((at, id)) = &position.after {
        let at = to_bson_time(*at);
        updated_at.insert("$gte", at);
        // `$gt` on `_id` would stay within one type of ids.
        filter.insert(
            "$or",
            vec![
                doc! { "updated_at": { "$gt": at } },
                doc! { "$expr": { "$gt": ["$_id", { "$literal": id.clone() }] } },
            ],
        );
    } else {
        updated_at.insert("$gte", to_bson_time(Timestamp::from_millis(i64::MIN)));
    }
    filter.insert("updated_at", updated_at);
    filter
}

fn idle_end(document: &Document) -> Option<(Timestamp, Bson)> {
    Some((document.get("updated_at").and_then(read_time)?, document.get("_id")?.clone()))
}

fn write_idle_position(position: &IdlePosition) -> Position {
    let mut bytes = vec![u8::from(position.status == CartStatus::Abandoned)];
    if let Some((at, id)) = &position.after {
        bytes.extend_from_slice(&at.as_millis().to_be_bytes());
        match id {
            Bson::ObjectId(id) => bytes.extend_from_slice(&id.bytes()),
            Bson::Binary(id) => bytes.extend_from_slice(&id.bytes),
            _ => {}
        }
    }
    Position(bytes)
}

fn read_idle_position(position: &Position) -> Result<IdlePosition> {
    let invalid = || Refusal::InvalidCursor;
    let (status, rest) = position.0.split_first().ok_or_else(invalid)?;
    let status = match status {
        0 => CartStatus::Active,
        1 => CartStatus::Abandoned,
        _ => return Err(invalid().into()),
    };
    if rest.is_empty() {
        return Ok(IdlePosition { status, after: None });
    }
    let (at, id) = rest.split_first_chunk().ok_or_else(invalid)?;
    let id = match (<[u8; 16]>::try_from(id), <[u8; 12]>::try_from(id)) {
        (Ok(uuid), _) => plain_uuid(Uuid::from_bytes(uuid)),
        (_, Ok(object_id)) => Bson::ObjectId(ObjectId::from_bytes(object_id)),
        _ => return Err(invalid().into()),
    };
    Ok(IdlePosition { status, after: Some((Timestamp::from_millis(i64::from_be_bytes(*at)), id)) })
}
