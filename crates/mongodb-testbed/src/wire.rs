//! A minimal client of MongoDB's wire protocol (`OP_MSG`): one connection, one command, one reply. Enough to initiate sets and
//! to ask a member for its state.

use crate::scram;
use bson::{Document, doc};
use mw_testbed::{ClusterError, Doing, Result};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

const OP_MSG: i32 = 2013;
/// Message length, request id, response to, opcode: four numbers.
const HEADER_BYTES: usize = 16;
/// Flags and the kind of the only section stand before the document.
const PREFIX_BYTES: usize = 5;
/// More no reply of these commands has.
const MAX_REPLY_BYTES: usize = 48 << 20;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How members are reached: every one of a cluster in the same way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    pub(crate) auth: bool,
    pub(crate) ca_pem: Option<PathBuf>,
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

pub(crate) struct Client {
    stream: Box<dyn Stream>,
    address: SocketAddr,
}

impl Access {
    /// A connection that is logged in where the cluster wants it.
    pub(crate) fn client(&self, port: u16, timeout: Duration) -> Result<Client> {
        let mut client = self.anonymous(port, timeout)?;
        if self.auth {
            scram::log_in(&mut client, crate::SUPERUSER, crate::SUPERUSER_PASSWORD)?;
        }
        Ok(client)
    }

    /// A connection that is not logged in.
    pub(crate) fn anonymous(&self, port: u16, timeout: Duration) -> Result<Client> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let connect = || {
            let socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT.min(timeout))?;
            socket.set_read_timeout(Some(timeout))?;
            socket.set_write_timeout(Some(timeout))?;
            socket.set_nodelay(true)?;
            Ok::<_, io::Error>(socket)
        };
        let socket = connect().doing(|| format!("connect to {address}"))?;
        Ok(Client { stream: self.secured(socket)?, address })
    }

    #[cfg(feature = "tls")]
    fn secured(&self, socket: TcpStream) -> Result<Box<dyn Stream>> {
        Ok(match &self.ca_pem {
            Some(ca_pem) => Box::new(crate::tls::connect(socket, ca_pem)?),
            None => Box::new(socket),
        })
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "with the feature `tls` it uses both")]
    fn secured(&self, socket: TcpStream) -> Result<Box<dyn Stream>> {
        Ok(Box::new(socket))
    }
}

impl Client {
    /// The reply to a command; a reply that says `ok: 0` is an error.
    pub(crate) fn run(&mut self, database: &str, mut command: Document) -> Result<Document> {
        let name = command.keys().next().cloned().unwrap_or_default();
        command.insert("$db", database);
        let doing = || format!("run {name} on {}", self.address);
        let reply = exchange(&mut self.stream, &command).doing(doing)?;
        let number = |key: &str| reply.get(key).and_then(|it| it.as_f64().or(it.as_i32().map(f64::from)));
        if number("ok") == Some(1.0) {
            return Ok(reply);
        }
        let message = reply.get_str("errmsg").unwrap_or("no reason given");
        Err(ClusterError::Io { doing: doing(), cause: io::Error::other(message.to_owned()) })
    }

    pub(crate) fn hello(&mut self) -> Result<Document> {
        self.run("admin", doc! { "hello": 1 })
    }
}

fn exchange(stream: &mut Box<dyn Stream>, command: &Document) -> io::Result<Document> {
    let body = command.to_vec().map_err(io::Error::other)?;
    let length = i32::try_from(HEADER_BYTES + PREFIX_BYTES + body.len()).map_err(io::Error::other)?;
    let mut message = Vec::new();
    for number in [length, 1, 0, OP_MSG, 0] {
        message.extend(number.to_le_bytes());
    }
    // Section kind 0: one document.
    message.push(0);
    message.extend(body);
    stream.write_all(&message)?;
    stream.flush()?;
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let [a, b, c, d, ..] = header;
    let length = usize::try_from(i32::from_le_bytes([a, b, c, d])).map_err(io::Error::other)?;
    let rest = length.checked_sub(HEADER_BYTES).filter(|rest| (PREFIX_BYTES..MAX_REPLY_BYTES).contains(rest));
    let mut reply = vec![0; rest.ok_or_else(|| io::Error::other(format!("a reply of {length} bytes")))?];
    stream.read_exact(&mut reply)?;
    let body = reply.get(PREFIX_BYTES..).unwrap_or_default();
    Document::from_reader(body).map_err(io::Error::other)
}
