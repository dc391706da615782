//! The change feed: pages with long poll, and streams as NDJSON or server-sent events.
//!
//! A stream reads page after page and never more than one ahead of its client. It ends when the client leaves, when the
//! server stops, or when the store fails; a client goes on from the cursor that it got last.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{HeaderName, StatusCode};
use mw_domain::Currency;
use mw_store::Position;
use mw_store::changes::{ChangeEvent, ChangesPage, FeedStart, Topic, Topics};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::app::App;
use crate::cursor::Scope;
use crate::docs::{ChangesParams, LastEventId};
use crate::error::{Code, Problem};
use crate::extract::Query;
use crate::feed_lag::StreamLag;
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::changes::{ChangeView, ChangesView};
use crate::wire::json;

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: u64 = 1_000;
const WAIT_MAX_S: u64 = 30;
/// A stream without changes sends a sign of life this often, where its format has one.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Between two reads of a stream that has caught up: changes of this time share a read.
const READ_PAUSE: Duration = Duration::from_millis(50);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const NDJSON: &str = "application/x-ndjson";
const EVENT_STREAM: &str = "text/event-stream";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Ndjson,
    EventStream,
}

impl Format {
    /// The first format of the `Accept` header that the feed has.
    fn accepted(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut types = values.flat_map(|value| value.split(',')).map(|item| {
            let name = item.split(';').next().unwrap_or_default().trim();
            match name {
                name if name.eq_ignore_ascii_case(NDJSON) => Some(Self::Ndjson),
                name if name.eq_ignore_ascii_case(EVENT_STREAM) => Some(Self::EventStream),
                name if name.eq_ignore_ascii_case("application/json") => Some(Self::Json),
                _ => None,
            }
        });
        types.find_map(|format| format).unwrap_or(Self::Json)
    }
}

fn scope() -> Scope {
    Scope::of("changes")
}

/// What has changed
///
/// Changes of orders, stock, products, carts and sessions, in order for each subject. Without `after` it begins with the oldest
/// change that is kept, with `after=now` after all that happened so far. With `Accept: application/x-ndjson` or
/// `text/event-stream` the response is a stream that lasts until the client leaves. A change may be sent again, with the same
/// `id`.
#[utoipa::path(get, path = "/v1/changes", tag = "changes", operation_id = "read_changes",
    params(ChangesParams, LastEventId),
    responses((status = 200, content(
        (ChangesView = "application/json"),
        (ChangeView = "application/x-ndjson"),
        (ChangeView = "text/event-stream"),
    ))),
    extensions(("x-problems" = json!(["invalid_cursor", "cursor_expired"]))))]
pub(crate) async fn read(State(app): State<App>, headers: HeaderMap, mut query: Query) -> ApiResult {
    let format = Format::accepted(&headers);
    let start = start(&headers, &mut query)?;
    let named = named_topics(&app, &mut query)?;
    let limit = query.integer("limit", 1, LIMIT_MAX)?;
    let limit = limit.map_or(LIMIT_DEFAULT, |limit| usize::try_from(limit).unwrap_or(LIMIT_DEFAULT));
    let wait = Duration::from_secs(query.integer("wait", 0, WAIT_MAX_S)?.unwrap_or(0));
    query.finish()?;
    let topics = topics(&app, named)?;
    let mut reading = Reading { start, topics, limit, stopping: app.stack.stopping(), app };
    if format == Format::Json {
        let page = reading.page(wait).await?;
        return respond(&reading.app, &page);
    }
    // The first page decides the status: a stream cannot tell that its cursor has expired.
    let first = reading.page(Duration::ZERO).await?;
    Ok(stream_of(format, reading, first))
}

/// `Last-Event-ID` wins: a browser that reconnects repeats the address of its first request.
fn start(headers: &HeaderMap, query: &mut Query) -> Result<FeedStart, Problem> {
    let after = query.optional("after", |text| Ok::<_, Infallible>(text.to_owned()))?;
    let last_event = match headers.get(LAST_EVENT_ID) {
        Some(value) => Some(value.to_str().map_err(|_| bad_last_event_id())?.to_owned()),
        None => None,
    };
    match last_event.or(after) {
        None => Ok(FeedStart::Oldest),
        Some(now) if now == "now" => Ok(FeedStart::Now),
        Some(cursor) => Ok(FeedStart::After(Position(scope().decode(&cursor)?))),
    }
}

fn bad_last_event_id() -> Problem {
    Problem::parameter("Last-Event-ID", "must be the id of an event of this feed")
}

/// The topics that the request names, all of them written.
fn named_topics(app: &App, query: &mut Query) -> Result<Option<Topics>, Problem> {
    let written = app.shop.feed().topics;
    query.optional("topics", |text| {
        text.split(',').map(|name| written_topic(written, name)).collect::<Result<Topics, String>>()
    })
}

/// The named topics; by default every written one.
fn topics(app: &App, named: Option<Topics>) -> Result<Topics, Problem> {
    let written = app.shop.feed().topics;
    match named {
        Some(topics) => Ok(topics),
        None if written.is_empty() => {
            Err(Problem::parameter("topics", "no topic is written here; set feed.topics"))
        }
        None => Ok(written),
    }
}

