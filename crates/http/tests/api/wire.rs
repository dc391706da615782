//! A server on a socket, and a client that writes raw bytes to it.

use std::net::SocketAddr;
use std::sync::Arc;

use mw_http::{Server, ServerSettings, Tokens};
use mw_testkit::{Calls, Fault, FaultyStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::{Client, PATIENCE, client_on};
use crate::engine::fresh_store;

pub(crate) const GET_HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
pub(crate) const GET_CART: &str = "GET /v1/users/u1/cart HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// The head of a cart line change, without its content length.
pub(crate) const PUT_LINE: &str =
    "PUT /v1/users/u1/cart/lines/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

pub(crate) struct Running {
    pub(crate) client: Client,
    pub(crate) address: SocketAddr,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) server: JoinHandle<bool>,
}

pub(crate) async fn serve(settings: ServerSettings) -> Running {
    serve_on(fresh_store(), settings).await
}

pub(crate) async fn serve_on(store: Arc<FaultyStore>, settings: ServerSettings) -> Running {
    let client = client_on(store, &settings, &Tokens::default());
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), settings, client.api.clone()).await.unwrap();
    let address = server.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(server.run(async { stopped.await.unwrap_or_default() }));
    Running { client, address, stop, server }
}

impl Running {
    pub(crate) async fn connect(&self) -> Wire {
        Wire { stream: TcpStream::connect(self.address).await.unwrap(), unread: Vec::new() }
    }

    /// Opens connections with one request each, which hangs until the store is healed.
    pub(crate) async fn hang(&self, connections: usize) -> Vec<Wire> {
        self.client.store.fail(Calls::All, Fault::Hang);
        let mut hanging = Vec::new();
        for _ in 0..connections {
            let mut wire = self.connect().await;
            wire.send(GET_CART).await;
            hanging.push(wire);
        }
        self.client.until(&format!("mw_http_requests_in_flight {connections}")).await;
        hanging
    }
}

/// A client that writes raw bytes.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    /// In lower case; empty where the header is absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        header(&self.head, name)
    }
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    head.lines().filter_map(|line| line.split_once(": ")).find(|line| line.0 == name).unwrap_or_default().1
}

impl Wire {
    pub(crate) async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// False at the end of the stream.
    async fn fill(&mut self) -> bool {
        let mut piece = vec![0; 16 * 1024];
        let read = timeout(PATIENCE, self.stream.read(&mut piece))
            .await
            .expect("the server neither responses nor closes");
        let read = read.unwrap_or_default();
        self.unread.extend_from_slice(&piece[..read]);
        read > 0
    }

    pub(crate) async fn reply(&mut self) -> Reply {
        let end = loop {
            if let Some(at) = self.unread.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(self.fill().await, "closed without an response");
        };
        let head = String::from_utf8(self.unread.drain(..end).collect()).unwrap().to_lowercase();
        let length = header(&head, "content-length").parse().unwrap_or(0);
        while self.unread.len() < length {
            assert!(self.fill().await, "closed within an response");
        }
        let body = String::from_utf8(self.unread.drain(..length).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head, body }
    }

    /// Sends nothing more.
    pub(crate) async fn end(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Waits for the server to close; returns what it sent before.
    pub(crate) async fn rest(mut self) -> String {
        while self.fill().await {}
        String::from_utf8_lossy(&self.unread).into_owned()
    }
}
