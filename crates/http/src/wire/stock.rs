//! Stock and reservations in JSON.

use mw_domain::{Demand, GeoZone, ProductId, Reservation, Shortage, ZoneStock};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::scalars::{At, Id};
use super::{deserialize, schema};

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ZoneStock)]
pub(crate) struct ZoneStockView<'a> {
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    #[schema(value_type = schema::Name)]
    geo_zone: &'a str,
    on_hand: u64,
    reserved: u64,
    /// `on_hand - reserved`.
    available: u64,
    #[schema(value_type = schema::Time)]
    updated_at: At,
}

impl<'a> From<&'a ZoneStock> for ZoneStockView<'a> {
    fn from(stock: &'a ZoneStock) -> Self {
        Self {
            product_id: stock.product_id.as_str(),
            geo_zone: stock.geo_zone.as_str(),
            on_hand: stock.level.on_hand,
            reserved: stock.level.reserved,
            available: stock.level.available(),
            updated_at: At(stock.updated_at),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProductStock)]
pub(crate) struct ProductStockView<'a> {
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    /// By zone.
    zones: Vec<ZoneStockView<'a>>,
}

impl<'a> ProductStockView<'a> {
    pub(crate) fn new(product_id: &'a ProductId, zones: &'a [ZoneStock]) -> Self {
        Self { product_id: product_id.as_str(), zones: zones.iter().map(ZoneStockView::from).collect() }
    }

    /// An estimate of the bytes of the JSON.
    pub(crate) fn size(&self) -> usize {
        128 + self.zones.len() * 192
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Shortage)]
pub(crate) struct ShortageView<'a> {
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    requested: u32,
    available: u64,
}

impl<'a> From<&'a Shortage> for ShortageView<'a> {
    fn from(shortage: &'a Shortage) -> Self {
        Self {
            product_id: shortage.product_id.as_str(),
            requested: shortage.requested,
            available: shortage.available,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Reservation)]
pub(crate) struct ReservationView<'a> {
    #[schema(value_type = schema::Uuid)]
    reservation_id: Id,
    #[schema(value_type = schema::Name)]
    geo_zone: &'a str,
    lines: Vec<DemandView<'a>>,
    #[schema(value_type = ReservationStatusName)]
    status: &'static str,
    #[schema(value_type = schema::Time)]
    created_at: At,
    #[schema(value_type = schema::Time)]
    expires_at: At,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DemandLine)]
struct DemandView<'a> {
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    #[schema(minimum = 1, maximum = 10_000)]
    quantity: u32,
}

#[derive(Debug, ToSchema)]
#[schema(as = ReservationStatus, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ReservationStatusName {
    Held,
    Confirmed,
    Released,
    Expired,
}

impl ReservationView<'_> {
    /// An estimate of the bytes of the JSON.
    pub(crate) fn size(&self) -> usize {
        256 + self.lines.len() * 80
    }
}

impl<'a> From<&'a Reservation> for ReservationView<'a> {
    fn from(reservation: &'a Reservation) -> Self {
        let line =
            |line: &'a Demand| DemandView { product_id: line.product_id.as_str(), quantity: line.quantity };
        Self {
            reservation_id: Id(reservation.reservation_id.uuid()),
            geo_zone: reservation.geo_zone.as_str(),
            lines: reservation.lines.iter().map(line).collect(),
            status: reservation.status.as_str(),
            created_at: At(reservation.created_at),
            expires_at: At(reservation.expires_at),
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PutStock)]
pub(crate) struct OnHandBody {
    #[serde(deserialize_with = "deserialize::on_hand")]
    #[schema(maximum = 1_000_000_000)]
    pub(crate) on_hand: u64,
    /// Refuses the change unless this is what is on hand; a zone without stock has 0.
    #[serde(default, deserialize_with = "deserialize::optional_on_hand")]
    #[schema(maximum = 1_000_000_000)]
    pub(crate) expected_on_hand: Option<u64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AdjustStock)]
pub(crate) struct AdjustBody {
    #[serde(deserialize_with = "deserialize::delta")]
    pub(crate) delta: i64,
    #[serde(deserialize_with = "deserialize::text")]
    #[schema(max_length = 1_024)]
    pub(crate) reason: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Reserve)]
pub(crate) struct ReserveBody {
    #[serde(deserialize_with = "deserialize::id")]
    #[schema(value_type = schema::Name)]
    pub(crate) geo_zone: GeoZone,
    #[serde(deserialize_with = "deserialize::lines")]
    #[schema(value_type = Vec<deserialize::DemandBody>, min_items = 1, max_items = 100)]
    pub(crate) lines: Vec<Demand>,
    #[serde(default, deserialize_with = "deserialize::optional_ttl")]
    #[schema(minimum = 1, maximum = 86_400)]
    pub(crate) ttl_seconds: Option<u32>,
}
