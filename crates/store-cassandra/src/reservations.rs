//! Reservations: units of several products held until a moment, all of them or none.
//!
//! A reservation is a row, a timer and one hold (a ledger row) per product. The ledger decides: how a reservation
//! ended is the state of the hold of its first product (by id), the other holds and the row follow. An operation on
//! several products begins with an intent, by which recovery finishes or undoes what a crashed process leaves. What is
//! left of one product ends at the latest when the reservation expires: readers treat expired holds as released, and
//! the timer or the next command on the product releases them.

mod close;
mod reserve;
mod rows;

use mw_domain::{Reservation, ReservationId, ReservationStatus, Timestamp};
use mw_store::export::Record;
use mw_store::{Result, StoreError};
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::scan::Scan;
use crate::export::Spool;
use crate::recovery::intents::{Intent, Kind};
use crate::recovery::timers::TimerQueue;
use crate::stock::decision::StockCommand;
use crate::stock::holds::HoldOwner;
pub(crate) use rows::Statements;
use rows::{ReservationRow, StoredReservation, StoredStatus, read_reservation, time_bucket_of};

impl CassandraStore {
    async fn reservation_row(&self, id: ReservationId) -> Result<Option<ReservationRow>> {
        let values = (time_bucket_of(id), id.uuid());
        let row: Option<StoredReservation> = self.cql.first(&self.reservations.read, values).await?;
        row.map_or(Ok(None), read_reservation)
    }

    /// A reservation as it is stored, whether or not it has expired.
    pub(crate) async fn stored_reservation(&self, id: ReservationId) -> Result<Option<Reservation>> {
        Ok(self.reservation_row(id).await?.and_then(ReservationRow::reservation))
    }

    /// A reservation as a client sees it at `now`.
    pub(crate) async fn visible_reservation(
        &self,
        id: ReservationId,
        now: Timestamp,
    ) -> Result<Option<Reservation>> {
        let stored = self.stored_reservation(id).await?;
        Ok(stored.filter(|reservation| now < reservation.forgotten_at()).map(|mut reservation| {
            reservation.status = reservation.status_at(now);
            reservation
        }))
    }

    /// Begins an operation on a reservation of so many lines. One line is decided by one conditional batch, which needs
    /// no row in the table of intents.
    async fn begin_intent(&self, kind: Kind, lines: usize, payload: Vec<u8>) -> Result<Intent> {
        let op_id = Uuid::new_v4();
        if lines > 1 {
            self.intents.begin(&self.cql, kind, op_id, payload).await
        } else {
            Ok(self.intents.begin_unwritten(kind, op_id, payload))
        }
    }

    /// Ends the intent of an operation: it is complete, or certainly nothing of it was done, or else recovery of this
    /// process takes it up within a second.
    fn end_intent<T>(&self, intent: Intent, result: Result<T>) -> Result<T> {
        match &result {
            Ok(_)
            | Err(
                StoreError::Refused(_)
                | StoreError::Unavailable(_)
                | StoreError::NotServing(_)
                | StoreError::Overloaded,
            ) => self.complete_soon(intent),
            Err(StoreError::Ambiguous(_) | StoreError::Corrupt(_)) => self.intents.abandon(intent),
        }
        result
    }

    /// Imports a reservation of another store. Every step can be repeated; after a crash the operator runs the import
    /// again.
    pub(crate) async fn import_reservation(&self, reservation: &Reservation) -> Result<()> {
        // A crash after this step leaves a held reservation without a timer: `status_at` shows it as expired in time.
        self.write_reservation_row(reservation, reservation.created_at).await?;
        if reservation.status != ReservationStatus::Held {
            let status = StoredStatus::Ended(reservation.status);
            return self.write_reservation_status(reservation, status, reservation.created_at).await;
        }
        // The stock may have been imported before the reservation, with holds that do not expire. A crash in between
        // leaves such holds; they stay until the import runs again.
        let (op_id, until) = (reservation.reservation_id.uuid(), reservation.expires_at);
        let owner = HoldOwner::reservation(reservation);
        for line in &reservation.lines {
            let command = StockCommand::SetHoldEnd { op_id, until };
            self.keepers.submit(&self.cql, &owner.stock_key(line), command, reservation.created_at).await?;
        }
        let target = (time_bucket_of(reservation.reservation_id), op_id);
        self.timers.add_overdue(&self.cql, TimerQueue::Hold, until, target).await
    }

    /// Exports every reservation that got its units.
    pub(crate) async fn export_reservations(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, StoredReservation> = Scan::new(&self.cql, &self.reservations.scan);
        while let Some(row) = rows.next().await? {
            if let Some(reservation) = read_reservation(row)?.and_then(ReservationRow::reservation) {
                into.push(&Record::Reservation(reservation))?;
            }
        }
        Ok(())
    }
}
