//! Reservations as CQL rows: the statements, the type `hold`, and the names in `status`.
//!
//! A row has two cells. `hold` is written once, `status` once when the reservation ends; fixed write timestamps make
//! repeating either write harmless.

use mw_domain::lanes::{other_lanes, time_bucket};
use mw_domain::{Demand, GeoZone, ProductId, Reservation, ReservationId, ReservationStatus, Timestamp};
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use scylla::{DeserializeValue, SerializeValue};
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::coalesce::writes::CoalescedWrites;
use crate::driver::scan;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql, ttl_seconds};
use crate::schema::tables::Table;

/// A time bucket is 2^8 = 256 ms of the ids of one process: a few thousand reservations in a flash sale.
const SLOT_BITS: u32 = 8;
/// Reservations of a time bucket read at a time.
const BUCKET_PAGE: i32 = 500;

#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
struct DemandValue {
    product_id: String,
    quantity: i32,
}

/// The immutable part of a reservation: the type `hold`.
#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
pub(super) struct HoldValue {
    geo_zone: String,
    lines: Vec<DemandValue>,
    created_at: CqlTimestamp,
    expires_at: CqlTimestamp,
}

type HoldRow = (i32, HoldValue, i64, Uuid);
type StatusRow = (i32, &'static str, i64, Uuid);
pub(super) type StoredReservation = (Uuid, Option<HoldValue>, Option<String>);

#[derive(Debug)]
pub(crate) struct Statements {
    set_hold: CoalescedWrites<i64, HoldRow>,
    set_status: CoalescedWrites<i64, StatusRow>,
    pub(super) read: PreparedStatement,
    pub(super) by_time_bucket: PreparedStatement,
    pub(super) scan: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::Reservations;
        let columns = "reservation_id, hold, status";
        // An INSERT would also write a row marker. There is no status while the units are held.
        let set_hold =
            "UPDATE {} USING TIMESTAMP 1 AND TTL ? SET hold = ? WHERE time_bucket = ? AND reservation_id = ?";
        let set_status = "UPDATE {} USING TIMESTAMP 2 AND TTL ? SET status = ? WHERE time_bucket = ? AND reservation_id = ?";
        let read = format!("SELECT {columns} FROM {{}} WHERE time_bucket = ? AND reservation_id = ?");
        let by_time_bucket = format!("SELECT {columns} FROM {{}} WHERE time_bucket = ?");
        let mut by_time_bucket = cql.prepare(table, Access::Read, &by_time_bucket).await?;
        by_time_bucket.set_page_size(BUCKET_PAGE);
        Ok(Self {
            set_hold: CoalescedWrites::new(cql.prepare(table, Access::Write, set_hold).await?),
            set_status: CoalescedWrites::new(cql.prepare(table, Access::Write, set_status).await?),
            read: cql.prepare(table, Access::Read, &read).await?,
            by_time_bucket,
            scan: scan::prepare(cql, table, columns).await?,
        })
    }
}

/// The partition of a reservation, taken from its id: reservations of one process and slot share one, and the process
/// coalesces their writes.
pub(super) fn time_bucket_of(id: ReservationId) -> i64 {
    time_bucket(id.uuid(), SLOT_BITS)
}

/// The value of the column `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredStatus {
    /// The reservation got its units and has this status.
    Ended(ReservationStatus),
    /// The reservation did not get its units and never existed for a client.
    Void,
}

impl StoredStatus {
    const VOID: &'static str = "void";

    const fn as_str(self) -> &'static str {
        match self {
            Self::Ended(status) => status.as_str(),
            Self::Void => Self::VOID,
        }
    }

    fn parse(name: &str) -> Option<Self> {
        if name == Self::VOID { Some(Self::Void) } else { ReservationStatus::parse(name).map(Self::Ended) }
    }
}

/// A stored reservation.
pub(super) enum ReservationRow {
    /// It holds or held its units.
    Reserved(Reservation),
    /// It never got its units.
    Void,
}

impl ReservationRow {
    pub(super) fn reservation(self) -> Option<Reservation> {
        match self {
            Self::Reserved(reservation) => Some(reservation),
            Self::Void => None,
        }
    }
}

/// `None` for a row past its TTL whose `status` outlives its `hold` by a moment.
pub(super) fn read_reservation((id, hold, status): StoredReservation) -> Result<Option<ReservationRow>> {
    let corrupt = || StoreError::Corrupt(format!("read reservation {id}: invalid hold or status"));
    let Some(HoldValue { geo_zone, lines, created_at, expires_at }) = hold else { return Ok(None) };
    let status = match status {
        None => ReservationStatus::Held,
        Some(name) => match StoredStatus::parse(&name).ok_or_else(corrupt)? {
            StoredStatus::Ended(status) => status,
            StoredStatus::Void => return Ok(Some(ReservationRow::Void)),
        },
    };
    let lines = lines.into_iter().map(|line| {
        let product_id = ProductId::parse(&line.product_id).map_err(|_| corrupt())?;
        Ok(Demand { product_id, quantity: u32::try_from(line.quantity).map_err(|_| corrupt())? })
    });
    Ok(Some(ReservationRow::Reserved(Reservation {
        reservation_id: ReservationId::new(id),
        geo_zone: GeoZone::parse(&geo_zone).map_err(|_| corrupt())?,
        lines: lines.collect::<Result<_>>()?,
        status,
        created_at: from_cql(created_at),
        expires_at: from_cql(expires_at),
    })))
}

impl CassandraStore {
    /// The id for a new reservation: the one that it was given, or that of another lane whose partition has its quorum.
    pub(super) fn available_reservation_id(&self, id: ReservationId) -> ReservationId {
        let has_quorum = |id: &ReservationId| {
            self.cql.has_quorum(&self.reservations.read, &(time_bucket_of(*id), id.uuid()))
        };
        other_lanes(id.uuid()).map(ReservationId::new).find(has_quorum).unwrap_or(id)
    }

    /// Writes the immutable part of a reservation.
    pub(super) async fn write_reservation_row(
        &self,
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        let id = reservation.reservation_id;
        let time_bucket = time_bucket_of(id);
        let lines = reservation
            .lines
            .iter()
            .map(|line| DemandValue {
                product_id: line.product_id.as_str().to_owned(),
                quantity: i32::try_from(line.quantity).unwrap_or(i32::MAX),
            })
            .collect();
        let hold = HoldValue {
            geo_zone: reservation.geo_zone.as_str().to_owned(),
            lines,
            created_at: to_cql(reservation.created_at),
            expires_at: to_cql(reservation.expires_at),
        };
        let ttl = ttl_seconds(now, reservation.forgotten_at());
        self.reservations.set_hold.write(&self.cql, time_bucket, (ttl, hold, time_bucket, id.uuid())).await
    }

    /// Writes how a reservation ended.
    pub(super) async fn write_reservation_status(
        &self,
        reservation: &Reservation,
        status: StoredStatus,
        now: Timestamp,
    ) -> Result<()> {
        let time_bucket = time_bucket_of(reservation.reservation_id);
        let ttl = ttl_seconds(now, reservation.forgotten_at());
        let row = (ttl, status.as_str(), time_bucket, reservation.reservation_id.uuid());
        self.reservations.set_status.write(&self.cql, time_bucket, row).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_statuses_read_back() {
        let ended = ReservationStatus::ALL.map(StoredStatus::Ended);
        for status in ended.into_iter().chain([StoredStatus::Void]) {
            assert_eq!(StoredStatus::parse(status.as_str()), Some(status));
        }
        assert_eq!(StoredStatus::parse("lost"), None);
    }
}
