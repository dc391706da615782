//! Stock: levels, the ledger of all movements, and reservations.
//!
//! Invariants: level and ledger row of a movement are written in one batch, and so are a hold and its timer; a crash leaves
//! all or none. The writer expires due holds before it decides about units. Readers subtract holds that have ended and are not
//! expired yet; [`crate::writer::WriterStatus`] has the lower bound from which on there can be any.

use std::collections::HashMap;
use std::ops::ControlFlow;

use async_trait::async_trait;
use mw_domain::stock::Cause;
use mw_domain::{
    Demand, GeoZone, Level, Movement, ProductId, Reservation, ReservationId, ReservationStatus, Shortage,
    Timestamp, ZoneStock,
};
use mw_store::stock::{Adjust, Audit, Reserve, SetOnHand, Stock, adjust_delta, set_delta};
use mw_store::{Done, Freshness, Refusal, RequestIdentity, Result, StoreError};
use uuid::Uuid;

use crate::cache::{ReadCache, StoredLevel};
use crate::idempotency;
use crate::keys;
use crate::reader::{KeyRange, Reader, SnapshotReader};
use crate::tables::Table;
use crate::tx::Tx;
use crate::{EmbeddedStore, audit, products, timers};

/// Holds that a command expires before it makes them final.
const EXPIRE_BATCH: usize = 1_000;

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
        let Some((level, updated_at)) = self.levels(now)?.level(&key)? else { return Ok(None) };
        Ok(Some(ZoneStock { product_id: product_id.clone(), geo_zone: geo_zone.clone(), level, updated_at }))
    }

    async fn product_stock(
        &self,
        product_id: &ProductId,
        _: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>> {
        let (expired, snapshot) = self.snapshot_with_expired_holds(now)?;
        let mut zones = Vec::new();
        snapshot.scan(
            Table::Stock,
            &KeyRange::prefix(keys::zones(product_id)),
            false,
            &mut |key, value| {
                let (product_id, geo_zone) = keys::read_stock(key)?;
                let (level, updated_at) = read_level(&expired, key, value)?;
                zones.push(ZoneStock { product_id, geo_zone, level, updated_at });
                Ok(ControlFlow::Continue(()))
            },
        )?;
        Ok(zones)
    }

    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
        self.write(command.now, move |tx| {
            let SetOnHand { product_id, geo_zone, on_hand, expected_on_hand, op, now } = command;
            check_product(tx, &product_id)?;
            expire_due_holds(tx, now)?;
            let delta = set_delta(&zone(tx, &product_id, &geo_zone, now)?, on_hand, expected_on_hand)?;
            let movement = Movement { at: now, op, cause: Cause::Set, delta, note: None };
            apply(tx, &product_id, &geo_zone, &movement)
        })
        .await
    }

    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
        self.write(command.now, move |tx| {
            let Adjust { product_id, geo_zone, delta, reason, op, now, identity } = command;
            idempotency::run(tx, identity, now, |tx| {
                check_product(tx, &product_id)?;
                expire_due_holds(tx, now)?;
                let delta = adjust_delta(&zone(tx, &product_id, &geo_zone, now)?, delta)?;
                let movement = Movement { at: now, op, cause: Cause::Adjust, delta, note: Some(reason) };
                apply(tx, &product_id, &geo_zone, &movement)
            })
        })
        .await
    }

    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        self.write(command.now, move |tx| {
            let identity = command.identity.clone();
            idempotency::run(tx, identity, command.now, |tx| reserve(tx, command))
        })
        .await
    }

    async fn reservation(&self, id: ReservationId, now: Timestamp) -> Result<Option<Reservation>> {
        let found = read_reservation(&self.snapshot(), id, now)?;
        Ok(found.map(|mut reservation| {
            reservation.status = reservation.status_at(now);
            reservation
        }))
    }

    async fn confirm(
        &self,
        id: ReservationId,
        now: Timestamp,
        identity: Option<RequestIdentity>,
    ) -> Result<Done<Reservation>> {
        self.write(now, move |tx| {
            idempotency::run(tx, identity, now, |tx| close(tx, id, ReservationStatus::Confirmed, now))
        })
        .await
    }

    async fn release(&self, id: ReservationId, now: Timestamp) -> Result<()> {
        self.write(now, move |tx| close(tx, id, ReservationStatus::Released, now).map(drop)).await
    }

    async fn expire_reservations(&self, now: Timestamp, limit: usize) -> Result<usize> {
        if now < self.status.next_hold_timer() {
            return Ok(0);
        }
        self.write(now, move |tx| expire_holds(tx, now, limit)).await
    }

    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        audit::run(&self.snapshot(), progress)
    }
}

/// Units of holds, by stock key.
pub(crate) type HeldUnits = HashMap<Vec<u8>, u64>;

