//! Successful responses: JSON written once, into one buffer.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;

use crate::error::Problem;
use crate::wire;

/// What a handler returns.
pub(crate) type ApiResult = Result<Response, Problem>;

pub(crate) const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Capacity for the headers of a response, so that their map is allocated once.
const HEADERS_CAPACITY: usize = 8;

/// `size` is an estimate of the bytes of the JSON.
pub(crate) fn encode(size: usize, value: &impl Serialize) -> Result<Vec<u8>, Problem> {
    let mut body = Vec::with_capacity(size);
    wire::json::write(&mut body, value)
        .map_err(|error| Problem::internal(format_args!("write JSON: {error}")))?;
    Ok(body)
}

/// `size` as in [`encode`].
pub(crate) fn json(status: StatusCode, size: usize, value: &impl Serialize) -> ApiResult {
    Ok(with_body(status, APPLICATION_JSON, encode(size, value)?.into()))
}

/// A response of encoded JSON.
pub(crate) fn encoded(body: impl Into<Bytes>) -> Response {
    with_body(StatusCode::OK, APPLICATION_JSON, body.into())
}

pub(crate) fn ok(size: usize, value: &impl Serialize) -> ApiResult {
    json(StatusCode::OK, size, value)
}

/// A response that may replay the first success of its idempotency key.
pub(crate) fn done(status: StatusCode, replayed: bool, size: usize, value: &impl Serialize) -> ApiResult {
    let mut response = json(status, size, value)?;
    if replayed {
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

pub(crate) fn with_body(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let mut headers = HeaderMap::with_capacity(HEADERS_CAPACITY);
    headers.insert(CONTENT_TYPE, content_type);
    *response.headers_mut() = headers;
    response
}

pub(crate) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
