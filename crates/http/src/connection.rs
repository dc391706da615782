//! One connection and its timeouts.
//!
//! Reads, writes and requests in flight only set flags; a watchdog per connection checks them periodically. A busy
//! connection therefore sets no timer, and a client that sends its headers byte by byte, stays silent or does not read its
//! response is still closed in time.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::Response;
use axum::routing::future::RouteFuture;
use http::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tower::Service as _;

use crate::extract::PeerAddress;
use crate::malformed_head;
use crate::settings::ServerSettings;
use crate::unread_body::{self, RequestBody, UnreadBody};

/// Unread input that is discarded at once from a closing connection, in chunks of 4 KiB.
const DISCARDED_CHUNKS_MAX: usize = 64;
/// How long a connection with a refused body stays open for its client to read the response.
const LINGER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Requests whose response is not written to its last byte.
    open: AtomicUsize,
    finished: AtomicU64,
    /// Bytes arrived since the last response: the head of a request is incomplete.
    received: AtomicBool,
    /// The client does not read its response.
    blocked: AtomicBool,
    written: AtomicU64,
    /// A refused body is still arriving: the connection stays open after its last response.
    lingers: AtomicBool,
    unread: UnreadBody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Head,
    Blocked { written: u64 },
    Serving,
}

impl Activity {
    fn phase(&self) -> Phase {
        if self.blocked.load(Ordering::Relaxed) {
            Phase::Blocked { written: self.written.load(Ordering::Relaxed) }
        } else if self.open.load(Ordering::Acquire) > 0 {
            Phase::Serving
        } else if self.received.load(Ordering::Relaxed) {
            Phase::Head
        } else {
            Phase::Idle
        }
    }

    /// Where a request's body is left that its handler did not read.
    pub(crate) const fn unread(&self) -> &UnreadBody {
        &self.unread
    }

    fn begin(self: &Arc<Self>) -> OpenRequest {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenRequest(Arc::clone(self))
    }
}

