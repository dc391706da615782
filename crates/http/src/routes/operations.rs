//! The service itself: health, readiness, metrics, the document, and requests that match no route.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode, Uri};
use mw_store::{Readiness, StoreError};
use serde::Serialize;

use crate::app::App;
use crate::error::{Code, Problem};
use crate::response::{self, ApiResult};

/// The response of the probes.
#[derive(Debug, utoipa::ToSchema)]
#[schema(as = Status)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct StatusView {
    /// `ok`.
    status: String,
}

/// The response of the readiness probe.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Readiness)]
pub(crate) struct ReadinessView {
    /// `ready`; `degraded` while part of the keys cannot be served; `unavailable`, with status 503.
    #[schema(value_type = String)]
    status: &'static str,
    /// The share of the keys that cannot be read and written now, 0 to 1.
    lost_share: f64,
    /// How far the clock of the process is ahead of the store's, in milliseconds.
    clock_skew_ms: i64,
    /// Why, where it is not `ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl ReadinessView {
    fn new(readiness: Result<Readiness, StoreError>, clock_skew_ms: i64) -> Self {
        match readiness {
            Ok(Readiness { lost_share, reason }) => {
                let status = if lost_share > 0.0 { "degraded" } else { "ready" };
                Self { status, lost_share, clock_skew_ms, reason }
            }
            Err(error) => {
                let reason = match error {
                    StoreError::NotServing(reason) => reason,
                    error => {
                        tracing::warn!(%error, "not ready");
                        "storage is unavailable; the log of the process says why".to_owned()
                    }
                };
                Self { status: "unavailable", lost_share: 1.0, clock_skew_ms, reason: Some(reason) }
            }
        }
    }
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
    responses((status = 200, description = "Ready, or degraded: part of the keys cannot be served", body = ReadinessView),
        (status = 503, description = "Unavailable", body = ReadinessView)))]
pub(crate) async fn ready(State(app): State<App>) -> ApiResult {
    let hung = || StoreError::NotServing("storage did not respond in time".to_owned());
    let readiness =
        tokio::time::timeout(READY_TIMEOUT, app.shop.ready()).await.unwrap_or_else(|_elapsed| Err(hung()));
    let status = if readiness.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let view = ReadinessView::new(readiness, app.shop.clock_skew_ms());
    let mut response = response::json(status, 96, &view)?;
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    Ok(response)
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
