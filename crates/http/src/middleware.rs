//! The middleware stack on one page: [`WithMiddleware::serve`] is the whole path of a request around its handler.
//!
//! In order: request id, host and origin, limit of requests or streams, token and role, query check, request timeout, caught panic, masking for
//! auditors, problem body, compression, route metrics, log, common headers. It is one function instead of nested layers, because every route pays for it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::handler::Handler;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::Either;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

use mw_store::request::{self, RequestLabel, RequestObserver};
use tokio::sync::watch;

use crate::auth::Callers;
use crate::compression::{self, Encoding};
use crate::error::{Code, Problem};
use crate::extract::TokenName;
use crate::feed_lag::FeedLag;
use crate::local_site;
use crate::metrics::{Metrics, RouteMetrics};
use crate::personal_data::Pseudonyms;
use crate::request_id::{RequestId, X_REQUEST_ID};
use crate::settings::{Role, ServerSettings, Tokens};

/// What a route does, which decides its timeout and whether it is shed under load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteKind {
    /// Changes nothing: a timeout is 503.
    Read,
    /// May have changed something: a timeout is 504.
    Write,
    /// Responds while it still reads the body: each chunk has a timeout, the whole has none.
    Stream,
    /// Waits for changes or streams them: it counts as a stream and not as a request in flight, and has its own timeouts.
    Feed,
    /// Reports on the service itself: never shed, without a timeout.
    Probe,
}

/// One line of the route table.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) label: RequestLabel,
    /// `None`: open, no token is needed.
    pub(crate) role: Option<Role>,
    pub(crate) kind: RouteKind,
    pub(crate) takes_query: bool,
    pub(crate) metrics: RouteMetrics,
}

/// What the middleware of all routes shares.
#[derive(Debug)]
pub(crate) struct MiddlewareStack {
    /// Replaced when the tokens are reloaded.
    access: RwLock<Arc<Access>>,
    pseudonym_key: Option<String>,
    metrics: Metrics,
    in_flight: AtomicUsize,
    max_in_flight: usize,
    streams: AtomicUsize,
    max_streams: usize,
    feed_lag: FeedLag,
    /// Whether the server stops, which ends streams.
    stopping: watch::Sender<bool>,
    request_timeout: Duration,
    started: Instant,
    shed_logged_s: AtomicU64,
    observer: Option<Arc<dyn RequestObserver>>,
}

impl MiddlewareStack {
    pub(crate) fn new(settings: &ServerSettings, tokens: &Tokens, metrics: Metrics) -> Self {
        Self {
            access: RwLock::new(Arc::new(Access::new(settings.pseudonym_key.as_deref(), tokens))),
            pseudonym_key: settings.pseudonym_key.clone(),
            metrics,
            in_flight: AtomicUsize::new(0),
            max_in_flight: settings.max_in_flight,
            streams: AtomicUsize::new(0),
            max_streams: settings.max_streams,
            feed_lag: FeedLag::default(),
            stopping: watch::Sender::new(false),
            request_timeout: settings.request_timeout,
            started: Instant::now(),
            shed_logged_s: AtomicU64::new(0),
            observer: settings.request_observer.clone(),
        }
    }

    /// Admits callers by these tokens from now on; requests in flight are not affected.
    pub(crate) fn reload_tokens(&self, tokens: &Tokens) {
        let access = Arc::new(Access::new(self.pseudonym_key.as_deref(), tokens));
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = access;
    }

    fn admit(self: &Arc<Self>, route: &Route, request: &mut Request) -> Result<Admission, Problem> {
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        if access.callers.is_open() {
            local_site::check(request.uri(), request.headers())?;
        }
        let permit = match route.kind {
            RouteKind::Probe => None,
            RouteKind::Feed => Some(self.acquire_permit(Limit::Streams)?),
            RouteKind::Read | RouteKind::Write | RouteKind::Stream => {
                Some(self.acquire_permit(Limit::InFlight)?)
            }
        };
        let is_read = matches!(route.kind, RouteKind::Read | RouteKind::Probe);
        let role = match route.role {
            Some(role) => Some(access.callers.admit(request.headers(), role, is_read)?),
            None => None,
        };
        if route.role == Some(Role::Operator) && route.kind == RouteKind::Write {
            let name = TokenName(access.callers.token_name(request.headers()));
            request.extensions_mut().insert(name);
        }
        let masked = (role == Some(Role::Auditor)).then(|| Arc::clone(&access));
        match request.uri().query() {
            Some(query) if !query.is_empty() && !route.takes_query => Err(no_query(query)),
            _ => Ok(Admission { permit, masked }),
        }
    }

