//! The whole way of a request through the onion, on one page: [`Guarded::serve`].
//!
//! It is one function around a handler rather than a stack of layers, because every route pays for it: a request id,
//! the gauge and the limit of requests under way, the token and its role, the time limit, a caught panic, the body of
//! a problem, the headers every answer has, the metrics of the route and the log.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::handler::Handler;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

use crate::auth::Callers;
use crate::error::{Code, Problem};
use crate::metrics::{Metrics, RouteMetrics};
use crate::request_id::{RequestId, X_REQUEST_ID};
use crate::settings::{Role, ServerSettings, Tokens};

/// What a route does, and so what running out of time or of room means for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Changes nothing: out of time is 503.
    Read,
    /// May have changed something: out of time is 504.
    Write,
    /// Answers while it still reads: its pieces have time limits, the whole has none.
    Stream,
    /// Tells about the service itself: never shed.
    Probe,
}

/// One line of the router's table.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) path: &'static str,
    /// None: open to everybody.
    pub(crate) role: Option<Role>,
    pub(crate) work: Work,
    pub(crate) takes_query: bool,
    pub(crate) metrics: RouteMetrics,
}

/// What all routes share.
#[derive(Debug)]
pub(crate) struct Onion {
    callers: Callers,
    metrics: Metrics,
    in_flight: AtomicUsize,
    max_in_flight: usize,
    request_timeout: Duration,
    started: Instant,
    shed_logged_s: AtomicU64,
}

impl Onion {
    pub(crate) fn new(settings: &ServerSettings, tokens: &Tokens, metrics: Metrics) -> Self {
        Self {
            callers: Callers::new(tokens),
            metrics,
            in_flight: AtomicUsize::new(0),
            max_in_flight: settings.max_in_flight,
            request_timeout: settings.request_timeout,
            started: Instant::now(),
            shed_logged_s: AtomicU64::new(0),
        }
    }

    fn admit(self: &Arc<Self>, route: &Route, request: &Request) -> Result<Option<Flight>, Problem> {
        let flight = match route.work {
            Work::Probe => None,
            Work::Read | Work::Write | Work::Stream => Some(self.take_off()?),
        };
        if let Some(role) = route.role {
            self.callers.admit(request.headers(), role)?;
        }
        match request.uri().query() {
            Some(query) if !query.is_empty() && !route.takes_query => Err(no_query(query)),
            _ => Ok(flight),
        }
    }

    fn take_off(self: &Arc<Self>) -> Result<Flight, Problem> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let flight = Flight(Arc::clone(self));
        if before < self.max_in_flight {
            return Ok(flight);
        }
        self.metrics.shed.inc();
        Err(Problem::new(Code::Overloaded, "too many requests are under way"))
    }

    /// One line a second at most: a log that grows with the overload makes it worse.
    fn may_log_shed(&self) -> bool {
        let now_s = self.started.elapsed().as_secs() + 1;
        self.shed_logged_s.swap(now_s, Ordering::Relaxed) != now_s
    }

    pub(crate) fn metrics_text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.metrics.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        self.metrics.encode()
    }
}

