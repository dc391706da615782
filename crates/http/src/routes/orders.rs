//! Orders: placing, reading, changing their status, and their lists.

use axum::extract::State;
use http::StatusCode;
use mw_domain::limits::ORDER_PERIOD_DAYS_MAX;
use mw_domain::{Date, GeoZone, OrderId, Period, UserId};
use mw_store::{Done, Page, PageRequest, Position};

use crate::app::App;
use crate::conditional::{IfNoneMatch, Tag};
use crate::cursor::Scope;
use crate::docs::{
    IdempotencyKey, IfMatchVersion, OrdersParams, PageParams, PeriodParams, RequiredIdempotencyKey,
};
use crate::error::{Code, Problem};
use crate::extract::{IfMatch, KeyRequiredJson, KeyedJson, KeyedJsonOptional, Path, Query};
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::list::{List, ListView};
use crate::wire::orders::{EventView, NoteBody, OrderBody, OrderView, StatusBody};

/// Place an order
///
/// Prices are the catalogue's at this moment and are looked at before stock. The order holds its units; it is cancelled
/// by the service if it is not paid within the payment window.
#[utoipa::path(post, path = "/v1/orders", tag = "orders", operation_id = "place_order",
    params(RequiredIdempotencyKey), request_body = OrderBody, responses((status = 201, body = OrderView)),
    extensions(("x-problems" = json!(["product_not_found", "price_changed", "out_of_stock", "currency_mismatch"]))))]
pub(crate) async fn place(
    State(app): State<App>,
    KeyRequiredJson { key, body }: KeyRequiredJson<OrderBody>,
) -> ApiResult {
    let (draft, lines) = body.draft(app.shop.currency())?;
    let done = app.shop.place_order(draft, lines, key).await.or_problem(&app)?;
    respond(&app, StatusCode::CREATED, &done)
}

fn respond(app: &App, status: StatusCode, done: &Done<mw_domain::Order>) -> ApiResult {
    let currency = app.shop.currency();
    let view = OrderView::new(&done.value, &currency);
    response::done(status, done.replayed, view.size(), &view)
}

fn not_found(order_id: OrderId) -> Problem {
    Problem::new(Code::OrderNotFound, format!("no order {order_id}"))
}

/// An order
#[utoipa::path(get, path = "/v1/orders/{order_id}", tag = "orders", operation_id = "read_order",
    responses((status = 200, body = OrderView), (status = 304, description = "Not modified")),
    extensions(("x-problems" = json!(["order_not_found"]))))]
pub(crate) async fn read(
    State(app): State<App>,
    Path(order_id): Path<OrderId>,
    if_none_match: IfNoneMatch,
) -> ApiResult {
    let order = app.shop.order(order_id).await.or_problem(&app)?.ok_or_else(|| not_found(order_id))?;
    let currency = app.shop.currency();
    let view = OrderView::new(&order, &currency);
    // An order changes with its version and not otherwise.
    let tag = Tag::of(order_id.as_bytes()).and(order.version);
    Ok(if_none_match.respond(tag, response::encode(view.size(), &view)?))
}

/// What happened to an order
///
/// Newest first.
#[utoipa::path(get, path = "/v1/orders/{order_id}/events", tag = "orders", operation_id = "order_events",
    params(PageParams), responses((status = 200, body = List<EventView>)),
    extensions(("x-problems" = json!(["order_not_found"]))))]
pub(crate) async fn events(State(app): State<App>, Path(order_id): Path<OrderId>, query: Query) -> ApiResult {
    let scope = Scope::of("order events").with(order_id.as_bytes());
    let requested = query.page(&scope)?;
    let events = app.shop.order_events(order_id).await.or_problem(&app)?;
    let page = page_of(events.ok_or_else(|| not_found(order_id))?, &requested)?;
    response::ok(64 + page.items.len() * 128, &ListView::new(&page, &scope, EventView::from))
}

/// A page of a whole list, newest first. A position counts the remaining older items, so that a new item does not move
/// it.
fn page_of<T>(mut items: Vec<T>, requested: &PageRequest) -> Result<Page<T>, Problem> {
    if let Some(Position(bytes)) = &requested.after {
        let remaining = <[u8; 4]>::try_from(bytes.as_slice()).ok().map(u32::from_be_bytes);
        let start = remaining.and_then(|remaining| items.len().checked_sub(usize::try_from(remaining).ok()?));
        let start = start.ok_or_else(|| {
            Problem::new(Code::InvalidCursor, "send next_cursor of the same list, unchanged")
        })?;
        items.drain(..start);
    }
    let remaining = items.len().saturating_sub(requested.limit);
    items.truncate(requested.limit);
    let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
    Ok(Page { items, next: (remaining > 0).then(|| Position(remaining.to_be_bytes().to_vec())) })
}

/// Move an order to a status
///
/// created → paid → shipped → delivered → returned; created and paid → cancelled. The status it has: nothing happens.
#[utoipa::path(post, path = "/v1/orders/{order_id}/status", tag = "orders", operation_id = "set_order_status",
    params(IfMatchVersion, IdempotencyKey), request_body = StatusBody, responses((status = 200, body = OrderView)),
    extensions(("x-problems" = json!(["order_not_found", "illegal_transition"]))))]
