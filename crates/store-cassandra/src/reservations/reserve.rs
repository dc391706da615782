//! Reserving units: the row and the timer, then the holds, or all at once where no key can repeat the request.
//!
//! What can be written only once decides, as for an order: the hold of a line is held or void. If all lines are held,
//! the reservation exists; if one is void, it never will, and the others are released. So the same request at two
//! processes, and recovery, come to the same end. An intent precedes the holds of several lines; a single line is decided
//! by one conditional batch, and its intent stays in memory ([`CassandraStore::recover_reserve`]).

use std::time::Instant;

use futures_util::{StreamExt, stream};
use mw_codec::intents::reserve::{self as reserve_intent, ReserveIntent};
use mw_domain::{Reservation, ReservationId, ReservationStatus, Shortage, Timestamp};
use mw_store::stock::Reserve;
use mw_store::{Done, Result, StoreError};

use super::rows::{ReservationRow, StoredStatus, time_bucket_of};
use crate::CassandraStore;
use crate::recovery::intents::Kind;
use crate::recovery::timers::TimerQueue;
use crate::stock::CONCURRENT_LINES;
use crate::stock::decision::Decision;
use crate::stock::holds::{HoldOwner, LineHold};
use crate::stock::ledger::{LedgerState, Transition};

impl CassandraStore {
    pub(crate) async fn reserve_units(&self, mut command: Reserve) -> Result<Done<Reservation>> {
        command.reservation_id = self.available_reservation_id(command.reservation_id);
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
        let status = ReservationStatus::Held;
        let earlier = if is_retry { self.reservation_row(reservation_id).await? } else { None };
        let reservation = match earlier {
            // The earlier request was refused and crashed before it released the key; this one releases it.
            Some(ReservationRow::Void) => {
                return Err(self.out_of_stock(&geo_zone, &lines, Vec::new(), now).await?);
            }
            // The reservation has ended since; its holds may be compacted. The response is that of the first request.
            Some(ReservationRow::Reserved(begun)) if begun.status != status => {
                return Ok(Reservation { status, ..begun });
            }
            Some(ReservationRow::Reserved(begun)) => begun,
            None => {
                self.refuse_likely_shortages(&geo_zone, &lines, now).await?;
                Reservation { reservation_id, geo_zone, lines, status, created_at: now, expires_at }
            }
        };
        let draft = ReserveIntent { reservation, identity };
        let payload = reserve_intent::encode(&draft);
        let intent = self.begin_intent(Kind::Reserve, draft.reservation.lines.len(), payload).await?;
        // A crash here leaves only the intent. Recovery holds the lines of a request with a key, as its repetition would,
        // and voids those of a request without one.
        let shortages = self.hold_or_abort(&draft, started_at, now).await;
        let shortages = self.report_held(&draft.reservation, shortages).await;
        let shortages = shortages.map_err(|error| if is_retry { error.after_first_effect() } else { error });
        let shortages = self.end_intent(intent, shortages)?;
        let ReserveIntent { reservation, .. } = draft;
        if shortages.is_empty() {
            // A crash here leaves a whole reservation that no client knows; the timer ends it.
            return Ok(reservation);
        }
        Err(self.out_of_stock(&reservation.geo_zone, &reservation.lines, shortages, now).await?)
    }

    /// Reports the stock of a reservation, unless no unit of it was ever held. A crash before it leaves an intent, or a hold
    /// that no client knows: recovery, or the timer, changes the stock again and reports it.
    async fn report_held(
        &self,
        reservation: &Reservation,
        shortages: Result<Vec<Shortage>>,
    ) -> Result<Vec<Shortage>> {
        let shortages = shortages?;
        if shortages.len() < reservation.lines.len() {
            self.report_lines(reservation).await?;
        }
        Ok(shortages)
    }

    /// Reports the stock of every line of a reservation.
    pub(super) async fn report_lines(&self, reservation: &Reservation) -> Result<()> {
        let products = reservation.lines.iter().map(|line| &line.product_id);
        self.report_stock(products, &reservation.geo_zone).await
    }

