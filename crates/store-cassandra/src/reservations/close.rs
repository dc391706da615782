//! Ending a reservation: confirmed, released or expired.
//!
//! The hold of the first product (by id) decides: its ledger row is taken or released once, and every process that
//! ends the same reservation finds that decision and carries it to the other holds and to the row.
//!
//! An intent precedes the first of several holds. Recovery does not decide: it finds what the first hold decided and
//! carries it out ([`CassandraStore::recover_close`]). A reservation of one product is decided by one conditional batch;
//! what may be left behind is its row, so its intent stays in memory. A reservation that expires needs none: its timer
//! is removed after its last step.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use mw_codec::intents::close_reservation::{self as close_intent, CloseIntent};
use mw_domain::{Demand, Reservation, ReservationId, ReservationStatus, Timestamp};
use mw_store::{Done, Refusal, RequestIdentity, Result, StoreError};
use uuid::Uuid;

use super::rows::{ReservationRow, StoredReservation, StoredStatus, read_reservation, time_bucket_of};
use crate::CassandraStore;
use crate::recovery::intents::Kind;
use crate::recovery::timers::{Budget, TimerQueue, fire_partition};
use crate::stock::decision::{Decision, StockCommand, StockKey};
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

/// The line whose hold decides how the reservation ends.
fn deciding_line(reservation: &Reservation) -> Option<&Demand> {
    reservation.lines.iter().min_by(|a, b| a.product_id.cmp(&b.product_id))
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
            let requested = Reservation { status: requested, ..reservation.clone() };
            let payload = close_intent::encode(&CloseIntent { requested: requested.clone(), now });
            let lines = reservation.lines.len();
            let intent = self.begin_intent(Kind::CloseReservation, lines, payload).await?;
            // A crash here leaves only the intent. Recovery finds the first hold undecided; it drops a confirmation and
            // carries out a release.
            let ended = self.end_reservation(&requested, now).await;
            reservation.status = self.end_intent(intent, ended)?;
        }
        if reservation.status == requested {
            return Ok(reservation);
        }
        Err(Refusal::ReservationClosed { status: reservation.status }.into())
    }

    /// Ends a held reservation with the status that it is given here, or with the one that was decided before; returns
    /// which. `Unavailable` where certainly nothing was done.
    async fn end_reservation(&self, requested: &Reservation, now: Timestamp) -> Result<ReservationStatus> {
        let Some(first) = deciding_line(requested) else { return Ok(requested.status) };
        let owner = HoldOwner::reservation(requested);
        // A crash before this step leaves the reservation held.
        let ended = match self.advance_line(owner, first, transition_to(requested.status), now).await? {
            Decision::Done { state: Some(LedgerState::Taken), .. } => ReservationStatus::Confirmed,
            Decision::Done { .. } if requested.status == ReservationStatus::Confirmed => {
                if now >= requested.expires_at {
                    ReservationStatus::Expired
                } else {
                    ReservationStatus::Released
                }
            }
            Decision::Done { .. } => requested.status,
            other => return Err(other.unexpected()),
        };
        // A crash here leaves the first hold ended and the others open. Recovery finds the intent and the decision, or
        // the timer fires again, and advances them.
        self.carry_out(requested, ended, now).await.map_err(StoreError::after_first_effect)?;
        Ok(ended)
    }

    /// Carries the decision of the first hold to the others and to the row.
    async fn carry_out(
        &self,
        reservation: &Reservation,
        ended: ReservationStatus,
        now: Timestamp,
    ) -> Result<()> {
        let owner = HoldOwner::reservation(reservation);
        let first = deciding_line(reservation);
        let others = reservation.lines.iter().filter(|line| Some(*line) != first);
        // A crash between two lines leaves some of them behind: recovery, or the timer, comes here again.
        self.advance_lines(owner, others, transition_to(ended), now).await?;
        // A crash here leaves the row held while all holds have ended: the same. Ledger compaction keeps a taken hold
        // until this row is written.
        self.write_reservation_status(reservation, StoredStatus::Ended(ended), now).await?;
        // A crash here leaves the stock without its row in the feed: recovery, or the timer, comes here again.
        self.report_lines(reservation).await
    }

    /// Finishes what was decided when a process crashed or failed while it closed a reservation. A confirmation that is
    /// not decided is dropped, because the reservation may have expired meanwhile, and the fence makes sure that it never
    /// will be; a release is made. A crash of the recovering process leaves the intent; the next one starts again here.
    pub(crate) async fn recover_close(&self, payload: &[u8]) -> Result<()> {
        let CloseIntent { requested, now } = close_intent::decode(payload)?;
        let Some(first) = deciding_line(&requested) else { return Ok(()) };
        let owner = HoldOwner::reservation(&requested);
        let (op_id, until) = (requested.reservation_id.uuid(), requested.expires_at);
        let decision = if requested.status == ReservationStatus::Confirmed {
            let fence = StockCommand::Fence { until, op_id };
            self.keepers.submit(&self.cql, &owner.stock_key(first), fence, now).await?
        } else {
            self.advance_line(owner, first, transition_to(requested.status), now).await?
        };
        let Decision::Done { state, .. } = decision else { return Err(decision.unexpected()) };
        let is_decided = match requested.status {
            ReservationStatus::Confirmed => state == Some(LedgerState::Taken),
            _ => state == Some(LedgerState::Released),
        };
        // Where another request decided otherwise, that request or its intent carries its own decision out.
        if is_decided { self.carry_out(&requested, requested.status, now).await } else { Ok(()) }
    }

    /// Ends a reservation whose time is over; `false` where it had ended before.
    pub(crate) async fn expire_reservation(&self, reservation: &Reservation, now: Timestamp) -> Result<bool> {
        if reservation.status != ReservationStatus::Held {
            return Ok(false);
        }
        let expired = Reservation { status: ReservationStatus::Expired, ..reservation.clone() };
        Ok(self.end_reservation(&expired, now).await? == ReservationStatus::Expired)
    }

    /// Ends reservations whose timer has fired; returns how many expired.
    pub(crate) async fn expire_due_reservations(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let budget = &Budget::new(limit);
        let due = move |row: StoredReservation| {
            let reservation = read_reservation(row)?.and_then(ReservationRow::reservation);
            Ok(reservation.filter(|it| it.status == ReservationStatus::Held && now >= it.expires_at))
        };
        let stock_keys = &Mutex::<HashSet<StockKey>>::default();
        let expire = move |reservation: Reservation| async move {
            let owner = HoldOwner::reservation(&reservation);
            let keys = reservation.lines.iter().map(|line| owner.stock_key(line));
            stock_keys.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
            self.expire_reservation(&reservation, now).await
        };
        let by_time_bucket = &self.reservations.by_time_bucket;
        // The timer is removed after its whole partition was walked. A crash before that leaves the timer: it fires
        // again, here or in another process, and finds what has ended.
        let reader = (&*self.cql, self.timers.unreadable());
        let walk = |time_bucket| fire_partition(reader, (by_time_bucket, time_bucket), budget, due, expire);
        let time_bucket = |id| time_bucket_of(ReservationId::new(id));
        let fired =
            self.timers.fire_due(&self.cql, TimerQueue::Hold, (now, limit), time_bucket, walk).await?;
        let stock_keys = std::mem::take(&mut *stock_keys.lock().unwrap_or_else(PoisonError::into_inner));
        // A crash here leaves headers whose earliest hold end has passed.
        self.raise_passed_hold_ends(stock_keys, now).await;
        Ok(fired)
    }
}
