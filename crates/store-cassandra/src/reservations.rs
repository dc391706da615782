//! Reservations: units of several products held until a moment, all of them or none.
//!
//! The reservation's row is written before its units are held, or while they are where there is no key that somebody could
//! come again with; nobody knows the id before all is done, and what a dead process left ends with its time. How a
//! reservation ends is decided by the ledger row of its first product (by id); its other products and its own row follow,
//! and whoever finds them behind brings them along.

use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{
    Demand, GeoZone, ProductId, Reservation, ReservationId, ReservationStatus, Shortage, Timestamp,
};
use mw_store::once::Outcome;
use mw_store::records::Record;
use mw_store::stock::Reserve;
use mw_store::{Done, Freshness, Once, Refusal, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use scylla::{DeserializeValue, SerializeValue};
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::due::{Left, Queue, end_due};
use crate::gather::Gather;
use crate::keeper::{Answer, Change, Place};
use crate::ledger::{End, State};
use crate::once::Memory;
use crate::records::Spool;
use crate::scan::{self, Scan};
use crate::stock::AT_ONCE;
use crate::tables::Table;
use crate::time::{from_cql, to_cql, ttl_seconds};

/// Reservations of a slot that are read at a time.
const SLOT_PAGE: i32 = 500;

/// What stands in `status` of a reservation that could not get its units.
const VOID: &str = "void";

#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
struct DemandValue {
    product_id: String,
    quantity: i32,
}

/// What never changes of a reservation.
#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
struct Hold {
    geo_zone: String,
    lines: Vec<DemandValue>,
    created_at: CqlTimestamp,
    expires_at: CqlTimestamp,
}

type OpenRow = (i32, Hold, i64, Uuid);
type StoredReservation = (Uuid, Option<Hold>, Option<String>);

#[derive(Debug)]
pub(crate) struct Statements {
    open: Gather<i64, OpenRow>,
    close: Gather<i64, (i32, &'static str, i64, Uuid)>,
    read: PreparedStatement,
    of_slot: PreparedStatement,
    scan: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::Reservations;
        let columns = "reservation_id, hold, status";
        // An INSERT would write a marker of the row besides; the status comes when the hold ends.
        let open = "UPDATE {} USING TIMESTAMP 1 AND TTL ? SET hold = ? WHERE slot = ? AND reservation_id = ?";
        let close =
            "UPDATE {} USING TIMESTAMP 2 AND TTL ? SET status = ? WHERE slot = ? AND reservation_id = ?";
        let read = format!("SELECT {columns} FROM {{}} WHERE slot = ? AND reservation_id = ?");
        let of_slot = format!("SELECT {columns} FROM {{}} WHERE slot = ?");
        let mut of_slot = cql.prepare(table, Access::Read, &of_slot).await?;
        of_slot.set_page_size(SLOT_PAGE);
        Ok(Self {
            open: Gather::new(cql.prepare(table, Access::Write, open).await?),
            close: Gather::new(cql.prepare(table, Access::Write, close).await?),
            read: cql.prepare(table, Access::Read, &read).await?,
            of_slot,
            scan: scan::prepare(cql, table, columns).await?,
        })
    }
}

/// The partition of a reservation, made of its id: the first bits of a version 7 UUID are its second, so reservations of
/// one moment are written together, in four lots.
fn slot_of(id: ReservationId) -> i64 {
    let bits = id.uuid().as_u128();
    let second = i64::try_from(bits >> 90).unwrap_or_default();
    second << 2 | i64::try_from(bits & 0b11).unwrap_or_default()
}

const fn status_name(status: ReservationStatus) -> &'static str {
    match status {
        ReservationStatus::Held => "held",
        ReservationStatus::Confirmed => "confirmed",
        ReservationStatus::Released => "released",
        ReservationStatus::Expired => "expired",
    }
}

/// `None` for a reservation that never came to be.
fn read_status(name: &str) -> Result<Option<ReservationStatus>> {
    Ok(Some(match name {
        "held" => ReservationStatus::Held,
        "confirmed" => ReservationStatus::Confirmed,
        "released" => ReservationStatus::Released,
        "expired" => ReservationStatus::Expired,
        VOID => return Ok(None),
        other => return Err(StoreError::Corrupt(format!("a reservation is {other:?}"))),
    }))
}

