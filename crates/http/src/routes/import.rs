//! Import of products: NDJSON in and out, as long as it takes.
//!
//! Lines are read one by one and handed to the store with a bounded window, so that one commit carries many of them;
//! results leave in the order of the lines. A client that sends everything before it reads anything is fine up to
//! [`RESULTS_BYTES_MAX`] of results, and slowed down after that.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use mw_domain::IdempotencyKey;
use mw_store::products::{ImportProduct, Imported};
use mw_store::{Done, Refusal, StoreError};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};

use crate::answer::{Answer, IDEMPOTENT_REPLAYED};
use crate::app::App;
use crate::docs::IdempotencyKey as IdempotencyKeyParam;
use crate::error::{Code, Problem};
use crate::extract::{BodyLimits, idempotency_key, is_lines_type, line_fingerprint, parse};
use crate::refusal;
use crate::wire::products::{ImportBody, ImportView};

/// Lines at the store at once.
const WINDOW: usize = 256;
/// Results that leave in one piece, if they are ready.
const RESULTS_PER_PIECE: usize = 64;
/// Results that wait for a client that does not read.
const RESULTS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A store that is full is asked again: nothing was done, and the import is what fills it.
const RETRIES_MAX: u32 = 200;
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// Import products
///
/// NDJSON: a product a line with `product_id` and optional `stock`; blank lines are skipped. One result a line comes
/// back, in order, while the body is still read. A bad line fails alone and whole. With an `Idempotency-Key` the first
/// line takes the key, and each further line one of its own, made of it and the number of the line: a repeat only does
/// what was not done. A key that was used for something else, or with another first line, is 422 and nothing is done; a
/// further line that is not the one of the first time fails alone with `idempotency_key_reused`.
#[utoipa::path(post, path = "/v1/products/import", tag = "products", operation_id = "import_products",
    params(IdempotencyKeyParam),
    request_body(content = ImportBody, content_type = "application/x-ndjson"),
    responses((status = 200, body = ImportView, content_type = "application/x-ndjson")))]
pub(crate) async fn import(State(app): State<App>, request: Request) -> Answer {
    if !is_lines_type(request.headers()) {
        return Err(Problem::new(Code::UnsupportedMediaType, "send content-type: application/x-ndjson"));
    }
    let key = idempotency_key(request.headers())?;
    let is_keyed = key.is_some();
    let currency = app.shop.settings.currency;
    let lines = Lines::new(request.into_body(), app.body_limits);
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(RESULTS_BYTES_MAX));
    tokio::spawn(run(app, key, lines, sender, Arc::clone(&room)));
    // Whether this is a repeat is known with the first result, and has to be said before it.
    let first = if is_keyed { receiver.recv().await } else { None };
    let replayed = first.as_ref().is_some_and(|piece| piece.replayed);
    if first.as_ref().is_some_and(|piece| piece.refused) {
        return Err(refusal::problem(&Refusal::KeyReused.into(), currency));
    }
    let rest = stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let pieces = stream::iter(first).chain(rest).map(move |piece| {
        room.add_permits(piece.bytes.len());
        Ok::<_, std::convert::Infallible>(piece.bytes)
    });
    Ok(answer(replayed, pieces))
}

