//! Conditional reads: an `ETag` over the bytes of a response, and 304 where the client has these bytes already.
//!
//! The tag is a hash of the representation, so it changes whenever the response would, for whatever reason. It is weak: the
//! compressed forms of a response share it.

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Problem;
use crate::response;

/// May be kept by the client, which asks each time whether it is still true.
const REVALIDATE: HeaderValue = HeaderValue::from_static("private, no-cache");

/// The tags that the client has, if it sent any.
#[derive(Debug, Clone)]
pub(crate) struct IfNoneMatch(Option<HeaderValue>);

impl<S: Sync> FromRequestParts<S> for IfNoneMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self(parts.headers.get(IF_NONE_MATCH).cloned()))
    }
}

impl IfNoneMatch {
    /// The response of encoded JSON with its tag, or 304.
    pub(crate) fn respond(&self, body: impl Into<Bytes>) -> Response {
        let body = body.into();
        let tag = tag(&body);
        let is_known = self.0.as_ref().is_some_and(|known| matches(known.as_bytes(), &tag));
        let mut response = if is_known {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            response::encoded(body)
        };
        let headers = response.headers_mut();
        // Quotes, hexadecimal digits and `W/` are always a valid header.
        if let Ok(tag) = HeaderValue::from_bytes(&tag) {
            headers.insert(ETAG, tag);
        }
        headers.insert(CACHE_CONTROL, REVALIDATE);
        response
    }
}

const TAG_BYTES: usize = b"W/\"0123456789abcdef\"".len();

fn tag(body: &[u8]) -> [u8; TAG_BYTES] {
    let mut tag = *b"W/\"0000000000000000\"";
    let hash = xxh3_64(body).to_be_bytes();
    let nibbles = hash.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    for (digit, nibble) in tag.iter_mut().skip(3).zip(nibbles) {
        *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
    }
    tag
}

/// Whether the header has the tag, by the weak comparison, or `*`.
fn matches(known: &[u8], tag: &[u8]) -> bool {
    let opaque = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
    known
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .any(|known| known == b"*" || opaque(known) == opaque(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_follows_the_bytes() {
        assert_eq!(tag(b"{}"), tag(b"{}"));
        assert_ne!(tag(b"{}"), tag(b"{ }"));
        let text = String::from_utf8(tag(b"{}").to_vec()).unwrap();
        let hex = text.strip_prefix("W/\"").and_then(|rest| rest.strip_suffix('"')).unwrap();
        assert_eq!(u64::from_str_radix(hex, 16).unwrap(), xxh3_64(b"{}"));
    }

    #[test]
    fn tags_are_compared_weakly() {
        let tag = tag(b"{}");
        let text = std::str::from_utf8(&tag).unwrap();
        let strong = text.trim_start_matches("W/");
        for known in [text.to_owned(), strong.to_owned(), "*".to_owned(), format!("\"other\" , {text}")] {
            assert!(matches(known.as_bytes(), &tag), "{known}");
        }
        for other in ["", "\"other\"", "W/\"0000000000000000\"", "0000"] {
            assert!(!matches(other.as_bytes(), &tag), "{other}");
        }
    }
}