    fn acquire_permit(self: &Arc<Self>, limit: Limit) -> Result<Permit, Problem> {
        let (count, max) = self.count(limit);
        let before = count.fetch_add(1, Ordering::Relaxed);
        // Dropping the permit takes the request off the count, also where it is refused.
        let permit = Permit { stack: Arc::clone(self), limit };
        if before < max {
            return Ok(permit);
        }
        self.metrics.shed.inc();
        let detail = match limit {
            Limit::InFlight => "too many requests are in flight; send this one again later",
            Limit::Streams => "too many streams of the change feed are open; send this request again later",
        };
        Err(Problem::new(Code::Overloaded, detail))
    }

    const fn count(&self, limit: Limit) -> (&AtomicUsize, usize) {
        match limit {
            Limit::InFlight => (&self.in_flight, self.max_in_flight),
            Limit::Streams => (&self.streams, self.max_streams),
        }
    }

    pub(crate) const fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    pub(crate) const fn feed_lag(&self) -> &FeedLag {
        &self.feed_lag
    }

    /// Becomes true when the server stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Ends streams and waiting requests of the change feed.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// At most one log line a second: a log that grows with the overload makes it worse.
    fn may_log_shed(&self) -> bool {
        let now_s = self.started.elapsed().as_secs() + 1;
        self.shed_logged_s.swap(now_s, Ordering::Relaxed) != now_s
    }

    pub(crate) fn metrics_text(&self, clock_jump_seconds: i64) -> Result<Vec<u8>, prometheus::Error> {
        self.metrics.clock_jump.set(clock_jump_seconds);
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.metrics.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        let streams = self.streams.load(Ordering::Relaxed);
        self.metrics.feed_streams.set(i64::try_from(streams).unwrap_or(i64::MAX));
        self.metrics.feed_lag.set(self.feed_lag.largest_seconds());
        self.metrics.encode()
    }
}

/// A request that may be served.
#[derive(Debug)]
struct Admission {
    permit: Option<Permit>,
    /// Set where the caller must not see personal data.
    masked: Option<Arc<Access>>,
}

/// Who may call, and the pseudonyms that auditors see.
#[derive(Debug)]
struct Access {
    callers: Callers,
    pseudonyms: Pseudonyms,
}

impl Access {
    fn new(pseudonym_key: Option<&str>, tokens: &Tokens) -> Self {
        Self { callers: Callers::new(tokens), pseudonyms: Pseudonyms::new(pseudonym_key, tokens) }
    }
}

/// What a request counts against.
#[derive(Debug, Clone, Copy)]
enum Limit {
    InFlight,
    /// Streams of the change feed last for days, and must not take the place of requests.
    Streams,
}

