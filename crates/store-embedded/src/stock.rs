//! Stock: levels, the ledger of all movements, and reservations.
//!
//! Invariants: level and ledger row of a movement are written in one batch, and so are a hold and its timer; a crash leaves
//! all or none. Before the writer decides about units it expires the ended holds whose units it needs. Readers subtract holds that
//! have ended and are not expired yet; [`crate::writer::WriterStatus`] has the lower bound from which on there can be any.

use std::cell::OnceCell;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use mw_codec::changes::ChangeRef;
use mw_domain::stock::{Cause, Delta};
use mw_domain::{
    Demand, GeoZone, Level, Movement, ProductId, Reservation, ReservationId, ReservationStatus, Shortage,
    Timestamp, ZoneStock,
};
use mw_store::stock::{Adjust, Audit, Reserve, SetOnHand, Stock, adjust_delta, set_delta};
use mw_store::{Done, Freshness, Refusal, RequestIdentity, Result, StoreError};
use uuid::Uuid;

use crate::cache::{ReadCache, StoredLevel};
use crate::holds::{self, HoldChange, HoldIndex};
use crate::idempotency;
use crate::keys;
use crate::long_reads::StoppableReader;
use crate::maintenance::COMMAND_ROWS;
use crate::reader::{KeyRange, Reader, SnapshotReader};
use crate::tables::Table;
use crate::tx::{COMMIT_SEQUENCE_KEY, Tx};
use crate::{EmbeddedStore, audit, products, timers};

/// Ended holds that a command of a request expires at most. A command that needs the units of more is refused as overloaded;
/// maintenance expires the rest meanwhile.
const EXPIRE_MAX: usize = 1_000;
/// Ended holds that are looked up at once.
const EXPIRE_SLICE: usize = 32;

#[async_trait]
impl Stock for EmbeddedStore {
    async fn zone_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        _: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        self.options.partitions.read(Table::Stock.name(), product_id.as_str());
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
        self.options.partitions.read(Table::Stock.name(), product_id.as_str());
        let levels = self.snapshot_levels(now)?;
        let mut zones = Vec::new();
        levels.snapshot.scan(
            Table::Stock,
            &KeyRange::prefix(keys::zones(product_id)),
            false,
            &mut |key, value| {
                let (product_id, geo_zone) = keys::read_stock(key)?;
                let (level, updated_at) = levels.decode(key, value)?;
                zones.push(ZoneStock { product_id, geo_zone, level, updated_at });
                Ok(ControlFlow::Continue(()))
            },
        )?;
        Ok(zones)
    }

    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
        self.options.partitions.write(Table::Stock.name(), command.product_id.as_str());
        self.write(move |tx| {
            let SetOnHand { product_id, geo_zone, on_hand, expected_on_hand, op, now } = command;
            check_product(tx, &product_id)?;
            expire_until(tx, &product_id, &geo_zone, now, |level| level.reserved <= on_hand)?;
            let delta = set_delta(&zone_at(tx, &product_id, &geo_zone, now)?, on_hand, expected_on_hand)?;
            let movement = Movement { at: now, op, cause: Cause::Set, delta, note: None };
            apply(tx, &product_id, &geo_zone, &movement).map(|stock| without_ended(tx, stock, now))
        })
        .await
    }

    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
        self.options.partitions.write(Table::Stock.name(), command.product_id.as_str());
        self.write(move |tx| {
            let Adjust { product_id, geo_zone, delta, reason, op, now, identity } = command;
            idempotency::run(tx, identity, now, |tx| {
                check_product(tx, &product_id)?;
                let units = Delta { on_hand: delta, reserved: 0 };
                expire_until(tx, &product_id, &geo_zone, now, |level| level.moved(units).is_ok())?;
                let delta = adjust_delta(&zone_at(tx, &product_id, &geo_zone, now)?, delta)?;
                let movement = Movement { at: now, op, cause: Cause::Adjust, delta, note: Some(reason) };
                apply(tx, &product_id, &geo_zone, &movement).map(|stock| without_ended(tx, stock, now))
            })
        })
        .await
    }

    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        self.write(move |tx| {
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
        self.write(move |tx| {
            idempotency::run(tx, identity, now, |tx| close(tx, id, ReservationStatus::Confirmed, now))
        })
        .await
    }

    async fn release(&self, id: ReservationId, now: Timestamp) -> Result<()> {
        self.write(move |tx| close(tx, id, ReservationStatus::Released, now).map(drop)).await
    }

    async fn expire_reservations(&self, now: Timestamp, limit: usize) -> Result<usize> {
        if now < self.status.next_hold_timer() {
            return Ok(0);
        }
        let mut expired = 0;
        // A crash between two commands leaves the timers of the rest, and the next call finds them.
        while expired < limit {
            let slice = COMMAND_ROWS.min(limit - expired);
            let count = self.write(move |tx| expire_holds(tx, now, slice)).await?;
            expired += count;
            if count < slice {
                break;
            }
        }
        Ok(expired)
    }

    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        let (sender, mut levels) = tokio::sync::watch::channel(0);
        let read = move |reader: &StoppableReader| {
            audit::run(reader, &|count| {
                sender.send_replace(count);
            })
        };
        let mut auditing = std::pin::pin!(self.long_reads.run(Arc::new(self.snapshot()), read));
        loop {
            tokio::select! {
                biased;
                Ok(()) = levels.changed() => {
                    let count = *levels.borrow_and_update();
                    progress(count);
                }
                audit = &mut auditing => return audit,
            }
        }
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

/// The holds in a snapshot that have ended and still count as reserved.
pub(crate) struct EndedHolds<'a> {
    index: &'a HoldIndex,
    now: Timestamp,
    commit_sequence: u64,
    /// Read from the snapshot where it is too old for the index.
    units: OnceCell<HeldUnits>,
}