    /// Holds every line, or none; the shortages are those of a reservation that will never exist. `Unavailable` where
    /// certainly nothing is held.
    async fn hold_or_abort(
        &self,
        draft: &ReserveIntent,
        started_at: Option<Instant>,
        now: Timestamp,
    ) -> Result<Vec<Shortage>> {
        let ReserveIntent { reservation, identity } = draft;
        if identity.is_none() {
            return self.write_and_hold(reservation, started_at, now).await;
        }
        // The row comes before the holds, because a second request must hold until the same moment.
        self.write_row_and_timer(reservation, now).await?;
        // A crash here, or between two holds, leaves the row, the timer and some holds. A second request with the key
        // holds the rest, and so does recovery.
        let shortages = self.hold_or_void_lines(reservation, started_at, now).await?;
        if !shortages.is_empty() {
            // A crash here leaves a void line, so the reservation can never exist. Recovery, or a second request, finds
            // it and releases the others.
            let aborted = self.abort_reservation(reservation, Transition::ReleaseOrVoid, now).await;
            aborted.map_err(StoreError::after_first_effect)?;
        }
        Ok(shortages)
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
        // A crash here leaves holds without a row or a timer. Recovery finds the intent of several lines and releases
        // them. Of a single line the ledger has the end: readers subtract it from then on, and the next command on the
        // product releases it.
        let (written, held) = tokio::join!(
            self.write_row_and_timer(reservation, now),
            self.hold_lines(reservation, started_at, now)
        );
        let shortages = held?;
        if written.is_err() || (!shortages.is_empty() && reservation.lines.len() > 1) {
            // A crash between two releases leaves the other holds: recovery finds the void or short line.
            let owner = HoldOwner::reservation(reservation);
            let released =
                self.advance_lines(owner, reservation.lines.iter(), Transition::Release, now).await;
            released.map_err(StoreError::after_first_effect)?;
        }
        if let Err(error) = written {
            if shortages.len() < reservation.lines.len() {
                self.report_lines(reservation).await?;
            }
            return Err(error);
        }
        if !shortages.is_empty() {
            // A crash here leaves a row that still reads as held, without units. No client knows its id; the timer ends
            // it.
            self.write_reservation_status(reservation, StoredStatus::Void, now)
                .await
                .map_err(StoreError::before_first_effect)?;
        }
        Ok(shortages)
    }

    async fn hold_lines(
        &self,
        reservation: &Reservation,
        started_at: Option<Instant>,
        now: Timestamp,
    ) -> Result<Vec<Shortage>> {
        let owner = HoldOwner::reservation(reservation);
        let holds = reservation.lines.iter().map(|line| async move {
            Ok(match self.hold_line(owner, line, started_at, now).await? {
                LineHold::Held => None,
                LineHold::Short(shortage) | LineHold::Void(shortage) => Some(shortage),
            })
        });
        shortages(stream::iter(holds.collect::<Vec<_>>()).buffered(CONCURRENT_LINES).collect().await)
    }

    /// Holds or voids every line, so that another process which does the same comes to the same end.
    async fn hold_or_void_lines(
        &self,
        reservation: &Reservation,
        started_at: Option<Instant>,
        now: Timestamp,
    ) -> Result<Vec<Shortage>> {
        let owner = HoldOwner::reservation(reservation);
        let holds = reservation.lines.iter().map(|line| self.hold_or_void(owner, line, started_at, now));
        shortages(stream::iter(holds.collect::<Vec<_>>()).buffered(CONCURRENT_LINES).collect().await)
    }

    /// Releases every line of a reservation that will never exist.
    async fn abort_reservation(
        &self,
        reservation: &Reservation,
        transition: Transition,
        now: Timestamp,
    ) -> Result<()> {
        let owner = HoldOwner::reservation(reservation);
        // A crash between two releases leaves the other holds: recovery finds the void line and releases them.
        self.advance_lines(owner, reservation.lines.iter(), transition, now).await?;
        // A crash here leaves a row that still reads as held, without units. No client knows its id; the timer ends
        // it.
        self.write_reservation_status(reservation, StoredStatus::Void, now).await
    }

