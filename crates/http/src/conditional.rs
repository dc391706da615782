//! Conditional reads: an `ETag` for a response, and 304 where the client has it already.
//!
//! A tag is a hash of everything that the bytes of the response are made of, so it changes whenever they would, for whatever
//! reason. It is weak: the compressed forms of a response share it.

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
    pub(crate) fn respond(&self, tag: Tag, body: impl Into<Bytes>) -> Response {
        let tag = tag.header();
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

/// A hash of what a response is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl Tag {
    pub(crate) const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(xxh3_64(bytes))
    }

    /// A response that also has this part, after those before.
    pub(crate) const fn and(self, part: u64) -> Self {
        // The finalizer of MurmurHash3: every bit of the part moves every bit of the tag.
        let mut mixed = self.0.rotate_left(23) ^ part;
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        Self(mixed ^ (mixed >> 33))
    }

    pub(crate) const fn and_tag(self, tag: Self) -> Self {
        self.and(tag.0)
    }

    fn header(self) -> [u8; TAG_BYTES] {
        let mut header = *b"W/\"0000000000000000\"";
        let nibbles = self.0.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
        for (digit, nibble) in header.iter_mut().skip(3).zip(nibbles) {
            *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        }
        header
    }
}

const TAG_BYTES: usize = b"W/\"0123456789abcdef\"".len();

fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Whether the header has the tag, by the weak comparison, or `*`.
fn matches(known: &[u8], tag: &[u8]) -> bool {
    known
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .any(|known| known == b"*" || opaque(known) == opaque(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_follows_what_it_is_made_of() {
        assert_eq!(Tag::of(b"{}"), Tag::of(b"{}"));
        assert_ne!(Tag::of(b"{}"), Tag::of(b"{ }"));
        let text = String::from_utf8(Tag(0x0123_4567_89ab_cdef).header().to_vec()).unwrap();
        assert_eq!(text, "W/\"0123456789abcdef\"");
        let tags = [
            Tag::new(),
            Tag::new().and(0),
            Tag::new().and(1),
            Tag::new().and(1).and(2),
            Tag::new().and(2).and(1),
            Tag::new().and_tag(Tag::of(b"{}")),
        ];
        for (at, tag) in tags.iter().enumerate() {
            assert!(tags.iter().skip(at + 1).all(|other| other != tag), "{at}");
        }
    }

    #[test]
    fn tags_are_compared_weakly() {
        let tag = Tag::of(b"{}").header();
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