fn answer(
    replayed: bool,
    pieces: impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static,
) -> Response {
    let mut response = Response::new(Body::from_stream(pieces));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    if replayed {
        headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// Some results; of the first, whether it was given again, or refused because its key is another request's.
struct Piece {
    bytes: Bytes,
    replayed: bool,
    refused: bool,
}

impl Piece {
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
    sender: mpsc::UnboundedSender<Piece>,
    room: Arc<Semaphore>,
) {
    let mut lines = std::pin::pin!(lines.into_stream());
    if let Some(key) = &key {
        // Nothing else is done before the key is known to be this request's.
        let Some(line) = lines.next().await else { return };
        let first = Piece::of(&[start(&app, Some(key.clone()), line).await]);
        let refused = first.refused;
        if !hand_out(&sender, &room, first).await || refused {
            return;
        }
    }
    let results = lines
        .map(|line| {
            let key = key.as_ref().map(|key| key.line(line.number));
            start(&app, key, line)
        })
        .buffered(WINDOW);
    let mut pieces = std::pin::pin!(results.ready_chunks(RESULTS_PER_PIECE));
    while let Some(results) = pieces.next().await {
        if !hand_out(&sender, &room, Piece::of(&results)).await {
            return;
        }
    }
}

/// Waits until there is room for the results; `false` where nobody wants them any more.
async fn hand_out(sender: &mpsc::UnboundedSender<Piece>, room: &Semaphore, piece: Piece) -> bool {
    let size = u32::try_from(piece.bytes.len().min(RESULTS_BYTES_MAX)).unwrap_or(u32::MAX);
    tokio::select! {
        () = sender.closed() => return false,
        permit = room.acquire_many(size) => match permit {
            Ok(permit) => permit.forget(),
            Err(_closed) => return false,
        },
    }
    sender.send(piece).is_ok()
}

/// What became of one line.
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

/// Reads a line now, so that its bytes need not be kept, and stores it when polled.
fn start(app: &App, key: Option<IdempotencyKey>, line: Line) -> impl Future<Output = LineResult> + use<> {
    let Line { number, bytes } = line;
    let command = bytes.and_then(|bytes| {
        let command = command(app, key, &bytes);
        command.map_err(|problem| (problem, claimed_id(&bytes)))
    });
    let app = app.clone();
    async move {
        match command {
            Ok(command) => {
                let product_id = Some(command.product.product_id.as_str().to_owned());
                LineResult { line: number, product_id, outcome: store(&app, number, command).await }
            }
            Err((problem, product_id)) => LineResult { line: number, product_id, outcome: Err(problem) },
        }
    }
}

fn command(app: &App, key: Option<IdempotencyKey>, bytes: &[u8]) -> Result<ImportProduct, Problem> {
    let now = app.shop.now();
    let (product, stock) = parse::<ImportBody>(bytes)?.product(app.shop.settings.currency, now)?;
    let fingerprint = |key| Ok::<_, Problem>(app.shop.once(key, line_fingerprint(bytes)?));
    let once = key.map(fingerprint).transpose()?;
    Ok(ImportProduct { product, stock, op: app.shop.ids.uuid(), now, once })
}

/// The id a refused line gives, so that its sender can find it.
fn claimed_id(bytes: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let id = value.get("product_id")?.as_str()?;
    mw_domain::ProductId::parse(id).ok().map(|id| id.to_string())
}

async fn store(app: &App, number: u64, command: ImportProduct) -> Result<Done<Imported>, Problem> {
    let mut retries = 0;
    loop {
        match app.shop.store.import_product(command.clone()).await {
            Ok(done) => return Ok(done),
            Err(StoreError::Overloaded) if retries < RETRIES_MAX => {
                retries += 1;
                tokio::time::sleep(RETRY_AFTER).await;
            }
            Err(error) => {
                let problem = refusal::problem(&error, app.shop.settings.currency);
                if let Some(cause) = problem.cause() {
                    tracing::warn!(line = number, code = problem.code().name(), cause, "import line");
                }
                return Err(problem);
            }
        }
    }
}

/// A line that is not blank; without its bytes where they could not be taken.
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
    /// Lines that are over.
    number: u64,
    /// The rest of a line that was too long is being thrown away.
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

    /// Counts the line; `None` where there is nothing to say of it.
    fn finish_line(&mut self, bytes: Bytes) -> Option<Line> {
        self.number += 1;
        let was_told_already = std::mem::replace(&mut self.is_skipping, false);
        if was_told_already || bytes.trim_ascii().is_empty() {
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
            Err(_elapsed) => Err(broken("the next piece of the body did not arrive in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(pieces: &[&str], limit: usize) -> Vec<(u64, Result<String, Code>)> {
        let limits = BodyLimits { bytes: limit, timeout: Duration::from_secs(5) };
        let pieces: Vec<_> =
            pieces.iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from((*piece).to_owned()))).collect();
        let lines = Lines::new(Body::from_stream(stream::iter(pieces)), limits).into_stream();
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
    async fn lines_are_cut_wherever_the_pieces_are() {
        assert_eq!(
            read(&["a\nb", "b\r\n", "\n  \n", "c"], 10).await,
            [good(1, "a"), good(2, "bb"), good(5, "c")]
        );
        assert_eq!(read(&[""], 10).await, []);
        assert_eq!(read(&["a\n"], 10).await, [good(1, "a")]);
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
