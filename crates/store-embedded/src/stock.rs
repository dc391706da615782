//! Stock: figures, the ledger of every movement, and reservations.
//!
//! A hold past its time is settled by the writer before it decides about units. Readers subtract the holds that have
//! ended and are not settled yet; the writer tells them from when on there can be any.

use std::collections::HashMap;
use std::ops::ControlFlow;

use async_trait::async_trait;
use mw_domain::limits::{InvalidField, ON_HAND_MAX};
use mw_domain::stock::{Cause, Delta};
use mw_domain::{
    Demand, GeoZone, Level, Movement, ProductId, Reservation, ReservationId, ReservationStatus, Shortage,
    Timestamp, ZoneStock,
};
use mw_store::stock::{Adjust, Audit, Reserve, SetOnHand, Stock};
use mw_store::{Done, Freshness, Once, Refusal, Result, StoreError};
use uuid::Uuid;

use crate::keys;
use crate::once;
use crate::shelf::Shelf;
use crate::tables::Table;
use crate::tx::Tx;
use crate::view::{Look, Span, View};
use crate::{EmbeddedStore, audit, products};

/// Holds settled in one step.
const SETTLE_STEP: usize = 1_000;

#[async_trait]
impl Stock for EmbeddedStore {
    async fn zone_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        _: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        let key = keys::stock(product_id, geo_zone);
        let Some((level, updated_at)) = self.figures(now)?.of(&key)? else { return Ok(None) };
        Ok(Some(ZoneStock { product_id: product_id.clone(), geo_zone: geo_zone.clone(), level, updated_at }))
    }

    async fn product_stock(
        &self,
        product_id: &ProductId,
        _: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>> {
        let (expired, view) = self.view_with_expired_holds(now)?;
        let mut zones = Vec::new();
        view.scan(Table::Stock, &Span::prefix(keys::zones(product_id)), false, &mut |key, value| {
            let (product_id, geo_zone) = keys::read_stock(key)?;
            let (level, updated_at) = read_level(&expired, key, value)?;
            zones.push(ZoneStock { product_id, geo_zone, level, updated_at });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(zones)
    }

    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
        self.write(command.now, move |tx| {
            let SetOnHand { product_id, geo_zone, on_hand, expected_on_hand, op, now } = command;
            check_product(tx, &product_id)?;
            settle_due(tx, now)?;
            let current = zone(tx, &product_id, &geo_zone, now)?;
            if expected_on_hand.is_some_and(|expected| expected != current.level.on_hand) {
                return Err(Refusal::StockChanged { current }.into());
            }
            set(tx, &product_id, &geo_zone, on_hand, op, now)
        })
        .await
    }

    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
        self.write(command.now, move |tx| {
            let Adjust { product_id, geo_zone, delta, reason, op, now, once } = command;
            once::run(tx, once, now, |tx| {
                check_product(tx, &product_id)?;
                settle_due(tx, now)?;
                let level = level(tx, &product_id, &geo_zone)?.unwrap_or_default();
                if level.on_hand.checked_add_signed(delta).is_some_and(|sum| sum > ON_HAND_MAX) {
                    let detail = format!("at most {ON_HAND_MAX} units can be on hand");
                    return Err(InvalidField::new("delta", detail).into());
                }
                let delta = Delta { on_hand: delta, reserved: 0 };
                let movement = Movement { at: now, op, cause: Cause::Adjust, delta, note: Some(reason) };
                apply(tx, &product_id, &geo_zone, &movement)
            })
        })
        .await
    }

    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        self.write(command.now, move |tx| {
            let once = command.once.clone();
            once::run(tx, once, command.now, |tx| reserve(tx, command))
        })
        .await
    }

    async fn reservation(&self, id: ReservationId, now: Timestamp) -> Result<Option<Reservation>> {
        let found = read_reservation(&self.view(), id, now)?;
        Ok(found.map(|mut reservation| {
            reservation.status = reservation.status_at(now);
            reservation
        }))
    }

    async fn confirm(
        &self,
        id: ReservationId,
        now: Timestamp,
        once: Option<Once>,
    ) -> Result<Done<Reservation>> {
        self.write(now, move |tx| {
            once::run(tx, once, now, |tx| close(tx, id, ReservationStatus::Confirmed, now))
        })
        .await
    }

    async fn release(&self, id: ReservationId, now: Timestamp) -> Result<()> {
        self.write(now, move |tx| close(tx, id, ReservationStatus::Released, now).map(drop)).await
    }

    async fn settle_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        if now < self.progress.hold_due() {
            return Ok(0);
        }
        self.write(now, move |tx| settle(tx, now, limit)).await
    }

    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        audit::run(&self.view(), progress)
    }
}