/// The units of open holds that end from `from` up to and including `now`.
pub(crate) fn held_units(reader: &dyn Reader, from: Timestamp, now: Timestamp) -> Result<HeldUnits> {
    let mut units = HeldUnits::new();
    for (_, id) in timers::due(reader, Table::HoldTimers, from, now, usize::MAX)? {
        let Some(reservation) = held(reader, id)? else { continue };
        for line in reservation.lines {
            *units.entry(keys::stock(&line.product_id, &reservation.geo_zone)).or_default() +=
                u64::from(line.quantity);
        }
    }
    Ok(units)
}

/// Decodes a level without the units of expired holds.
fn read_level(expired: &HeldUnits, key: &[u8], row: &[u8]) -> Result<StoredLevel> {
    let (mut level, updated_at) = mw_codec::stock::decode_level(row)?;
    if !expired.is_empty() {
        let expired = expired.get(key).copied().unwrap_or_default();
        level.reserved = level.reserved.saturating_sub(expired);
    }
    Ok((level, updated_at))
}

/// Where a request reads stock levels.
pub(crate) enum LevelSource<'a> {
    /// No hold has ended that is still counted.
    Cache(&'a ReadCache),
    /// A snapshot, and the units in it of holds that have ended and are still counted as reserved.
    Snapshot { snapshot: SnapshotReader, expired: HeldUnits },
}

impl LevelSource<'_> {
    pub(crate) fn level(&self, key: &[u8]) -> Result<Option<StoredLevel>> {
        match self {
            Self::Cache(cache) => cache.level(key),
            Self::Snapshot { snapshot, expired } => {
                snapshot.get(Table::Stock, key)?.map(|row| read_level(expired, key, &row)).transpose()
            }
        }
    }

    /// The available units; none without a stored level.
    pub(crate) fn available(&self, key: &[u8]) -> Result<u64> {
        Ok(self.level(key)?.map_or(0, |(level, _)| level.available()))
    }
}

/// The stock of a product in a zone; empty as of `now` without a stored level.
fn zone(
    reader: &dyn Reader,
    product_id: &ProductId,
    geo_zone: &GeoZone,
    now: Timestamp,
) -> Result<ZoneStock> {
    let row = reader.get(Table::Stock, &keys::stock(product_id, geo_zone))?;
    let (level, updated_at) = match row {
        Some(row) => mw_codec::stock::decode_level(&row)?,
        None => (Level::default(), now),
    };
    Ok(ZoneStock { product_id: product_id.clone(), geo_zone: geo_zone.clone(), level, updated_at })
}

pub(crate) fn level(
    reader: &dyn Reader,
    product_id: &ProductId,
    geo_zone: &GeoZone,
) -> Result<Option<Level>> {
    let row = reader.get(Table::Stock, &keys::stock(product_id, geo_zone))?;
    Ok(row.map(|row| mw_codec::stock::decode_level(&row)).transpose()?.map(|(level, _)| level))
}

/// Refuses a product that is not in the catalogue.
fn check_product(reader: &dyn Reader, product_id: &ProductId) -> Result<()> {
    if products::exists(reader, product_id)? {
        Ok(())
    } else {
        Err(Refusal::ProductNotFound(product_id.clone()).into())
    }
}

/// Applies a movement to the level and appends it to the ledger; refused if fewer units would remain than are reserved.
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

/// Appends a movement to the ledger.
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
    let delta = set_delta(&zone(tx, product_id, geo_zone, now)?, on_hand, None)?;
    apply(tx, product_id, geo_zone, &Movement { at: now, op, cause: Cause::Set, delta, note: None })
}

/// Applies one movement for each line.
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

/// How demands of a product that is not in the catalogue are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownProduct {
    /// It has no units available, whatever its stored level.
    OutOfStock,
    /// The caller has found every product in the catalogue already.
    RuledOut,
}

