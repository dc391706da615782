//! Successful answers: JSON written once, into one buffer.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;

use crate::error::Problem;
use crate::wire;

pub(crate) type Answer = Result<Response, Problem>;

pub(crate) const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Room for the headers of an answer, so that its map is allocated once.
const HEADERS: usize = 8;

/// `size` is a guess of how many bytes the JSON has.
pub(crate) fn json(status: StatusCode, size: usize, value: &impl Serialize) -> Answer {
    let mut body = Vec::with_capacity(size);
    wire::json::write(&mut body, value)
        .map_err(|error| Problem::internal(format_args!("write JSON: {error}")))?;
    Ok(with_body(status, APPLICATION_JSON, body.into()))
}

/// An answer whose JSON is there already.
pub(crate) fn ready(body: impl Into<Bytes>) -> Response {
    with_body(StatusCode::OK, APPLICATION_JSON, body.into())
}

pub(crate) fn ok(size: usize, value: &impl Serialize) -> Answer {
    json(StatusCode::OK, size, value)
}

/// An answer that may be the first success given again.
pub(crate) fn done(status: StatusCode, replayed: bool, size: usize, value: &impl Serialize) -> Answer {
    let mut response = json(status, size, value)?;
    if replayed {
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

pub(crate) fn with_body(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let mut headers = HeaderMap::with_capacity(HEADERS);
    headers.insert(CONTENT_TYPE, content_type);
    *response.headers_mut() = headers;
    response
}

pub(crate) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
