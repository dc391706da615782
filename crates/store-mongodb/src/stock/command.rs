//! The commands that a keeper settles, each whole: with its units, its order or reservation and its idempotency key.

use mw_domain::{
    Demand, GeoZone, Movement, Order, Reservation, ReservationId, ReservationStatus, Timestamp, ZoneStock,
};
use mw_store::orders::{PlaceOrder, SetStatus};
use mw_store::stock::decision::StockKey;
use mw_store::stock::{Adjust, Reserve, SetOnHand};
use mw_store::{Done, RequestIdentity, Result, StoreError};
use uuid::Uuid;

#[derive(Debug, Clone)]
pub(crate) enum StockRequest {
    Place(Box<PlaceOrder>),
    SetStatus(Box<SetStatus>),
    Reserve(Box<Reserve>),
    Close(Box<CloseReservation>),
    SetOnHand(Box<SetOnHand>),
    Adjust(Box<Adjust>),
    /// Replaces the stock of a product in a zone.
    ImportStock(Box<ImportStock>),
    /// Stores a reservation and gives its holds their end.
    ImportReservation(Box<Reservation>),
    /// Releases these holds of a product in a zone, if they have expired.
    ExpireHolds {
        key: StockKey,
        op_ids: Vec<Uuid>,
        now: Timestamp,
    },
}

/// A stock level with its ledger, as another store exported it.
#[derive(Debug, Clone)]
pub(crate) struct ImportStock {
    pub(crate) stock: ZoneStock,
    pub(crate) ledger: Vec<Movement>,
}

/// Confirms or releases a reservation.
#[derive(Debug, Clone)]
pub(crate) struct CloseReservation {
    pub(crate) reservation_id: ReservationId,
    pub(crate) to: ReservationStatus,
    pub(crate) now: Timestamp,
    pub(crate) identity: Option<RequestIdentity>,
}

impl StockRequest {
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::Place(command) => command.now,
            Self::SetStatus(command) => command.now,
            Self::Reserve(command) => command.now,
            Self::Close(command) => command.now,
            Self::SetOnHand(command) => command.now,
            Self::Adjust(command) => command.now,
            Self::ImportStock(import) => import.stock.updated_at,
            Self::ImportReservation(reservation) => reservation.created_at,
            Self::ExpireHolds { now, .. } => *now,
        }
    }

    /// Whether it writes a record of another store.
    pub(crate) const fn is_import(&self) -> bool {
        matches!(self, Self::ImportStock(_) | Self::ImportReservation(_))
    }

    pub(crate) fn identity(&self) -> Option<&RequestIdentity> {
        match self {
            Self::Place(command) => command.identity.as_ref(),
            Self::SetStatus(command) => command.identity.as_ref(),
            Self::Reserve(command) => command.identity.as_ref(),
            Self::Close(command) => command.identity.as_ref(),
            Self::Adjust(command) => command.identity.as_ref(),
            Self::SetOnHand(_)
            | Self::ImportStock(_)
            | Self::ImportReservation(_)
            | Self::ExpireHolds { .. } => None,
        }
    }
}

/// The result of a command.
#[derive(Debug, Clone)]
pub(crate) enum Settled {
    Order(Done<Order>),
    Reservation(Done<Reservation>),
    Stock(Done<ZoneStock>),
    /// Reservations that expired.
    Expired(usize),
    Imported,
}

impl Settled {
    pub(crate) fn order(self) -> Result<Done<Order>> {
        match self {
            Self::Order(done) => Ok(done),
            other => Err(other.unexpected()),
        }
    }

    pub(crate) fn reservation(self) -> Result<Done<Reservation>> {
        match self {
            Self::Reservation(done) => Ok(done),
            other => Err(other.unexpected()),
        }
    }

    pub(crate) fn stock(self) -> Result<Done<ZoneStock>> {
        match self {
            Self::Stock(done) => Ok(done),
            other => Err(other.unexpected()),
        }
    }

    pub(crate) fn expired(self) -> Result<usize> {
        match self {
            Self::Expired(count) => Ok(count),
            other => Err(other.unexpected()),
        }
    }

    fn unexpected(&self) -> StoreError {
        StoreError::Corrupt(format!("change stock: unexpected result {self:?}"))
    }
}

/// The products and zones of demands.
pub(crate) fn keys_of(lines: &[Demand], geo_zone: &GeoZone) -> Vec<StockKey> {
    lines.iter().map(|line| stock_key(line, geo_zone)).collect()
}

pub(crate) fn stock_key(line: &Demand, geo_zone: &GeoZone) -> StockKey {
    StockKey { product_id: line.product_id.clone(), geo_zone: geo_zone.clone() }
}

pub(crate) fn units_of(lines: &[Demand]) -> u64 {
    lines.iter().map(|line| u64::from(line.quantity)).sum()
}

/// The units of an order by product: an order of another program may have several lines of one.
pub(crate) fn demands_of(order: &Order) -> Vec<Demand> {
    let mut demands: Vec<Demand> = Vec::with_capacity(order.lines.len());
    for line in &order.lines {
        match demands.iter_mut().find(|demand| demand.product_id == line.product_id) {
            Some(demand) => demand.quantity = demand.quantity.saturating_add(line.quantity),
            None => demands.push(Demand { product_id: line.product_id.clone(), quantity: line.quantity }),
        }
    }
    demands
}
