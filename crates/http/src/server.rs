//! The accept loop: plain or TLS, HTTP/1.1 or HTTP/2, within limits, until shutdown.
//!
//! Too many connections, no free file descriptors, a client that hangs in its handshake: none of these stops the loop.
//! On shutdown no connection and no request is accepted any more, the requests in flight get their response, and streams end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::api::Api;
use crate::connection::{Activity, ConnectionService, NextCheck, Watchdog, Watched};
use crate::error::{Code, Problem};
use crate::request_id::RequestId;
use crate::settings::{ServerSettings, Tokens};
use crate::tls::{self, TlsError};

/// Between two attempts to accept where descriptors or memory are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// For the last bytes of a connection that is closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections over the limit that are refused with 503 at once; further ones are closed without a response.
const REFUSALS_MAX: usize = 64;
/// File descriptors that are not connections: the store's files, the log, the listener.
const RESERVED_FILES: u64 = 512;
const STREAMS_PER_CONNECTION: u32 = 256;
const HTTP2_PING_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The mode of the server, which every connection watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Serving,
    /// All connection permits are in use: idle connections close.
    Saturated,
    /// Requests in flight are finished.
    Stopping,
    /// The shutdown grace period is over.
    Stopped,
}

/// A server that is bound to its address and accepts nothing yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    permits: Arc<Semaphore>,
    connections_max: usize,
    mode: watch::Sender<Mode>,
}

/// Reloads the tokens and the certificate of a running server.
#[derive(Debug, Clone)]
pub struct ReloadHandle {
    shared: Arc<Shared>,
}

impl ReloadHandle {
    /// Reads the certificate and its key again. Where they cannot be used, nothing changes. Open connections keep the
    /// certificate that they began with.
    pub fn reload(&self, tokens: &Tokens) -> Result<(), TlsError> {
        if let (Some(tls), Some(files)) = (&self.shared.tls, &self.shared.settings.tls) {
            *tls.write().unwrap_or_else(PoisonError::into_inner) = tls::acceptor(files)?;
        }
        self.shared.api.reload_tokens(tokens);
        Ok(())
    }
}

struct Shared {
    api: Api,
    settings: ServerSettings,
    /// Replaced when the certificate is reloaded.
    tls: Option<RwLock<TlsAcceptor>>,
    protocol: auto::Builder<TokioExecutor>,
    refusals: Arc<Semaphore>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Server {
    /// Reads the TLS files and binds the address. Nothing is accepted before [`Server::run`].
    pub async fn bind(address: SocketAddr, settings: ServerSettings, api: Api) -> Result<Self, ServerError> {
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let listener =
            TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| ServerError::Listen { address, source })?;
        let connections_max = connection_limit(settings.max_connections);
        let shared = Shared {
            protocol: protocol(&settings),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            api,
            settings,
            tls: tls.map(RwLock::new),
        };
        Ok(Self {
            listener,
            address,
            shared: Arc::new(shared),
            permits: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            mode: watch::Sender::new(Mode::Serving),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that reloads what a running server reads from files.
    pub fn reload_handle(&self) -> ReloadHandle {
        ReloadHandle { shared: Arc::clone(&self.shared) }
    }

    /// Serves until `shutdown` is ready, then finishes the requests in flight within `shutdown_grace`. Returns whether all
    /// of them were finished.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.accept_forever() => {}
        }
        let Self { listener, shared, permits, connections_max, mode, .. } = self;
        drop(listener);
        mode.send_replace(Mode::Stopping);
        // A stream has no end of its own; its client goes on elsewhere.
        shared.api.stop_streams();
        let all = u32::try_from(connections_max).unwrap_or(u32::MAX);
        let finished = timeout(shared.settings.shutdown_grace, permits.acquire_many(all)).await.is_ok();
        mode.send_replace(Mode::Stopped);
        if !finished {
            tracing::warn!(
                grace = ?shared.settings.shutdown_grace,
                "stop server: requests were still in flight at the end of server.shutdown_grace"
            );
        }
        finished
    }

    async fn accept_forever(&self) {
        let mut saturated_at: Option<Instant> = None;
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if !is_of_one_connection(&error) {
                        tracing::warn!(%error, "accept connection");
                        self.close_idle(&mut saturated_at);
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            };
            let shared = Arc::clone(&self.shared);
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                tokio::spawn(shared.serve(stream, permit, self.mode.subscribe()));
            } else {
                self.close_idle(&mut saturated_at);
                let (permits, mode) = (Arc::clone(&self.permits), self.mode.subscribe());
                if let Ok(refusal) = Arc::clone(&shared.refusals).try_acquire_owned() {
                    tokio::spawn(shared.serve_or_refuse(stream, refusal, permits, mode));
                }
            }
        }
    }

    /// Closes idle connections, once a second at most.
    fn close_idle(&self, saturated_at: &mut Option<Instant>) {
        if saturated_at.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
            *saturated_at = Some(Instant::now());
            self.mode.send_replace(Mode::Saturated);
        }
    }
}

