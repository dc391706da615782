//! Stock by product and zone: the figures stand in the product's document, the ledger in a collection of its own.
//!
//! Every change goes through a keeper, whose transaction changes figures and ledger together. The stock of a product that has
//! no document is kept in `unlisted_stock`.

mod audit;
mod batch;
pub(crate) mod command;
pub(crate) mod compaction;
pub(crate) mod entries;
mod expiry;
pub(crate) mod keeper;
pub(crate) mod ledger;
pub(crate) mod relocation;

use async_trait::async_trait;
use mongodb::bson::{Document, doc};
use mw_domain::{
    GeoZone, Level, ProductId, Reservation, ReservationId, ReservationStatus, Timestamp, ZoneStock,
};
use mw_store::stock::decision::StockKey;
use mw_store::stock::{Adjust, Audit, Reserve, SetOnHand, Stock};
use mw_store::{Done, Freshness, RequestIdentity, Result};

use crate::MongoStore;
use crate::documents::ids::to_bson_id;
use crate::policy::Call;
use crate::stock::command::StockRequest;
use crate::stock::entries::{StockArray, StockEntry, read_entries};

impl MongoStore {
    /// The stock entries of a product, in its document or beside the catalogue.
    async fn entries(&self, product_id: &ProductId, freshness: Freshness) -> Result<Vec<StockEntry>> {
        let filter = doc! { "_id": to_bson_id(product_id.as_str()) };
        let criteria = match freshness {
            Freshness::StaleOk => self.reads.criteria_of(Call::StockLevel),
            Freshness::Latest => self.reads.criteria(Freshness::Latest),
        };
        for collection in [&self.collections.products, &self.sales.unlisted_stock] {
            let query = collection
                .find_one(filter.clone())
                .projection(doc! { "stocks": 1, "stock": 1 })
                .selection_criteria(criteria.clone());
            if let Some(document) = self.read(query).await? {
                let array = StockArray::of_document(&document, self.options.shape);
                return Ok(read_entries(&document, array));
            }
        }
        Ok(Vec::new())
    }

    /// The stock of a product as readers see it: units of expired holds count as available.
    pub(crate) async fn stock_at(
        &self,
        product_id: &ProductId,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>> {
        let mut entries = self.entries(product_id, freshness).await?;
        let is_due = |entry: &StockEntry| entry.hold_end.is_some_and(|end| now >= end);
        let mut expired = Vec::new();
        if entries.iter().any(is_due) {
            (entries, expired) = self.entries_with_expired(product_id, now).await?;
        }
        entries.sort_by(|one, other| one.geo_zone.cmp(&other.geo_zone));
        let stock = |entry: StockEntry| {
            let released = expired.iter().filter(|(zone, _)| *zone == entry.geo_zone).map(|(_, units)| units);
            let Level { on_hand, reserved } = entry.level();
            let reserved = reserved.saturating_sub(released.sum());
            ZoneStock {
                product_id: product_id.clone(),
                geo_zone: entry.geo_zone,
                level: Level { on_hand, reserved },
                updated_at: entry.updated_at,
            }
        };
        Ok(entries.into_iter().map(stock).collect())
    }

    fn key(product_id: &ProductId, geo_zone: &GeoZone) -> Vec<StockKey> {
        vec![StockKey { product_id: product_id.clone(), geo_zone: geo_zone.clone() }]
    }
}

/// The stock entries in a document that was read for something else.
pub(crate) fn entries_of(document: &Document, store: &MongoStore) -> Vec<StockEntry> {
    read_entries(document, StockArray::of_document(document, store.options.shape))
}

#[async_trait]
impl Stock for MongoStore {
    async fn zone_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        let zones = self.stock_at(product_id, freshness, now).await?;
        Ok(zones.into_iter().find(|stock| stock.geo_zone == *geo_zone))
    }

    async fn product_stock(
        &self,
        product_id: &ProductId,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>> {
        self.stock_at(product_id, freshness, now).await
    }

    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
        let keys = Self::key(&command.product_id, &command.geo_zone);
        let settled = self.submit(StockRequest::SetOnHand(Box::new(command)), keys, 0).await?;
        Ok(settled.stock()?.value)
    }

    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
        let keys = Self::key(&command.product_id, &command.geo_zone);
        self.submit(StockRequest::Adjust(Box::new(command)), keys, 0).await?.stock()
    }

    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        self.reserve_units(command).await
    }

    async fn reservation(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
    ) -> Result<Option<Reservation>> {
        self.reservation_at(reservation_id, now).await
    }

    async fn confirm(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
        identity: Option<RequestIdentity>,
    ) -> Result<Done<Reservation>> {
        self.close_reservation(reservation_id, ReservationStatus::Confirmed, now, identity).await
    }

    async fn release(&self, reservation_id: ReservationId, now: Timestamp) -> Result<()> {
        self.close_reservation(reservation_id, ReservationStatus::Released, now, None).await.map(drop)
    }

    async fn expire_reservations(&self, now: Timestamp, limit: usize) -> Result<usize> {
        self.expire_holds(now, limit).await
    }

    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        self.audit_stock(progress).await
    }
}
