//! Reservations: units of a zone that are held for a while, until they are confirmed, released or expired.

use mw_domain::stock::combine;
use mw_domain::{Demand, GeoZone, Reservation, ReservationId};
use mw_store::stock::Reserve;
use mw_store::{Done, Result};

use crate::{KeyedRequest, Shop};

impl Shop {
    /// Holds all lines or none; a product that several lines name is one demand.
    pub async fn reserve(
        &self,
        geo_zone: GeoZone,
        lines: Vec<Demand>,
        ttl_seconds: Option<u32>,
        request: Option<KeyedRequest>,
    ) -> Result<Done<Reservation>> {
        let now = self.now();
        let ttl_seconds = ttl_seconds.unwrap_or(self.settings.reservation_ttl_seconds);
        let command = Reserve {
            reservation_id: self.ids.reservation(),
            geo_zone,
            lines: combine(lines)?,
            expires_at: now.plus_seconds(i64::from(ttl_seconds)),
            now,
            identity: request.map(|request| request.identity(now)),
        };
        self.store.reserve(command).await
    }

    /// The reservation with the status it has now: a hold past its time is expired, whether or not the store has
    /// expired it already.
    pub async fn reservation(&self, reservation_id: ReservationId) -> Result<Option<Reservation>> {
        let now = self.now();
        let reservation = self.store.reservation(reservation_id, now).await?;
        Ok(reservation.map(|reservation| Reservation { status: reservation.status_at(now), ..reservation }))
    }

    /// The held units leave.
    pub async fn confirm_reservation(
        &self,
        reservation_id: ReservationId,
        request: Option<KeyedRequest>,
    ) -> Result<Done<Reservation>> {
        let now = self.now();
        let identity = request.map(|request| request.identity(now));
        self.store.confirm(reservation_id, now, identity).await
    }

    /// The held units are available again.
    pub async fn release_reservation(&self, reservation_id: ReservationId) -> Result<()> {
        self.store.release(reservation_id, self.now()).await
    }
}
