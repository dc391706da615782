//! A small HTTP/1.1 client that keeps its connection and distinguishes a broken one from a response.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Client {
    address: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) body: Option<Value>,
    pub(crate) key: Option<String>,
    pub(crate) token: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Whether the response is a replay of an `Idempotency-Key`.
    pub(crate) is_replay: bool,
    pub(crate) body: Value,
}

impl Call {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: None, key: None, token: None }
    }

    pub(crate) fn json(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    pub(crate) fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub(crate) fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }
}

impl Reply {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, connection: None }
    }

    /// Fails where the connection breaks: the outcome of the request is unknown.
    pub(crate) fn try_call(&mut self, call: &Call) -> io::Result<Reply> {
        let outcome = self.exchange(call);
        if outcome.is_err() {
            self.connection = None;
        }
        outcome
    }

    pub(crate) fn call(&mut self, call: &Call) -> Reply {
        self.try_call(call).unwrap_or_else(|error| panic!("{call:?}: {error}"))
    }

    pub(crate) fn get(&mut self, path: &str) -> Reply {
        self.call(&Call::new("GET", path))
    }

    /// Sends the request and expects a success.
    pub(crate) fn done(&mut self, call: &Call) -> Value {
        let reply = self.call(call);
        assert!(reply.is_success(), "{call:?}: {reply:?}");
        reply.body
    }

    /// All items of a list, page by page.
    pub(crate) fn items(&mut self, path: &str) -> Vec<Value> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let mut page = self.done(&Call::new("GET", format!("{path}{separator}limit=100{cursor}")));
            items.append(page["items"].as_array_mut().expect("a list has items"));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
    }

    fn exchange(&mut self, call: &Call) -> io::Result<Reply> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(connect(self.address)?),
        };
        connection.get_mut().write_all(&request(call))?;
        let (reply, keeps_open) = read_reply(connection)?;
        if !keeps_open {
            self.connection = None;
        }
        Ok(reply)
    }
}

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

fn request(call: &Call) -> Vec<u8> {
    let body = call.body.as_ref().map(Value::to_string).unwrap_or_default();
    let mut lines = vec![format!("{} {} HTTP/1.1", call.method, call.path), "host: localhost".to_owned()];
    if call.body.is_some() {
        lines.push("content-type: application/json".to_owned());
    }
    if call.method != "GET" {
        lines.push(format!("content-length: {}", body.len()));
    }
    lines.extend(call.token.as_ref().map(|token| format!("authorization: Bearer {token}")));
    lines.extend(call.key.as_ref().map(|key| format!("idempotency-key: {key}")));
    format!("{}\r\n\r\n{body}", lines.join("\r\n")).into_bytes()
}

fn read_reply(connection: &mut impl BufRead) -> io::Result<(Reply, bool)> {
    let status_line = line(connection)?;
    let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status in {status_line:?}")))?;
    let mut length = 0;
    let mut reply = Reply { status, is_replay: false, body: Value::Null };
    let mut keeps_open = true;
    loop {
        let header = line(connection)?.to_ascii_lowercase();
        match header.split_once(": ") {
            None => break,
            Some(("content-length", bytes)) => length = bytes.parse().map_err(io::Error::other)?,
            Some(("connection", "close")) => keeps_open = false,
            Some(("idempotent-replayed", "true")) => reply.is_replay = true,
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body)?;
    if !body.is_empty() {
        reply.body = serde_json::from_slice(&body).unwrap_or_else(|_| Value::String(text(&body)));
    }
    Ok((reply, keeps_open))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn line(connection: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
