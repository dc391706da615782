//! Shortages: which lines of a basket or a reservation cannot be met, for a refusal that names all of them.
//!
//! Nothing is decided here. A shortage that is found before anything was written saves the writes; the keeper's
//! decision on the hold is what counts.

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{Demand, GeoZone, Shortage, Timestamp};
use mw_store::{Freshness, Refusal, Result, StoreError};

use crate::CassandraStore;
use crate::stock::CONCURRENT_LINES;
use crate::stock::decision::StockKey;

impl CassandraStore {
    /// Whether this process last saw too few units for a line. Costs no statement.
    pub(crate) fn looks_short(&self, geo_zone: &GeoZone, lines: &[Demand]) -> bool {
        lines.iter().any(|line| {
            let stock_key = StockKey { product_id: line.product_id.clone(), geo_zone: geo_zone.clone() };
            self.keepers.last_available(&stock_key).is_some_and(|units| units < u64::from(line.quantity))
        })
    }

    /// Refuses a reservation that cannot be met before anything is written, where a shortage is likely.
    pub(crate) async fn refuse_likely_shortages(
        &self,
        geo_zone: &GeoZone,
        lines: &[Demand],
        now: Timestamp,
    ) -> Result<()> {
        let offers = self.offers.offers(&self.cql, lines.iter().map(|line| &line.product_id)).await?;
        let is_unlisted = offers.iter().any(Option::is_none);
        if is_unlisted || lines.len() > 1 || self.looks_short(geo_zone, lines) {
            self.refuse_shortages(geo_zone, lines, now).await?;
        }
        Ok(())
    }

    /// Refuses with every shortage there is.
    pub(crate) async fn refuse_shortages(
        &self,
        geo_zone: &GeoZone,
        lines: &[Demand],
        now: Timestamp,
    ) -> Result<()> {
        let shortages = self.shortages(geo_zone, lines, now).await?;
        if shortages.is_empty() { Ok(()) } else { Err(Refusal::OutOfStock(shortages).into()) }
    }

    async fn shortages(&self, geo_zone: &GeoZone, lines: &[Demand], now: Timestamp) -> Result<Vec<Shortage>> {
        let reads = lines.iter().map(|line| async move {
            let stock_key = StockKey { product_id: line.product_id.clone(), geo_zone: geo_zone.clone() };
            let offer = self.offers.offer(&self.cql, line.product_id.clone()).await?;
            let stock = match offer {
                Some(_) => self.level_at(&stock_key, Freshness::Latest, now).await?,
                None => None,
            };
            let available = stock.map_or(0, |stock| stock.level.available());
            Ok::<_, StoreError>(shortage(line, available))
        });
        let found: Vec<Shortage> =
            stream::iter(reads.collect::<Vec<_>>()).buffered(CONCURRENT_LINES).try_collect().await?;
        Ok(found.into_iter().filter(|short| u64::from(short.requested) > short.available).collect())
    }

    /// The refusal where units ran out while they were being held: the shortages there are now, and in any case those
    /// that the keepers found (`found`), in the order of the lines.
    pub(crate) async fn out_of_stock(
        &self,
        geo_zone: &GeoZone,
        lines: &[Demand],
        found: Vec<Shortage>,
        now: Timestamp,
    ) -> Result<StoreError> {
        let mut shortages = self.shortages(geo_zone, lines, now).await?;
        for short in found {
            if !shortages.iter().any(|known| known.product_id == short.product_id) {
                shortages.push(short);
            }
        }
        shortages.sort_by_key(|short| lines.iter().position(|line| line.product_id == short.product_id));
        Ok(Refusal::OutOfStock(shortages).into())
    }
}

pub(super) fn shortage(line: &Demand, available: u64) -> Shortage {
    Shortage { product_id: line.product_id.clone(), requested: line.quantity, available }
}