/// Refuses demands that the zone cannot meet, with all shortages.
pub(crate) fn check_demands<'a>(
    reader: &dyn Reader,
    geo_zone: &GeoZone,
    lines: impl Iterator<Item = (&'a ProductId, u32)>,
    unknown: UnknownProduct,
) -> Result<()> {
    let mut shortages = Vec::new();
    for (product_id, requested) in lines {
        let mut available = level(reader, product_id, geo_zone)?.unwrap_or_default().available();
        if unknown == UnknownProduct::OutOfStock && available > 0 && !products::exists(reader, product_id)? {
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

/// Holds units for a while. A crash before the commit leaves no unit held, and the repeated request reserves; a crash after it
/// leaves hold and timer, and the timer releases the units of a client that does not come back.
fn reserve(tx: &mut Tx, command: Reserve) -> Result<Reservation> {
    let Reserve { reservation_id, geo_zone, lines, expires_at, now, .. } = command;
    expire_due_holds(tx, now)?;
    check_demands(tx, &geo_zone, demands(&lines), UnknownProduct::OutOfStock)?;
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

/// Writes a reservation, with a timer while it is held.
pub(crate) fn save_reservation(tx: &mut Tx, reservation: &Reservation) {
    let timer = keys::timer(reservation.expires_at, reservation.reservation_id.as_bytes());
    let keep_until = if reservation.status == ReservationStatus::Held {
        tx.put(Table::HoldTimers, timer, Vec::new());
        tx.next_timers.hold = tx.next_timers.hold.min(reservation.expires_at);
        // No compaction drops an open hold.
        Timestamp::MAX
    } else {
        tx.remove(Table::HoldTimers, timer);
        reservation.forgotten_at()
    };
    let value = mw_codec::stock::encode_reservation(reservation, keep_until);
    tx.put(Table::Reservations, keys::reservation(reservation.reservation_id), value);
}

/// A reservation, until it is forgotten some days after its end.
fn read_reservation(reader: &dyn Reader, id: ReservationId, now: Timestamp) -> Result<Option<Reservation>> {
    let Some(row) = reader.get(Table::Reservations, &keys::reservation(id))? else {
        return Ok(None);
    };
    let (reservation, _) = mw_codec::stock::decode_reservation(&row)?;
    Ok((now < reservation.forgotten_at()).then_some(reservation))
}

/// The open hold of a timer.
pub(crate) fn held(reader: &dyn Reader, id: [u8; 16]) -> Result<Option<Reservation>> {
    let row = reader.get(Table::Reservations, &id)?;
    let found = row.map(|row| mw_codec::stock::decode_reservation(&row)).transpose()?;
    Ok(found.map(|(reservation, _)| reservation).filter(|found| found.status == ReservationStatus::Held))
}

/// Confirms or releases a hold. A crash before the commit leaves the hold open; the repeated request or its timer ends it.
fn close(tx: &mut Tx, id: ReservationId, to: ReservationStatus, now: Timestamp) -> Result<Reservation> {
    let mut reservation = read_reservation(tx, id, now)?.ok_or(Refusal::ReservationNotFound)?;
    match reservation.status_at(now) {
        // A repeated request is a success and moves no units again.
        status if status == to => return Ok(reservation),
        ReservationStatus::Held => {}
        status => return Err(Refusal::ReservationClosed { status }.into()),
    }
    end(tx, &mut reservation, to, now)?;
    Ok(reservation)
}

/// Ends a hold: a confirmed one takes its units out of stock, any other makes them available again.
fn end(tx: &mut Tx, reservation: &mut Reservation, to: ReservationStatus, now: Timestamp) -> Result<()> {
    let cause = if to == ReservationStatus::Confirmed { Cause::Take } else { Cause::Release };
    let op = reservation.reservation_id.uuid();
    move_lines(tx, &reservation.geo_zone, demands(&reservation.lines), cause, op, now)?;
    reservation.status = to;
    save_reservation(tx, reservation);
    Ok(())
}

/// Expires every hold that ended by `now`, before a command decides about units. The expiry is final, even if the running
/// command is refused later.
pub(crate) fn expire_due_holds(tx: &mut Tx, now: Timestamp) -> Result<()> {
    while tx.next_timers.hold <= now {
        expire_holds(tx, now, EXPIRE_BATCH)?;
        tx.discard_undo_log();
    }
    Ok(())
}

/// Expires up to `limit` holds that ended by `now`; returns how many. A crash before the commit leaves the timers, and the next
/// call finds them again.
fn expire_holds(tx: &mut Tx, now: Timestamp, limit: usize) -> Result<usize> {
    let due = timers::due(tx, Table::HoldTimers, tx.next_timers.hold, now, limit)?;
    for (expires_at, id) in &due {
        let Some(mut reservation) = held(tx, *id)? else {
            // A timer without an open hold, as inconsistent data may contain.
            tx.remove(Table::HoldTimers, keys::timer(*expires_at, id));
            continue;
        };
        let expired = tx.attempt(|tx| end(tx, &mut reservation, ReservationStatus::Expired, now));
        if let Err(error) = expired {
            if matches!(error, StoreError::Unavailable(_)) {
                return Err(error);
            }
            // A hold that the stock level does not explain must not block all other holds; the audit reports the drift.
            tracing::error!(
                reservation_id = %reservation.reservation_id,
                %error,
                "release units of expired hold: closed without them; run mw stock audit"
            );
            reservation.status = ReservationStatus::Expired;
            save_reservation(tx, &reservation);
        }
    }
    tx.next_timers.hold = timers::first_due(tx, Table::HoldTimers, tx.next_timers.hold)?;
    Ok(due.len())
}
