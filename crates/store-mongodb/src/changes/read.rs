//! Reads the feed. A step of an order is a reference, so a page reads its orders too.

use std::collections::{BTreeSet, HashMap};

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReadConcern;
use mw_codec::changes::StoredChange;
use mw_domain::OrderId;
use mw_store::changes::{ChangeEvent, Changed, ChangesPage, FeedStart, ReadChanges};
use mw_store::{Freshness, Refusal, Result, StoreError};

use super::sequencer::read_changes;
use super::{FEED, number_of, position};
use crate::MongoStore;
use crate::documents::fields::whole;
use crate::documents::ids::to_bson_order_id;
use crate::documents::times::to_bson_time;
use crate::orders::documents::StoredOrder;

/// Rows read for one page at most; a page of rare topics is returned short.
const ROWS_PER_PAGE_MAX: usize = 256;
/// Rows of one response of the servers: 4 MB where they are full.
const ROWS_AT_ONCE: u32 = 64;

/// A page whose orders are not read yet.
#[derive(Debug)]
struct Found {
    items: Vec<(u64, StoredChange)>,
    /// The number after which reading goes on.
    next: u64,
}

impl Found {
    /// Adds the changes of a row that come next. Returns whether the page has room for more.
    fn add(&mut self, row: &Document, first: u64, request: &ReadChanges) -> Result<bool> {
        for (number, change) in (first..).zip(read_changes(row)?) {
            if number <= self.next {
                continue;
            }
            if self.items.len() == request.limit {
                return Ok(false);
            }
            if request.topics.contains(change.as_ref().topic()) {
                self.items.push((number, change));
            }
            self.next = number;
        }
        Ok(true)
    }
}

impl MongoStore {
    /// The number of the last change that has one.
    pub(super) async fn newest_change(&self) -> Result<u64> {
        self.newest_change_with(ReadConcern::majority()).await
    }

    async fn newest_change_with(&self, concern: ReadConcern) -> Result<u64> {
        let query = self
            .collections
            .settings
            .find_one(doc! { "_id": FEED })
            .read_concern(concern)
            .selection_criteria(self.reads.criteria(Freshness::Latest));
        Ok(self.read(query).await?.and_then(|state| state.get("last").and_then(whole)).unwrap_or(0))
    }

    /// A page of what is numbered.
    pub(super) async fn page_of_changes(&self, request: &ReadChanges) -> Result<ChangesPage> {
        // Before the rows: what is numbered in between does not look like rows that are gone.
        let newest = self.newest_change().await?;
        let after = match &request.start {
            FeedStart::Oldest | FeedStart::Now => None,
            FeedStart::After(at) => Some(number_of(at)?),
        };
        // A primary that has just lost its office may not know of the newest ones.
        if after.is_some_and(|after| after > newest)
            && after > Some(self.newest_change_with(ReadConcern::linearizable()).await?)
        {
            return Err(Refusal::InvalidCursor.into());
        }
        let found = self.numbered_changes(request, after).await?;
        let Some(found) = found else {
            // Nothing after it is stored: it is the end, or what follows was purged.
            return match after {
                Some(after) if after < newest => Err(Refusal::CursorExpired.into()),
                after => Ok(ChangesPage { items: Vec::new(), next: position(after.unwrap_or(newest)) }),
            };
        };
        let next = position(found.next);
        Ok(ChangesPage { items: self.events(found.items).await?, next })
    }