impl Shared {
    /// Serves a connection over the limit if an idle one closes in time, and refuses it otherwise.
    async fn serve_or_refuse(
        self: Arc<Self>,
        stream: TcpStream,
        refusal: OwnedSemaphorePermit,
        permits: Arc<Semaphore>,
        mode: watch::Receiver<Mode>,
    ) {
        match timeout(CLOSE_TIMEOUT, permits.acquire_owned()).await {
            Ok(Ok(permit)) => {
                drop(refusal);
                self.serve(stream, permit, mode).await;
            }
            _ if self.tls.is_some() => {}
            _ => {
                let _ = timeout(CLOSE_TIMEOUT, refuse(stream)).await;
            }
        }
    }

    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        _permit: OwnedSemaphorePermit,
        mode: watch::Receiver<Mode>,
    ) {
        // A response is written whole; waiting for more to send would only delay it.
        let _ = stream.set_nodelay(true);
        let peer = stream.peer_addr().ok();
        let connections = self.api.connections();
        connections.inc();
        let tls = self.tls.as_ref().map(|tls| tls.read().unwrap_or_else(PoisonError::into_inner).clone());
        match tls {
            None => self.drive(stream, peer, mode).await,
            Some(tls) => match timeout(self.settings.header_timeout, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.drive(stream, peer, mode).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake"),
                Err(_elapsed) => tracing::debug!("TLS handshake: timed out"),
            },
        }
        connections.dec();
    }

    async fn drive<IO>(&self, io: IO, peer: Option<SocketAddr>, mut mode: watch::Receiver<Mode>)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Arc::new(Activity::default());
        let mut watchdog = Watchdog::new(Arc::clone(&activity), &self.settings);
        let service = ConnectionService { router: self.api.router(), activity: Arc::clone(&activity), peer };
        let io = TokioIo::new(Watched::new(io, activity));
        let mut connection = pin!(self.protocol.serve_connection(io, service));
        let mut tick = pin!(tokio::time::sleep(watchdog.interval()));
        let mut closing = false;
        loop {
            tokio::select! {
                biased;
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "serve connection");
                    }
                    return;
                }
                changed = mode.changed() => match *mode.borrow_and_update() {
                    _ if changed.is_err() => return,
                    Mode::Stopped => return,
                    Mode::Stopping => {
                        connection.as_mut().graceful_shutdown();
                        watchdog.shorten(CLOSE_TIMEOUT);
                        tick.as_mut().reset(tokio::time::Instant::now() + CLOSE_TIMEOUT);
                    }
                    Mode::Saturated if watchdog.is_idle() => connection.as_mut().graceful_shutdown(),
                    Mode::Serving | Mode::Saturated => {}
                },
                () = tick.as_mut() => {
                    let wait = match watchdog.check() {
                        NextCheck::After(wait) => wait,
                        NextCheck::Close if closing => return,
                        NextCheck::Close => {
                            closing = true;
                            connection.as_mut().graceful_shutdown();
                            CLOSE_TIMEOUT.min(watchdog.interval())
                        }
                    };
                    tick.as_mut().reset(tokio::time::Instant::now() + wait);
                }
            }
        }
    }
}

fn protocol(settings: &ServerSettings) -> auto::Builder<TokioExecutor> {
    let mut protocol = auto::Builder::new(TokioExecutor::new());
    let head_bytes = settings.header_limit_bytes.max(8 * 1024);
    // The watchdog times out slow heads; hyper's own timer would be set again for every request. Pipelined responses are
    // not flushed together either: hyper would close without sending the last one, such as a 431.
    protocol.http1().header_read_timeout(None).max_buf_size(head_bytes);
    protocol
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HTTP2_PING_EVERY)
        .keep_alive_timeout(settings.header_timeout)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX));
    protocol
}

/// The configured number of connections, or fewer where the limit of open files is lower. The binary has raised that
/// limit already.
fn connection_limit(configured: usize) -> usize {
    use rustix::process::{Resource, getrlimit};
    let files = getrlimit(Resource::Nofile);
    let possible =
        files.current.map_or(u64::MAX, |files| files.saturating_sub(RESERVED_FILES).max(files / 2));
    let possible = usize::try_from(possible).unwrap_or(usize::MAX);
    let limit = configured.min(possible).clamp(1, u32::MAX as usize >> 3);
    if limit < configured {
        tracing::warn!(
            configured,
            limit,
            "lower server.max_connections: raise the limit of open files (ulimit -n) to serve more"
        );
    }
    limit
}

/// An error of one peer, after which accepting goes on at once.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// Responds 503 to a connection over the limit.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let problem = Problem::new(Code::Overloaded, "too many connections are open; connect again later");
    let id = RequestId::generate();
    let body = problem.body(id.as_str());
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nx-request-id: {}\r\n\
         retry-after: 1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        id.as_str(),
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection, and the client would lose the response.
    let mut rest = [0_u8; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
