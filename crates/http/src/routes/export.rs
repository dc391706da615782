//! The whole shop as NDJSON, while it runs.
//!
//! Pages are read one after another and written into the body as the client takes them: a slow client slows the export and nothing
//! else. A failure ends the body without its last line, and `mw import` refuses such a file.

use std::io::Write;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue};
use mw_store::export::{Export, Record};
use mw_store::{Page, PageRequest};
use tokio::sync::mpsc;

use crate::app::App;
use crate::compression::Encoding;
use crate::export_format::{self, Header};
use crate::response::ApiResult;
use crate::store_error::OrProblem;

/// Records of a page.
const PAGE_RECORDS: usize = 500;
/// Pages that are ready before the client has taken them.
const PAGES_AHEAD: usize = 2;
const ZSTD_LEVEL: i32 = 1;

type Chunk = Result<Bytes, std::io::Error>;

/// Export the whole shop
///
/// NDJSON as of one moment: a header, a record a line, and a last line with their number. `mw import` reads it. On a cluster each
/// record is complete, and records may be of different moments. Compressed with zstd where the client accepts it.
#[utoipa::path(get, path = "/v1/operations/export", tag = "operations", operation_id = "export",
    responses((status = 200, body = String, content_type = "application/x-ndjson")))]
pub(crate) async fn export(State(app): State<App>, headers: HeaderMap) -> ApiResult {
    let is_zstd = Encoding::accepted(&headers) == Some(Encoding::Zstd);
    let (export, at) = app.shop.export().await.or_problem(&app)?;
    let header = Header::new(app.shop.currency(), at);
    let (sender, mut chunks) = mpsc::channel(PAGES_AHEAD);
    tokio::spawn(async move {
        if let Err(error) = send_all(export.as_ref(), header, is_zstd, &sender).await {
            tracing::error!(%error, "export: ended early");
            let _ = sender.send(Err(error)).await;
        }
    });
    let mut response = Response::new(Body::from_stream(stream::poll_fn(move |cx| chunks.poll_recv(cx))));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if is_zstd {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
    }
    Ok(response)
}

async fn send_all(
    export: &dyn Export,
    header: Header,
    is_zstd: bool,
    sender: &mpsc::Sender<Chunk>,
) -> std::io::Result<()> {
    let mut encoder = Encoder::new(is_zstd)?;
    let mut request = PageRequest::first(PAGE_RECORDS);
    let mut header = Some(header);
    loop {
        let Page { items, next } = export.page(request).await.map_err(std::io::Error::other)?;
        let (is_last, first) = (next.is_none(), header.take());
        // Off the threads of requests: a page takes milliseconds.
        let encoding = tokio::task::spawn_blocking(move || encoder.encode(first.as_ref(), items, is_last));
        let bytes;
        (encoder, bytes) = encoding.await.map_err(std::io::Error::other)??;
        // The client is gone where it cannot be sent.
        if (!bytes.is_empty() && sender.send(Ok(bytes.into())).await.is_err()) || is_last {
            return Ok(());
        }
        request = PageRequest { limit: PAGE_RECORDS, after: next };
    }
}

/// Turns pages into bytes of the body.
struct Encoder {
    /// Records so far.
    records: u64,
    zstd: Option<zstd::stream::write::Encoder<'static, Vec<u8>>>,
}

impl Encoder {
    fn new(is_zstd: bool) -> std::io::Result<Self> {
        let zstd = is_zstd.then(|| zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)).transpose()?;
        Ok(Self { records: 0, zstd })
    }

    fn encode(
        mut self,
        header: Option<&Header>,
        items: Vec<Record>,
        is_last: bool,
    ) -> std::io::Result<(Self, Vec<u8>)> {
        let mut lines = Vec::new();
        if let Some(header) = header {
            export_format::write_header(header, &mut lines)?;
        }
        self.records += export_format::write_page(items, &mut lines)?;
        if is_last {
            export_format::write_end(self.records, &mut lines)?;
        }
        let Some(mut zstd) = self.zstd.take() else { return Ok((self, lines)) };
        zstd.write_all(&lines)?;
        if is_last {
            return Ok((self, zstd.finish()?));
        }
        let bytes = std::mem::take(zstd.get_mut());
        self.zstd = Some(zstd);
        Ok((self, bytes))
    }
}
