//! A blocking client for the setup, where nothing is measured.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::target::Target;
use crate::wire::{self, Parsed};

const READ_BYTES: usize = 64 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Client<'a> {
    target: &'a Target,
    stream: TcpStream,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl<'a> Client<'a> {
    pub(crate) fn connect(target: &'a Target, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&target.address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { target, stream })
    }

    pub(crate) fn get(&mut self, path: &str) -> io::Result<Reply> {
        let Target { base, headers, .. } = self.target;
        self.stream.write_all(format!("GET {base}{path} HTTP/1.1\r\n{headers}\r\n").as_bytes())?;
        self.reply()
    }

    pub(crate) fn post(&mut self, path: &str, content_type: &str, body: &[u8]) -> io::Result<Reply> {
        let Target { base, headers, .. } = self.target;
        let length = body.len();
        let head = format!(
            "POST {base}{path} HTTP/1.1\r\n{headers}content-type: {content_type}\r\ncontent-length: {length}\r\n\r\n"
        );
        self.stream.write_all(head.as_bytes())?;
        self.stream.write_all(body)?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut bytes = Vec::new();
        let mut piece = vec![0; READ_BYTES];
        let mut joined = Vec::new();
        loop {
            let read = match self.stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
            if let Parsed::Whole { response, .. } =
                wire::parse(&bytes, &mut joined).map_err(|bad| io::Error::new(ErrorKind::InvalidData, bad))?
            {
                return Ok(Reply { status: response.status, body: response.body.to_vec() });
            }
        }
    }
}
