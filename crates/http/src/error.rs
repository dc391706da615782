//! Every response that is not a success.
//!
//! When to use which:
//! - the client sent something wrong: [`Problem::parameter`] for a path, query or header value, [`Problem::field`] for
//!   a member of the body, [`Problem::new`] with its [`Code`] for the rest;
//! - a rule of the shop is not met (no stock, no cart, wrong status): the store refuses, and `store_error.rs` picks the
//!   code;
//! - surely not done and worth a retry: `Overloaded`, `StoreUnavailable`; possibly done: `OutcomeUnknown`;
//! - a fault of the service: [`Problem::internal`], whose cause goes to the log and never to the client.
//!
//! A handler returns a `Problem`; the middleware writes its body, because only it knows the request's id.

use std::borrow::Cow;
use std::fmt::Display;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

macro_rules! codes {
    ($($variant:ident $status:literal $name:literal $title:literal,)*) => {
        /// The closed list of `code`s; each has its status and title here and nowhere else.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $($variant,)* }

        impl Code {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const fn definition(self) -> (u16, &'static str, &'static str) {
                match self { $(Self::$variant => ($status, $name, $title),)* }
            }
        }
    };
}

codes! {
    InvalidJson 400 "invalid_json" "The body is not a JSON object",
    InvalidParameter 400 "invalid_parameter" "A path, query or header value is malformed",
    InvalidCursor 400 "invalid_cursor" "The cursor does not belong to this list",
    IdempotencyKeyRequired 400 "idempotency_key_required" "This call needs an Idempotency-Key",
    Unauthorized 401 "unauthorized" "A bearer token is needed",
    Forbidden 403 "forbidden" "The token's role does not allow this",
    RouteNotFound 404 "route_not_found" "There is no such route",
    ProductNotFound 404 "product_not_found" "There is no such product",
    OrderNotFound 404 "order_not_found" "There is no such order",
    ReservationNotFound 404 "reservation_not_found" "There is no such reservation",
    SessionNotFound 404 "session_not_found" "There is no such session",
    StockNotFound 404 "stock_not_found" "The product has no stock in this zone",
    PartitionNotFound 404 "partition_not_found" "There is no such partition",
    RepairNotFound 404 "repair_not_found" "There is no such table to repair",
    MethodNotAllowed 405 "method_not_allowed" "The route does not have this method",
    CursorExpired 410 "cursor_expired" "Changes after the cursor are no longer kept",
    OutOfStock 409 "out_of_stock" "Not enough units are available",
    PriceChanged 409 "price_changed" "The total differs from the expected one",
    CartEmpty 409 "cart_empty" "There is no active cart with lines",
    StockChanged 409 "stock_changed" "The stock differs from the expected one",
    StockBelowReserved 409 "stock_below_reserved" "More units are reserved than would be on hand",
    IllegalTransition 409 "illegal_transition" "The order cannot go from its status to this one",
    ReservationClosed 409 "reservation_closed" "The reservation is no longer held",
    SessionBound 409 "session_bound" "The session is live already or belongs to another user",
    VersionMismatch 412 "version_mismatch" "The version differs from the one in If-Match",
    BodyTooLarge 413 "body_too_large" "The body is too large",
    UnsupportedMediaType 415 "unsupported_media_type" "The content type is not supported",
    InvalidField 422 "invalid_field" "A field of the body is invalid",
    CartTooLarge 422 "cart_too_large" "The cart holds as many lines as it may",
    CurrencyMismatch 422 "currency_mismatch" "The shop has another currency",
    IdempotencyKeyReused 422 "idempotency_key_reused" "The Idempotency-Key was used for another request",
    RateLimited 429 "rate_limited" "Too many requests for this token",
    Internal 500 "internal" "Something went wrong here",
    Overloaded 503 "overloaded" "The service is at its limit; nothing was done",
    StoreUnavailable 503 "store_unavailable" "Storage is unavailable; nothing was done",
    OutcomeUnknown 504 "outcome_unknown" "The change may or may not have been made",
}

