//! The service itself: health, readiness, metrics, the document, and requests that match no route.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Uri};
use mw_store::Readiness;

use crate::app::App;
use crate::error::{Code, Problem};
use crate::response::{self, ApiResult};
use crate::store_error;

/// The response of the probes.
#[derive(Debug, utoipa::ToSchema)]
#[schema(as = Status)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct StatusView {
    /// `ok`.
    status: String,
}

/// The response of the readiness probe.
#[derive(Debug, utoipa::ToSchema)]
#[schema(as = Readiness)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct ReadinessView {
    /// `ready`, or `degraded` while part of the keys cannot be served.
    status: String,
    /// The share of the keys that cannot be read and written now, 0 to 1.
    lost_share: f64,
    /// Why.
    reason: Option<String>,
}

fn readiness_json(readiness: &Readiness) -> Bytes {
    let Readiness { lost_share, reason } = readiness;
    let status = if *lost_share > 0.0 { "degraded" } else { "ready" };
    let mut body = serde_json::json!({"status": status, "lost_share": lost_share});
    if let (Some(fields), Some(reason)) = (body.as_object_mut(), reason) {
        fields.insert("reason".to_owned(), reason.as_str().into());
    }
    body.to_string().into()
}

/// A store that takes longer than this counts as not ready.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the process is alive
#[utoipa::path(get, path = "/healthz", tag = "operations", operation_id = "health",
    responses((status = 200, description = "Alive", body = StatusView)))]
pub(crate) async fn health() -> Response {
    plain(StatusCode::OK, "application/json", Bytes::from_static(b"{\"status\":\"ok\"}"))
}

/// Whether storage can serve reads and writes
#[utoipa::path(get, path = "/readyz", tag = "operations", operation_id = "readiness",
    responses((status = 200, description = "Ready, or degraded: part of the keys cannot be served", body = ReadinessView)),
    extensions(("x-problems" = json!(["store_unavailable"]))))]
pub(crate) async fn ready(State(app): State<App>) -> ApiResult {
    match tokio::time::timeout(READY_TIMEOUT, app.shop.ready()).await {
        Ok(Ok(readiness)) => Ok(plain(StatusCode::OK, "application/json", readiness_json(&readiness))),
        Ok(Err(error)) => Err(store_error::problem(&error, app.shop.currency())),
        Err(_elapsed) => Err(Problem::new(Code::StoreUnavailable, "storage did not respond in time")),
    }
}

/// Prometheus metrics
#[utoipa::path(get, path = "/metrics", tag = "operations", operation_id = "metrics",
    responses((status = 200, description = "Prometheus text format", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(app): State<App>) -> ApiResult {
    let text = app.stack.metrics_text(app.shop.clock_jump_seconds()).map_err(Problem::internal)?;
    Ok(plain(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.into()))
}

pub(crate) async fn openapi(State(app): State<App>) -> Response {
    plain(StatusCode::OK, "application/json", app.docs.openapi.clone())
}

pub(crate) async fn docs(State(app): State<App>, uri: Uri) -> Response {
    let file = uri.path().trim_start_matches("/docs").trim_start_matches('/');
    match app.docs.file(file) {
        Some((content_type, body)) => response::with_body(StatusCode::OK, content_type, body),
        None => no_route().await.into_response(),
    }
}

fn plain(status: StatusCode, content_type: &'static str, body: Bytes) -> Response {
    response::with_body(status, HeaderValue::from_static(content_type), body)
}

pub(crate) async fn no_route() -> Problem {
    Problem::new(Code::RouteNotFound, "there is no such route; see /docs")
}

pub(crate) async fn no_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "the route has other methods; see the Allow header")
}