/// Units that holds have, by stock row.
pub(crate) type HeldUnits = HashMap<Vec<u8>, u64>;

/// The units of open holds that end from `from` on, up to and with `now`.
pub(crate) fn held_units(look: &dyn Look, from: Timestamp, now: Timestamp) -> Result<HeldUnits> {
    let mut expired = HeldUnits::new();
    for (_, id) in due(look, Table::HoldsDue, from, now, usize::MAX)? {
        let Some(reservation) = held(look, id)? else { continue };
        for line in reservation.lines {
            *expired.entry(keys::stock(&line.product_id, &reservation.geo_zone)).or_default() +=
                u64::from(line.quantity);
        }
    }
    Ok(expired)
}

fn read_level(expired: &HeldUnits, key: &[u8], row: &[u8]) -> Result<(Level, Timestamp)> {
    let (mut level, updated_at) = mw_codec::stock::decode_level(row)?;
    if !expired.is_empty() {
        let ended = expired.get(key).copied().unwrap_or_default();
        level.reserved = level.reserved.saturating_sub(ended);
    }
    Ok((level, updated_at))
}

/// Where the figures of stock are read.
pub(crate) enum Figures<'a> {
    /// No hold is over that is still counted.
    Shelf(&'a Shelf),
    /// The state of one moment, with the units of holds that are over and still counted as reserved in it.
    View { view: View, expired: HeldUnits },
}

impl Figures<'_> {
    /// The figures at the place of a key, and when they changed.
    pub(crate) fn of(&self, key: &[u8]) -> Result<Option<(Level, Timestamp)>> {
        match self {
            Self::Shelf(ready) => ready.figures(key),
            Self::View { view, expired } => {
                view.get(Table::Stock, key)?.map(|row| read_level(expired, key, &row)).transpose()
            }
        }
    }

    /// What is available there; an unknown place has nothing.
    pub(crate) fn available(&self, key: &[u8]) -> Result<u64> {
        Ok(self.of(key)?.map_or(0, |(level, _)| level.available()))
    }
}

/// The figures of a zone; one without stock has nothing, as of now.
fn zone(look: &dyn Look, product_id: &ProductId, geo_zone: &GeoZone, now: Timestamp) -> Result<ZoneStock> {
    let row = look.get(Table::Stock, &keys::stock(product_id, geo_zone))?;
    let (level, updated_at) = match row {
        Some(row) => mw_codec::stock::decode_level(&row)?,
        None => (Level::default(), now),
    };
    Ok(ZoneStock { product_id: product_id.clone(), geo_zone: geo_zone.clone(), level, updated_at })
}

pub(crate) fn level(look: &dyn Look, product_id: &ProductId, geo_zone: &GeoZone) -> Result<Option<Level>> {
    let row = look.get(Table::Stock, &keys::stock(product_id, geo_zone))?;
    Ok(row.map(|row| mw_codec::stock::decode_level(&row)).transpose()?.map(|(level, _)| level))
}

fn check_product(look: &dyn Look, product_id: &ProductId) -> Result<()> {
    if products::exists(look, product_id)? {
        Ok(())
    } else {
        Err(Refusal::ProductNotFound(product_id.clone()).into())
    }
}

/// Moves units and writes the ledger; refused where fewer would be left than are reserved.
pub(crate) fn apply(
    tx: &mut Tx,
    product_id: &ProductId,
    geo_zone: &GeoZone,
    movement: &Movement,
) -> Result<ZoneStock> {
    let mut stock = zone(tx, product_id, geo_zone, movement.at)?;
    let Ok(level) = stock.level.moved(movement.delta) else {
        return Err(Refusal::StockBelowReserved { current: stock }.into());
    };
    stock.level = level;
    stock.updated_at = stock.updated_at.max(movement.at);
    let value = mw_codec::stock::encode_level(level, stock.updated_at);
    tx.put(Table::Stock, keys::stock(product_id, geo_zone), value);
    record(tx, product_id, geo_zone, movement);
    Ok(stock)
}