impl CassandraStore {
    fn place_of(reservation: &Reservation, line: &Demand) -> Place {
        Place { product_id: line.product_id.clone(), geo_zone: reservation.geo_zone.clone() }
    }

    pub(crate) async fn reserve_units(&self, command: Reserve) -> Result<Done<Reservation>> {
        let Reserve { reservation_id, geo_zone, lines, expires_at, now, once } = command;
        let remembered: Memory<Reservation> =
            (|reservation| Outcome::Reservation(reservation.clone()), reservation_in);
        let is_keyed = once.is_some();
        // A key can be brought to another process at the same time, which then holds the same units.
        let born = (!is_keyed).then(Instant::now);
        self.keyed(once.as_ref(), reservation_id.uuid(), now, remembered, |op_id, maybe_done| async move {
            let reservation_id = ReservationId::new(op_id);
            let begun = if maybe_done { self.reservation_row(reservation_id).await? } else { None };
            let begun = match begun {
                // The key would have been freed next.
                Some(Row::Void) => {
                    return Err(self.all_shortages(&geo_zone, &lines, Vec::new(), now).await?);
                }
                Some(Row::Open(begun)) => Some(begun),
                None => None,
            };
            let is_begun = begun.is_some();
            let reservation = begun.unwrap_or(Reservation {
                reservation_id,
                geo_zone,
                lines,
                status: ReservationStatus::Held,
                created_at: now,
                expires_at,
            });
            if !is_begun {
                self.refuse_short(&reservation.geo_zone, &reservation.lines, now).await?;
            }
            let short = if is_keyed {
                // Whoever comes again with the key must find when the hold ends.
                self.write_reservation(&reservation, now).await?;
                self.hold_all(&reservation, born, now).await?
            } else {
                self.write_and_hold(&reservation, born, now).await?
            };
            if short.is_empty() {
                return Ok(reservation);
            }
            self.give_up(&reservation, is_keyed, now).await?;
            Err(self.all_shortages(&reservation.geo_zone, &reservation.lines, short, now).await?)
        })
        .await
    }

    /// Refuses what cannot be met before anything is written, where that is cheap to know.
    async fn refuse_short(&self, geo_zone: &GeoZone, lines: &[Demand], now: Timestamp) -> Result<()> {
        let offers = self.cards.offers(&self.cql, lines.iter().map(|line| &line.product_id)).await?;
        let is_unlisted = offers.iter().any(Option::is_none);
        if is_unlisted || lines.len() > 1 || self.looks_short(geo_zone, lines) {
            self.refuse_shortages(geo_zone, lines, now).await?;
        }
        Ok(())
    }

    /// Whether this process last saw too few units of something.
    pub(crate) fn looks_short(&self, geo_zone: &GeoZone, lines: &[Demand]) -> bool {
        lines.iter().any(|line| {
            let place = Place { product_id: line.product_id.clone(), geo_zone: geo_zone.clone() };
            self.keepers.last_available(&place).is_some_and(|units| units < u64::from(line.quantity))
        })
    }

    /// Refuses with every shortage there is.
    pub(crate) async fn refuse_shortages(
        &self,
        geo_zone: &GeoZone,
        lines: &[Demand],
        now: Timestamp,
    ) -> Result<()> {
        let shortages = self.shortages(geo_zone, lines, now).await?;
        if shortages.is_empty() { Ok(()) } else { Err(Refusal::OutOfStock(shortages).into()) }
    }

