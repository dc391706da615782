//! Responses that hyper writes by itself, to a head that it cannot parse (400) or that is too large (431): bare status lines.
//! Here they get the body of a problem and a request id, like every other response.

use std::io::Write as _;

use crate::error::{Code, Problem};
use crate::request_id::RequestId;

/// The response to send in the place of `written`, where that is one of hyper's own: every response of the routes has a
/// request id.
pub(crate) fn replacement(written: &[u8]) -> Option<Vec<u8>> {
    let status = written.strip_prefix(b"HTTP/1.1 4").or_else(|| written.strip_prefix(b"HTTP/1.0 4"))?;
    let end = written.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = written.get(..end)?;
    if head.windows(X_REQUEST_ID.len()).any(|bytes| bytes == X_REQUEST_ID) {
        return None;
    }
    let (line, problem) = match status.get(..2)? {
        b"31" => (
            "431 Request Header Fields Too Large",
            Problem::parameter(
                "headers",
                "are too large; server.header_limit is their limit with the request line",
            )
            .status(431),
        ),
        b"14" => (
            "414 URI Too Long",
            Problem::parameter("path", "is too long; send at most 65534 characters").status(414),
        ),
        _ => (
            "400 Bad Request",
            Problem::new(Code::InvalidParameter, "the request line or a header is not well-formed HTTP")
                .with("parameter", "headers"),
        ),
    };
    let id = RequestId::generate();
    let body = problem.body(id.as_str());
    let mut response = Vec::with_capacity(256 + body.len());
    // Writing into memory cannot fail.
    let _ = write!(
        response,
        "HTTP/1.1 {line}\r\ncontent-type: application/problem+json\r\nx-request-id: {}\r\n\
         x-content-type-options: nosniff\r\ncache-control: no-store\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        id.as_str(),
        body.len()
    );
    response.extend_from_slice(&body);
    Some(response)
}

const X_REQUEST_ID: &[u8] = b"x-request-id:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_refusal_becomes_a_problem() {
        for (status, title) in
            [(400, "Bad Request"), (431, "Request Header Fields Too Large"), (414, "URI Too Long")]
        {
            let bare = format!("HTTP/1.1 {status} {title}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            let text = String::from_utf8(replacement(bare.as_bytes()).unwrap()).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} {title}\r\n")), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!((&body["status"], &body["code"]), (&status.into(), &"invalid_parameter".into()));
            assert!(
                head.contains(&format!("x-request-id: {}", body["request_id"].as_str().unwrap())),
                "{head}"
            );
        }
    }

    #[test]
    fn a_response_of_a_route_stays_as_it_is() {
        for own in [
            "HTTP/1.1 400 Bad Request\r\nx-request-id: 1\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-le",
            "{\"status\":400}",
        ] {
            assert_eq!(replacement(own.as_bytes()), None, "{own}");
        }
    }
}
