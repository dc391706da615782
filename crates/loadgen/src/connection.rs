//! One non-blocking keep-alive connection: its state, the bytes to send and the beginning of a response.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::schedule::{Nanos, SECOND};

/// Between a failed attempt to connect and the next.
const RECONNECT_PAUSE: Nanos = SECOND / 10;

#[derive(Debug)]
pub(crate) struct Connection {
    address: SocketAddr,
    token: Token,
    state: State,
    /// Requests that the socket has not accepted yet.
    pub(crate) out: Vec<u8>,
    /// The beginning of a response whose end has not arrived.
    pub(crate) partial: Vec<u8>,
}

#[derive(Debug)]
enum State {
    Down { try_at: Nanos },
    Connecting(TcpStream),
    Up(TcpStream),
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes(usize),
    Nothing,
    Closed,
}

impl Connection {
    pub(crate) fn new(address: SocketAddr, index: usize) -> Self {
        let state = State::Down { try_at: 0 };
        Self { address, token: Token(index), state, out: Vec::new(), partial: Vec::new() }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Begins to connect if the connection is down and its pause is over.
    pub(crate) fn connect(&mut self, registry: &Registry, now: Nanos) {
        let State::Down { try_at } = self.state else { return };
        if now < try_at {
            return;
        }
        let begun = TcpStream::connect(self.address).and_then(|mut stream| {
            registry.register(&mut stream, self.token, Interest::READABLE | Interest::WRITABLE)?;
            Ok(stream)
        });
        self.state = match begun {
            Ok(stream) => State::Connecting(stream),
            Err(_) => State::Down { try_at: now + RECONNECT_PAUSE },
        };
    }

    /// Returns whether the connection has just been established. One that failed is down again.
    pub(crate) fn has_come_up(&mut self, now: Nanos) -> bool {
        let State::Connecting(stream) = &self.state else { return false };
        if matches!(stream.take_error(), Ok(None)) {
            match stream.peer_addr() {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotConnected => return false,
                Err(_) => {
                    self.drop_down(now);
                    return false;
                }
            }
        } else {
            self.drop_down(now);
            return false;
        }
        let State::Connecting(stream) = std::mem::replace(&mut self.state, State::Down { try_at: now })
        else {
            return false;
        };
        // Without TCP_NODELAY a request may wait for the acknowledgement of the one before.
        if stream.set_nodelay(true).is_err() {
            return false;
        }
        self.state = State::Up(stream);
        true
    }

    /// Drops the socket and all buffered bytes; the next attempt to connect is after a pause.
    pub(crate) fn drop_down(&mut self, now: Nanos) {
        self.state = State::Down { try_at: now + RECONNECT_PAUSE };
        self.out.clear();
        self.partial.clear();
    }

    /// The same for a connection that the server closed after a response: the next attempt is at once.
    pub(crate) fn start_over(&mut self, now: Nanos) {
        self.drop_down(now);
        self.state = State::Down { try_at: now };
    }

    /// Writes as much as the socket accepts; the rest goes when it is writable again.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let State::Up(stream) = &mut self.state else { return Ok(()) };
        while !self.out.is_empty() {
            match stream.write(&self.out) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) if written == self.out.len() => self.out.clear(),
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        let State::Up(stream) = &mut self.state else { return Ok(Received::Nothing) };
        loop {
            return match stream.read(buffer) {
                Ok(0) => Ok(Received::Closed),
                Ok(bytes) => Ok(Received::Bytes(bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Received::Nothing),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }
}