impl<'a> EndedHolds<'a> {
    pub(crate) fn new(index: &'a HoldIndex, snapshot: &SnapshotReader, now: Timestamp) -> Result<Self> {
        let row = snapshot.get(Table::Meta, COMMIT_SEQUENCE_KEY)?;
        let commit_sequence = row.and_then(|row| row.as_ref().try_into().ok()).map_or(0, u64::from_be_bytes);
        Ok(Self { index, now, commit_sequence, units: OnceCell::new() })
    }

    fn units(&self, snapshot: &SnapshotReader, stock_key: &[u8]) -> Result<u64> {
        if let Some(units) = self.index.ended_units(stock_key, self.now, self.commit_sequence) {
            return Ok(units);
        }
        if self.units.get().is_none() {
            let units = held_units(snapshot, timers::BEGINNING, self.now)?;
            let _ = self.units.set(units);
        }
        Ok(self.units.get().and_then(|units| units.get(stock_key)).copied().unwrap_or_default())
    }
}

/// A snapshot, and the holds in it that have ended; `None`: there are none.
pub(crate) struct SnapshotLevels<'a> {
    pub(crate) snapshot: SnapshotReader,
    pub(crate) ended: Option<EndedHolds<'a>>,
}

impl SnapshotLevels<'_> {
    /// Decodes a level without the units of ended holds.
    fn decode(&self, key: &[u8], row: &[u8]) -> Result<StoredLevel> {
        let (mut level, updated_at) = mw_codec::stock::decode_level(row)?;
        if let Some(ended) = &self.ended {
            level.reserved = level.reserved.saturating_sub(ended.units(&self.snapshot, key)?);
        }
        Ok((level, updated_at))
    }
}

/// Where a request reads stock levels.
pub(crate) enum LevelSource<'a> {
    /// No hold has ended that is still counted.
    Cache(&'a ReadCache),
    Snapshot(SnapshotLevels<'a>),
}

impl LevelSource<'_> {
    pub(crate) fn level(&self, key: &[u8]) -> Result<Option<StoredLevel>> {
        match self {
            Self::Cache(cache) => cache.level(key),
            Self::Snapshot(levels) => {
                let row = levels.snapshot.get(Table::Stock, key)?;
                row.map(|row| levels.decode(key, &row)).transpose()
            }
        }
    }

    /// The available units; none without a stored level.
    pub(crate) fn available(&self, key: &[u8]) -> Result<u64> {
        Ok(self.level(key)?.map_or(0, |(level, _)| level.available()))
    }
}

/// The stock of a product in a zone as of `now`, without the units of ended holds.
fn zone_at(tx: &Tx, product_id: &ProductId, geo_zone: &GeoZone, now: Timestamp) -> Result<ZoneStock> {
    Ok(without_ended(tx, zone(tx, product_id, geo_zone, now)?, now))
}

fn without_ended(tx: &Tx, mut stock: ZoneStock, now: Timestamp) -> ZoneStock {
    let ended = tx.ended_units(&keys::stock(&stock.product_id, &stock.geo_zone), now);
    stock.level.reserved = stock.level.reserved.saturating_sub(ended);
    stock
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
    tx.record_change(stock.updated_at, ChangeRef::Stock(&stock));
    Ok(stock)
}