/// A request under way; for a stream, until its last byte.
#[derive(Debug)]
struct Flight(Arc<Onion>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A handler inside the onion.
#[derive(Debug, Clone)]
pub(crate) struct Guarded<H> {
    pub(crate) handler: H,
    pub(crate) route: Arc<Route>,
    pub(crate) onion: Arc<Onion>,
}

impl<H, T, S> Handler<(Work, T), S> for Guarded<H>
where
    H: Handler<T, S>,
    T: 'static,
    S: Send + 'static,
{
    type Future = Pin<Box<dyn Future<Output = Response> + Send>>;

    fn call(self, request: Request, state: S) -> Self::Future {
        Box::pin(self.serve(request, state))
    }
}

impl<H> Guarded<H> {
    async fn serve<T, S>(self, request: Request, state: S) -> Response
    where
        H: Handler<T, S>,
        S: Send + 'static,
    {
        let Self { handler, route, onion } = self;
        let arrived = Instant::now();
        let id = RequestId::of(request.headers());
        let method = request.method().clone();
        let mut response = match onion.admit(&route, &request) {
            Ok(flight) => {
                let answered = AssertUnwindSafe(async { handler.call(request, state).await }).catch_unwind();
                let response = match route.work {
                    Work::Read | Work::Write => tokio::time::timeout(onion.request_timeout, answered).await,
                    Work::Stream | Work::Probe => Ok(answered.await),
                };
                let response = match response {
                    Ok(Ok(response)) => response,
                    Ok(Err(panic)) => panicked(&onion.metrics, panic.as_ref()).into_response(),
                    Err(_elapsed) => out_of_time(route.work).into_response(),
                };
                hold(flight, route.work, response)
            }
            Err(problem) => problem.into_response(),
        };
        let problem = response.extensions_mut().remove::<Problem>();
        if let Some(problem) = &problem {
            write_problem(problem, &id, &mut response);
        }
        let took = arrived.elapsed();
        route.metrics.observe(response.status(), took);
        log(&onion, &route, &method, &id, response.status(), took, problem.as_ref());
        finish_headers(response.headers_mut(), id);
        response
    }
}

fn no_query(query: &str) -> Problem {
    let name = query.split(['=', '&']).next().unwrap_or_default();
    Problem::parameter(name, "this call takes no query parameters")
}

fn panicked(metrics: &Metrics, panic: &(dyn std::any::Any + Send)) -> Problem {
    metrics.panics.inc();
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    Problem::internal(format_args!("panicked: {message}"))
}

fn out_of_time(work: Work) -> Problem {
    match work {
        Work::Write => Problem::new(
            Code::OutcomeUnknown,
            "the time for this request ran out; repeat it with the same Idempotency-Key, or read and decide",
        ),
        Work::Read | Work::Stream | Work::Probe => {
            Problem::new(Code::StoreUnavailable, "the time for this request ran out")
        }
    }
}

/// A stream is under way until its body ends, not until its first byte.
fn hold(flight: Option<Flight>, work: Work, response: Response) -> Response {
    match flight {
        Some(flight) if work == Work::Stream => {
            response.map(|body| Body::new(Held { body, _flight: flight }))
        }
        _ => response,
    }
}

pin_project_lite::pin_project! {
    struct Held {
        #[pin]
        body: Body,
        _flight: Flight,
    }
}

impl http_body::Body for Held {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        self.project().body.poll_frame(cx)
    }
}

fn write_problem(problem: &Problem, id: &RequestId, response: &mut Response) {
    *response.body_mut() = Body::from(problem.body(id.as_str()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if problem.code() == Code::Unauthorized {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = problem.retry_after_seconds() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
}

fn finish_headers(headers: &mut HeaderMap, id: RequestId) {
    headers.insert(X_REQUEST_ID, id.into_header());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

fn log(
    onion: &Onion,
    route: &Route,
    method: &Method,
    id: &RequestId,
    status: StatusCode,
    took: Duration,
    problem: Option<&Problem>,
) {
    macro_rules! say {
        ($level:ident, $message:literal) => {
            tracing::$level!(
                request_id = id.as_str(),
                method = method.as_str(),
                route = route.path,
                status = status.as_u16(),
                ms = took.as_secs_f64() * 1_000.0,
                code = problem.map_or("", |problem| problem.code().name()),
                cause = problem.and_then(Problem::cause).unwrap_or(""),
                $message
            )
        };
    }
    match problem.map(Problem::code) {
        Some(Code::Internal) => say!(error, "request failed"),
        Some(Code::Overloaded) if !onion.may_log_shed() => say!(debug, "request refused"),
        Some(Code::Overloaded | Code::StoreUnavailable | Code::OutcomeUnknown) => {
            say!(warn, "request refused");
        }
        _ if status.is_server_error() => say!(error, "request failed"),
        _ => say!(debug, "request answered"),
    }
}
