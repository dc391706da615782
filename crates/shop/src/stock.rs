//! Stock of a product by zone. Reads are `Latest`: a back office that changes stock sees its change.

use mw_domain::{GeoZone, ProductId, ZoneStock};
use mw_store::stock::{Adjust, SetOnHand};
use mw_store::{Done, Freshness, Result};

use crate::{KeyedRequest, Shop};

impl Shop {
    pub async fn zone_stock(&self, product_id: &ProductId, geo_zone: &GeoZone) -> Result<Option<ZoneStock>> {
        self.store.zone_stock(product_id, geo_zone, Freshness::Latest, self.now()).await
    }

    /// The product's stock in every zone, by zone; `None` where there is neither stock nor a product. A product that was
    /// deleted may still have stock.
    pub async fn product_stock(&self, product_id: &ProductId) -> Result<Option<Vec<ZoneStock>>> {
        let zones = self.store.product_stock(product_id, Freshness::Latest, self.now()).await?;
        let is_known =
            !zones.is_empty() || self.store.product(product_id, Freshness::Latest).await?.is_some();
        Ok(is_known.then_some(zones))
    }

    /// Sets the units on hand; with `expected_on_hand` only if that is what is on hand.
    pub async fn set_on_hand(
        &self,
        product_id: ProductId,
        geo_zone: GeoZone,
        on_hand: u64,
        expected_on_hand: Option<u64>,
    ) -> Result<ZoneStock> {
        let op = self.ids.movement();
        let command = SetOnHand { product_id, geo_zone, on_hand, expected_on_hand, op, now: self.now() };
        self.store.set_on_hand(command).await
    }

    /// Adds or removes units.
    pub async fn adjust_stock(
        &self,
        product_id: ProductId,
        geo_zone: GeoZone,
        delta: i64,
        reason: String,
        request: Option<KeyedRequest>,
    ) -> Result<Done<ZoneStock>> {
        let now = self.now();
        let command = Adjust {
            product_id,
            geo_zone,
            delta,
            reason,
            op: self.ids.movement(),
            now,
            identity: request.map(|request| request.identity(now)),
        };
        self.store.adjust(command).await
    }
}
