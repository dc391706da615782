//! Lists of orders, newest first, and the sales report.
//!
//! The two shapes name the user, the zone and the time differently, so a list is two queries, each along an index of its
//! shape, merged by time and id. A page's position is the time and the id of the last document that was looked at.

use std::cmp::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mw_domain::{GeoZone, Order, OrderStatus, Period, Timestamp, UserId};
use mw_store::orders::{Sales, SalesReport};
use mw_store::{Freshness, Page, PageRequest, Position, Refusal, Result, StoreError};

use crate::MongoStore;
use crate::documents::Shape;
use crate::documents::ids::to_bson_id;
use crate::documents::times::{read_time, to_bson_time};
use crate::driver::certainty;
use crate::orders::documents::StoredOrder;
use crate::policy::Call;

/// The orders of a list.
pub(super) enum Of<'a> {
    User(&'a UserId),
    Zone(&'a GeoZone),
    Shop,
}

impl Of<'_> {
    /// A user sees an order at once; the back office's lists may be stale.
    const fn call(&self) -> Call {
        match self {
            Self::User(_) => Call::OrderHistory,
            Self::Zone(_) | Self::Shop => Call::OrderArchive,
        }
    }
}

const SHAPES: [Shape; 2] = [Shape::Customer, Shape::User];

/// How long it is taken for granted that no order has the other shape.
const NONE_FOR: Duration = Duration::from_secs(5);
/// How long it is taken for granted that some have.
const SOME_FOR: Duration = Duration::from_mins(1);

/// Whether orders of the shape that the service does not write exist, as of an instant.
#[derive(Debug, Default)]
pub(crate) struct OtherShape(Mutex<Option<(Instant, bool)>>);

impl MongoStore {
    pub(super) async fn list_orders(
        &self,
        of: &Of<'_>,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        let after = page.after.as_ref().map(read_position).transpose()?;
        if period.is_empty() {
            return Ok(Page { items: Vec::new(), next: None });
        }
        // One document more tells whether there is a next page.
        let limit = i64::try_from(page.limit).unwrap_or(i64::MAX).saturating_add(1);
        let mut found: Vec<(Timestamp, Document)> = Vec::new();
        for shape in self.shapes_of(of).await? {
            let created = shape.created_field();
            let filter = filter(shape, of, period, after.clone());
            let query = self
                .sales
                .orders
                .find(filter)
                .sort(doc! { created: -1, "_id": -1 })
                .limit(limit)
                .selection_criteria(self.reads.criteria_of(of.call()));
            for document in self.collect(query).await? {
                let Some(at) = document.get(created).and_then(read_time) else { continue };
                found.push((at, document));
            }
        }
        found.sort_by(newest_first);
        let has_more = found.len() > page.limit;
        found.truncate(page.limit);
        let next = match found.last() {
            Some((at, document)) if has_more => Some(position(*at, document)?),
            _ => None,
        };
        let mut orders: Vec<StoredOrder> =
            found.iter().filter_map(|(_, document)| self.readable_order(document)).collect();
        self.name_lines_now(&mut orders).await?;
        Ok(Page { items: orders.into_iter().map(|stored| stored.order).collect(), next })
    }

    /// The shapes whose orders a list asks for. Between shards a user's orders of the configured shape are on one shard, while those of the
    /// other shape, which lack the shard key, may be on any: where there are none, no other shard is asked. An order that another program
    /// writes in the other shape, the first one of all, is in its user's list [`NONE_FOR`] later at the latest.
    async fn shapes_of(&self, of: &Of<'_>) -> Result<Vec<Shape>> {
        let own = self.options.shape;
        if !matches!(of, Of::User(_)) || !self.reads.is_sharded() || self.has_other_shape().await? {
            return Ok(SHAPES.to_vec());
        }
        Ok(vec![own])
    }

