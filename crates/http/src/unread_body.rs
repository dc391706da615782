//! Early refusals: a response that is ready before the request's body was read.
//!
//! Over HTTP/1 an unread body stands between the response and the next request, and a socket that is closed with unread bytes
//! is reset: the client may lose the response. So a small rest is read and discarded before the response is sent, and the
//! connection is kept. With a larger rest the response says `Connection: close`, and the connection lingers (`connection.rs`)
//! until the client has read it. HTTP/2 ends a stream without the others.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Request, Version};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::connection::Activity;

/// Bytes of a rest that are discarded so that the connection can be kept.
pub(crate) const DISCARDED_BYTES_MAX: u64 = 64 * 1024;
/// For such a rest to arrive.
const DISCARD_TIMEOUT: Duration = Duration::from_millis(500);

/// Where the body of a connection's request is left when its handler is done with it.
#[derive(Debug, Default)]
pub(crate) struct UnreadBody(Mutex<Option<Rest>>);

/// A body that was not read to its end.
#[derive(Debug)]
pub(crate) struct Rest {
    incoming: Incoming,
    /// The client waits for "100 Continue" and has sent nothing: reading would ask it to send the body.
    is_awaiting_continue: bool,
}

impl UnreadBody {
    pub(crate) fn take(&self) -> Option<Rest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn leave(&self, rest: Rest) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(rest);
    }
}

/// The body of a request as its handler reads it. Dropped before its end, it leaves the rest to its connection.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Option<Incoming>,
    is_awaiting_continue: bool,
    left_to: Option<Arc<Activity>>,
}

impl RequestBody {
    pub(crate) fn of(request: Request<Incoming>, activity: &Arc<Activity>) -> Request<Self> {
        let may_leave = request.version() < Version::HTTP_2 && !request.body().is_end_stream();
        let is_awaiting_continue = may_leave && request.headers().contains_key(EXPECT);
        let left_to = may_leave.then(|| Arc::clone(activity));
        request.map(|incoming| Self { incoming: Some(incoming), is_awaiting_continue, left_to })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_awaiting_continue = false;
        match &mut self.incoming {
            Some(incoming) => Pin::new(incoming).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(activity), Some(incoming)) = (&self.left_to, self.incoming.take())
            && !incoming.is_end_stream()
        {
            activity.unread().leave(Rest { incoming, is_awaiting_continue: self.is_awaiting_continue });
        }
    }
}

/// Prepares the response to a request whose body was not read. `true`: its connection must close after it, and linger.
pub(crate) async fn discard(rest: Rest, mut response: Response) -> (Response, bool) {
    let is_discarded = !rest.is_awaiting_continue
        && tokio::time::timeout(DISCARD_TIMEOUT, read_to_end(rest.incoming)).await == Ok(true);
    if !is_discarded {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    (response, !is_discarded)
}

/// Whether the body ended within [`DISCARDED_BYTES_MAX`].
async fn read_to_end(incoming: Incoming) -> bool {
    let mut incoming = pin!(incoming);
    let mut bytes = 0;
    while bytes + incoming.size_hint().lower() <= DISCARDED_BYTES_MAX {
        match incoming.as_mut().frame().await {
            None => return true,
            Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, |data| data.len() as u64),
            Some(Err(_)) => return false,
        }
    }
    false
}
