//! Reports of the back office.

use axum::extract::State;
use mw_domain::GeoZone;
use mw_domain::limits::SALES_PERIOD_DAYS_MAX;

use super::orders::bounded_period;
use crate::app::App;
use crate::cursor::Scope;
use crate::docs::{IdleParam, PageParams, SalesParams};
use crate::extract::Query;
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::carts::CartView;
use crate::wire::list::{List, ListView};
use crate::wire::orders::{SalesReportView, SalesView};

const IDLE_FOR_DEFAULT_S: u64 = 3_600;
/// Ten years: no cart lives that long.
const IDLE_FOR_MAX_S: u64 = 315_360_000;

/// Sales by day and zone
///
/// Orders that are paid, shipped or delivered, by the day (UTC) they were created; at most 92 days.
#[utoipa::path(get, path = "/v1/reports/sales", tag = "reports", operation_id = "sales_report",
    params(SalesParams), responses((status = 200, body = SalesReportView)))]
pub(crate) async fn sales(State(app): State<App>, mut query: Query) -> ApiResult {
    let period = bounded_period(&mut query, SALES_PERIOD_DAYS_MAX)?;
    let geo_zone = query.optional("geo_zone", GeoZone::parse)?;
    query.finish()?;
    let sales = app.shop.sales(geo_zone.as_ref(), period).await.or_problem(&app)?;
    let currency = app.shop.currency();
    let items = sales.iter().map(|sales| SalesView::new(sales, &currency)).collect();
    response::ok(64 + sales.len() * 160, &SalesReportView { items })
}

/// Abandoned carts
///
/// Carts that are active and idle for so many seconds, or abandoned and not merged.
#[utoipa::path(get, path = "/v1/reports/abandoned-carts", tag = "reports", operation_id = "abandoned_carts",
    params(IdleParam, PageParams), responses((status = 200, body = List<CartView>)))]
pub(crate) async fn abandoned_carts(State(app): State<App>, mut query: Query) -> ApiResult {
    let idle_for_s = query.integer("idle_for", 0, IDLE_FOR_MAX_S)?.unwrap_or(IDLE_FOR_DEFAULT_S);
    let scope = Scope::of("abandoned carts").with(idle_for_s.to_be_bytes());
    let page = query.page(&scope)?;
    let page = app.shop.idle_carts(idle_for_s, page).await.or_problem(&app)?;
    response::ok(64 + page.items.len() * 1_024, &ListView::new(&page, &scope, CartView::from))
}
