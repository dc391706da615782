//! Extractors: what a handler reads from a request. Each refuses malformed input with its own problem.

mod body;
mod caller;
mod headers;
mod idempotency;
mod json;
mod path;
mod query;

pub(crate) use body::{BodyLimits, is_ndjson_type};
pub(crate) use caller::{Caller, PeerAddress, TokenName};
pub(crate) use headers::{IfMatch, idempotency_key};
pub(crate) use idempotency::{KeyRequiredJson, KeyedJson, KeyedJsonOptional, keyed_line};
pub(crate) use json::{Json, JsonOptional, parse};
pub(crate) use path::{Path, RepairedTable};
pub(crate) use query::Query;
