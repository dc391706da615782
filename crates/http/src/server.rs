//! The accept loop: plain or TLS, HTTP/1.1 or HTTP/2, within limits, until it is told to stop.
//!
//! Too many connections, no file descriptors left, a client that hangs in its handshake: none of these stops the loop.
//! Stopping means: no new connections, no new requests on the old ones, and those under way get their answer.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::api::Api;
use crate::connection::{Activity, Serve, Verdict, Watchdog, Watched};
use crate::error::{Code, Problem};
use crate::request_id::RequestId;
use crate::settings::ServerSettings;
use crate::tls::{self, TlsError};

/// Between two tries to accept when there are no descriptors or no memory for it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// For the last bytes of a connection that is asked to close.
const CLOSING_TIME: Duration = Duration::from_secs(1);
/// Refusals being written at once; beyond that a connection is just closed.
const REFUSALS_MAX: usize = 64;
/// Descriptors that are not connections: the store's files, the log, the listener.
const OTHER_FILES: u64 = 512;
const STREAMS_PER_CONNECTION: u32 = 256;
const HTTP2_PING_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What the connections are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Serving,
    /// There is no room for a newcomer: whoever is idle leaves.
    Pressed,
    /// Finish what is under way.
    Stopping,
    /// The time for that is over.
    Stopped,
}

/// A server that has its address and does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
    connections_max: usize,
    mode: watch::Sender<Mode>,
}

struct Shared {
    api: Api,
    settings: ServerSettings,
    tls: Option<TlsAcceptor>,
    protocol: auto::Builder<TokioExecutor>,
    refusals: Arc<Semaphore>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Server {
    /// Reads the TLS files and takes the address. Nothing is accepted before [`Server::run`].
    pub async fn bind(address: SocketAddr, settings: ServerSettings, api: Api) -> Result<Self, ServerError> {
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let listener =
            TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| ServerError::Listen { address, source })?;
        let connections_max = room_for(settings.max_connections);
        let shared = Shared {
            protocol: protocol(&settings),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            api,
            settings,
            tls,
        };
        Ok(Self {
            listener,
            address,
            shared: Arc::new(shared),
            room: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            mode: watch::Sender::new(Mode::Serving),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is ready, then finishes what is under way within `shutdown_grace`. Answers whether all
    /// of it was finished.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.accept_forever() => {}
        }
        let Self { listener, shared, room, connections_max, mode, .. } = self;
        drop(listener);
        mode.send_replace(Mode::Stopping);
        let all = u32::try_from(connections_max).unwrap_or(u32::MAX);
        let finished = timeout(shared.settings.shutdown_grace, room.acquire_many(all)).await.is_ok();
        mode.send_replace(Mode::Stopped);
        if !finished {
            tracing::warn!(
                "stop server: requests were still under way when the time to finish them was over"
            );
        }
        finished
    }

    async fn accept_forever(&self) {
        let mut pressed_at: Option<Instant> = None;
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if !is_of_one_connection(&error) {
                        tracing::warn!(%error, "accept connection");
                        self.press(&mut pressed_at);
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            };
            let shared = Arc::clone(&self.shared);
            if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
                tokio::spawn(shared.serve(stream, room, self.mode.subscribe()));
            } else {
                self.press(&mut pressed_at);
                let (room, mode) = (Arc::clone(&self.room), self.mode.subscribe());
                if let Ok(place) = Arc::clone(&shared.refusals).try_acquire_owned() {
                    tokio::spawn(shared.serve_if_room(stream, place, room, mode));
                }
            }
        }
    }

    /// Asks idle connections to leave, once a second at most.
    fn press(&self, pressed_at: &mut Option<Instant>) {
        if pressed_at.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
            *pressed_at = Some(Instant::now());
            self.mode.send_replace(Mode::Pressed);
        }
    }
}

impl Shared {
    /// For a connection beyond the limit: a place that an idle one leaves, or a quick no.
    async fn serve_if_room(
        self: Arc<Self>,
        stream: TcpStream,
        place: OwnedSemaphorePermit,
        room: Arc<Semaphore>,
        mode: watch::Receiver<Mode>,
    ) {
        match timeout(CLOSING_TIME, room.acquire_owned()).await {
            Ok(Ok(room)) => {
                drop(place);
                self.serve(stream, room, mode).await;
            }
            _ if self.tls.is_some() => {}
            _ => {
                let _ = timeout(CLOSING_TIME, refuse(stream)).await;
            }
        }
    }

    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        _room: OwnedSemaphorePermit,
        mode: watch::Receiver<Mode>,
    ) {
        // An answer is written whole; waiting for more to send only delays it.
        let _ = stream.set_nodelay(true);
        let connections = self.api.connections();
        connections.inc();
        match &self.tls {
            None => self.drive(stream, mode).await,
            Some(tls) => match timeout(self.settings.header_timeout, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.drive(stream, mode).await,
                Ok(Err(error)) => tracing::debug!(%error, "shake hands"),
                Err(_elapsed) => tracing::debug!("shake hands: took too long"),
            },
        }
        connections.dec();
    }

    async fn drive<IO>(&self, io: IO, mut mode: watch::Receiver<Mode>)
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Arc::new(Activity::default());
        let mut watchdog = Watchdog::new(Arc::clone(&activity), &self.settings);
        let serve = Serve { router: self.api.router(), activity: Arc::clone(&activity) };
        let io = TokioIo::new(Watched::new(io, activity));
        let mut connection = pin!(self.protocol.serve_connection(io, serve));
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
                        watchdog.hurry(CLOSING_TIME);
                        tick.as_mut().reset(tokio::time::Instant::now() + CLOSING_TIME);
                    }
                    Mode::Pressed if watchdog.is_idle() => connection.as_mut().graceful_shutdown(),
                    Mode::Serving | Mode::Pressed => {}
                },
                () = tick.as_mut() => {
                    let wait = match watchdog.look() {
                        Verdict::Keep(wait) => wait,
                        Verdict::Close if closing => return,
                        Verdict::Close => {
                            closing = true;
                            connection.as_mut().graceful_shutdown();
                            CLOSING_TIME.min(watchdog.interval())
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
    // The watchdog sees to slow heads; hyper's own timer would be set anew for every request. Answers are not gathered
    // for a pipeline either: hyper then forgets to send the last one before it closes, such as a 431.
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

/// As many connections as asked for, or as the process may have open files.
fn room_for(asked: usize) -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let wanted = u64::try_from(asked).unwrap_or(u64::MAX).saturating_add(OTHER_FILES);
    let mut files = getrlimit(Resource::Nofile);
    if files.current.is_some_and(|current| current < wanted) {
        let raised = files.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let better = rustix::process::Rlimit { current: Some(raised), maximum: files.maximum };
        if setrlimit(Resource::Nofile, better).is_ok() {
            files = getrlimit(Resource::Nofile);
        }
    }
    let possible = files.current.map_or(u64::MAX, |files| files.saturating_sub(OTHER_FILES).max(files / 2));
    let room = asked.min(usize::try_from(possible).unwrap_or(usize::MAX)).clamp(1, u32::MAX as usize >> 3);
    if room < asked {
        tracing::warn!(asked, room, "limit connections: the process may not open more files");
    }
    room
}

/// The peer's doing, and no reason to pause.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// Says 503 to a connection that finds no room.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let problem = Problem::new(Code::Overloaded, "too many connections are open");
    let id = RequestId::make();
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
    // Closing with unread bytes would reset the connection and take the answer with it.
    let mut rest = [0_u8; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