pub(crate) async fn set_status(
    State(app): State<App>,
    Path(order_id): Path<OrderId>,
    IfMatch(expected_version): IfMatch,
    KeyedJson { key, body }: KeyedJson<StatusBody>,
) -> ApiResult {
    let StatusBody { status, note } = body;
    let moved = app.shop.set_order_status(order_id, status, note, expected_version, key).await;
    let done = moved.or_problem(&app)?;
    respond(&app, StatusCode::OK, &done)
}

/// Cancel one's own order
///
/// Another user's order is not found.
#[utoipa::path(post, path = "/v1/users/{user_id}/orders/{order_id}/cancel", tag = "orders",
    operation_id = "cancel_order", params(IfMatchVersion, IdempotencyKey), request_body = NoteBody,
    responses((status = 200, body = OrderView)),
    extensions(("x-optional-body" = json!(true)), ("x-problems" = json!(["order_not_found", "illegal_transition"]))))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Path((user_id, order_id)): Path<(UserId, OrderId)>,
    IfMatch(expected_version): IfMatch,
    KeyedJsonOptional { key, body }: KeyedJsonOptional<NoteBody>,
) -> ApiResult {
    let cancelled = app.shop.cancel_order(user_id, order_id, body.note, expected_version, key).await;
    let done = cancelled.or_problem(&app)?;
    respond(&app, StatusCode::OK, &done)
}

/// A user's orders
///
/// Newest first.
#[utoipa::path(get, path = "/v1/users/{user_id}/orders", tag = "orders", operation_id = "list_user_orders",
    params(PeriodParams, PageParams), responses((status = 200, body = List<OrderView>)))]
pub(crate) async fn of_user(
    State(app): State<App>,
    Path(user_id): Path<UserId>,
    mut query: Query,
) -> ApiResult {
    let period = Period {
        from: query.time("from")?.unwrap_or(Period::ALL.from),
        to: query.time("to")?.unwrap_or(Period::ALL.to),
    };
    in_order(&period)?;
    let scope = Scope::of("user orders").with(user_id.as_str()).with(bytes(&period));
    let page = query.page(&scope)?;
    let page = app.shop.user_orders(&user_id, period, page).await.or_problem(&app)?;
    respond_list(&app, &page, &scope)
}

/// All orders of a day or a period
///
/// `date`, or `from` and `to` of at most 31 days. Newest first.
#[utoipa::path(get, path = "/v1/orders", tag = "orders", operation_id = "list_orders",
    params(OrdersParams, PageParams), responses((status = 200, body = List<OrderView>)))]
pub(crate) async fn list(State(app): State<App>, mut query: Query) -> ApiResult {
    let period = match query.optional("date", Date::parse)? {
        Some(date) if query.has("from") || query.has("to") => {
            return Err(Problem::parameter(
                "date",
                format_args!("send either date={date} or from and to, not both"),
            ));
        }
        Some(date) => Period::day(date),
        None => bounded_period(&mut query, ORDER_PERIOD_DAYS_MAX)?,
    };
    let geo_zone = query.optional("geo_zone", GeoZone::parse)?;
    let zone = geo_zone.as_ref().map_or("", GeoZone::as_str);
    let scope = Scope::of("orders").with(zone).with(bytes(&period));
    let page = query.page(&scope)?;
    let page = app.shop.orders(geo_zone.as_ref(), period, page).await.or_problem(&app)?;
    respond_list(&app, &page, &scope)
}

fn respond_list(app: &App, page: &Page<mw_domain::Order>, scope: &Scope) -> ApiResult {
    let currency = app.shop.currency();
    let view = |order| OrderView::new(order, &currency);
    response::ok(64 + page.items.len() * 640, &ListView::new(page, scope, view))
}

/// `from` and `to`, both required, at most `days_max` days apart.
pub(super) fn bounded_period(query: &mut Query, days_max: i64) -> Result<Period, Problem> {
    let missing = |name| Problem::parameter(name, "is required");
    let period = Period {
        from: query.time("from")?.ok_or_else(|| missing("from"))?,
        to: query.time("to")?.ok_or_else(|| missing("to"))?,
    };
    in_order(&period)?;
    if period.longer_than_days(days_max) {
        return Err(Problem::parameter("to", format_args!("send a period of at most {days_max} days")));
    }
    Ok(period)
}

fn in_order(period: &Period) -> Result<(), Problem> {
    if period.from > period.to { Err(Problem::parameter("to", "must not be before from")) } else { Ok(()) }
}

fn bytes(period: &Period) -> [u8; 16] {
    let mut bytes = [0; 16];
    let both = period.from.as_millis().to_be_bytes().into_iter().chain(period.to.as_millis().to_be_bytes());
    for (target, byte) in bytes.iter_mut().zip(both) {
        *target = byte;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_growing_list_neither_repeat_nor_skip_items() {
        let first = page_of(vec![3, 2, 1], &PageRequest::first(1)).unwrap();
        assert_eq!(first.items, [3]);
        let second = page_of(vec![4, 3, 2, 1], &PageRequest { limit: 1, after: first.next }).unwrap();
        assert_eq!(second.items, [2]);
        let last = page_of(vec![4, 3, 2, 1], &PageRequest { limit: 5, after: second.next }).unwrap();
        assert_eq!((last.items, last.next), (vec![1], None));
    }

    #[test]
    fn a_position_of_another_list_is_refused() {
        for bytes in [vec![], vec![0, 0, 0, 9], vec![1]] {
            let requested = PageRequest { limit: 1, after: Some(Position(bytes)) };
            assert_eq!(page_of(vec![1], &requested).unwrap_err().code(), Code::InvalidCursor);
        }
    }
}