    async fn has_other_shape(&self) -> Result<bool> {
        let known = *self.other_shape.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some((at, has)) if at.elapsed() < if has { SOME_FOR } else { NONE_FOR } => return Ok(has),
            _ => {}
        }
        let asked_at = Instant::now();
        let other = match self.options.shape {
            Shape::Customer => Shape::User,
            Shape::User => Shape::Customer,
        };
        // By the partial index of that shape's lists, which is empty where it has no orders.
        let query = self.sales.orders.find_one(doc! { other.created_field(): { "$exists": true } });
        let query =
            query.projection(doc! { "_id": 1 }).selection_criteria(self.reads.criteria(Freshness::Latest));
        let has = self.read(query).await?.is_some();
        *self.other_shape.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((asked_at, has));
        Ok(has)
    }

    /// Walks through the period's sales, of which only the fields of the report are read.
    pub(super) async fn sales_report(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
    ) -> Result<Vec<Sales>> {
        let mut report = SalesReport::default();
        let statuses = OrderStatus::ALL.into_iter().filter(|status| status.is_sale());
        let words: Vec<&str> = statuses.flat_map(|status| self.options.statuses.words(status)).collect();
        for shape in SHAPES {
            if period.is_empty() {
                break;
            }
            let of = geo_zone.map_or(Of::Shop, Of::Zone);
            let mut filter = filter(shape, &of, period, None);
            filter.insert("status", doc! { "$in": words.clone() });
            let criteria = self.reads.criteria_of(Call::OrderReports);
            let walk = async {
                let projection =
                    doc! { "events": 0, "delivery_address": 0, "payment_method": 0, "line_names": 0 };
                let query =
                    self.sales.orders.find(filter).projection(projection).selection_criteria(criteria);
                let mut cursor = query.await?;
                while let Some(document) = cursor.try_next().await? {
                    if let Some(stored) = self.readable_order(&document) {
                        report.add_order(&stored.order);
                    }
                }
                Ok(())
            };
            walk.await.map_err(|error: mongodb::error::Error| certainty::of_read(&error))?;
        }
        Ok(report.into_sales())
    }
}

fn filter(shape: Shape, of: &Of<'_>, period: Period, after: Option<(Timestamp, Bson)>) -> Document {
    let mut filter = Document::new();
    match of {
        Of::User(user_id) => {
            filter.insert(shape.user_field(), to_bson_id(user_id.as_str()));
        }
        Of::Zone(zone) => {
            filter.insert(shape.order_zone_field(), zone.as_str());
        }
        Of::Shop => {}
    }
    let created = shape.created_field();
    let mut range = doc! { "$gte": to_bson_time(period.from), "$lt": to_bson_time(period.to) };
    if let Some((at, id)) = after {
        range.insert("$lte", to_bson_time(at));
        // Of one instant: `$expr` compares ids of all BSON types, `$lt` only those of one.
        let id_is_lower = doc! { "$expr": { "$lt": ["$_id", id] } };
        filter.insert("$or", vec![doc! { created: { "$lt": to_bson_time(at) } }, id_is_lower]);
    }
    filter.insert(created, range);
    filter
}

/// By time, then id, both descending. Ids of one instant are compared as the servers do: a UUID before an `ObjectId`.
fn newest_first(one: &(Timestamp, Document), other: &(Timestamp, Document)) -> Ordering {
    let key = |(at, document): &(Timestamp, Document)| {
        let id = document.get("_id");
        let rank = match id {
            Some(Bson::ObjectId(_)) => 2,
            Some(Bson::Binary(_)) => 1,
            _ => 0,
        };
        let bytes = match id {
            Some(Bson::ObjectId(id)) => id.bytes().to_vec(),
            Some(Bson::Binary(id)) => id.bytes.clone(),
            _ => Vec::new(),
        };
        (*at, rank, bytes)
    };
    key(other).cmp(&key(one))
}

fn position(at: Timestamp, document: &Document) -> Result<Position> {
    let id = doc! { "_id": document.get("_id").cloned().unwrap_or(Bson::Null) };
    let mut bytes = at.as_millis().to_be_bytes().to_vec();
    bytes.extend(id.to_vec().map_err(|error| StoreError::Corrupt(format!("list orders: {error}")))?);
    Ok(Position(bytes))
}

fn read_position(position: &Position) -> Result<(Timestamp, Bson)> {
    let read = || {
        let (at, id) = position.0.split_first_chunk::<8>()?;
        let mut id = Document::from_reader(id).ok()?;
        Some((Timestamp::from_millis(i64::from_be_bytes(*at)), id.remove("_id")?))
    };
    read().ok_or_else(|| Refusal::InvalidCursor.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::ids::to_bson_order_id;

    #[test]
    fn positions_read_back_and_others_are_refused() {
        let order_id = mw_domain::OrderId::parse("507f1f77bcf86cd799439011").unwrap();
        let document = doc! { "_id": to_bson_order_id(order_id) };
        let position = position(Timestamp::from_millis(-5), &document).unwrap();
        assert_eq!(read_position(&position), Ok((Timestamp::from_millis(-5), to_bson_order_id(order_id))));
        assert!(read_position(&Position(vec![1; 23])).is_err());
    }
}
