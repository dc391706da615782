//! Ending a reservation: confirmed, released or expired.
//!
//! The hold of the first product (by id) decides: its ledger row is taken or released once, and every process that
//! ends the same reservation finds that decision and carries it to the other holds and to the row.
//!
//! Known gap: a crash after the deciding hold leaves the other holds as they were until the next confirm or release
//! of the same reservation, or its timer. No intent finishes it earlier, so a confirmed reservation may show units of
//! its other products as reserved until it expires. Where it expires more than an hour after the crash, ledger
//! compaction may have removed the deciding row, and the other holds are then released although the first was taken.

use mw_domain::{Reservation, ReservationId, ReservationStatus, Timestamp};
use mw_store::{Done, Refusal, RequestIdentity, Result};
use uuid::Uuid;

use super::rows::{ReservationRow, StoredReservation, StoredStatus, read_reservation, time_bucket_of};
use crate::CassandraStore;
use crate::recovery::timers::{Budget, TimerQueue, fire_partition};
use crate::stock::decision::Decision;
use crate::stock::holds::HoldOwner;
use crate::stock::ledger::{LedgerState, Transition};

/// What a status does to the holds of its reservation.
const fn transition_to(status: ReservationStatus) -> Transition {
    match status {
        ReservationStatus::Confirmed => Transition::Take,
        ReservationStatus::Held | ReservationStatus::Released | ReservationStatus::Expired => {
            Transition::Release
        }
    }
}

impl CassandraStore {
    pub(crate) async fn confirm_reservation(
        &self,
        id: ReservationId,
        now: Timestamp,
        identity: Option<RequestIdentity>,
    ) -> Result<Done<Reservation>> {
        // A crash after the claim of the key leaves a claim without an outcome: a second request confirms again and
        // finds what was done.
        self.idempotent(identity.as_ref(), Uuid::new_v4(), now, |_, _| {
            self.close_reservation(id, ReservationStatus::Confirmed, now)
        })
        .await
    }

    pub(crate) async fn release_reservation(&self, id: ReservationId, now: Timestamp) -> Result<()> {
        self.close_reservation(id, ReservationStatus::Released, now).await.map(drop)
    }

    /// Closes a reservation with the requested status; one that has this status already stays as it is.
    async fn close_reservation(
        &self,
        id: ReservationId,
        requested: ReservationStatus,
        now: Timestamp,
    ) -> Result<Reservation> {
        let mut reservation = self.visible_reservation(id, now).await?.ok_or(Refusal::ReservationNotFound)?;
        if reservation.status == ReservationStatus::Held {
            reservation.status = self.end_reservation(&reservation, requested, now).await?;
        }
        if reservation.status == requested {
            return Ok(reservation);
        }
        Err(Refusal::ReservationClosed { status: reservation.status }.into())
    }

    /// Ends a held reservation with the requested status, or with the one that was decided before; returns which.
    async fn end_reservation(
        &self,
        reservation: &Reservation,
        requested: ReservationStatus,
        now: Timestamp,
    ) -> Result<ReservationStatus> {
        let Some(first) = reservation.lines.iter().min_by(|a, b| a.product_id.cmp(&b.product_id)) else {
            return Ok(requested);
        };
        let owner = HoldOwner::reservation(reservation);
        // A crash before this step leaves the reservation held; the timer ends it.
        let ended = match self.advance_line(owner, first, transition_to(requested), now).await? {
            Decision::Done { state: Some(LedgerState::Taken), .. } => ReservationStatus::Confirmed,
            Decision::Done { .. } if requested == ReservationStatus::Confirmed => {
                if now >= reservation.expires_at {
                    ReservationStatus::Expired
                } else {
                    ReservationStatus::Released
                }
            }
            Decision::Done { .. } => requested,
            other => return Err(other.unexpected()),
        };
        // A crash here, or between two lines, leaves the first hold ended and others open (see the known gap above).
        // The next confirm or release of this reservation advances them, otherwise its timer.
        let others = reservation.lines.iter().filter(|line| line.product_id != first.product_id);
        self.advance_lines(owner, others, transition_to(ended), now).await?;
        // A crash here leaves the row held while all holds have ended. The next request or the timer writes the
        // status; a reader sees the reservation as held until it expires.
        self.write_reservation_status(reservation, StoredStatus::Ended(ended), now).await?;
        Ok(ended)
    }

    /// Ends a reservation whose time is over; `false` where it had ended before.
    pub(crate) async fn expire_reservation(&self, reservation: &Reservation, now: Timestamp) -> Result<bool> {
        if reservation.status != ReservationStatus::Held {
            return Ok(false);
        }
        let ended = self.end_reservation(reservation, ReservationStatus::Expired, now).await?;
        Ok(ended == ReservationStatus::Expired)
    }

    /// Ends reservations whose timer has fired; returns how many expired.
    pub(crate) async fn expire_due_reservations(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let budget = &Budget::new(limit);
        let due = move |row: StoredReservation| {
            let reservation = read_reservation(row)?.and_then(ReservationRow::reservation);
            Ok(reservation.filter(|it| it.status == ReservationStatus::Held && now >= it.expires_at))
        };
        let expire =
            move |reservation: Reservation| async move { self.expire_reservation(&reservation, now).await };
        let by_time_bucket = &self.reservations.by_time_bucket;
        // The timer is removed after its whole partition was walked. A crash before that leaves the timer: it fires
        // again, here or in another process, and finds what has ended.
        let reader = (&*self.cql, self.timers.unreadable());
        let walk = |time_bucket| fire_partition(reader, (by_time_bucket, time_bucket), budget, due, expire);
        let time_bucket = |id| time_bucket_of(ReservationId::new(id));
        self.timers.fire_due(&self.cql, TimerQueue::Hold, (now, limit), time_bucket, walk).await
    }
}
