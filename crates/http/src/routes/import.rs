//! Import of products: NDJSON in and out, without a time limit for the whole.
//!
//! Lines are read one by one; up to [`WINDOW`] of them are at the store at once, so that one commit carries many. Results
//! are sent in the order of the lines. A client may send the whole body before it reads: up to [`RESULTS_BYTES_MAX`] of
//! results are buffered, then the import waits for the client.
//!
//! Lines of one product are stored one after another, so that its last line wins; lines of different products run at the
//! same time.
//!
//! Every line is a command of its own. A crash or a lost connection leaves the lines stored whose results were sent, and
//! perhaps up to a window more; with an idempotency key a repeat stores only the others.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use mw_domain::{GeoZone, IdempotencyKey, ProductId};
use mw_shop::{KeyedRequest, ProductDraft};
use mw_store::products::Imported;
use mw_store::{Done, Refusal};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::app::App;
use crate::docs::IdempotencyKey as IdempotencyKeyParam;
use crate::error::{Code, Problem};
use crate::extract::{BodyLimits, idempotency_key, is_ndjson_type, keyed_line, parse};
use crate::response::{ApiResult, IDEMPOTENT_REPLAYED};
use crate::store_error::{self, OrProblem};
use crate::wire::products::{ImportBody, ImportView};

/// Lines at the store at once.
const WINDOW: usize = 256;
/// Results that are sent in one chunk, if they are ready.
const RESULTS_PER_CHUNK: usize = 64;
/// Results buffered for a client that does not read.
const RESULTS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Import products
///
/// NDJSON: a product a line with `product_id` and optional `stock`; blank lines are skipped. One result a line comes
/// back, in order, while the body is still read. A bad line fails alone and whole. With an `Idempotency-Key` the first
/// line takes the key, and each further line one of its own, derived from it and the number of the line: a repeat only
/// stores the lines that were not stored. A key that was used for another request, or with another first line, is 422 and
/// nothing is stored; a further line that differs from the first time fails alone with `idempotency_key_reused`.
#[utoipa::path(post, path = "/v1/products/import", tag = "products", operation_id = "import_products",
    params(IdempotencyKeyParam),
    request_body(content = ImportBody, content_type = "application/x-ndjson"),
    responses((status = 200, body = ImportView, content_type = "application/x-ndjson")))]
pub(crate) async fn import(State(app): State<App>, request: Request) -> ApiResult {
    if !is_ndjson_type(request.headers()) {
        return Err(Problem::new(Code::UnsupportedMediaType, "send content-type: application/x-ndjson"));
    }
    let key = idempotency_key(request.headers())?;
    let is_keyed = key.is_some();
    let currency = app.shop.currency();
    let lines = Lines::new(request.into_body(), app.body_limits);
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let free_bytes = Arc::new(Semaphore::new(RESULTS_BYTES_MAX));
    tokio::spawn(run(app, key, lines, sender, Arc::clone(&free_bytes)));
    // The headers say whether this is a replay, which is known with the first result.
    let first = if is_keyed { receiver.recv().await } else { None };
    let replayed = first.as_ref().is_some_and(|chunk| chunk.replayed);
    if first.as_ref().is_some_and(|chunk| chunk.refused) {
        return Err(store_error::problem(&Refusal::KeyReused.into(), currency));
    }
    let rest = stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let chunks = stream::iter(first).chain(rest).map(move |chunk| {
        free_bytes.add_permits(chunk.bytes.len());
        Ok::<_, std::convert::Infallible>(chunk.bytes)
    });
    Ok(respond(replayed, chunks))
}