/// Appends a movement to the ledger; the one with the nil id is the sum of compacted movements.
pub(crate) fn record(tx: &mut Tx, product_id: &ProductId, geo_zone: &GeoZone, movement: &Movement) {
    let key = if movement.op.is_nil() && movement.cause == Cause::Set {
        keys::ledger_sum(product_id, geo_zone)
    } else {
        keys::movement(product_id, geo_zone, movement.at, &movement.op, movement.cause)
    };
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
    expire_for(tx, &geo_zone, demands(&lines), now)?;
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
    tx.change_holds(holds::changes(reservation));
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

/// Expires ended holds of the requested products until their units suffice, before a command decides about them. The expiry is
/// final, even if the running command is refused later.
pub(crate) fn expire_for<'a>(
    tx: &mut Tx,
    geo_zone: &GeoZone,
    lines: impl Iterator<Item = (&'a ProductId, u32)>,
    now: Timestamp,
) -> Result<()> {
    for (product_id, requested) in lines {
        expire_until(tx, product_id, geo_zone, now, |level| level.available() >= u64::from(requested))?;
    }
    Ok(())
}

/// Expires ended holds of a stock level, the oldest first, until the level suffices or none is left.
pub(crate) fn expire_until(
    tx: &mut Tx,
    product_id: &ProductId,
    geo_zone: &GeoZone,
    now: Timestamp,
    suffices: impl Fn(Level) -> bool,
) -> Result<()> {
    if now < tx.next_timers.hold {
        return Ok(());
    }
    let stock_key = keys::stock(product_id, geo_zone);
    let mut expired = 0;
    let mut ended = VecDeque::new();
    while !suffices(level(tx, product_id, geo_zone)?.unwrap_or_default()) {
        if ended.is_empty() {
            ended.extend(tx.ended_holds(&stock_key, now, EXPIRE_SLICE));
        }
        let Some((ends_at, id)) = ended.pop_front() else { break };
        if expired == EXPIRE_MAX {
            // What is expired stays so, and the repeated request continues there.
            tx.discard_undo_log();
            return Err(StoreError::Overloaded);
        }
        expire_hold(tx, ends_at, id, now)?;
        expired += 1;
    }
    if expired > 0 {
        tx.discard_undo_log();
    }
    Ok(())
}

/// Expires up to `limit` holds that ended by `now`; returns how many. A crash before the commit leaves the timers, and the next
/// call finds them again.
fn expire_holds(tx: &mut Tx, now: Timestamp, limit: usize) -> Result<usize> {
    let due = timers::due(tx, Table::HoldTimers, tx.next_timers.hold, now, limit)?;
    for (ends_at, id) in &due {
        expire_hold(tx, *ends_at, *id, now)?;
    }
    tx.next_timers.hold = timers::first_due(tx, Table::HoldTimers, tx.next_timers.hold)?;
    Ok(due.len())
}

/// Expires one hold. A hold that cannot be read, or that the stock level does not explain, must not block all others: it is
/// closed without its units, and the audit reports the drift.
fn expire_hold(tx: &mut Tx, ends_at: Timestamp, id: [u8; 16], now: Timestamp) -> Result<()> {
    let held = match held(tx, id) {
        Err(error @ StoreError::Unavailable(_)) => return Err(error),
        Err(error) => {
            let reservation_id = ReservationId::from_bytes(id);
            tracing::error!(%reservation_id, %error, "read expired hold: its units stay reserved; run mw stock audit");
            None
        }
        Ok(held) => held,
    };
    let Some(mut reservation) = held else {
        // A timer without an open hold, as inconsistent data may contain.
        tx.remove(Table::HoldTimers, keys::timer(ends_at, &id));
        tx.change_holds(std::iter::once(HoldChange { stock_key: None, end: (ends_at, id), opened: None }));
        return Ok(());
    };
    let expired = tx.attempt(|tx| end(tx, &mut reservation, ReservationStatus::Expired, now));
    if let Err(error) = expired {
        if matches!(error, StoreError::Unavailable(_)) {
            return Err(error);
        }
        tracing::error!(
            reservation_id = %reservation.reservation_id,
            %error,
            "release units of expired hold: closed without them; run mw stock audit"
        );
        reservation.status = ReservationStatus::Expired;
        save_reservation(tx, &reservation);
    }
    Ok(())
}
