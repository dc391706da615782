//! Stock with its ledger, and reservations.

use mw_domain::stock::{Cause, Delta, Movement};
use mw_domain::{
    Demand, GeoZone, Level, ProductId, Reservation, ReservationId, ReservationStatus, Timestamp, ZoneStock,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::form::{form, list, one};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Level", deny_unknown_fields)]
struct LevelForm {
    on_hand: u64,
    reserved: u64,
}
form!(Level as LevelForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "ZoneStock", deny_unknown_fields)]
struct ZoneStockForm {
    #[serde(with = "one")]
    product_id: ProductId,
    #[serde(with = "one")]
    geo_zone: GeoZone,
    #[serde(with = "one")]
    level: Level,
    #[serde(with = "one")]
    updated_at: Timestamp,
}
form!(ZoneStock as ZoneStockForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Delta", deny_unknown_fields)]
struct DeltaForm {
    on_hand: i64,
    reserved: i64,
}
form!(Delta as DeltaForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Cause", rename_all = "snake_case")]
enum CauseForm {
    Set,
    Adjust,
    Hold,
    Take,
    Release,
    Return,
}
form!(Cause as CauseForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Movement", deny_unknown_fields)]
struct MovementForm {
    #[serde(with = "one")]
    at: Timestamp,
    #[serde(with = "one")]
    op: Uuid,
    #[serde(with = "one")]
    cause: Cause,
    #[serde(with = "one")]
    delta: Delta,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}
form!(Movement as MovementForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Demand", deny_unknown_fields)]
struct DemandForm {
    #[serde(with = "one")]
    product_id: ProductId,
    quantity: u32,
}
form!(Demand as DemandForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "ReservationStatus", rename_all = "snake_case")]
enum ReservationStatusForm {
    Held,
    Confirmed,
    Released,
    Expired,
}
form!(ReservationStatus as ReservationStatusForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Reservation", deny_unknown_fields)]
struct ReservationForm {
    #[serde(with = "one")]
    reservation_id: ReservationId,
    #[serde(with = "one")]
    geo_zone: GeoZone,
    #[serde(with = "list")]
    lines: Vec<Demand>,
    #[serde(with = "one")]
    status: ReservationStatus,
    #[serde(with = "one")]
    created_at: Timestamp,
    #[serde(with = "one")]
    expires_at: Timestamp,
}
form!(Reservation as ReservationForm);
