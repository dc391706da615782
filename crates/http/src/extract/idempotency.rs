//! A POST with its `Idempotency-Key`: the JSON body, and the fingerprint that tells whether two requests are the same.

use std::borrow::Cow;

use axum::extract::{FromRequest, Request};
use mw_domain::IdempotencyKey;
use mw_shop::KeyedRequest;
use mw_store::Fingerprint;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::headers::idempotency_key;
use super::json::{parse, read, read_optional};
use crate::app::App;
use crate::error::{Code, Problem};

/// A required body with an optional key.
#[derive(Debug)]
pub(crate) struct KeyedJson<T> {
    pub(crate) key: Option<KeyedRequest>,
    pub(crate) body: T,
}

/// An optional body with an optional key; no body is the same as `{}`.
#[derive(Debug)]
pub(crate) struct KeyedJsonOptional<T> {
    pub(crate) key: Option<KeyedRequest>,
    pub(crate) body: T,
}

/// A required body with a required key.
#[derive(Debug)]
pub(crate) struct KeyRequiredJson<T> {
    pub(crate) key: KeyedRequest,
    pub(crate) body: T,
}

impl<T: DeserializeOwned> FromRequest<App> for KeyedJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let route = KeyedRoute::of(&request)?;
        let bytes = read(request, app.body_limits).await?;
        let body = parse(&bytes)?;
        Ok(Self { key: route.map(|route| route.with_body(&bytes)).transpose()?, body })
    }
}

impl<T: DeserializeOwned> FromRequest<App> for KeyedJsonOptional<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let route = KeyedRoute::of(&request)?;
        let bytes = read_optional(request, app.body_limits).await?;
        let body = parse(&bytes)?;
        Ok(Self { key: route.map(|route| route.with_body(&bytes)).transpose()?, body })
    }
}

impl<T: DeserializeOwned> FromRequest<App> for KeyRequiredJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let route = KeyedRoute::of(&request)?.ok_or_else(|| {
            Problem::new(
                Code::IdempotencyKeyRequired,
                "send an Idempotency-Key, so that a repeat orders nothing twice",
            )
        })?;
        let bytes = read(request, app.body_limits).await?;
        let body = parse(&bytes)?;
        Ok(Self { key: route.with_body(&bytes)?, body })
    }
}

/// A key, and the canonical form of the method and path it came with.
struct KeyedRoute {
    key: IdempotencyKey,
    canonical: Vec<u8>,
}

/// Enough for a route and the body of an order of a few lines, so that the buffer of most fingerprints never grows.
const CANONICAL_BYTES: usize = 512;

impl KeyedRoute {
    fn of(request: &Request) -> Result<Option<Self>, Problem> {
        let Some(key) = idempotency_key(request.headers())? else { return Ok(None) };
        let mut canonical = Vec::with_capacity(CANONICAL_BYTES);
        canonical.extend_from_slice(request.method().as_str().as_bytes());
        canonical.push(0);
        // `%2D` and `-` are the same path.
        let path: Cow<'_, [u8]> = percent_decode_str(request.uri().path()).into();
        canonical.extend_from_slice(&path);
        canonical.push(0);
        Ok(Some(Self { key, canonical }))
    }

    fn with_body(self, body: &[u8]) -> Result<KeyedRequest, Problem> {
        Ok(KeyedRequest { key: self.key, fingerprint: fingerprint(self.canonical, body)? })
    }
}

/// One line of an import, as if it were a request of its own.
pub(crate) fn keyed_line(key: IdempotencyKey, line: &[u8]) -> Result<KeyedRequest, Problem> {
    Ok(KeyedRequest { key, fingerprint: fingerprint(b"import line\0".to_vec(), line)? })
}

fn fingerprint(mut canonical: Vec<u8>, body: &[u8]) -> Result<Fingerprint, Problem> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Problem::new(Code::InvalidJson, format!("the body is not JSON: {error}")))?;
    write_value(&value, &mut canonical);
    Ok(Fingerprint(Sha256::digest(canonical).into()))
}

/// Writes a canonical form: equal for JSON-equal values, whatever the order of members, the white space, or `1.0` for `1`.
fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(b'n'),
        Value::Bool(truth) => out.push(if *truth { b't' } else { b'f' }),
        Value::Number(number) => {
            out.push(b'#');
            let whole = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15);
            let text = match whole {
                Some(float) if number.is_f64() => format!("{float:.0}"),
                _ => number.to_string(),
            };
            out.extend_from_slice(text.as_bytes());
            out.push(b';');
        }
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for item in items {
                write_value(item, out);
            }
            out.push(b']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            out.push(b'{');
            for (name, value) in members {
                write_text(name, out);
                write_value(value, out);
            }
            out.push(b'}');
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(&text.len().to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str, body: &str) -> [u8; 32] {
        let request = Request::builder().method(method).uri(path).header("idempotency-key", "k");
        let route = KeyedRoute::of(&request.body(axum::body::Body::empty()).unwrap()).unwrap().unwrap();
        route.with_body(body.as_bytes()).unwrap().fingerprint.0
    }

    #[test]
    fn json_equal_bodies_are_the_same_request() {
        let first = of("POST", "/v1/a-b", r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#);
        for same in
            [r#"{"b":{"d":"x","c":[1,2]},"a":1}"#, "{ \"a\" : 1.0,\n\"b\":{\"c\":[1,2],\"d\":\"\\u0078\"}}"]
        {
            assert_eq!(of("POST", "/v1/a%2Db", same), first, "{same}");
        }
    }

    #[test]
    fn a_fingerprint_never_changes() {
        // Outcomes are kept over an upgrade, so the hash of a request must not change.
        let made = of("POST", "/v1/orders", r#"{"b":[1,2.5,-3e2,null,true],"a":"\u044f"}"#);
        let hex = made.map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex, "9e57a1095ab334ab1bc68d3ebcee768402d7f0439a7b1aa116e3de704aeed4ae");
    }

    #[test]
    fn anything_else_is_another_request() {
        let first = of("POST", "/v1/a", r#"{"a":[1,2]}"#);
        for (method, path, body) in [
            ("PUT", "/v1/a", r#"{"a":[1,2]}"#),
            ("POST", "/v1/b", r#"{"a":[1,2]}"#),
            ("POST", "/v1/a", r#"{"a":[2,1]}"#),
            ("POST", "/v1/a", r#"{"a":["1",2]}"#),
            ("POST", "/v1/a", r#"{"a":[12]}"#),
            ("POST", "/v1/a", r#"{"a":[1,2],"b":null}"#),
            ("POST", "/v1/a", "{}"),
        ] {
            assert_ne!(of(method, path, body), first, "{method} {path} {body}");
        }
    }
}
