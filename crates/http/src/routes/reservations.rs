//! Units held for somebody for a while.

use axum::extract::State;
use http::StatusCode;
use mw_domain::ReservationId;

use crate::answer::{self, Answer};
use crate::app::App;
use crate::docs::IdempotencyKey;
use crate::error::{Code, Problem};
use crate::extract::{Keyed, KeyedOptional, Path};
use crate::refusal::OrProblem;
use crate::wire::carts::NoFields;
use crate::wire::stock::{ReservationView, ReserveBody};

/// Hold units of a zone
///
/// All lines or none, for `ttl_seconds`. A repeated product is one demand.
#[utoipa::path(post, path = "/v1/reservations", tag = "reservations", operation_id = "reserve",
    params(IdempotencyKey), request_body = ReserveBody, responses((status = 201, body = ReservationView)),
    extensions(("x-problems" = json!(["out_of_stock"]))))]
pub(crate) async fn create(State(app): State<App>, Keyed { once, body }: Keyed<ReserveBody>) -> Answer {
    let done = app.shop.reserve(body.geo_zone, body.lines, body.ttl_seconds, once).await.or_problem(&app)?;
    let view = ReservationView::from(&done.value);
    answer::done(StatusCode::CREATED, done.replayed, view.size(), &view)
}

/// A reservation
#[utoipa::path(get, path = "/v1/reservations/{reservation_id}", tag = "reservations",
    operation_id = "read_reservation", responses((status = 200, body = ReservationView)),
    extensions(("x-problems" = json!(["reservation_not_found"]))))]
pub(crate) async fn read(State(app): State<App>, Path(reservation_id): Path<ReservationId>) -> Answer {
    let now = app.shop.now();
    let reservation = app.shop.store.reservation(reservation_id, now).await.or_problem(&app)?;
    let reservation =
        reservation.ok_or_else(|| Problem::new(Code::ReservationNotFound, "no such reservation"))?;
    let view = ReservationView::at(&reservation, now);
    answer::ok(view.size(), &view)
}

/// Take the held units
///
/// They leave `on_hand`. Again is fine.
#[utoipa::path(post, path = "/v1/reservations/{reservation_id}/confirm", tag = "reservations",
    operation_id = "confirm_reservation", params(IdempotencyKey), responses((status = 200, body = ReservationView)),
    extensions(("x-problems" = json!(["reservation_not_found", "reservation_closed"]))))]
pub(crate) async fn confirm(
    State(app): State<App>,
    Path(reservation_id): Path<ReservationId>,
    KeyedOptional { once, body: NoFields {} }: KeyedOptional<NoFields>,
) -> Answer {
    let done = app.shop.store.confirm(reservation_id, app.shop.now(), once).await.or_problem(&app)?;
    let view = ReservationView::from(&done.value);
    answer::done(StatusCode::OK, done.replayed, view.size(), &view)
}

/// Give the held units back
///
/// They are available again. Again is fine.
#[utoipa::path(delete, path = "/v1/reservations/{reservation_id}", tag = "reservations",
    operation_id = "release_reservation", responses((status = 204)),
    extensions(("x-problems" = json!(["reservation_not_found", "reservation_closed"]))))]
pub(crate) async fn release(State(app): State<App>, Path(reservation_id): Path<ReservationId>) -> Answer {
    app.shop.store.release(reservation_id, app.shop.now()).await.or_problem(&app)?;
    Ok(answer::no_content())
}
