//! Reading a body into memory, within its size limit and its timeout.

use std::pin::{Pin, pin};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::error::{Code, Problem};

#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    pub(crate) bytes: usize,
    pub(crate) timeout: Duration,
}

impl BodyLimits {
    pub(crate) async fn read(self, request: Request) -> Result<Bytes, Problem> {
        let (parts, body) = request.into_parts();
        let mut body = pin!(body);
        let declared =
            parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if declared.is_some_and(|length| length > self.bytes) {
            return Err(self.too_large());
        }
        match tokio::time::timeout(self.timeout, self.collect(body.as_mut())).await {
            Ok(Ok(Some(whole))) => Ok(whole),
            Ok(Ok(None)) => Err(self.too_large()),
            Ok(Err(problem)) => Err(problem),
            Err(_elapsed) => {
                Err(Problem::new(Code::InvalidJson, "the body did not arrive in time; send it again"))
            }
        }
    }

    /// `None` where there is more than the limit.
    async fn collect(self, mut body: Pin<&mut Body>) -> Result<Option<Bytes>, Problem> {
        let Some(first) = next_chunk(body.as_mut()).await? else { return Ok(Some(Bytes::new())) };
        if first.len() <= self.bytes && body.is_end_stream() {
            return Ok(Some(first));
        }
        let mut whole = BytesMut::from(first);
        while whole.len() <= self.bytes {
            match next_chunk(body.as_mut()).await? {
                Some(chunk) => whole.extend_from_slice(&chunk),
                None => return Ok(Some(whole.freeze())),
            }
        }
        Ok(None)
    }

    pub(crate) fn too_large(self) -> Problem {
        Problem::new(Code::BodyTooLarge, format!("send at most {} bytes", self.bytes))
    }
}

async fn next_chunk(mut body: Pin<&mut Body>) -> Result<Option<Bytes>, Problem> {
    loop {
        match body.as_mut().frame().await {
            None => return Ok(None),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                Err(_trailers) => {}
            },
            Some(Err(error)) => {
                return Err(Problem::new(Code::InvalidJson, "the body ended early").caused_by(error));
            }
        }
    }
}

fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or(value).trim())
}

/// `application/json`, or a type that ends in `+json`.
pub(crate) fn is_json_type(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|media| {
        let suffix = media.len().checked_sub("+json".len()).and_then(|at| media.get(at..));
        media.eq_ignore_ascii_case("application/json")
            || (media.contains('/') && suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("+json")))
    })
}

/// A media type of one JSON object a line.
pub(crate) fn is_ndjson_type(headers: &HeaderMap) -> bool {
    let lines = ["application/x-ndjson", "application/ndjson", "application/jsonl", "application/json"];
    media_type(headers).is_some_and(|media| lines.iter().any(|known| media.eq_ignore_ascii_case(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_ndjson_types_are_recognised() {
        let headers = |value: &str| HeaderMap::from_iter([(CONTENT_TYPE, value.parse().unwrap())]);
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"] {
            assert!(is_json_type(&headers(good)), "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "json", "+json", "application/jsonp"] {
            assert!(!is_json_type(&headers(bad)), "{bad}");
        }
        assert!(!is_json_type(&HeaderMap::new()));
        assert!(is_ndjson_type(&headers("application/x-ndjson")));
        assert!(!is_ndjson_type(&headers("text/csv")));
    }
}