fn respond(
    replayed: bool,
    chunks: impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static,
) -> Response {
    let mut response = Response::new(Body::from_stream(chunks));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    if replayed {
        headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// Some results as NDJSON; `replayed` and `refused` (the key belongs to another request) are of the first.
struct Chunk {
    bytes: Bytes,
    replayed: bool,
    refused: bool,
}

impl Chunk {
    fn of(results: &[LineResult]) -> Self {
        let mut bytes = Vec::with_capacity(results.len() * 96);
        for result in results {
            result.write(&mut bytes);
        }
        let first = results.first().map(|result| &result.outcome);
        Self {
            bytes: bytes.into(),
            replayed: matches!(first, Some(Ok(done)) if done.replayed),
            refused: matches!(first, Some(Err(problem)) if problem.code() == Code::IdempotencyKeyReused),
        }
    }
}

async fn run(
    app: App,
    key: Option<IdempotencyKey>,
    lines: Lines,
    sender: mpsc::UnboundedSender<Chunk>,
    free_bytes: Arc<Semaphore>,
) {
    let mut lines = std::pin::pin!(lines.into_stream());
    if let Some(key) = &key {
        // No other line is stored before the key is known to belong to this request.
        let Some(line) = lines.next().await else { return };
        let first = start(&app, Some(key.clone()), line, &mut LastLines::default());
        let first = Chunk::of(&[first.await]);
        let refused = first.refused;
        if !send(&sender, &free_bytes, first).await || refused {
            return;
        }
    }
    let mut last_lines = LastLines::default();
    let results = lines
        .map(|line| {
            let key = key.as_ref().map(|key| key.line(line.number));
            start(&app, key, line, &mut last_lines)
        })
        .buffered(WINDOW);
    let mut chunks = std::pin::pin!(results.ready_chunks(RESULTS_PER_CHUNK));
    while let Some(results) = chunks.next().await {
        if !send(&sender, &free_bytes, Chunk::of(&results)).await {
            return;
        }
    }
}

/// Waits for space in the buffer; `false` where the client is gone.
async fn send(sender: &mpsc::UnboundedSender<Chunk>, free_bytes: &Semaphore, chunk: Chunk) -> bool {
    let size = u32::try_from(chunk.bytes.len().min(RESULTS_BYTES_MAX)).unwrap_or(u32::MAX);
    tokio::select! {
        () = sender.closed() => return false,
        permit = free_bytes.acquire_many(size) => match permit {
            Ok(permit) => permit.forget(),
            Err(_closed) => return false,
        },
    }
    sender.send(chunk).is_ok()
}

/// The result of one line.
struct LineResult {
    line: u64,
    product_id: Option<String>,
    outcome: Result<Done<Imported>, Problem>,
}

impl LineResult {
    fn write(&self, bytes: &mut Vec<u8>) {
        let product_id = self.product_id.as_deref();
        let view = match &self.outcome {
            Ok(done) => {
                let status = if done.value.created { "created" } else { "replaced" };
                ImportView { line: self.line, product_id, status, code: None, detail: None }
            }
            Err(problem) => ImportView {
                line: self.line,
                product_id,
                status: "failed",
                code: Some(problem.code().name()),
                detail: Some(problem.detail()),
            },
        };
        if serde_json::to_writer(&mut *bytes, &view).is_ok() {
            bytes.push(b'\n');
        }
    }
}

/// A line that was parsed and is not stored yet.
struct ParsedLine {
    draft: ProductDraft,
    stock: Vec<(GeoZone, u64)>,
    key: Option<KeyedRequest>,
}

/// The last line of each product that is at the store.
#[derive(Default)]
struct LastLines(HashMap<ProductId, oneshot::Receiver<()>>);

/// A line's place among the lines of its product.
struct Turn {
    /// Ends when the line before it is done.
    before: Option<oneshot::Receiver<()>>,
    /// Ends the wait of the next line when it is dropped.
    _done: oneshot::Sender<()>,
}

impl LastLines {
    /// The turn of the next line of a product; to be dropped when the line is done.
    fn turn(&mut self, product_id: &ProductId) -> Turn {
        // At most a window of lines is at the store: the others are done.
        if self.0.len() >= 2 * WINDOW {
            self.0.retain(|_, line| matches!(line.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        }
        let (done, line) = oneshot::channel();
        Turn { before: self.0.insert(product_id.clone(), line), _done: done }
    }
}

/// Parses a line now, so that its bytes need not be kept, and stores it when polled.
fn start(
    app: &App,
    key: Option<IdempotencyKey>,
    line: Line,
    last_lines: &mut LastLines,
) -> impl Future<Output = LineResult> + use<> {
    let Line { number, bytes } = line;
    let parsed = bytes.and_then(|bytes| {
        let parsed = parse_line(app, key, &bytes);
        parsed.map_err(|problem| (problem, claimed_id(&bytes)))
    });
    let app = app.clone();
    let turn = parsed.as_ref().ok().map(|parsed| last_lines.turn(&parsed.draft.product_id));
    async move {
        let _turn = match turn {
            Some(mut turn) => {
                if let Some(before) = turn.before.take() {
                    // An error says that the line before is done: it drops its end without a message.
                    let _ = before.await;
                }
                Some(turn)
            }
            None => None,
        };
        match parsed {
            Ok(parsed) => {
                let product_id = Some(parsed.draft.product_id.as_str().to_owned());
                LineResult { line: number, product_id, outcome: store(&app, number, parsed).await }
            }
            Err((problem, product_id)) => LineResult { line: number, product_id, outcome: Err(problem) },
        }
    }
}

fn parse_line(app: &App, key: Option<IdempotencyKey>, bytes: &[u8]) -> Result<ParsedLine, Problem> {
    let (draft, stock) = parse::<ImportBody>(bytes)?.draft(app.shop.currency())?;
    let key = key.map(|key| keyed_line(key, bytes)).transpose()?;
    Ok(ParsedLine { draft, stock, key })
}

/// The id that a refused line names, so that the client can find the line.
fn claimed_id(bytes: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let id = value.get("product_id")?.as_str()?;
    ProductId::parse(id).ok().map(|id| id.to_string())
}

async fn store(app: &App, number: u64, line: ParsedLine) -> Result<Done<Imported>, Problem> {
    let imported = app.shop.import_product(line.draft, line.stock, line.key).await;
    imported.or_problem(app).inspect_err(|problem| {
        if let Some(cause) = problem.cause() {
            tracing::warn!(line = number, code = problem.code().name(), cause, "import line");
        }
    })
}

/// A line that is not blank; without its bytes where they could not be read.
struct Line {
    number: u64,
    bytes: Result<Bytes, (Problem, Option<String>)>,
}

/// The lines of a body, each within the limit.
struct Lines {
    body: Body,
    limits: BodyLimits,
    buffer: BytesMut,
    /// Bytes of the buffer that are known to have no line break.
    scanned: usize,
    /// Lines that are complete.
    number: u64,
    /// The rest of a line that was too long is being skipped.
    is_skipping: bool,
    has_ended: bool,
}

impl Lines {
    fn new(body: Body, limits: BodyLimits) -> Self {
        let buffer = BytesMut::new();
        Self { body, limits, buffer, scanned: 0, number: 0, is_skipping: false, has_ended: false }
    }

    fn into_stream(self) -> impl Stream<Item = Line> + Send {
        stream::unfold(self, async |mut lines| lines.next().await.map(|line| (line, lines)))
    }

    async fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(bytes) = self.take_line() {
                if let Some(line) = self.finish_line(bytes) {
                    return Some(line);
                }
                continue;
            }
            if self.has_ended {
                return None;
            }
            if self.buffer.len() > self.limits.bytes {
                self.buffer.clear();
                self.scanned = 0;
                if !std::mem::replace(&mut self.is_skipping, true) {
                    return Some(self.failed(self.limits.too_large()));
                }
            }
            if let Err(problem) = self.read_more().await {
                self.has_ended = true;
                self.buffer.clear();
                return Some(self.failed(problem));
            }
        }
    }

    fn failed(&self, problem: Problem) -> Line {
        Line { number: self.number + 1, bytes: Err((problem, None)) }
    }

    /// The next whole line; at the end of the body also one without a line break.
    fn take_line(&mut self) -> Option<Bytes> {
        let found = self.buffer.iter().skip(self.scanned).position(|byte| *byte == b'\n');
        match found {
            Some(at) => {
                let line = self.buffer.split_to(self.scanned + at + 1).freeze();
                self.scanned = 0;
                Some(line)
            }
            None if self.has_ended && !self.buffer.is_empty() => {
                self.scanned = 0;
                Some(self.buffer.split().freeze())
            }
            None => {
                self.scanned = self.buffer.len();
                None
            }
        }
    }

    /// Counts the line; `None` where it has no result: it is blank, or was refused already as too long.
    fn finish_line(&mut self, bytes: Bytes) -> Option<Line> {
        self.number += 1;
        let was_refused = std::mem::replace(&mut self.is_skipping, false);
        if was_refused || bytes.trim_ascii().is_empty() {
            return None;
        }
        let is_whole = bytes.trim_ascii_end().len() <= self.limits.bytes;
        let bytes = if is_whole { Ok(bytes) } else { Err((self.limits.too_large(), None)) };
        Some(Line { number: self.number, bytes })
    }

    async fn read_more(&mut self) -> Result<(), Problem> {
        let broken = |detail| Problem::new(Code::InvalidJson, detail);
        match tokio::time::timeout(self.limits.timeout, self.body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.buffer.extend_from_slice(data);
                }
                Ok(())
            }
            Ok(None) => {
                self.has_ended = true;
                Ok(())
            }
            Ok(Some(Err(_))) => Err(broken("the body ended early")),
            Err(_elapsed) => Err(broken("the next chunk of the body did not arrive in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn read(chunks: &[&str], limit: usize) -> Vec<(u64, Result<String, Code>)> {
        let limits = BodyLimits { bytes: limit, timeout: Duration::from_secs(5) };
        let chunks: Vec<_> =
            chunks.iter().map(|chunk| Ok::<_, std::io::Error>(Bytes::from((*chunk).to_owned()))).collect();
        let lines = Lines::new(Body::from_stream(stream::iter(chunks)), limits).into_stream();
        let show = |line: Line| {
            let text = |bytes: Bytes| String::from_utf8(bytes.trim_ascii().to_vec()).unwrap();
            (line.number, line.bytes.map(text).map_err(|(problem, _)| problem.code()))
        };
        lines.map(show).collect().await
    }

    fn good(number: u64, text: &str) -> (u64, Result<String, Code>) {
        (number, Ok(text.to_owned()))
    }

    #[tokio::test]
    async fn lines_are_split_at_line_breaks_whatever_the_chunks() {
        assert_eq!(
            read(&["a\nb", "b\r\n", "\n  \n", "c"], 10).await,
            [good(1, "a"), good(2, "bb"), good(5, "c")]
        );
        assert_eq!(read(&[""], 10).await, []);
        assert_eq!(read(&["a\n"], 10).await, [good(1, "a")]);
    }

    #[tokio::test]
    async fn a_line_waits_for_the_line_before_it_of_the_same_product_only() {
        let mut last_lines = LastLines::default();
        let product = |name: &str| ProductId::parse(name).unwrap();
        let first = last_lines.turn(&product("p"));
        assert!(first.before.is_none());
        assert!(last_lines.turn(&product("q")).before.is_none());
        let mut before = last_lines.turn(&product("p")).before.unwrap();
        assert_eq!(before.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        drop(first);
        assert_eq!(before.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }

    #[tokio::test]
    async fn the_last_lines_of_a_long_import_are_few() {
        let mut last_lines = LastLines::default();
        for number in 0..10 * WINDOW {
            last_lines.turn(&ProductId::parse(&format!("p{number}")).unwrap());
        }
        assert!(last_lines.0.len() <= 2 * WINDOW);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_fails_alone_and_once() {
        let too_large = |number| (number, Err(Code::BodyTooLarge));
        assert_eq!(read(&["12345\n123456\n1\n"], 5).await, [good(1, "12345"), too_large(2), good(3, "1")]);
        assert_eq!(
            read(&["1\n123456", "7890123", "4567890\n", "1"], 5).await,
            [good(1, "1"), too_large(2), good(3, "1")]
        );
        assert_eq!(read(&["1234567890"], 5).await, [too_large(1)]);
    }
}
