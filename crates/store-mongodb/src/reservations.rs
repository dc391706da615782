//! Reservations: a document each, its holds in the ledger. It is closed in the transaction that moves its units.

pub(crate) mod documents;

use mongodb::bson::doc;
use mw_domain::{Reservation, ReservationId, ReservationStatus, Timestamp};
use mw_store::stock::Reserve;
use mw_store::{Done, Freshness, RequestIdentity, Result};

use crate::MongoStore;
use crate::documents::ids::plain_uuid;
use crate::stock::command::{CloseReservation, StockRequest, keys_of, units_of};

impl MongoStore {
    pub(crate) async fn reserve_units(&self, command: Reserve) -> Result<Done<Reservation>> {
        let (keys, units) = (keys_of(&command.lines, &command.geo_zone), units_of(&command.lines));
        self.submit(StockRequest::Reserve(Box::new(command)), keys, units).await?.reservation()
    }

    /// A reservation as it is stored.
    pub(crate) async fn stored_reservation(
        &self,
        reservation_id: ReservationId,
    ) -> Result<Option<Reservation>> {
        let filter = doc! { "_id": plain_uuid(reservation_id.uuid()) };
        let criteria = self.reads.criteria(Freshness::Latest);
        let found = self.read(self.sales.reservations.find_one(filter).selection_criteria(criteria)).await?;
        found.as_ref().map(documents::read).transpose()
    }

    /// A reservation as readers see it.
    pub(crate) async fn reservation_at(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
    ) -> Result<Option<Reservation>> {
        let found = self.stored_reservation(reservation_id).await?.filter(|found| now < found.forgotten_at());
        Ok(found.map(|mut reservation| {
            reservation.status = reservation.status_at(now);
            reservation
        }))
    }

    /// Confirms or releases a reservation.
    pub(crate) async fn close_reservation(
        &self,
        reservation_id: ReservationId,
        to: ReservationStatus,
        now: Timestamp,
        identity: Option<RequestIdentity>,
    ) -> Result<Done<Reservation>> {
        // Lines never change: they name the keeper, and the transaction reads the reservation again.
        let stored = self.stored_reservation(reservation_id).await?;
        let (keys, units) = stored
            .map(|stored| (keys_of(&stored.lines, &stored.geo_zone), units_of(&stored.lines)))
            .unwrap_or_default();
        let command = CloseReservation { reservation_id, to, now, identity };
        self.submit(StockRequest::Close(Box::new(command)), keys, units).await?.reservation()
    }
}
