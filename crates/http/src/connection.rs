//! One connection: what it is doing, and how long it may go on doing that.
//!
//! The bytes that pass and the requests under way only set flags; a watchdog per connection looks at them now and then.
//! So a busy connection pays for no timer, and a client that sends its headers by the byte, falls silent or takes
//! nothing of its answer is still closed in time.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
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
use tower::Service as _;

use crate::settings::ServerSettings;

/// What is read and thrown away of a connection that closes, in pieces of 4 KiB.
const UNREAD_PIECES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Requests that have arrived and are not answered to their last byte.
    open: AtomicUsize,
    answered: AtomicU64,
    /// Bytes came in since the last answer: the head of a request is on its way.
    heard: AtomicBool,
    /// The client takes no bytes.
    blocked: AtomicBool,
    written: AtomicU64,
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
        } else if self.heard.load(Ordering::Relaxed) {
            Phase::Head
        } else {
            Phase::Idle
        }
    }

    fn begin(self: &Arc<Self>) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }
}

/// A request under way on a connection.
#[derive(Debug)]
struct Open(Arc<Activity>);

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Release) == 1 {
            self.0.heard.store(false, Ordering::Relaxed);
        }
        self.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Look again after this long.
    Keep(Duration),
    Close,
}

/// Decides when a connection has been in one phase for too long.
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

    /// Short enough to find a phase early, long enough that ten thousand quiet connections cost nothing.
    pub(crate) fn interval(&self) -> Duration {
        (self.head.min(self.idle) / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    pub(crate) fn look(&mut self) -> Verdict {
        let seen = (self.activity.phase(), self.activity.answered.load(Ordering::Relaxed));
        if seen != self.seen {
            self.seen = seen;
            self.since = Instant::now();
        }
        let allowed = match seen.0 {
            Phase::Serving => return Verdict::Keep(self.interval()),
            Phase::Head => self.head,
            Phase::Idle | Phase::Blocked { .. } => self.idle,
        };
        match allowed.checked_sub(self.since.elapsed()) {
            Some(left) if !left.is_zero() => Verdict::Keep(left.min(self.interval())),
            _ => Verdict::Close,
        }
    }

    /// Leaves what is not a whole request no more time than this.
    pub(crate) fn hurry(&mut self, allowed: Duration) {
        self.head = self.head.min(allowed);
        self.idle = self.idle.min(allowed);
    }

    /// Whether closing it now would take nothing from anybody.
    pub(crate) fn is_idle(&self) -> bool {
        self.activity.phase() == Phase::Idle
    }
}

pin_project_lite::pin_project! {
    /// A socket that notes what passes.
    pub(crate) struct Watched<IO> {
        #[pin]
        io: IO,
        activity: Arc<Activity>,
    }
}

impl<IO> Watched<IO> {
    pub(crate) fn new(io: IO, activity: Arc<Activity>) -> Self {
        Self { io, activity }
    }
}

fn note<T>(
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
            this.activity.heard.store(true, Ordering::Relaxed);
        }
        Poll::Ready(result)
    }
}

impl<IO: AsyncRead + AsyncWrite> AsyncWrite for Watched<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        note(this.activity, this.io.poll_write(cx, buf), |bytes| *bytes as u64)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        note(this.activity, this.io.poll_write_vectored(cx, bufs), |bytes| *bytes as u64)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        note(this.activity, this.io.poll_flush(cx), |()| 0)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        let result = ready!(note(this.activity, this.io.as_mut().poll_shutdown(cx), |()| 0));
        // Closing with unread bytes resets the connection, and the last answer may be lost with it.
        let mut scratch = [MaybeUninit::uninit(); 4 * 1024];
        for _ in 0..UNREAD_PIECES_MAX {
            let mut unread = ReadBuf::uninit(&mut scratch);
            match this.io.as_mut().poll_read(cx, &mut unread) {
                Poll::Ready(Ok(())) if !unread.filled().is_empty() => {}
                _ => break,
            }
        }
        Poll::Ready(result)
    }
}

/// The router as hyper calls it, counting the requests of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Serve {
    pub(crate) router: axum::Router,
    pub(crate) activity: Arc<Activity>,
}

impl hyper::service::Service<Request<Incoming>> for Serve {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let open = self.activity.begin();
        Answering { future: self.router.clone().call(request.map(Body::new)), open: Some(open) }
    }
}

pin_project_lite::pin_project! {
    pub(crate) struct Answering {
        #[pin]
        future: RouteFuture<Infallible>,
        open: Option<Open>,
    }
}

impl Future for Answering {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(response) = ready!(this.future.poll(cx));
        let open = this.open.take();
        Poll::Ready(Ok(response.map(|body| Answer { body, _open: open })))
    }
}

pin_project_lite::pin_project! {
    /// The body of an answer; the request is under way until it is dropped.
    pub(crate) struct Answer {
        #[pin]
        body: Body,
        _open: Option<Open>,
    }
}

impl hyper::body::Body for Answer {
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

    /// Lets time pass for the watchdog without passing it here.
    fn pass(dog: &mut Watchdog, ms: u64) {
        dog.since = dog.since.checked_sub(Duration::from_millis(ms)).unwrap();
    }

    #[test]
    fn a_trickle_of_header_bytes_does_not_extend_the_time() {
        let mut dog = watchdog(1_000, 60_000);
        dog.activity.heard.store(true, Ordering::Relaxed);
        assert!(matches!(dog.look(), Verdict::Keep(_)));
        pass(&mut dog, 999);
        dog.activity.heard.store(true, Ordering::Relaxed);
        pass(&mut dog, 2);
        assert_eq!(dog.look(), Verdict::Close);
    }

    #[test]
    fn a_request_under_way_is_left_alone_and_its_end_starts_idleness() {
        let mut dog = watchdog(1_000, 2_000);
        dog.activity.heard.store(true, Ordering::Relaxed);
        let open = dog.activity.begin();
        dog.look();
        pass(&mut dog, 100_000);
        assert!(matches!(dog.look(), Verdict::Keep(_)));
        assert!(!dog.is_idle());
        drop(open);
        assert!(matches!(dog.look(), Verdict::Keep(_)));
        assert!(dog.is_idle());
        pass(&mut dog, 2_001);
        assert_eq!(dog.look(), Verdict::Close);
    }

    #[test]
    fn a_client_that_takes_nothing_is_closed_and_a_slow_one_is_not() {
        let mut dog = watchdog(1_000, 2_000);
        let _open = dog.activity.begin();
        dog.activity.blocked.store(true, Ordering::Relaxed);
        dog.look();
        pass(&mut dog, 1_999);
        dog.activity.written.fetch_add(1, Ordering::Relaxed);
        pass(&mut dog, 2);
        assert!(matches!(dog.look(), Verdict::Keep(_)));
        pass(&mut dog, 2_001);
        assert_eq!(dog.look(), Verdict::Close);
    }
}
