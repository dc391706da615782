//! A POST with its `Idempotency-Key`: the body, and what makes two requests the same request.

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use mw_domain::IdempotencyKey;
use mw_store::{Fingerprint, Once};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::headers::idempotency_key;
use super::json::{parse, read, read_optional};
use crate::app::App;
use crate::error::{Code, Problem};

/// A body that has to be there, with a key that need not.
#[derive(Debug)]
pub(crate) struct Keyed<T> {
    pub(crate) once: Option<Once>,
    pub(crate) body: T,
}

/// Neither the body nor the key need be there; no body is the same as `{}`.
#[derive(Debug)]
pub(crate) struct KeyedOptional<T> {
    pub(crate) once: Option<Once>,
    pub(crate) body: T,
}

/// Both the body and the key have to be there.
#[derive(Debug)]
pub(crate) struct RequiredKeyed<T> {
    pub(crate) once: Once,
    pub(crate) body: T,
}

impl<T: DeserializeOwned> FromRequest<App> for Keyed<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let asked = Asked::of(&request)?;
        let bytes = read(request, app.body_limits).await?;
        let body = parse(&bytes)?;
        Ok(Self { once: asked.map(|asked| asked.once(app, &bytes)).transpose()?, body })
    }
}

impl<T: DeserializeOwned> FromRequest<App> for KeyedOptional<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let asked = Asked::of(&request)?;
        let bytes = read_optional(request, app.body_limits).await?;
        let body = parse(&bytes)?;
        Ok(Self { once: asked.map(|asked| asked.once(app, &bytes)).transpose()?, body })
    }
}

impl<T: DeserializeOwned> FromRequest<App> for RequiredKeyed<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let asked = Asked::of(&request)?.ok_or_else(|| {
            Problem::new(
                Code::IdempotencyKeyRequired,
                "send an Idempotency-Key, so that a repeat orders nothing twice",
            )
        })?;
        let bytes = read(request, app.body_limits).await?;
        let body = parse(&bytes)?;
        Ok(Self { once: asked.once(app, &bytes)?, body })
    }
}

/// A key, and the hash of the method and path it came with.
struct Asked {
    key: IdempotencyKey,
    route: Sha256,
}

impl Asked {
    fn of(request: &Request) -> Result<Option<Self>, Problem> {
        let Some(key) = idempotency_key(request.headers())? else { return Ok(None) };
        let mut route = Sha256::new();
        route.update(request.method().as_str());
        route.update([0]);
        // `%2D` and `-` are the same path.
        for piece in percent_decode_str(request.uri().path()) {
            route.update([piece]);
        }
        route.update([0]);
        Ok(Some(Self { key, route }))
    }

    fn once(self, app: &App, body: &Bytes) -> Result<Once, Problem> {
        let Self { key, route } = self;
        Ok(app.shop.once(key, fingerprint(route, body)?))
    }
}

fn fingerprint(mut route: Sha256, body: &[u8]) -> Result<Fingerprint, Problem> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Problem::new(Code::InvalidJson, format!("the body is not JSON: {error}")))?;
    hash_value(&value, &mut route);
    Ok(Fingerprint(route.finalize().into()))
}

/// Equal for JSON-equal values: neither the order of an object's members nor white space nor `1.0` for `1` matters.
fn hash_value(value: &Value, hash: &mut Sha256) {
    match value {
        Value::Null => hash.update(b"n"),
        Value::Bool(truth) => hash.update(if *truth { b"t" } else { b"f" }),
        Value::Number(number) => {
            hash.update(b"#");
            let whole = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15);
            match whole {
                Some(float) if number.is_f64() => hash.update(format!("{float:.0}")),
                _ => hash.update(number.to_string()),
            }
            hash.update(b";");
        }
        Value::String(text) => hash_text(text, hash),
        Value::Array(items) => {
            hash.update(b"[");
            for item in items {
                hash_value(item, hash);
            }
            hash.update(b"]");
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            hash.update(b"{");
            for (name, value) in members {
                hash_text(name, hash);
                hash_value(value, hash);
            }
            hash.update(b"}");
        }
    }
}

fn hash_text(text: &str, hash: &mut Sha256) {
    hash.update(b"\"");
    hash.update(text.len().to_be_bytes());
    hash.update(text);
}

/// The fingerprint of one line of an import, as if it had been a request of its own.
pub(crate) fn line_fingerprint(line: &[u8]) -> Result<Fingerprint, Problem> {
    let mut hash = Sha256::new();
    hash.update(b"import line\0");
    fingerprint(hash, line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str, body: &str) -> [u8; 32] {
        let request = Request::builder().method(method).uri(path).header("idempotency-key", "k");
        let asked = Asked::of(&request.body(axum::body::Body::empty()).unwrap()).unwrap().unwrap();
        fingerprint(asked.route, body.as_bytes()).unwrap().0
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
