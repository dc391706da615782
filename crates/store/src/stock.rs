//! The contract of stock: every read shows `reserved <= on_hand`, and units are conserved: each one is on hand or has
//! left the stock with a paid order or a confirmed reservation. The ledger proves it.

pub mod decision;
pub mod ledger;

use mw_domain::limits::ON_HAND_MAX;
use mw_domain::stock::Delta;
use mw_domain::{Demand, GeoZone, Level, ProductId, Reservation, ReservationId, Timestamp, ZoneStock};
use uuid::Uuid;

use crate::{Done, Freshness, Refusal, RequestIdentity, Result};

/// Sets the units on hand.
#[derive(Debug, Clone)]
pub struct SetOnHand {
    pub product_id: ProductId,
    pub geo_zone: GeoZone,
    pub on_hand: u64,
    /// Refused with `StockChanged` unless this number is on hand; a zone without stock has 0.
    pub expected_on_hand: Option<u64>,
    /// The id of this movement in the ledger.
    pub op: Uuid,
    pub now: Timestamp,
}

/// Adds or removes units; a zone without stock starts at 0.
#[derive(Debug, Clone)]
pub struct Adjust {
    pub product_id: ProductId,
    pub geo_zone: GeoZone,
    pub delta: i64,
    pub reason: String,
    pub op: Uuid,
    pub now: Timestamp,
    pub identity: Option<RequestIdentity>,
}

/// Holds units of several products of a zone until an instant: all of them or none.
#[derive(Debug, Clone)]
pub struct Reserve {
    pub reservation_id: ReservationId,
    pub geo_zone: GeoZone,
    /// One per product.
    pub lines: Vec<Demand>,
    pub expires_at: Timestamp,
    pub now: Timestamp,
    pub identity: Option<RequestIdentity>,
}

/// The movement that sets the units on hand, for every engine. Refuses: `StockChanged`, then `StockBelowReserved`.
pub fn set_delta(current: &ZoneStock, on_hand: u64, expected: Option<u64>) -> Result<Delta, Box<Refusal>> {
    let Level { on_hand: before, .. } = current.level;
    if expected.is_some_and(|expected| expected != before) {
        return Err(Box::new(Refusal::StockChanged { current: current.clone() }));
    }
    let delta = Delta { on_hand: on_hand.cast_signed() - before.cast_signed(), reserved: 0 };
    match current.level.moved(delta) {
        Ok(_) => Ok(delta),
        Err(_) => Err(Box::new(Refusal::StockBelowReserved { current: current.clone() })),
    }
}

/// The movement of an adjustment, for every engine. Refuses: `StockBelowReserved`, then `InvalidField` if more than
/// [`ON_HAND_MAX`] units would be on hand.
pub fn adjust_delta(current: &ZoneStock, units: i64) -> Result<Delta, Box<Refusal>> {
    let delta = Delta { on_hand: units, reserved: 0 };
    match current.level.moved(delta) {
        Err(_) => Err(Box::new(Refusal::StockBelowReserved { current: current.clone() })),
        Ok(level) if units > 0 && level.on_hand > ON_HAND_MAX => Err(Box::new(Refusal::InvalidField {
            field: "delta".to_owned(),
            detail: format!("at most {ON_HAND_MAX} units may be on hand"),
        })),
        Ok(_) => Ok(delta),
    }
}

/// A stock level that differs from the sum of its ledger or from its open holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    pub product_id: ProductId,
    pub geo_zone: GeoZone,
    pub recorded: Level,
    /// The sum of the ledger.
    pub ledger: Delta,
    /// The units of orders that wait for payment and of holds that are open.
    pub held: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    pub levels: u64,
    pub movements: u64,
    /// Of the movements, those that other programs made on a database that they share with the service.
    pub external: u64,
    pub drifts: Vec<Drift>,
}

#[async_trait::async_trait]
pub trait Stock: Send + Sync {
    /// A hold past its expiry counts as available, closed or not.
    async fn zone_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>>;

    /// The product's stock in every zone, by zone.
    async fn product_stock(
        &self,
        product_id: &ProductId,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>>;

    /// Refuses: `ProductNotFound`, `StockChanged`, `StockBelowReserved`.
    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock>;

    /// Refuses: `ProductNotFound`, `StockBelowReserved`, `InvalidField` naming `delta` above the limit of units on hand.
    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>>;

    /// Only the zone's levels count, also for a product that is no longer in the catalogue. Refuses: `OutOfStock` with every
    /// shortage.
    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>>;

    /// Readable until 30 days after its expiry.
    async fn reservation(&self, reservation_id: ReservationId, now: Timestamp)
    -> Result<Option<Reservation>>;

    /// The held units leave the stock. A repeated call succeeds. Refuses: `ReservationNotFound`, `ReservationClosed`.
    async fn confirm(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
        identity: Option<RequestIdentity>,
    ) -> Result<Done<Reservation>>;

    /// Makes the held units available again. A repeated call succeeds. Refuses: `ReservationNotFound`, `ReservationClosed`.
    async fn release(&self, reservation_id: ReservationId, now: Timestamp) -> Result<()>;

    /// Closes up to `limit` expired holds; returns how many.
    async fn expire_reservations(&self, now: Timestamp, limit: usize) -> Result<usize>;

    /// Recomputes every stock level from the ledger and from the open holds. `progress` receives the number of levels
    /// audited so far.
    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit>;
}