pub(crate) fn record(tx: &mut Tx, product_id: &ProductId, geo_zone: &GeoZone, movement: &Movement) {
    let key = keys::movement(product_id, geo_zone, movement.at, &movement.op, movement.cause);
    tx.put(Table::Ledger, key, mw_codec::stock::encode_movement(movement));
}

/// Sets the units on hand, as a movement by the difference.
pub(crate) fn set(
    tx: &mut Tx,
    product_id: &ProductId,
    geo_zone: &GeoZone,
    on_hand: u64,
    op: Uuid,
    now: Timestamp,
) -> Result<ZoneStock> {
    let level = level(tx, product_id, geo_zone)?.unwrap_or_default();
    let delta = Delta { on_hand: on_hand.cast_signed() - level.on_hand.cast_signed(), reserved: 0 };
    apply(tx, product_id, geo_zone, &Movement { at: now, op, cause: Cause::Set, delta, note: None })
}

/// Moves the units of every line for one reason.
pub(crate) fn move_lines<'a>(
    tx: &mut Tx,
    geo_zone: &GeoZone,
    lines: impl Iterator<Item = (&'a ProductId, u32)>,
    cause: Cause,
    op: Uuid,
    now: Timestamp,
) -> Result<()> {
    for (product_id, quantity) in lines {
        let movement = Movement { at: now, op, cause, delta: cause.delta(quantity), note: None };
        apply(tx, product_id, geo_zone, &movement)?;
    }
    Ok(())
}

/// What a product that is not in the catalogue has in a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// Nothing, whatever its figures say.
    HasNothing,
    /// The caller has seen every product in the catalogue.
    IsRuledOut,
}

/// Refuses demands that the zone cannot meet, all shortages at once.
pub(crate) fn check_demands<'a>(
    look: &dyn Look,
    geo_zone: &GeoZone,
    lines: impl Iterator<Item = (&'a ProductId, u32)>,
    unknown: Unknown,
) -> Result<()> {
    let mut shortages = Vec::new();
    for (product_id, requested) in lines {
        let mut available = level(look, product_id, geo_zone)?.unwrap_or_default().available();
        if unknown == Unknown::HasNothing && available > 0 && !products::exists(look, product_id)? {
            available = 0;
        }
        if available < u64::from(requested) {
            shortages.push(Shortage { product_id: product_id.clone(), requested, available });
        }
    }
    if shortages.is_empty() { Ok(()) } else { Err(Refusal::OutOfStock(shortages).into()) }
}

fn demands(lines: &[Demand]) -> impl Iterator<Item = (&ProductId, u32)> {
    lines.iter().map(|line| (&line.product_id, line.quantity))
}

fn reserve(tx: &mut Tx, command: Reserve) -> Result<Reservation> {
    let Reserve { reservation_id, geo_zone, lines, expires_at, now, .. } = command;
    settle_due(tx, now)?;
    check_demands(tx, &geo_zone, demands(&lines), Unknown::HasNothing)?;
    move_lines(tx, &geo_zone, demands(&lines), Cause::Hold, reservation_id.uuid(), now)?;
    let reservation = Reservation {
        reservation_id,
        geo_zone,
        lines,
        status: ReservationStatus::Held,
        created_at: now,
        expires_at,
    };
    save_reservation(tx, &reservation);
    Ok(reservation)
}

/// Writes a reservation, and while it is held its place among those that will end.
pub(crate) fn save_reservation(tx: &mut Tx, reservation: &Reservation) {
    let due = keys::due(reservation.expires_at, reservation.reservation_id.as_bytes());
    let keep_until = if reservation.status == ReservationStatus::Held {
        tx.put(Table::HoldsDue, due, Vec::new());
        tx.due.hold = tx.due.hold.min(reservation.expires_at);
        Timestamp::MAX
    } else {
        tx.remove(Table::HoldsDue, due);
        reservation.forgotten_at()
    };
    let value = mw_codec::stock::encode_reservation(reservation, keep_until);
    tx.put(Table::Reservations, keys::reservation(reservation.reservation_id), value);
}

