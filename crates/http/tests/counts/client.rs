//! A client that costs next to nothing: it sends prepared bytes, and parses just enough of a response to know that it is
//! complete.

use std::io::ErrorKind;
use std::net::SocketAddr;

use memchr::memmem::Finder;
use serde_json::Value;
use tokio::net::TcpStream;

/// An operator's token.
pub(crate) const TOKEN: &str = "0c6d2b7e9f1a4835a1b3c5d7e9f02468";

/// The bytes of a request, and the status that is expected.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    status: &'static str,
}

impl Request {
    pub(crate) fn get(path: &str) -> Self {
        Self::new("GET", path, "", None, "200")
    }

    pub(crate) fn put(path: &str, body: &Value, status: &'static str) -> Self {
        Self::new("PUT", path, "", Some(body), status)
    }

    pub(crate) fn patch(path: &str, body: &Value) -> Self {
        Self::new("PATCH", path, "", Some(body), "200")
    }

    /// A POST that creates something.
    pub(crate) fn post(path: &str, key: &str, body: &Value) -> Self {
        Self::new("POST", path, &format!("idempotency-key: {key}\r\n"), Some(body), "201")
    }

    fn new(method: &str, path: &str, headers: &str, body: Option<&Value>, status: &'static str) -> Self {
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nhost: shop.example\r\nauthorization: Bearer {TOKEN}\r\n\
             user-agent: storefront/1.0\r\naccept: application/json\r\n{headers}"
        );
        match body.map(ToString::to_string) {
            Some(body) => {
                let length = body.len().to_string();
                text.extend([
                    "content-type: application/json\r\ncontent-length: ",
                    &length,
                    "\r\n\r\n",
                    &body,
                ]);
            }
            None => text += "\r\n",
        }
        Self { bytes: text.into_bytes(), status }
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    response: Vec<u8>,
    head_end: Finder<'static>,
    length: Finder<'static>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("connect to the server");
        stream.set_nodelay(true).expect("send at once");
        Self {
            stream,
            response: Vec::with_capacity(1 << 20),
            head_end: Finder::new("\r\n\r\n"),
            length: Finder::new("content-length: "),
        }
    }

    /// Sends the request and waits for the whole response; returns its body.
    pub(crate) async fn send(&mut self, request: &Request) -> &[u8] {
        self.response.clear();
        let sent = self.stream.try_write(&request.bytes).expect("send a request");
        assert_eq!(sent, request.bytes.len(), "a request fits into the socket's buffer");
        loop {
            self.stream.readable().await.expect("wait for a response");
            match self.stream.try_read_buf(&mut self.response) {
                Ok(0) => panic!("the server closed the connection"),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => panic!("read a response: {error}"),
            }
            if let Some(body) = self.body() {
                let (head, body) = self.response.split_at(body);
                let status = head.get("HTTP/1.1 ".len()..).and_then(|rest| rest.get(..3));
                if status != Some(request.status.as_bytes()) {
                    let sent = String::from_utf8_lossy(&request.bytes);
                    panic!("{sent}\n{}{}", String::from_utf8_lossy(head), String::from_utf8_lossy(body));
                }
                return body;
            }
        }
    }

    /// The offset of the body, once all of it has arrived.
    fn body(&self) -> Option<usize> {
        let start = self.head_end.find(&self.response)? + 4;
        let head = self.response.get(..start)?;
        let digits = head.get(self.length.find(head).expect("a response of known length") + 16..)?;
        let length = digits
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
        (self.response.len() >= start + length).then_some(start)
    }
}
