//! The promise of stock: `reserved <= on_hand` at every instant a reader sees, and units conserved: what was put in is
//! on hand or has left with a paid order or a confirmed hold. The ledger proves it.

use mw_domain::stock::Delta;
use mw_domain::{Demand, GeoZone, Level, ProductId, Reservation, ReservationId, Timestamp, ZoneStock};
use uuid::Uuid;

use crate::{Done, Freshness, Once, Result};

/// Sets the units on hand.
#[derive(Debug, Clone)]
pub struct SetOnHand {
    pub product_id: ProductId,
    pub geo_zone: GeoZone,
    pub on_hand: u64,
    /// Refused with `StockChanged` unless this is what is on hand; a zone without stock has 0.
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
    pub once: Option<Once>,
}

/// Holds units of several products of a zone until a moment: all of them or none.
#[derive(Debug, Clone)]
pub struct Reserve {
    pub reservation_id: ReservationId,
    pub geo_zone: GeoZone,
    /// One a product.
    pub lines: Vec<Demand>,
    pub expires_at: Timestamp,
    pub now: Timestamp,
    pub once: Option<Once>,
}

/// A figure that the ledger or the open holds do not explain.
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
    pub figures: u64,
    pub movements: u64,
    pub drifts: Vec<Drift>,
}

#[async_trait::async_trait]
pub trait Stock: Send + Sync {
    /// A hold past its time counts as available here, settled or not.
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

    /// Only the zone's figures count: also for a product that has left the catalogue. Refuses: `OutOfStock` with every
    /// shortage.
    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>>;

    /// Readable until 30 days after its time is over.
    async fn reservation(&self, reservation_id: ReservationId, now: Timestamp)
    -> Result<Option<Reservation>>;

    /// The held units leave. Again is fine. Refuses: `ReservationNotFound`, `ReservationClosed`.
    async fn confirm(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
        once: Option<Once>,
    ) -> Result<Done<Reservation>>;

    /// The held units are available again. Again is fine. Refuses: `ReservationNotFound`, `ReservationClosed`.
    async fn release(&self, reservation_id: ReservationId, now: Timestamp) -> Result<()>;

    /// Settles up to `limit` holds whose time is over; answers how many.
    async fn settle_expired(&self, now: Timestamp, limit: usize) -> Result<usize>;

    /// Recomputes every figure from the ledger and from the open holds. `progress` is told how many figures are done.
    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit>;
}