    /// Finishes or undoes a reservation whose process crashed or failed. A request with a key is finished, because its
    /// client repeats it, or undone where a line is short. Without a key the client will never know the id: what failed in
    /// this process (`is_own`) is undone. Another process may have been slow only, and may have acknowledged a
    /// reservation whose lines are all held: that one stays. A crash of the recovering process leaves the intent; the next
    /// one starts again here.
    pub(crate) async fn recover_reserve(&self, payload: &[u8], is_own: bool) -> Result<()> {
        let ReserveIntent { reservation, identity } = reserve_intent::decode(payload)?;
        let now = reservation.created_at;
        let is_held = |row: &ReservationRow| match row {
            ReservationRow::Reserved(stored) => stored.status == ReservationStatus::Held,
            ReservationRow::Void => false,
        };
        if self.reservation_row(reservation.reservation_id).await?.is_some_and(|row| !is_held(&row)) {
            // The status is the last write of a reservation that was aborted or closed.
            return Ok(());
        }
        let is_void = if identity.is_some() {
            !self.hold_or_void_lines(&reservation, None, now).await?.is_empty()
        } else {
            is_own || self.void_missing_lines(&reservation, now).await?
        };
        if !is_void {
            // A crash here leaves all lines held, maybe without a row: recovery comes here again.
            self.write_row_and_timer(&reservation, now).await?;
            return self.report_lines(&reservation).await;
        }
        self.abort_reservation(&reservation, Transition::ReleaseOrVoid, now).await?;
        // A crash here leaves the stock without its row in the feed: the next process finds the void row, and the next change of
        // the stock reports it.
        self.report_lines(&reservation).await?;
        // A crash here leaves the key claimed by a void reservation: a second request is refused once and releases it.
        match &identity {
            Some(identity) => {
                self.claims.release(&self.cql, identity, reservation.reservation_id.uuid()).await
            }
            None => Ok(()),
        }
    }

    /// Voids the lines that are not held; returns whether there are any.
    async fn void_missing_lines(&self, reservation: &Reservation, now: Timestamp) -> Result<bool> {
        let owner = HoldOwner::reservation(reservation);
        let mut is_void = false;
        for line in &reservation.lines {
            // A crash between two lines leaves the same decision to the next process: a void line stays void.
            let decision = self.advance_line(owner, line, Transition::VoidIfAbsent, now).await?;
            is_void |= matches!(decision, Decision::Done { state: Some(LedgerState::Void), .. });
        }
        Ok(is_void)
    }
}

/// The shortages among the results of all lines. A failure is certain only where no line can be held.
fn shortages(results: Vec<Result<Option<Shortage>>>) -> Result<Vec<Shortage>> {
    let may_be_held = results.iter().any(|result| matches!(result, Ok(None)));
    let mut shortages = Vec::new();
    let mut failure: Option<StoreError> = None;
    for result in results {
        match result {
            Ok(shortage) => shortages.extend(shortage),
            // An ambiguous failure of one line outweighs a certain one of another.
            Err(error @ StoreError::Ambiguous(_)) => failure = Some(error),
            Err(error) => failure = Some(failure.unwrap_or(error)),
        }
    }
    match failure {
        None => Ok(shortages),
        Some(error) if may_be_held => Err(error.after_first_effect()),
        Some(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use mw_domain::ProductId;

    use super::*;

    #[test]
    fn a_failure_is_certain_only_where_no_line_is_held() {
        let unavailable = || Err(StoreError::Unavailable("u".to_owned()));
        let ambiguous = || Err(StoreError::Ambiguous("a".to_owned()));
        let short = || {
            let product_id = ProductId::parse("p").unwrap();
            Ok(Some(Shortage { product_id, requested: 2, available: 1 }))
        };
        let is_ambiguous = |results| matches!(shortages(results), Err(StoreError::Ambiguous(_)));
        assert!(!is_ambiguous(vec![unavailable(), short(), Err(StoreError::Overloaded)]));
        assert!(is_ambiguous(vec![Ok(None), unavailable()]));
        assert!(is_ambiguous(vec![unavailable(), Ok(None)]));
        assert!(is_ambiguous(vec![unavailable(), ambiguous(), unavailable()]));
        assert_eq!(shortages(vec![Ok(None), short(), Ok(None)]).unwrap().len(), 1);
    }
}