fn read_reservation(look: &dyn Look, id: ReservationId, now: Timestamp) -> Result<Option<Reservation>> {
    let Some(row) = look.get(Table::Reservations, &keys::reservation(id))? else {
        return Ok(None);
    };
    let (reservation, _) = mw_codec::stock::decode_reservation(&row)?;
    Ok((now < reservation.forgotten_at()).then_some(reservation))
}

/// The open hold behind a row of holds that will end.
pub(crate) fn held(look: &dyn Look, id: [u8; 16]) -> Result<Option<Reservation>> {
    let row = look.get(Table::Reservations, &id)?;
    let found = row.map(|row| mw_codec::stock::decode_reservation(&row)).transpose()?;
    Ok(found.map(|(reservation, _)| reservation).filter(|found| found.status == ReservationStatus::Held))
}

fn close(tx: &mut Tx, id: ReservationId, to: ReservationStatus, now: Timestamp) -> Result<Reservation> {
    let mut reservation = read_reservation(tx, id, now)?.ok_or(Refusal::ReservationNotFound)?;
    match reservation.status_at(now) {
        status if status == to => return Ok(reservation),
        ReservationStatus::Held => {}
        status => return Err(Refusal::ReservationClosed { status }.into()),
    }
    end(tx, &mut reservation, to, now)?;
    Ok(reservation)
}

/// Ends a hold: its units leave if it was confirmed, and are available again otherwise.
fn end(tx: &mut Tx, reservation: &mut Reservation, to: ReservationStatus, now: Timestamp) -> Result<()> {
    let cause = if to == ReservationStatus::Confirmed { Cause::Take } else { Cause::Release };
    let op = reservation.reservation_id.uuid();
    move_lines(tx, &reservation.geo_zone, demands(&reservation.lines), cause, op, now)?;
    reservation.status = to;
    save_reservation(tx, reservation);
    Ok(())
}

/// Settles every hold that ended by `now`. What is settled stays so, also if the running command is refused after it.
pub(crate) fn settle_due(tx: &mut Tx, now: Timestamp) -> Result<()> {
    while tx.due.hold <= now {
        settle(tx, now, SETTLE_STEP)?;
        tx.keep();
    }
    Ok(())
}

/// Settles up to `limit` holds that ended by `now`; answers how many.
fn settle(tx: &mut Tx, now: Timestamp, limit: usize) -> Result<usize> {
    let due = due(tx, Table::HoldsDue, tx.due.hold, now, limit)?;
    for (expires_at, id) in &due {
        let Some(mut reservation) = held(tx, *id)? else {
            tx.remove(Table::HoldsDue, keys::due(*expires_at, id));
            continue;
        };
        let settled = tx.attempt(|tx| end(tx, &mut reservation, ReservationStatus::Expired, now));
        if let Err(error) = settled {
            if matches!(error, StoreError::Unavailable(_)) {
                return Err(error);
            }
            // One hold that the figures do not explain must not stop the sale of everything; the audit tells of it.
            tracing::error!(hold = %reservation.reservation_id, %error, "give back the units of a hold that ended");
            reservation.status = ReservationStatus::Expired;
            save_reservation(tx, &reservation);
        }
    }
    tx.due.hold = first_due(tx, Table::HoldsDue, tx.due.hold)?;
    Ok(due.len())
}

/// What a table of due things has from `from` up to and with `now`.
pub(crate) fn due(
    look: &dyn Look,
    table: Table,
    from: Timestamp,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(Timestamp, [u8; 16])>> {
    let mut found = Vec::new();
    let span = Span { from: keys::due_from(from), to: Some(keys::due_from(now.plus_millis(1))) };
    look.scan(table, &span, false, &mut |key, _| {
        if found.len() == limit {
            return Ok(ControlFlow::Break(()));
        }
        found.push(keys::read_due(key)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// When the first thing from `from` on is due; the end of time where there is none.
pub(crate) fn first_due(look: &dyn Look, table: Table, from: Timestamp) -> Result<Timestamp> {
    let first = due(look, table, from, Timestamp::MAX, 1)?;
    Ok(first.first().map_or(Timestamp::MAX, |(at, _)| *at))
}
