//! Stock of a product by zone.

use axum::extract::State;
use http::StatusCode;
use mw_domain::{GeoZone, ProductId};

use crate::app::App;
use crate::docs::IdempotencyKey;
use crate::error::{Code, Problem};
use crate::extract::{Json, KeyedJson, Path};
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::stock::{AdjustBody, OnHandBody, ProductStockView, ZoneStockView};

/// An estimate of the bytes of one zone's stock in JSON.
const SIZE: usize = 256;

/// A product's stock in every zone
#[utoipa::path(get, path = "/v1/products/{product_id}/stock", tag = "stock", operation_id = "read_product_stock",
    responses((status = 200, body = ProductStockView)), extensions(("x-problems" = json!(["product_not_found"]))))]
pub(crate) async fn of_product(State(app): State<App>, Path(product_id): Path<ProductId>) -> ApiResult {
    let zones = app.shop.product_stock(&product_id).await.or_problem(&app)?;
    let zones =
        zones.ok_or_else(|| Problem::new(Code::ProductNotFound, format!("no product {product_id}")))?;
    let view = ProductStockView::new(&product_id, &zones);
    response::ok(view.size(), &view)
}

/// A product's stock in a zone
#[utoipa::path(get, path = "/v1/products/{product_id}/stock/{geo_zone}", tag = "stock", operation_id = "read_stock",
    responses((status = 200, body = ZoneStockView)), extensions(("x-problems" = json!(["stock_not_found"]))))]
pub(crate) async fn read(
    State(app): State<App>,
    Path((product_id, geo_zone)): Path<(ProductId, GeoZone)>,
) -> ApiResult {
    let stock = app.shop.zone_stock(&product_id, &geo_zone).await.or_problem(&app)?;
    let stock = stock.ok_or_else(|| {
        Problem::new(Code::StockNotFound, format!("product {product_id} has no stock in zone {geo_zone}"))
    })?;
    response::ok(SIZE, &ZoneStockView::from(&stock))
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
) -> ApiResult {
    let OnHandBody { on_hand, expected_on_hand } = body;
    let stock = app.shop.set_on_hand(product_id, geo_zone, on_hand, expected_on_hand).await;
    response::ok(SIZE, &ZoneStockView::from(&stock.or_problem(&app)?))
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
    KeyedJson { key, body }: KeyedJson<AdjustBody>,
) -> ApiResult {
    let AdjustBody { delta, reason } = body;
    let adjusted = app.shop.adjust_stock(product_id, geo_zone, delta, reason, key).await;
    let done = adjusted.or_problem(&app)?;
    response::done(StatusCode::OK, done.replayed, SIZE, &ZoneStockView::from(&done.value))
}
