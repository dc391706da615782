//! Reservations: units of a zone that are held for a while.

use axum::extract::State;
use http::StatusCode;
use mw_domain::ReservationId;

use crate::app::App;
use crate::docs::IdempotencyKey;
use crate::error::{Code, Problem};
use crate::extract::{KeyedJson, KeyedJsonOptional, Path};
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::carts::NoFields;
use crate::wire::stock::{ReservationView, ReserveBody};

/// Hold units of a zone
///
/// All lines or none, for `ttl_seconds`. A repeated product is one demand.
#[utoipa::path(post, path = "/v1/reservations", tag = "reservations", operation_id = "reserve",
    params(IdempotencyKey), request_body = ReserveBody, responses((status = 201, body = ReservationView)),
    extensions(("x-problems" = json!(["out_of_stock"]))))]
pub(crate) async fn create(
    State(app): State<App>,
    KeyedJson { key, body }: KeyedJson<ReserveBody>,
) -> ApiResult {
    let ReserveBody { geo_zone, lines, ttl_seconds } = body;
    let done = app.shop.reserve(geo_zone, lines, ttl_seconds, key).await.or_problem(&app)?;
    let view = ReservationView::from(&done.value);
    response::done(StatusCode::CREATED, done.replayed, view.size(), &view)
}

/// A reservation
#[utoipa::path(get, path = "/v1/reservations/{reservation_id}", tag = "reservations",
    operation_id = "read_reservation", responses((status = 200, body = ReservationView)),
    extensions(("x-problems" = json!(["reservation_not_found"]))))]
pub(crate) async fn read(State(app): State<App>, Path(reservation_id): Path<ReservationId>) -> ApiResult {
    let reservation = app.shop.reservation(reservation_id).await.or_problem(&app)?;
    let reservation =
        reservation.ok_or_else(|| Problem::new(Code::ReservationNotFound, "no such reservation"))?;
    let view = ReservationView::from(&reservation);
    response::ok(view.size(), &view)
}

/// Confirm a reservation: take the held units
///
/// They leave `on_hand`. A repeat changes nothing.
#[utoipa::path(post, path = "/v1/reservations/{reservation_id}/confirm", tag = "reservations",
    operation_id = "confirm_reservation", params(IdempotencyKey), responses((status = 200, body = ReservationView)),
    extensions(("x-problems" = json!(["reservation_not_found", "reservation_closed"]))))]
pub(crate) async fn confirm(
    State(app): State<App>,
    Path(reservation_id): Path<ReservationId>,
    KeyedJsonOptional { key, body: NoFields {} }: KeyedJsonOptional<NoFields>,
) -> ApiResult {
    let done = app.shop.confirm_reservation(reservation_id, key).await.or_problem(&app)?;
    let view = ReservationView::from(&done.value);
    response::done(StatusCode::OK, done.replayed, view.size(), &view)
}

/// Release a reservation: give the held units back
///
/// They are available again. A repeat changes nothing.
#[utoipa::path(delete, path = "/v1/reservations/{reservation_id}", tag = "reservations",
    operation_id = "release_reservation", responses((status = 204)),
    extensions(("x-problems" = json!(["reservation_not_found", "reservation_closed"]))))]
pub(crate) async fn release(State(app): State<App>, Path(reservation_id): Path<ReservationId>) -> ApiResult {
    app.shop.release_reservation(reservation_id).await.or_problem(&app)?;
    Ok(response::no_content())
}
