//! `If-Match` and `Idempotency-Key`.

use axum::extract::FromRequestParts;
use http::header::IF_MATCH;
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use mw_domain::IdempotencyKey;

use crate::error::Problem;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The version a change expects, if it expects one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IfMatch(pub(crate) Option<u64>);

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let malformed = || Problem::parameter("If-Match", "must be a version in quotes, such as \"7\"");
        let Some(value) = only(&parts.headers, &IF_MATCH).map_err(|()| malformed())? else {
            return Ok(Self(None));
        };
        let digits = value
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_suffix(b"\""))
            .filter(|digits| {
                digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || !digits.starts_with(b"0"))
            })
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        digits.map(|version| Self(Some(version))).ok_or_else(malformed)
    }
}

pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Problem> {
    let refuse = |detail: &dyn std::fmt::Display| Problem::parameter("Idempotency-Key", detail);
    let Some(value) = only(headers, &IDEMPOTENCY_KEY).map_err(|()| refuse(&"must be sent once"))? else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value).unwrap_or_default();
    IdempotencyKey::parse(text).map(Some).map_err(|error| refuse(&error))
}

/// The header's single value; an error where there are several.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value.map(http::HeaderValue::as_bytes)),
        (_, Some(_)) => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    async fn if_match(value: &[u8]) -> Option<u64> {
        let value = HeaderValue::from_bytes(value).unwrap();
        let (mut parts, ()) = Request::builder().header(IF_MATCH, value).body(()).unwrap().into_parts();
        IfMatch::from_request_parts(&mut parts, &()).await.ok().and_then(|found| found.0)
    }

    #[tokio::test]
    async fn a_version_is_a_number_in_quotes() {
        assert_eq!(if_match(b"\"7\"").await, Some(7));
        assert_eq!(if_match(b"\"0\"").await, Some(0));
        for bad in [
            &b"7"[..],
            b"\"\"",
            b"*",
            b"W/\"7\"",
            b"\"-1\"",
            b"\"07\"",
            b"\"+1\"",
            b"\"7\", \"8\"",
            b"\"99999999999999999999\"",
            b"",
        ] {
            assert_eq!(if_match(bad).await, None, "{bad:?}");
        }
    }

    #[test]
    fn a_key_is_visible_ascii_and_sent_once() {
        let headers = |values: &[&[u8]]| -> HeaderMap {
            let value = |value: &&[u8]| (IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
            values.iter().map(value).collect()
        };
        assert!(idempotency_key(&HeaderMap::new()).unwrap().is_none());
        assert_eq!(idempotency_key(&headers(&[b"a!~"])).unwrap().unwrap().as_str(), "a!~");
        assert!(idempotency_key(&headers(&[&b"k".repeat(128)])).is_ok());
        for bad in [&headers(&[b""]), &headers(&[b"a b"]), &headers(&[b"\xc3\xa9"]), &headers(&[b"a", b"b"])]
        {
            assert!(idempotency_key(bad).is_err(), "{bad:?}");
        }
        assert!(idempotency_key(&headers(&[&b"k".repeat(129)])).is_err());
    }
}
