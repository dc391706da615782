//! Compression of response bodies: zstd or gzip, where the client accepts it and the body is worth it.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue};
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use std::io::Write as _;

/// Smaller bodies fit into a packet or two anyway.
const BODY_BYTES_MIN: u64 = 1024;
/// Larger bodies are compressed on a thread of their own: a request thread must not be busy for milliseconds.
const INLINE_BYTES_MAX: usize = 128 * 1024;
/// Fast levels: a response is compressed for one client.
const ZSTD_LEVEL: i32 = 1;
const GZIP_LEVEL: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Zstd,
    Gzip,
}

impl Encoding {
    /// The best encoding that the client accepts.
    pub(crate) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let mut best = None;
        for value in headers.get_all(ACCEPT_ENCODING) {
            for item in value.to_str().unwrap_or_default().split(',') {
                let (name, weight) = item.split_once(';').unwrap_or((item, ""));
                let encoding = match name.trim() {
                    name if name.eq_ignore_ascii_case("zstd") => Self::Zstd,
                    name if name.eq_ignore_ascii_case("gzip") => Self::Gzip,
                    _ => continue,
                };
                let weight = weight.trim().strip_prefix("q=").map_or(1.0, |text| text.parse().unwrap_or(0.0));
                let is_better = |(known, known_weight): (Self, f32)| {
                    weight > known_weight || (weight >= known_weight && known == Self::Gzip)
                };
                if weight > 0.0 && best.is_none_or(is_better) {
                    best = Some((encoding, weight));
                }
            }
        }
        best.map(|(encoding, _)| encoding)
    }

    const fn name(self) -> HeaderValue {
        match self {
            Self::Zstd => HeaderValue::from_static("zstd"),
            Self::Gzip => HeaderValue::from_static("gzip"),
        }
    }

    fn compress(self, body: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Zstd => zstd::bulk::compress(body, ZSTD_LEVEL),
            Self::Gzip => {
                let into = Vec::with_capacity(body.len() / 3);
                let mut encoder = GzEncoder::new(into, flate2::Compression::new(GZIP_LEVEL));
                encoder.write_all(body)?;
                encoder.finish()
            }
        }
    }
}

/// Whether the response has a whole body that is large enough; streams have no known size.
pub(crate) fn is_compressible(response: &Response) -> bool {
    response.body().size_hint().exact().is_some_and(|size| size > BODY_BYTES_MIN)
        && !response.headers().contains_key(CONTENT_ENCODING)
        && response.status() != StatusCode::PARTIAL_CONTENT
}

/// Compresses a body that is [compressible](is_compressible).
pub(crate) async fn compress(encoding: Encoding, response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    // A whole body is in memory and cannot fail.
    let Ok(body) = body.collect().await else { return Response::from_parts(parts, Body::empty()) };
    let body = body.to_bytes();
    let body = match compressed(encoding, body.clone()).await {
        Some(smaller) if smaller.len() < body.len() => {
            parts.headers.insert(CONTENT_ENCODING, encoding.name());
            parts.headers.remove(CONTENT_LENGTH);
            smaller.into()
        }
        _ => body,
    };
    Response::from_parts(parts, Body::from(body))
}

async fn compressed(encoding: Encoding, body: Bytes) -> Option<Vec<u8>> {
    if body.len() <= INLINE_BYTES_MAX {
        return encoding.compress(&body).ok();
    }
    tokio::task::spawn_blocking(move || encoding.compress(&body).ok()).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(value: &str) -> Option<Encoding> {
        Encoding::accepted(&HeaderMap::from_iter([(ACCEPT_ENCODING, value.parse().unwrap())]))
    }

    #[test]
    fn the_best_accepted_encoding_is_chosen() {
        assert_eq!(accepted("gzip, deflate, br, zstd"), Some(Encoding::Zstd));
        assert_eq!(accepted("zstd, gzip"), Some(Encoding::Zstd));
        assert_eq!(accepted("zstd;q=0.5, gzip"), Some(Encoding::Gzip));
        assert_eq!(accepted("GZIP;q=0.1"), Some(Encoding::Gzip));
        assert_eq!(accepted("gzip;q=0, zstd; q=0.0"), None);
        assert_eq!(accepted("br, identity, *"), None);
        assert_eq!(Encoding::accepted(&HeaderMap::new()), None);
    }

    #[test]
    fn what_is_compressed_can_be_read() {
        let body = "a line of JSON, many times over\n".repeat(500).into_bytes();
        let zstd = Encoding::Zstd.compress(&body).unwrap();
        let gzip = Encoding::Gzip.compress(&body).unwrap();
        assert!(zstd.len() < body.len() / 10 && gzip.len() < body.len() / 10);
        assert_eq!(zstd::bulk::decompress(&zstd, body.len()).unwrap(), body);
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&gzip[..]), &mut read).unwrap();
        assert_eq!(read, body);
    }
}
