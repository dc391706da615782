//! Stock of a product by zone.

use axum::extract::State;
use http::StatusCode;
use mw_domain::{GeoZone, ProductId};
use mw_store::Freshness;
use mw_store::stock::{Adjust, SetOnHand};

use crate::answer::{self, Answer};
use crate::app::App;
use crate::docs::IdempotencyKey;
use crate::error::{Code, Problem};
use crate::extract::{Json, Keyed, Path};
use crate::refusal::OrProblem;
use crate::wire::stock::{AdjustBody, OnHandBody, ProductStockView, ZoneStockView};

const SIZE: usize = 256;

/// A product's stock in every zone
#[utoipa::path(get, path = "/v1/products/{product_id}/stock", tag = "stock", operation_id = "read_product_stock",
    responses((status = 200, body = ProductStockView)), extensions(("x-problems" = json!(["product_not_found"]))))]
pub(crate) async fn of_product(State(app): State<App>, Path(product_id): Path<ProductId>) -> Answer {
    let store = &app.shop.store;
    let zones = store.product_stock(&product_id, Freshness::Full, app.shop.now()).await.or_problem(&app)?;
    // A product may have left the catalogue while its figures are still of interest.
    if zones.is_empty() && store.product(&product_id, Freshness::Full).await.or_problem(&app)?.is_none() {
        return Err(Problem::new(Code::ProductNotFound, format!("no product {product_id}")));
    }
    let view = ProductStockView::new(&product_id, &zones);
    answer::ok(view.size(), &view)
}

/// A product's stock in a zone
#[utoipa::path(get, path = "/v1/products/{product_id}/stock/{geo_zone}", tag = "stock", operation_id = "read_stock",
    responses((status = 200, body = ZoneStockView)), extensions(("x-problems" = json!(["stock_not_found"]))))]
pub(crate) async fn read(
    State(app): State<App>,
    Path((product_id, geo_zone)): Path<(ProductId, GeoZone)>,
) -> Answer {
    let now = app.shop.now();
    let stock =
        app.shop.store.zone_stock(&product_id, &geo_zone, Freshness::Full, now).await.or_problem(&app)?;
    let stock = stock.ok_or_else(|| {
        Problem::new(Code::StockNotFound, format!("product {product_id} has no stock in zone {geo_zone}"))
    })?;
    answer::ok(SIZE, &ZoneStockView::from(&stock))
}

/// Set the units on hand
///
/// With `expected_on_hand` only if that is what is on hand.
#[utoipa::path(put, path = "/v1/products/{product_id}/stock/{geo_zone}", tag = "stock", operation_id = "put_stock",
    request_body = OnHandBody, responses((status = 200, body = ZoneStockView)),
    extensions(("x-problems" = json!(["product_not_found", "stock_changed", "stock_below_reserved"]))))]
pub(crate) async fn put(
    State(app): State<App>,
    Path((product_id, geo_zone)): Path<(ProductId, GeoZone)>,
    Json(body): Json<OnHandBody>,
) -> Answer {
    let command = SetOnHand {
        product_id,
        geo_zone,
        on_hand: body.on_hand,
        expected_on_hand: body.expected_on_hand,
        op: app.shop.ids.uuid(),
        now: app.shop.now(),
    };
    let stock = app.shop.store.set_on_hand(command).await.or_problem(&app)?;
    answer::ok(SIZE, &ZoneStockView::from(&stock))
}

/// Add or remove units
///
/// A zone without stock starts at 0.
#[utoipa::path(post, path = "/v1/products/{product_id}/stock/{geo_zone}/adjust", tag = "stock",
    operation_id = "adjust_stock", params(IdempotencyKey), request_body = AdjustBody,
    responses((status = 200, body = ZoneStockView)),
    extensions(("x-problems" = json!(["product_not_found", "stock_below_reserved"]))))]
pub(crate) async fn adjust(
    State(app): State<App>,
    Path((product_id, geo_zone)): Path<(ProductId, GeoZone)>,
    Keyed { once, body }: Keyed<AdjustBody>,
) -> Answer {
    let command = Adjust {
        product_id,
        geo_zone,
        delta: body.delta,
        reason: body.reason,
        op: app.shop.ids.uuid(),
        now: app.shop.now(),
        once,
    };
    let done = app.shop.store.adjust(command).await.or_problem(&app)?;
    answer::done(StatusCode::OK, done.replayed, SIZE, &ZoneStockView::from(&done.value))
}
