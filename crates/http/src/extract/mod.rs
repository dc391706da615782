//! What a handler takes from a request, each refusing what is malformed with its own problem.

mod body;
mod headers;
mod json;
mod keyed;
mod path;
mod query;

pub(crate) use body::{BodyLimits, is_lines_type};
pub(crate) use headers::{IfMatch, idempotency_key};
pub(crate) use json::{Json, JsonOptional, parse};
pub(crate) use keyed::{Keyed, KeyedOptional, RequiredKeyed, line_fingerprint};
pub(crate) use path::Path;
pub(crate) use query::Query;
