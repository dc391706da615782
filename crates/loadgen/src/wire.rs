//! Answers of HTTP/1.1 out of a buffer: status, body, and how many bytes of the buffer they were.

use thiserror::Error;

/// Header lines of an answer; the API sends about six.
const HEADERS_MAX: usize = 64;
/// An answer that is longer is taken for nonsense.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
    /// The server closes the connection after it.
    pub(crate) is_last: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    Partial,
    Whole { answer: Answer<'a>, bytes: usize },
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum BadAnswer {
    #[error("the answer is no HTTP/1.1")]
    Head,
    #[error("the answer has no length")]
    Length,
    #[error("a chunk of the answer is malformed")]
    Chunk,
}

/// How the end of a body is found.
enum Framing {
    Length(usize),
    Chunked,
}

/// Looks for one answer at the start of `bytes`; the body of a chunked one is put together in `joined`.
pub(crate) fn parse<'a>(bytes: &'a [u8], joined: &'a mut Vec<u8>) -> Result<Parsed<'a>, BadAnswer> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(Parsed::Partial),
        Err(_) => return Err(BadAnswer::Head),
    };
    let status = head.code.ok_or(BadAnswer::Head)?;
    let mut framing = (status == 204 || status == 304).then_some(Framing::Length(0));
    let mut is_last = head.version == Some(0);
    for header in head.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            framing = Some(Framing::Length(number(header.value).ok_or(BadAnswer::Length)?));
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            framing = header.value.eq_ignore_ascii_case(b"chunked").then_some(Framing::Chunked);
        } else if header.name.eq_ignore_ascii_case("connection") {
            is_last = header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let rest = bytes.get(start..).unwrap_or_default();
    match framing.ok_or(BadAnswer::Length)? {
        Framing::Length(length) => Ok(match rest.get(..length) {
            Some(body) => Parsed::Whole { answer: Answer { status, body, is_last }, bytes: start + length },
            None => Parsed::Partial,
        }),
        Framing::Chunked => {
            joined.clear();
            Ok(match join_chunks(rest, joined)? {
                Some(length) => {
                    let answer = Answer { status, body: joined, is_last };
                    Parsed::Whole { answer, bytes: start + length }
                }
                None => Parsed::Partial,
            })
        }
    }
}

fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.trim().parse().ok().filter(|it| *it <= ANSWER_BYTES_MAX)
}

/// The bytes that the chunks took, once the last one is there.
fn join_chunks(bytes: &[u8], joined: &mut Vec<u8>) -> Result<Option<usize>, BadAnswer> {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let (head, size) = match httparse::parse_chunk_size(rest) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(BadAnswer::Chunk),
        };
        let size = usize::try_from(size).ok().filter(|size| *size <= ANSWER_BYTES_MAX);
        let size = size.ok_or(BadAnswer::Chunk)?;
        let Some(chunk) = rest.get(head..head + size + 2) else { return Ok(None) };
        let Some(data) = chunk.strip_suffix(b"\r\n") else { return Err(BadAnswer::Chunk) };
        joined.extend_from_slice(data);
        at += head + size + 2;
        if size == 0 {
            return Ok(Some(at));
        }
    }
}

/// The text of a field of a JSON object, found without reading the rest; values with escapes are not looked for.
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
            Parsed::Whole { answer, bytes } => (answer.status, answer.body.to_vec(), bytes, answer.is_last),
            Parsed::Partial => panic!("not whole"),
        }
    }

    #[test]
    fn an_answer_ends_where_its_length_says() {
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
    fn nonsense_is_refused() {
        let mut joined = Vec::new();
        assert_eq!(parse(b"SMTP hello\r\n\r\n", &mut joined), Err(BadAnswer::Head));
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\n", &mut joined), Err(BadAnswer::Length));
        let endless = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n";
        assert_eq!(parse(endless, &mut joined), Err(BadAnswer::Length));
    }

    #[test]
    fn a_field_is_found_by_its_name() {
        let body = br#"{"order_id":"a-1", "code" : "x"}"#;
        assert_eq!(text_field(body, b"\"order_id\""), Some(&b"a-1"[..]));
        assert_eq!(text_field(body, b"\"code\""), Some(&b"x"[..]));
        assert_eq!(text_field(body, b"\"absent\""), None);
    }
}