/// Counts a request of a connection as open until it is dropped.
#[derive(Debug)]
struct OpenRequest(Arc<Activity>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        // A stream has ended before the body that it read: the connection closes.
        if let Some(rest) = self.0.unread.take() {
            self.0.lingers.store(true, Ordering::Relaxed);
            drop(rest);
        }
        if self.0.open.fetch_sub(1, Ordering::Release) == 1 {
            self.0.received.store(false, Ordering::Relaxed);
        }
        self.0.finished.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the server does with a connection after a check: check again after a while, or close it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextCheck {
    After(Duration),
    Close,
}

/// Finds out when a connection has been in one phase for too long.
#[derive(Debug)]
pub(crate) struct Watchdog {
    activity: Arc<Activity>,
    head: Duration,
    idle: Duration,
    seen: (Phase, u64),
    since: Instant,
}

impl Watchdog {
    pub(crate) fn new(activity: Arc<Activity>, settings: &ServerSettings) -> Self {
        let (head, idle) = (settings.header_timeout, settings.idle_timeout);
        Self { activity, head, idle, seen: (Phase::Idle, 0), since: Instant::now() }
    }

    /// Short enough to notice a phase early, long enough that ten thousand idle connections cost nothing.
    pub(crate) fn interval(&self) -> Duration {
        (self.head.min(self.idle) / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    pub(crate) fn check(&mut self) -> NextCheck {
        let seen = (self.activity.phase(), self.activity.finished.load(Ordering::Relaxed));
        if seen != self.seen {
            self.seen = seen;
            self.since = Instant::now();
        }
        let allowed = match seen.0 {
            Phase::Serving => return NextCheck::After(self.interval()),
            Phase::Head => self.head,
            Phase::Idle | Phase::Blocked { .. } => self.idle,
        };
        match allowed.checked_sub(self.since.elapsed()) {
            Some(remaining) if !remaining.is_zero() => NextCheck::After(remaining.min(self.interval())),
            _ => NextCheck::Close,
        }
    }

    /// Shortens the timeouts of everything but a request in flight.
    pub(crate) fn shorten(&mut self, allowed: Duration) {
        self.head = self.head.min(allowed);
        self.idle = self.idle.min(allowed);
    }

    /// Whether the connection can be closed now without losing a request.
    pub(crate) fn is_idle(&self) -> bool {
        self.activity.phase() == Phase::Idle
    }
}

pin_project_lite::pin_project! {
    /// A socket that records its reads and writes in an [`Activity`].
    pub(crate) struct Watched<IO> {
        #[pin]
        io: IO,
        activity: Arc<Activity>,
        // What is written in the place of one of hyper's own responses, and how much of it is written.
        replacement: Vec<u8>,
        replaced: usize,
        is_shut_down: bool,
        lingering: Option<Pin<Box<Sleep>>>,
    }
}

impl<IO> Watched<IO> {
    pub(crate) fn new(io: IO, activity: Arc<Activity>) -> Self {
        Self { io, activity, replacement: Vec::new(), replaced: 0, is_shut_down: false, lingering: None }
    }
}

impl<IO: AsyncWrite> Watched<IO> {
    /// Takes over what hyper writes, where that is a response of its own.
    fn replace(self: Pin<&mut Self>, written: &[u8]) -> bool {
        let this = self.project();
        match malformed_head::replacement(written) {
            Some(replacement) => {
                // The rest of what the client sends is not read.
                this.activity.lingers.store(true, Ordering::Relaxed);
                *this.replacement = replacement;
                true
            }
            None => false,
        }
    }

    fn poll_write_replacement(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        while let Some(rest) = this.replacement.get(*this.replaced..).filter(|rest| !rest.is_empty()) {
            match ready!(this.io.as_mut().poll_write(cx, rest)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(bytes) => *this.replaced += bytes,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead> Watched<IO> {
    /// Discards what the client still sends, until it ends or [`LINGER_TIMEOUT`] is over; without a refused body only what
    /// has arrived. Closing with unread bytes resets the connection, and the client may lose the last response.
    fn poll_discard(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let lingers = this.activity.lingers.load(Ordering::Relaxed);
        let mut scratch = [MaybeUninit::uninit(); 4 * 1024];
        let mut has_more = true;
        for _ in 0..DISCARDED_CHUNKS_MAX {
            let mut unread = ReadBuf::uninit(&mut scratch);
            match this.io.as_mut().poll_read(cx, &mut unread) {
                Poll::Ready(Ok(())) if !unread.filled().is_empty() => {}
                Poll::Pending if lingers => {
                    has_more = false;
                    break;
                }
                _ => return Poll::Ready(()),
            }
        }
        if !lingers {
            return Poll::Ready(());
        }
        if has_more {
            // Other connections of this thread go first.
            cx.waker().wake_by_ref();
        }
        let timer = || Box::pin(tokio::time::sleep(LINGER_TIMEOUT));
        this.lingering.get_or_insert_with(timer).as_mut().poll(cx)
    }
}

fn record<T>(
    activity: &Activity,
    progress: Poll<io::Result<T>>,
    bytes: impl Fn(&T) -> u64,
) -> Poll<io::Result<T>> {
    match &progress {
        Poll::Ready(Ok(done)) => {
            activity.blocked.store(false, Ordering::Relaxed);
            activity.written.fetch_add(bytes(done), Ordering::Relaxed);
        }
        Poll::Ready(Err(_)) => {}
        Poll::Pending => activity.blocked.store(true, Ordering::Relaxed),
    }
    progress
}

impl<IO: AsyncRead> AsyncRead for Watched<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let before = buf.filled().len();
        let result = ready!(this.io.poll_read(cx, buf));
        if buf.filled().len() > before {
            this.activity.received.store(true, Ordering::Relaxed);
        }
        Poll::Ready(result)
    }
}

impl<IO: AsyncRead + AsyncWrite> AsyncWrite for Watched<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.as_mut().replace(buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        let this = self.project();
        record(this.activity, this.io.poll_write(cx, buf), |bytes| *bytes as u64)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(first) = bufs.first()
            && self.as_mut().replace(first)
        {
            return Poll::Ready(Ok(first.len()));
        }
        let this = self.project();
        record(this.activity, this.io.poll_write_vectored(cx, bufs), |bytes| *bytes as u64)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_write_replacement(cx))?;
        let this = self.project();
        record(this.activity, this.io.poll_flush(cx), |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut_down {
            ready!(self.as_mut().poll_write_replacement(cx))?;
            let this = self.as_mut().project();
            ready!(record(this.activity, this.io.poll_shutdown(cx), |()| 0))?;
            *this.is_shut_down = true;
        }
        ready!(self.poll_discard(cx));
        Poll::Ready(Ok(()))
    }
}

/// The router as hyper calls it; counts the open requests of one connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionService {
    pub(crate) router: axum::Router,
    pub(crate) activity: Arc<Activity>,
    pub(crate) peer: Option<SocketAddr>,
}

impl hyper::service::Service<Request<Incoming>> for ConnectionService {
    type Response = Response<TrackedBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        let open = self.activity.begin();
        let mut request = RequestBody::of(request, &self.activity);
        // Only operators are recorded with their address; no other request pays for it.
        if let (Some(peer), true) = (self.peer, request.uri().path().starts_with("/v1/operations")) {
            request.extensions_mut().insert(PeerAddress(peer));
        }
        ResponseFuture {
            future: self.router.clone().call(request.map(Body::new)),
            open: Some(open),
            discarding: None,
        }
    }
}

type Discarding = Pin<Box<dyn Future<Output = (Response, bool)> + Send>>;

pin_project_lite::pin_project! {
    pub(crate) struct ResponseFuture {
        #[pin]
        future: RouteFuture<Infallible>,
        open: Option<OpenRequest>,
        // The response is ready, and the rest of the request's body is on its way.
        discarding: Option<Discarding>,
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<TrackedBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.discarding.is_none() {
            let Ok(response) = ready!(this.future.poll(cx));
            let Some(rest) = this.open.as_ref().and_then(|open| open.0.unread.take()) else {
                let open = this.open.take();
                return Poll::Ready(Ok(response.map(|body| TrackedBody { body, _request: open })));
            };
            *this.discarding = Some(Box::pin(unread_body::discard(rest, response)));
        }
        let Some(discarding) = this.discarding else { return Poll::Pending };
        let (response, lingers) = ready!(discarding.as_mut().poll(cx));
        let open = this.open.take();
        if let (true, Some(open)) = (lingers, &open) {
            open.0.lingers.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(response.map(|body| TrackedBody { body, _request: open })))
    }
}

pin_project_lite::pin_project! {
    /// A response body; its request is open until it is dropped.
    pub(crate) struct TrackedBody {
        #[pin]
        body: Body,
        _request: Option<OpenRequest>,
    }
}

impl hyper::body::Body for TrackedBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watchdog(head_ms: u64, idle_ms: u64) -> Watchdog {
        let settings = ServerSettings {
            header_timeout: Duration::from_millis(head_ms),
            idle_timeout: Duration::from_millis(idle_ms),
            ..ServerSettings::default()
        };
        Watchdog::new(Arc::default(), &settings)
    }

    /// Moves the watchdog's clock on without waiting.
    fn pass(dog: &mut Watchdog, ms: u64) {
        dog.since = dog.since.checked_sub(Duration::from_millis(ms)).unwrap();
    }

    #[test]
    fn single_header_bytes_do_not_extend_the_header_timeout() {
        let mut dog = watchdog(1_000, 60_000);
        dog.activity.received.store(true, Ordering::Relaxed);
        assert!(matches!(dog.check(), NextCheck::After(_)));
        pass(&mut dog, 999);
        dog.activity.received.store(true, Ordering::Relaxed);
        pass(&mut dog, 2);
        assert_eq!(dog.check(), NextCheck::Close);
    }

    #[test]
    fn an_open_request_is_not_closed_and_its_end_starts_the_idle_timeout() {
        let mut dog = watchdog(1_000, 2_000);
        dog.activity.received.store(true, Ordering::Relaxed);
        let open = dog.activity.begin();
        dog.check();
        pass(&mut dog, 100_000);
        assert!(matches!(dog.check(), NextCheck::After(_)));
        assert!(!dog.is_idle());
        drop(open);
        assert!(matches!(dog.check(), NextCheck::After(_)));
        assert!(dog.is_idle());
        pass(&mut dog, 2_001);
        assert_eq!(dog.check(), NextCheck::Close);
    }

    #[test]
    fn a_client_that_reads_nothing_is_closed_and_a_slow_one_is_not() {
        let mut dog = watchdog(1_000, 2_000);
        let _request = dog.activity.begin();
        dog.activity.blocked.store(true, Ordering::Relaxed);
        dog.check();
        pass(&mut dog, 1_999);
        dog.activity.written.fetch_add(1, Ordering::Relaxed);
        pass(&mut dog, 2);
        assert!(matches!(dog.check(), NextCheck::After(_)));
        pass(&mut dog, 2_001);
        assert_eq!(dog.check(), NextCheck::Close);
    }
}
