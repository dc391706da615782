//! Parses HTTP/1.1 responses from a buffer: status, body, and their length in the buffer.

use thiserror::Error;

/// Header lines of a response; the API sends about six.
const HEADERS_MAX: usize = 64;
/// A longer response is malformed.
pub(crate) const RESPONSE_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
    /// The server closes the connection after it.
    pub(crate) is_last: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    Partial,
    Whole { response: Response<'a>, bytes: usize },
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum MalformedResponse {
    #[error("response is not HTTP/1.1")]
    Head,
    #[error("response has no length")]
    Length,
    #[error("malformed chunk in the response")]
    Chunk,
}

/// How the end of a body is found.
enum Framing {
    Length(usize),
    Chunked,
}

/// Parses one response at the start of `bytes`; the body of a chunked one is assembled in `joined`.
pub(crate) fn parse<'a>(bytes: &'a [u8], joined: &'a mut Vec<u8>) -> Result<Parsed<'a>, MalformedResponse> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(Parsed::Partial),
        Err(_) => return Err(MalformedResponse::Head),
    };
    let status = head.code.ok_or(MalformedResponse::Head)?;
    let mut framing = (status == 204 || status == 304).then_some(Framing::Length(0));
    let mut is_last = head.version == Some(0);
    for header in head.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            framing = Some(Framing::Length(number(header.value).ok_or(MalformedResponse::Length)?));
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            framing = header.value.eq_ignore_ascii_case(b"chunked").then_some(Framing::Chunked);
        } else if header.name.eq_ignore_ascii_case("connection") {
            is_last = header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let rest = bytes.get(start..).unwrap_or_default();
    match framing.ok_or(MalformedResponse::Length)? {
        Framing::Length(length) => Ok(match rest.get(..length) {
            Some(body) => {
                Parsed::Whole { response: Response { status, body, is_last }, bytes: start + length }
            }
            None => Parsed::Partial,
        }),
        Framing::Chunked => {
            joined.clear();
            Ok(match join_chunks(rest, joined)? {
                Some(length) => {
                    let response = Response { status, body: joined, is_last };
                    Parsed::Whole { response, bytes: start + length }
                }
                None => Parsed::Partial,
            })
        }
    }
}

fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.trim().parse().ok().filter(|it| *it <= RESPONSE_BYTES_MAX)
}

/// The length of all chunks, once the last one has arrived.
fn join_chunks(bytes: &[u8], joined: &mut Vec<u8>) -> Result<Option<usize>, MalformedResponse> {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let (head, size) = match httparse::parse_chunk_size(rest) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(MalformedResponse::Chunk),
        };
        let size = usize::try_from(size).ok().filter(|size| *size <= RESPONSE_BYTES_MAX);
        let size = size.ok_or(MalformedResponse::Chunk)?;
        let Some(chunk) = rest.get(head..head + size + 2) else { return Ok(None) };
        let Some(data) = chunk.strip_suffix(b"\r\n") else { return Err(MalformedResponse::Chunk) };
        joined.extend_from_slice(data);
        at += head + size + 2;
        if size == 0 {
            return Ok(Some(at));
        }
    }
}

/// The text of a field of a JSON object, found without parsing the rest; values with escapes are not supported.
pub(crate) fn text_field<'a>(body: &'a [u8], quoted_name: &[u8]) -> Option<&'a [u8]> {
    let at = memchr::memmem::find(body, quoted_name)? + quoted_name.len();
    let rest = body.get(at..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let rest = rest.strip_prefix(b"\"")?;
    rest.get(..memchr::memchr(b'"', rest)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> (u16, Vec<u8>, usize, bool) {
        let mut joined = Vec::new();
        match parse(bytes, &mut joined).unwrap() {
            Parsed::Whole { response, bytes } => {
                (response.status, response.body.to_vec(), bytes, response.is_last)
            }
            Parsed::Partial => panic!("not whole"),
        }
    }

    #[test]
    fn a_response_ends_at_its_content_length() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200";
        assert_eq!(whole(bytes), (200, b"abc".to_vec(), 41, false));
        for cut in 0..41 {
            let mut joined = Vec::new();
            assert_eq!(parse(&bytes[..cut], &mut joined), Ok(Parsed::Partial), "{cut}");
        }
    }

    #[test]
    fn chunks_are_joined() {
        let bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(whole(bytes), (200, b"abcde".to_vec(), bytes.len(), false));
        for cut in 0..bytes.len() {
            let mut joined = Vec::new();
            assert_eq!(parse(&bytes[..cut], &mut joined), Ok(Parsed::Partial), "{cut}");
        }
    }

    #[test]
    fn no_content_has_no_body_and_close_is_seen() {
        assert_eq!(whole(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").0, 204);
        assert!(whole(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").3);
    }

    #[test]
    fn malformed_responses_are_refused() {
        let mut joined = Vec::new();
        assert_eq!(parse(b"SMTP hello\r\n\r\n", &mut joined), Err(MalformedResponse::Head));
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\n", &mut joined), Err(MalformedResponse::Length));
        let endless = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n";
        assert_eq!(parse(endless, &mut joined), Err(MalformedResponse::Length));
    }

    #[test]
    fn a_field_is_found_by_its_name() {
        let body = br#"{"order_id":"a-1", "code" : "x"}"#;
        assert_eq!(text_field(body, b"\"order_id\""), Some(&b"a-1"[..]));
        assert_eq!(text_field(body, b"\"code\""), Some(&b"x"[..]));
        assert_eq!(text_field(body, b"\"absent\""), None);
    }
}