    /// The changes after a number, or from the oldest that is kept on; `None` if there is none.
    async fn numbered_changes(&self, request: &ReadChanges, after: Option<u64>) -> Result<Option<Found>> {
        let now = to_bson_time(request.now);
        let filter = after.map_or_else(
            || doc! { "purge_at": { "$gt": now } },
            |after| doc! { "_id": { "$gt": after.cast_signed() } },
        );
        let query = self
            .feed
            .changes
            .find(filter)
            .sort(doc! { "_id": 1 })
            .batch_size(ROWS_AT_ONCE)
            .limit(i64::try_from(ROWS_PER_PAGE_MAX).unwrap_or(i64::MAX))
            .selection_criteria(self.reads.criteria(Freshness::Latest));
        let read = async {
            let mut cursor = query.await?;
            let (mut rows, mut changes) = (Vec::new(), 0);
            while changes < request.limit.saturating_add(1) && cursor.advance().await? {
                let row: Document = cursor.deserialize_current()?;
                changes += new_ones(&row, after);
                rows.push(row);
            }
            Ok(rows)
        };
        let rows = self.read(read).await?;
        let mut found: Option<Found> = None;
        for row in &rows {
            let first = whole_of(row, "first").ok_or_else(damaged)?;
            let next = found.as_ref().map(|found| found.next).or(after);
            // A reader that continues behind a gap, or with what is no longer kept, has missed something.
            let is_gone = next.is_some_and(|next| first > next + 1)
                || row.get_datetime("purge_at").is_ok_and(|purge_at| *purge_at <= now);
            if is_gone && found.is_none() {
                return Err(Refusal::CursorExpired.into());
            }
            let found = found.get_or_insert(Found { items: Vec::new(), next: next.unwrap_or(first - 1) });
            if is_gone || !found.add(row, first, request)? {
                break;
            }
        }
        Ok(found)
    }

    /// The changes as readers see them. A step is left out where another program or an import has replaced its order.
    async fn events(&self, changes: Vec<(u64, StoredChange)>) -> Result<Vec<ChangeEvent>> {
        let ids: BTreeSet<OrderId> = changes
            .iter()
            .filter_map(|(_, change)| match change {
                StoredChange::Order { order_id, .. } => Some(*order_id),
                _ => None,
            })
            .collect();
        let orders = self.orders_by_id(ids).await?;
        Ok(changes.into_iter().filter_map(|(number, change)| event(&orders, number, change)).collect())
    }

    async fn orders_by_id(&self, ids: BTreeSet<OrderId>) -> Result<HashMap<OrderId, StoredOrder>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<Bson> = ids.into_iter().map(to_bson_order_id).collect();
        let query = self.sales.orders.find(doc! { "_id": { "$in": ids } });
        let query = query.selection_criteria(self.reads.criteria(Freshness::Latest));
        let documents = self.collect(query).await?;
        let mut stored: Vec<StoredOrder> =
            documents.iter().filter_map(|document| self.readable_order(document)).collect();
        self.name_lines_now(&mut stored).await?;
        Ok(stored.into_iter().map(|stored| (stored.order.order_id, stored)).collect())
    }
}

/// How many changes of a row come after a number.
fn new_ones(row: &Document, after: Option<u64>) -> usize {
    let first = whole_of(row, "first").unwrap_or(0).max(after.unwrap_or(0) + 1);
    let last = whole_of(row, "_id").unwrap_or(0);
    usize::try_from((last + 1).saturating_sub(first)).unwrap_or(usize::MAX)
}

fn damaged() -> StoreError {
    StoreError::Corrupt("read changes: a row without numbers".to_owned())
}

fn whole_of(row: &Document, field: &str) -> Option<u64> {
    row.get(field).and_then(whole)
}

fn event(orders: &HashMap<OrderId, StoredOrder>, number: u64, change: StoredChange) -> Option<ChangeEvent> {
    let (at, version, changed) = match change {
        StoredChange::Order { order_id, version } => {
            let StoredOrder { order, events, .. } = orders.get(&order_id)?;
            let event = events.get(usize::try_from(version.checked_sub(1)?).ok()?)?;
            let order = order.clone().as_of(version, event);
            let changed =
                if version == 1 { Changed::OrderCreated(order) } else { Changed::OrderStatus(order) };
            (event.at, version, changed)
        }
        StoredChange::Stock(stock) => (stock.updated_at, number, Changed::Stock(stock)),
        StoredChange::ProductPut(product) => (product.updated_at, number, Changed::ProductPut(product)),
        StoredChange::ProductDeleted(product_id, at) => (at, number, Changed::ProductDeleted(product_id)),
        StoredChange::Cart(cart) => (cart.updated_at, cart.version, Changed::Cart(cart)),
        StoredChange::CartClosed(cart) => (cart.updated_at, cart.version, Changed::CartClosed(cart)),
        StoredChange::Session(session) => (session.last_activity, number, Changed::Session(session)),
        StoredChange::SessionEnded(session_id, at) => (at, number, Changed::SessionEnded(session_id)),
    };
    Some(ChangeEvent { id: number.to_string(), position: position(number), at, version, changed })
}
