//! Holding units for somebody for a while.

use mw_domain::stock::combine;
use mw_domain::{Demand, GeoZone, Reservation};
use mw_store::stock::Reserve;
use mw_store::{Done, Once, Result};

use crate::Shop;

impl Shop {
    pub async fn reserve(
        &self,
        geo_zone: GeoZone,
        lines: Vec<Demand>,
        ttl_seconds: Option<u32>,
        once: Option<Once>,
    ) -> Result<Done<Reservation>> {
        let now = self.now();
        let ttl_seconds = ttl_seconds.unwrap_or(self.settings.reservation_ttl_seconds);
        let command = Reserve {
            reservation_id: self.ids.reservation(),
            geo_zone,
            lines: combine(lines)?,
            expires_at: now.plus_seconds(i64::from(ttl_seconds)),
            now,
            once,
        };
        self.store.reserve(command).await
    }
}
