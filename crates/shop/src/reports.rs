//! Reports of the back office.

use mw_domain::{Cart, GeoZone, Period};
use mw_store::orders::Sales;
use mw_store::{Page, PageRequest, Result};

use crate::Shop;

impl Shop {
    /// Sales by the day the orders were created and by zone, of one zone or of all.
    pub async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        self.store.sales(geo_zone, period).await
    }

    /// Carts that are active and were not changed for `idle_for_seconds`, or abandoned and not merged.
    pub async fn idle_carts(&self, idle_for_seconds: u64, page: PageRequest) -> Result<Page<Cart>> {
        let now = self.now();
        let idle_since = now.minus_seconds(i64::try_from(idle_for_seconds).unwrap_or(i64::MAX));
        self.store.idle_carts(idle_since, now, page).await
    }
}