    async fn shortages(&self, geo_zone: &GeoZone, lines: &[Demand], now: Timestamp) -> Result<Vec<Shortage>> {
        let reads = lines.iter().map(|line| async move {
            let place = Place { product_id: line.product_id.clone(), geo_zone: geo_zone.clone() };
            let offer = self.cards.offer(&self.cql, line.product_id.clone()).await?;
            let available = match offer {
                Some(_) => self.level_at(&place, Freshness::Full, now).await?,
                None => None,
            };
            Ok::<_, StoreError>(Shortage {
                product_id: line.product_id.clone(),
                requested: line.quantity,
                available: available.map_or(0, |stock| stock.level.available()),
            })
        });
        let found: Vec<Shortage> =
            stream::iter(reads.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await?;
        Ok(found.into_iter().filter(|short| u64::from(short.requested) > short.available).collect())
    }

    /// What to answer when units ran out while they were being held: every shortage, and those that were met in any case.
    pub(crate) async fn all_shortages(
        &self,
        geo_zone: &GeoZone,
        lines: &[Demand],
        met: Vec<Shortage>,
        now: Timestamp,
    ) -> Result<StoreError> {
        let mut shortages = self.shortages(geo_zone, lines, now).await?;
        for short in met {
            if !shortages.iter().any(|known| known.product_id == short.product_id) {
                shortages.push(short);
            }
        }
        let place = |short: &Shortage| lines.iter().position(|line| line.product_id == short.product_id);
        shortages.sort_by_key(place);
        Ok(Refusal::OutOfStock(shortages).into())
    }

    /// Takes in a reservation of another store.
    pub(crate) async fn keep_reservation(&self, reservation: &Reservation) -> Result<()> {
        self.open_row(reservation, reservation.created_at).await?;
        if reservation.status != ReservationStatus::Held {
            let status = status_name(reservation.status);
            return self.close_row(reservation, status, reservation.created_at).await;
        }
        // The units may have come before: now it is known when their hold ends.
        let (op_id, until) = (reservation.reservation_id.uuid(), reservation.expires_at);
        for line in &reservation.lines {
            let place = Self::place_of(reservation, line);
            let change = Change::Move { op_id, until };
            self.keepers.ask(&self.cql, &place, change, reservation.created_at).await?;
        }
        let place = (slot_of(reservation.reservation_id), op_id);
        self.due.add_late(&self.cql, Queue::Hold, until, place).await
    }

    /// Every reservation.
    pub(crate) async fn export_reservations(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, StoredReservation> = Scan::new(&self.cql, &self.reservations.scan);
        while let Some(row) = rows.next().await? {
            if let Some(reservation) = read_reservation(row)?.and_then(Row::open) {
                into.push(&Record::Reservation(reservation))?;
            }
        }
        Ok(())
    }

    async fn write_reservation(&self, reservation: &Reservation, now: Timestamp) -> Result<()> {
        let (expires_at, id) = (reservation.expires_at, reservation.reservation_id.uuid());
        let (row, due) = tokio::join!(
            self.open_row(reservation, now),
            self.due.add(&self.cql, Queue::Hold, expires_at, (slot_of(reservation.reservation_id), id), now),
        );
        row.and(due).map_err(nothing_held)
    }

    /// Holds the units while the row is written: without a key nobody asks for either before both are done, and a hold
    /// without a row ends with its time.
    async fn write_and_hold(
        &self,
        reservation: &Reservation,
        born: Option<Instant>,
        now: Timestamp,
    ) -> Result<Vec<Shortage>> {
        let (written, held) =
            tokio::join!(self.write_reservation(reservation, now), self.hold_all(reservation, born, now));
        let (Err(error), Ok(_)) = (&written, &held) else { return held };
        self.end_lines(reservation, reservation.lines.iter(), End::Release, now)
            .await
            .map_err(|left| StoreError::Ambiguous(format!("units are held until they expire: {left}")))?;
        Err(error.clone())
    }

    async fn open_row(&self, reservation: &Reservation, now: Timestamp) -> Result<()> {
        let id = reservation.reservation_id;
        let slot = slot_of(id);
        let lines = reservation
            .lines
            .iter()
            .map(|line| DemandValue {
                product_id: line.product_id.as_str().to_owned(),
                quantity: i32::try_from(line.quantity).unwrap_or(i32::MAX),
            })
            .collect();
        let hold = Hold {
            geo_zone: reservation.geo_zone.as_str().to_owned(),
            lines,
            created_at: to_cql(reservation.created_at),
            expires_at: to_cql(reservation.expires_at),
        };
        let ttl = ttl_seconds(now, reservation.forgotten_at());
        self.reservations.open.write(&self.cql, slot, (ttl, hold, slot, id.uuid())).await
    }

    async fn hold_all(
        &self,
        reservation: &Reservation,
        born: Option<Instant>,
        now: Timestamp,
    ) -> Result<Vec<Shortage>> {
        let op_id = reservation.reservation_id.uuid();
        let holds = reservation.lines.iter().map(|line| async move {
            let change = Change::Hold { until: reservation.expires_at, op_id, quantity: line.quantity, born };
            let place = Self::place_of(reservation, line);
            let short = |available| Shortage {
                product_id: line.product_id.clone(),
                requested: line.quantity,
                available,
            };
            match self.ask(&place, change, now).await? {
                Answer::Short { available } => Ok(Some(short(available))),
                Answer::Done { state: Some(State::Void), stock } => Ok(Some(short(stock.level.available()))),
                Answer::Done { .. } => Ok(None),
                other => Err(StoreError::Corrupt(format!("a keeper answered {other:?}"))),
            }
        });
        let answers: Vec<Option<Shortage>> =
            stream::iter(holds.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Gives back what was held of a reservation that did not get everything.
    async fn give_up(&self, reservation: &Reservation, is_keyed: bool, now: Timestamp) -> Result<()> {
        if reservation.lines.len() > 1 || is_keyed {
            let end = if is_keyed { End::Prevent } else { End::Release };
            self.end_lines(reservation, reservation.lines.iter(), end, now).await?;
        }
        self.close_row(reservation, VOID, now).await
    }

    async fn end_lines<'a>(
        &self,
        reservation: &Reservation,
        lines: impl Iterator<Item = &'a Demand>,
        end: End,
        now: Timestamp,
    ) -> Result<()> {
        let op_id = reservation.reservation_id.uuid();
        let ends: Vec<_> = lines
            .map(|line| {
                let change =
                    Change::End { until: reservation.expires_at, op_id, quantity: line.quantity, end };
                let place = Self::place_of(reservation, line);
                async move { self.keepers.ask(&self.cql, &place, change, now).await.map(drop) }
            })
            .collect();
        stream::iter(ends).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    async fn close_row(&self, reservation: &Reservation, status: &'static str, now: Timestamp) -> Result<()> {
        let slot = slot_of(reservation.reservation_id);
        let ttl = ttl_seconds(now, reservation.forgotten_at());
        let row = (ttl, status, slot, reservation.reservation_id.uuid());
        self.reservations.close.write(&self.cql, slot, row).await
    }

    async fn reservation_row(&self, id: ReservationId) -> Result<Option<Row>> {
        let values = (slot_of(id), id.uuid());
        let row: Option<StoredReservation> = self.cql.first(&self.reservations.read, values).await?;
        row.map_or(Ok(None), read_reservation)
    }

    /// As it is stored, its time regardless.
    pub(crate) async fn stored_reservation(&self, id: ReservationId) -> Result<Option<Reservation>> {
        Ok(self.reservation_row(id).await?.and_then(Row::open))
    }

    pub(crate) async fn known_reservation(
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

    /// Ends a hold in the asked way, or in the way that was decided before; answers how it ended.
    async fn end_reservation(
        &self,
        reservation: &Reservation,
        asked: ReservationStatus,
        now: Timestamp,
    ) -> Result<ReservationStatus> {
        let Some(first) = reservation.lines.iter().min_by(|a, b| a.product_id.cmp(&b.product_id)) else {
            return Ok(asked);
        };
        let end = if asked == ReservationStatus::Confirmed { End::Take } else { End::Release };
        let op_id = reservation.reservation_id.uuid();
        let change = Change::End { until: reservation.expires_at, op_id, quantity: first.quantity, end };
        let place = Self::place_of(reservation, first);
        let ended = match self.keepers.ask(&self.cql, &place, change, now).await? {
            Answer::Done { state: Some(State::Taken), .. } => ReservationStatus::Confirmed,
            Answer::Done { .. } if asked == ReservationStatus::Confirmed => {
                if now >= reservation.expires_at {
                    ReservationStatus::Expired
                } else {
                    ReservationStatus::Released
                }
            }
            Answer::Done { .. } => asked,
            other => return Err(StoreError::Corrupt(format!("a keeper answered {other:?}"))),
        };
        let end = if ended == ReservationStatus::Confirmed { End::Take } else { End::Release };
        let others = reservation.lines.iter().filter(|line| line.product_id != first.product_id);
        self.end_lines(reservation, others, end, now).await?;
        self.close_row(reservation, status_name(ended), now).await?;
        Ok(ended)
    }

    /// Ends it because its time is over; `false` where it had ended before.
    pub(crate) async fn expire_reservation(&self, reservation: &Reservation, now: Timestamp) -> Result<bool> {
        if reservation.status != ReservationStatus::Held {
            return Ok(false);
        }
        let ended = self.end_reservation(reservation, ReservationStatus::Expired, now).await?;
        Ok(ended == ReservationStatus::Expired)
    }

    /// Closes a hold in the asked way; one that was closed in this way already stays as it is.
    async fn close_reservation(
        &self,
        id: ReservationId,
        asked: ReservationStatus,
        now: Timestamp,
    ) -> Result<Reservation> {
        let mut reservation = self.known_reservation(id, now).await?.ok_or(Refusal::ReservationNotFound)?;
        if reservation.status == ReservationStatus::Held {
            reservation.status = self.end_reservation(&reservation, asked, now).await?;
        }
        if reservation.status == asked {
            return Ok(reservation);
        }
        Err(Refusal::ReservationClosed { status: reservation.status }.into())
    }

    pub(crate) async fn confirm_reservation(
        &self,
        id: ReservationId,
        now: Timestamp,
        once: Option<Once>,
    ) -> Result<Done<Reservation>> {
        let remembered: Memory<Reservation> =
            (|reservation| Outcome::Reservation(reservation.clone()), reservation_in);
        self.keyed(once.as_ref(), Uuid::new_v4(), now, remembered, |_, _| {
            self.close_reservation(id, ReservationStatus::Confirmed, now)
        })
        .await
    }

    pub(crate) async fn release_reservation(&self, id: ReservationId, now: Timestamp) -> Result<()> {
        self.close_reservation(id, ReservationStatus::Released, now).await.map(drop)
    }

    pub(crate) async fn settle_reservations(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let left = &Left::new(limit);
        let over = move |row: StoredReservation| {
            let open = read_reservation(row)?.and_then(Row::open);
            Ok(open.filter(|it| it.status == ReservationStatus::Held && now >= it.expires_at))
        };
        let settle =
            move |reservation: Reservation| async move { self.expire_reservation(&reservation, now).await };
        let of_slot = &self.reservations.of_slot;
        let walk = |slot| end_due(&self.cql, (of_slot, slot), left, over, settle);
        let slot = |id| slot_of(ReservationId::new(id));
        self.due.work_off(&self.cql, Queue::Hold, (now, limit), slot, walk).await
    }
}

/// A reservation as it was found.
enum Row {
    /// It is or was held.
    Open(Reservation),
    /// It never got its units.
    Void,
}

impl Row {
    fn open(self) -> Option<Reservation> {
        match self {
            Self::Open(reservation) => Some(reservation),
            Self::Void => None,
        }
    }
}

/// `None` for what is left of a row whose life is over: its status may outlive the rest by a moment.
fn read_reservation((id, hold, status): StoredReservation) -> Result<Option<Row>> {
    let corrupt = || StoreError::Corrupt(format!("reservation {id}"));
    let Some(Hold { geo_zone, lines, created_at, expires_at }) = hold else { return Ok(None) };
    let status = status.map_or(Ok(Some(ReservationStatus::Held)), |status| read_status(&status))?;
    let Some(status) = status else { return Ok(Some(Row::Void)) };
    let lines = lines.into_iter().map(|line| {
        let product_id = ProductId::parse(&line.product_id).map_err(|_| corrupt())?;
        Ok(Demand { product_id, quantity: u32::try_from(line.quantity).map_err(|_| corrupt())? })
    });
    Ok(Some(Row::Open(Reservation {
        reservation_id: ReservationId::new(id),
        geo_zone: GeoZone::parse(&geo_zone).map_err(|_| corrupt())?,
        lines: lines.collect::<Result<_>>()?,
        status,
        created_at: from_cql(created_at),
        expires_at: from_cql(expires_at),
    })))
}

fn reservation_in(outcome: Outcome) -> Option<Reservation> {
    match outcome {
        Outcome::Reservation(reservation) => Some(reservation),
        _ => None,
    }
}

/// Rows of a reservation may be there without its units; nobody was told of it.
fn nothing_held(error: StoreError) -> StoreError {
    match error {
        StoreError::Ambiguous(detail) => StoreError::Unavailable(detail),
        other => other,
    }
}
