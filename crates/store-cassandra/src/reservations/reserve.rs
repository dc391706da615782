//! Reserving units: the row and the timer, then the holds, or all at once where no key can repeat the request.
//!
//! The client learns the id only after every hold is written. So a crash on the way leaves a reservation that no
//! client knows, and its units are available again when it expires.

use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{Reservation, ReservationId, ReservationStatus, Shortage, Timestamp};
use mw_store::stock::Reserve;
use mw_store::{Done, Result, StoreError};

use super::rows::{ReservationRow, StoredStatus, time_bucket_of};
use crate::CassandraStore;
use crate::recovery::timers::TimerQueue;
use crate::stock::CONCURRENT_LINES;
use crate::stock::holds::{HoldOwner, LineHold};
use crate::stock::ledger::Transition;

impl CassandraStore {
    pub(crate) async fn reserve_units(&self, command: Reserve) -> Result<Done<Reservation>> {
        let identity = command.identity.clone();
        let (op_id, now) = (command.reservation_id.uuid(), command.now);
        // With a key another process may hold the same units at the same time.
        let started_at = identity.is_none().then(Instant::now);
        // The claim of the key comes first. A crash right after it leaves a claim without an outcome: a second
        // request with the key continues under the same id; without one the claim expires with its TTL.
        self.idempotent(identity.as_ref(), op_id, now, |op_id, is_retry| {
            self.reserve_once(command, ReservationId::new(op_id), is_retry, started_at)
        })
        .await
    }

    /// Reserves under an id that an earlier request with the same key may have begun with (`is_retry`).
    async fn reserve_once(
        &self,
        command: Reserve,
        reservation_id: ReservationId,
        is_retry: bool,
        started_at: Option<Instant>,
    ) -> Result<Reservation> {
        let Reserve { geo_zone, lines, expires_at, now, identity, .. } = command;
        let is_keyed = identity.is_some();
        let earlier = if is_retry { self.reservation_row(reservation_id).await? } else { None };
        let reservation = match earlier {
            // The earlier request was refused and crashed before it released the key; this one releases it.
            Some(ReservationRow::Void) => {
                return Err(self.out_of_stock(&geo_zone, &lines, Vec::new(), now).await?);
            }
            Some(ReservationRow::Reserved(begun)) => begun,
            None => {
                self.refuse_likely_shortages(&geo_zone, &lines, now).await?;
                Reservation {
                    reservation_id,
                    geo_zone,
                    lines,
                    status: ReservationStatus::Held,
                    created_at: now,
                    expires_at,
                }
            }
        };
        let shortages = if is_keyed {
            // The row comes before the holds, because a second request must hold until the same moment.
            self.write_row_and_timer(&reservation, now).await?;
            // A crash here, or between two holds, leaves the row, the timer and some holds. A second request with the
            // key holds the rest; without one the timer releases them when the reservation expires.
            self.hold_reservation(&reservation, started_at, now).await?
        } else {
            self.write_and_hold(&reservation, started_at, now).await?
        };
        if shortages.is_empty() {
            // A crash here leaves a whole reservation that no client knows; the timer ends it.
            return Ok(reservation);
        }
        // A crash here leaves the holds of the lines that were met, as after a crash between two holds.
        self.abort_reservation(&reservation, is_keyed, now).await?;
        Err(self.out_of_stock(&reservation.geo_zone, &reservation.lines, shortages, now).await?)
    }

    /// Writes the row and its timer at the same time. A crash in between leaves one of the two: a timer without a row
    /// fires for nothing; a row without a timer reads as expired in time, and its holds, if there are any, are
    /// released as expired holds of their products.
    async fn write_row_and_timer(&self, reservation: &Reservation, now: Timestamp) -> Result<()> {
        let (expires_at, id) = (reservation.expires_at, reservation.reservation_id);
        let target = (time_bucket_of(id), id.uuid());
        let (row, timer) = tokio::join!(
            self.write_reservation_row(reservation, now),
            self.timers.add(&self.cql, TimerQueue::Hold, expires_at, target, now),
        );
        row.and(timer).map_err(StoreError::before_first_effect)
    }

    /// Holds the units while the row is written: without a key no second request needs the row.
    async fn write_and_hold(
        &self,
        reservation: &Reservation,
        started_at: Option<Instant>,
        now: Timestamp,
    ) -> Result<Vec<Shortage>> {
        // A crash here leaves holds without a row or a timer. The ledger has their end: readers subtract them from
        // then on, and the next command on the product releases them.
        let (written, held) = tokio::join!(
            self.write_row_and_timer(reservation, now),
            self.hold_reservation(reservation, started_at, now)
        );
        let (Err(error), Ok(_)) = (&written, &held) else { return held };
        // A crash here leaves the same holds without a row.
        let owner = HoldOwner::reservation(reservation);
        self.advance_lines(owner, reservation.lines.iter(), Transition::Release, now).await.map_err(
            |failed| {
                StoreError::Ambiguous(format!("release units: {failed}; they stay held until they expire"))
            },
        )?;
        Err(error.clone())
    }

    async fn hold_reservation(
        &self,
        reservation: &Reservation,
        started_at: Option<Instant>,
        now: Timestamp,
    ) -> Result<Vec<Shortage>> {
        let owner = HoldOwner::reservation(reservation);
        let holds = reservation.lines.iter().map(|line| self.hold_line(owner, line, started_at, now));
        let holds: Vec<LineHold> =
            stream::iter(holds.collect::<Vec<_>>()).buffered(CONCURRENT_LINES).try_collect().await?;
        let shortage = |hold| match hold {
            LineHold::Held => None,
            LineHold::Short(shortage) | LineHold::Void(shortage) => Some(shortage),
        };
        Ok(holds.into_iter().filter_map(shortage).collect())
    }

    /// Releases what was held of a reservation that did not get all its units.
    async fn abort_reservation(
        &self,
        reservation: &Reservation,
        is_keyed: bool,
        now: Timestamp,
    ) -> Result<()> {
        if reservation.lines.len() > 1 || is_keyed {
            // A second request with the key may be holding the same lines in another process: void rows stop it.
            let transition = if is_keyed { Transition::ReleaseOrVoid } else { Transition::Release };
            let owner = HoldOwner::reservation(reservation);
            // A crash between two releases leaves the other holds until they expire; the timer releases them.
            self.advance_lines(owner, reservation.lines.iter(), transition, now).await?;
        }
        // A crash here leaves a row that still reads as held, without units. No client knows its id; the timer ends
        // it.
        self.write_reservation_status(reservation, StoredStatus::Void, now).await
    }
}
