//! What tells about the service itself: health, readiness, metrics, the document, and what is no route at all.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Uri};

use crate::answer::{self, Answer};
use crate::app::App;
use crate::error::{Code, Problem};
use crate::refusal;

/// What the probes answer.
#[derive(Debug, utoipa::ToSchema)]
#[schema(as = Status)]
#[expect(dead_code, reason = "describes fixed answers in the document")]
pub(crate) struct StatusView {
    /// `ok` or `ready`.
    status: String,
}

/// A store that takes longer than this to say it is ready is not.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the process is alive
#[utoipa::path(get, path = "/healthz", tag = "operations", operation_id = "health",
    responses((status = 200, description = "Alive", body = StatusView)))]
pub(crate) async fn health() -> Response {
    fixed(StatusCode::OK, "application/json", Bytes::from_static(b"{\"status\":\"ok\"}"))
}

/// Whether storage answers at the consistency it needs
#[utoipa::path(get, path = "/readyz", tag = "operations", operation_id = "readiness",
    responses((status = 200, description = "Ready", body = StatusView)), extensions(("x-problems" = json!(["store_unavailable"]))))]
pub(crate) async fn ready(State(app): State<App>) -> Answer {
    match tokio::time::timeout(READY_TIMEOUT, app.shop.store.ready()).await {
        Ok(Ok(())) => {
            Ok(fixed(StatusCode::OK, "application/json", Bytes::from_static(b"{\"status\":\"ready\"}")))
        }
        Ok(Err(error)) => Err(refusal::problem(&error, app.shop.settings.currency)),
        Err(_elapsed) => Err(Problem::new(Code::StoreUnavailable, "storage did not answer in time")),
    }
}

/// Prometheus metrics
#[utoipa::path(get, path = "/metrics", tag = "operations", operation_id = "metrics",
    responses((status = 200, description = "Prometheus text format", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(app): State<App>) -> Answer {
    let text = app.onion.metrics_text().map_err(Problem::internal)?;
    Ok(fixed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.into()))
}

pub(crate) async fn openapi(State(app): State<App>) -> Response {
    fixed(StatusCode::OK, "application/json", app.docs.openapi.clone())
}

pub(crate) async fn docs(State(app): State<App>, uri: Uri) -> Response {
    let file = uri.path().trim_start_matches("/docs").trim_start_matches('/');
    match app.docs.file(file) {
        Some((content_type, body)) => answer::with_body(StatusCode::OK, content_type, body),
        None => no_route().await.into_response(),
    }
}

fn fixed(status: StatusCode, content_type: &'static str, body: Bytes) -> Response {
    answer::with_body(status, HeaderValue::from_static(content_type), body)
}

pub(crate) async fn no_route() -> Problem {
    Problem::new(Code::RouteNotFound, "see /docs for what there is")
}

pub(crate) async fn no_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "see the Allow header for the methods of this route")
}