fn written_topic(written: Topics, name: &str) -> Result<Topic, String> {
    let topic = Topic::named(name).ok_or_else(|| {
        let names: Vec<&str> = Topic::ALL.iter().map(|topic| topic.name()).collect();
        format!("must be some of {}, separated by commas", names.join(", "))
    })?;
    if written.contains(topic) {
        return Ok(topic);
    }
    let names: Vec<&str> = written.iter().map(Topic::name).collect();
    Err(format!("{name} is not written here, only {}; see feed.topics", names.join(", ")))
}

/// Where a request is in the feed.
struct Reading {
    app: App,
    start: FeedStart,
    topics: Topics,
    limit: usize,
    stopping: watch::Receiver<bool>,
}

impl Reading {
    /// The next page; without changes it waits for some, unless the server stops.
    async fn page(&mut self, wait: Duration) -> Result<ChangesPage, Problem> {
        let read = |wait| self.app.shop.changes(self.start.clone(), self.topics, self.limit, wait);
        let longest = wait + self.app.stack.request_timeout();
        let page = tokio::select! {
            biased;
            () = stopped(&mut self.stopping), if !wait.is_zero() => read(Duration::ZERO).await,
            page = timeout(longest, read(wait)) => page.map_err(|_elapsed| {
                Problem::new(Code::StoreUnavailable, "the request timed out; send it again later")
            })?,
        };
        let page = page.or_problem(&self.app)?;
        self.start = FeedStart::After(page.next.clone());
        Ok(page)
    }
}

/// Ends when the server stops.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error says that the server is gone.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

fn respond(app: &App, page: &ChangesPage) -> ApiResult {
    let (scope, currency) = (scope(), app.shop.currency());
    let items = page.items.iter().map(|change| ChangeView::new(change, &scope, &currency)).collect();
    let view = ChangesView { items, next_cursor: scope.encode(&page.next.0) };
    response::ok(64 + page.items.len() * 768, &view)
}

/// A stream of changes.
struct ChangeStream {
    format: Format,
    reading: Reading,
    /// The page that was read before the response began.
    first: Option<ChangesPage>,
    /// Whether the last page had all there was.
    is_caught_up: bool,
    lag: StreamLag,
}

fn stream_of(format: Format, reading: Reading, first: ChangesPage) -> Response {
    let content_type = if format == Format::Ndjson { NDJSON } else { EVENT_STREAM };
    let lag = reading.app.stack.feed_lag().stream();
    let changes = ChangeStream { format, reading, first: Some(first), is_caught_up: false, lag };
    let chunks = stream::unfold(changes, async |mut changes| {
        let chunk = changes.next_chunk().await?;
        Some((Ok::<_, Infallible>(chunk), changes))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

impl ChangeStream {
    /// The next bytes of the stream; `None` ends it.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            let page = match self.first.take() {
                Some(page) => page,
                None => self.next_page().await?,
            };
            self.is_caught_up = page.items.len() < self.reading.limit;
            self.lag.set(match page.items.last() {
                Some(last) if !self.is_caught_up => self.reading.app.shop.seconds_since(last.at),
                _ => 0,
            });
            if !page.items.is_empty() {
                return Some(self.encode(&page.items));
            }
            if self.format == Format::EventStream {
                // With the position, so that a client of rare topics does not fall behind what is kept.
                let cursor = scope().encode(&page.next.0);
                return Some(format!(": keep-alive\nid: {cursor}\n\n").into());
            }
        }
    }

    async fn next_page(&mut self) -> Option<ChangesPage> {
        let mut stopping = self.reading.stopping.clone();
        if self.is_caught_up {
            tokio::select! {
                () = stopped(&mut stopping) => return None,
                () = tokio::time::sleep(READ_PAUSE) => {}
            }
        }
        if *stopping.borrow() {
            return None;
        }
        match self.reading.page(KEEP_ALIVE).await {
            Ok(page) => Some(page),
            Err(problem) => {
                tracing::warn!(
                    code = problem.code().name(),
                    cause = problem.cause().unwrap_or(""),
                    "stream changes: the stream ends; its client goes on from its last cursor"
                );
                None
            }
        }
    }

    fn encode(&self, changes: &[ChangeEvent]) -> Bytes {
        let (scope, currency) = (scope(), self.reading.app.shop.currency());
        let mut bytes = Vec::with_capacity(changes.len() * 768);
        for change in changes {
            self.write(&mut bytes, change, &scope, currency);
        }
        bytes.into()
    }

    fn write(&self, bytes: &mut Vec<u8>, change: &ChangeEvent, scope: &Scope, currency: Currency) {
        let view = ChangeView::new(change, scope, &currency);
        let before = bytes.len();
        if self.format == Format::EventStream {
            bytes.extend_from_slice(format!("id: {}\nevent: {}\ndata: ", view.cursor, view.kind).as_bytes());
        }
        // A view can always be written into memory.
        if json::write(bytes, &view).is_err() {
            bytes.truncate(before);
            return;
        }
        bytes.extend_from_slice(if self.format == Format::EventStream { b"\n\n" } else { b"\n" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(value: &str) -> Format {
        Format::accepted(&HeaderMap::from_iter([(ACCEPT, value.parse().unwrap())]))
    }

    #[test]
    fn the_first_known_type_is_the_format() {
        assert_eq!(accepted("application/x-ndjson"), Format::Ndjson);
        assert_eq!(accepted("text/html, Text/Event-Stream;q=0.9, application/json"), Format::EventStream);
        assert_eq!(accepted("application/json, text/event-stream"), Format::Json);
        assert_eq!(accepted("*/*"), Format::Json);
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Json);
    }
}