/// Counts a request against a limit; a stream keeps it until its last byte.
#[derive(Debug)]
struct Permit {
    stack: Arc<MiddlewareStack>,
    limit: Limit,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.stack.count(self.limit).0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A handler inside the middleware stack.
#[derive(Debug, Clone)]
pub(crate) struct WithMiddleware<H> {
    pub(crate) handler: H,
    pub(crate) route: Arc<Route>,
    pub(crate) stack: Arc<MiddlewareStack>,
}

impl<H, T, S> Handler<(RouteKind, T), S> for WithMiddleware<H>
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

impl<H> WithMiddleware<H> {
    async fn serve<T, S>(self, mut request: Request, state: S) -> Response
    where
        H: Handler<T, S>,
        S: Send + 'static,
    {
        let Self { handler, route, stack } = self;
        let arrived = Instant::now();
        let id = RequestId::of(request.headers());
        let method = request.method().clone();
        let encoding = Encoding::accepted(request.headers());
        let mut response = match stack.admit(&route, &mut request) {
            Ok(Admission { permit, masked }) => {
                let handled = async { handler.call(request, state).await };
                // Only an observer needs to know which request a statement belongs to.
                let handled = if let Some(observer) = &stack.observer {
                    observer.request(route.label);
                    Either::Left(request::scope(Some(route.label), handled))
                } else {
                    Either::Right(handled)
                };
                let handled = AssertUnwindSafe(handled).catch_unwind();
                let response = match route.kind {
                    RouteKind::Read | RouteKind::Write => {
                        tokio::time::timeout(stack.request_timeout, handled).await
                    }
                    RouteKind::Stream | RouteKind::Feed | RouteKind::Probe => Ok(handled.await),
                };
                let response = match response {
                    Ok(Ok(response)) => response,
                    Ok(Err(panic)) => panicked(&stack.metrics, panic.as_ref()).into_response(),
                    Err(_elapsed) => timed_out(route.kind).into_response(),
                };
                let response = match masked {
                    Some(access) => Box::pin(access.pseudonyms.mask(response))
                        .await
                        .unwrap_or_else(IntoResponse::into_response),
                    None => response,
                };
                attach_permit(permit, route.kind, response)
            }
            Err(problem) => problem.into_response(),
        };
        let problem = response.extensions_mut().remove::<Problem>();
        if let Some(problem) = &problem {
            write_problem(problem, &id, &mut response);
        }
        if compression::is_compressible(&response) {
            response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            if let Some(encoding) = encoding {
                // Boxed, as most requests do without it.
                response = Box::pin(compression::compress(encoding, response)).await;
            }
        }
        let took = arrived.elapsed();
        route.metrics.observe(response.status(), took);
        log(&stack, &route, &method, &id, response.status(), took, problem.as_ref());
        finish_headers(response.headers_mut(), id);
        response
    }
}

fn no_query(query: &str) -> Problem {
    let name = query.split(['=', '&']).next().unwrap_or_default();
    Problem::parameter(name, "this call takes no query parameters; remove it")
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

fn timed_out(kind: RouteKind) -> Problem {
    match kind {
        RouteKind::Write => Problem::new(
            Code::OutcomeUnknown,
            "the request timed out and the change may have been made; repeat it with the same Idempotency-Key, \
             or read what is stored",
        ),
        RouteKind::Read | RouteKind::Stream | RouteKind::Feed | RouteKind::Probe => {
            Problem::new(Code::StoreUnavailable, "the request timed out; send it again later")
        }
    }
}

/// A stream is in flight until its body ends; any other request only until its handler returns.
fn attach_permit(permit: Option<Permit>, kind: RouteKind, response: Response) -> Response {
    match permit {
        Some(permit) if matches!(kind, RouteKind::Stream | RouteKind::Feed) => {
            response.map(|body| Body::new(BodyWithPermit { body, _permit: permit }))
        }
        _ => response,
    }
}

pin_project_lite::pin_project! {
    struct BodyWithPermit {
        #[pin]
        body: Body,
        _permit: Permit,
    }
}

impl http_body::Body for BodyWithPermit {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    /// A whole body keeps its length, and is compressed.
    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
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
    stack: &MiddlewareStack,
    route: &Route,
    method: &Method,
    id: &RequestId,
    status: StatusCode,
    took: Duration,
    problem: Option<&Problem>,
) {
    macro_rules! event {
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
        Some(Code::Internal) => event!(error, "request failed"),
        Some(Code::Overloaded) if !stack.may_log_shed() => event!(debug, "request refused"),
        Some(Code::Overloaded | Code::StoreUnavailable | Code::OutcomeUnknown) => {
            event!(warn, "request refused");
        }
        _ if status.is_server_error() => event!(error, "request failed"),
        _ => event!(debug, "request served"),
    }
}