impl Code {
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.definition().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub const fn name(self) -> &'static str {
        self.definition().1
    }

    pub const fn title(self) -> &'static str {
        self.definition().2
    }

    /// Surely not done and worth a retry after this many seconds.
    const fn retry_after_seconds(self) -> Option<u64> {
        match self {
            Self::RateLimited | Self::Overloaded | Self::StoreUnavailable => Some(1),
            _ => None,
        }
    }
}

/// A response that is not a success, before it has a request id.
#[derive(Debug, Clone)]
pub struct Problem(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    code: Code,
    detail: Cow<'static, str>,
    extras: Vec<(&'static str, Value)>,
    /// Where the status is not that of the code.
    status: Option<u16>,
    retry_after_seconds: Option<u64>,
    cause: Option<String>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Parts {
            code,
            detail: detail.into(),
            extras: Vec::new(),
            status: None,
            retry_after_seconds: code.retry_after_seconds(),
            cause: None,
        }))
    }

    /// A malformed value in the path, the query or a header.
    pub fn parameter(name: &str, detail: impl Display) -> Self {
        Self::new(Code::InvalidParameter, format!("{name}: {detail}")).with("parameter", name)
    }

    /// An unacceptable value in the body, named like `lines[0].quantity`.
    pub fn field(name: &str, detail: impl Display) -> Self {
        Self::new(Code::InvalidField, format!("{name}: {detail}")).with("field", name)
    }

    /// A fault of the service: the client learns nothing but the request id.
    pub fn internal(cause: impl Display) -> Self {
        Self::new(
            Code::Internal,
            "the request could not be served; report the request id, which the log names",
        )
        .caused_by(cause)
    }

    /// Adds a member to the body; one that cannot be serialised is omitted.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Serialize) -> Self {
        if let Ok(value) = serde_json::to_value(value) {
            self.0.extras.push((name, value));
        }
        self
    }

    /// A cause that is logged and not sent to the client.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Display) -> Self {
        self.0.cause = Some(cause.to_string());
        self
    }

    /// A status in the body that differs from the code's, for a response that is not written by a route.
    #[must_use]
    pub(crate) fn status(mut self, status: u16) -> Self {
        self.0.status = Some(status);
        self
    }

    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.0.retry_after_seconds = Some(seconds.max(1));
        self
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    pub(crate) fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        self.0.retry_after_seconds
    }

    /// The RFC 9457 body.
    pub(crate) fn body(&self, request_id: &str) -> Vec<u8> {
        let mut body = Vec::with_capacity(320);
        let document = Document { parts: &self.0, request_id };
        // Values that came from `serde_json` can always be written into memory.
        if serde_json::to_writer(&mut body, &document).is_err() {
            body.clear();
        }
        body
    }
}

struct Document<'a> {
    parts: &'a Parts,
    request_id: &'a str,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (status, name, title) = self.parts.code.definition();
        let status = self.parts.status.unwrap_or(status);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &format_args!("urn:mobile-world:problem:{name}"))?;
        map.serialize_entry("title", title)?;
        map.serialize_entry("status", &status)?;
        map.serialize_entry("detail", &self.parts.detail)?;
        map.serialize_entry("code", name)?;
        map.serialize_entry("request_id", self.request_id)?;
        for (name, value) in &self.parts.extras {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        *response.status_mut() = self.code().status();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_every_member_and_its_extras() {
        let problem = Problem::parameter("limit", "is 1 to 100");
        let body: Value = serde_json::from_slice(&problem.body("r-1")).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "type": "urn:mobile-world:problem:invalid_parameter",
                "title": "A path, query or header value is malformed",
                "status": 400,
                "detail": "limit: is 1 to 100",
                "code": "invalid_parameter",
                "request_id": "r-1",
                "parameter": "limit",
            })
        );
    }

    #[test]
    fn an_internal_cause_is_not_sent_to_the_client() {
        let problem = Problem::internal("/var/lib/secret is broken");
        let body = String::from_utf8(problem.body("r-2")).unwrap();
        assert!(!body.contains("secret"), "{body}");
        assert_eq!(problem.cause(), Some("/var/lib/secret is broken"));
    }

    #[test]
    fn names_are_unique_and_statuses_are_errors() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
        assert!(Code::ALL.iter().all(|code| code.status().as_u16() >= 400));
    }
}
