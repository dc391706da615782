//! The file of `store.cassandra.trace`: a line per request and per statement, which `mw lab ring` lays on a ring.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mw_store::request::{RequestLabel, RequestObserver};
use mw_store_cassandra::{StatementKind, StatementObserver, TracedStatement};
use serde::Serialize;

/// A reader of the file sees lines after this time at the latest.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct TraceFile {
    started: Instant,
    file: Mutex<BufWriter<File>>,
    has_failed: AtomicBool,
}

#[derive(Serialize)]
struct RequestLine {
    t: u64,
    op: &'static str,
    request: String,
}

#[derive(Serialize)]
struct StatementLine {
    t: u64,
    table: String,
    token: Option<i64>,
    op: &'static str,
    rows: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
}

impl TraceFile {
    /// Replaces a file that is there: a trace is of one process.
    pub(crate) fn create(path: &Path) -> Result<Arc<Self>> {
        let file = File::create(path).with_context(|| format!("create the trace {}", path.display()))?;
        let trace = Arc::new(Self {
            started: Instant::now(),
            file: Mutex::new(BufWriter::new(file)),
            has_failed: AtomicBool::new(false),
        });
        let flushed = Arc::downgrade(&trace);
        thread::Builder::new()
            .name("mw-trace".to_owned())
            .spawn(move || flush_while_open(&flushed))
            .context("start the thread that flushes the trace")?;
        Ok(trace)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn append(&self, line: &impl Serialize) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = serde_json::to_writer(&mut *file, line).map_err(Into::into);
        self.check(written.and_then(|()| file.write_all(b"\n")));
    }

    fn flush(&self) {
        let flushed = self.file.lock().unwrap_or_else(PoisonError::into_inner).flush();
        self.check(flushed);
    }

    /// A trace that cannot be written does not stop the shop; the log says so once.
    fn check(&self, written: std::io::Result<()>) {
        if let Err(error) = written
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            tracing::error!(%error, "write the trace: lines are missing from now on");
        }
    }
}

fn flush_while_open(trace: &Weak<TraceFile>) {
    while let Some(open) = trace.upgrade() {
        open.flush();
        drop(open);
        thread::sleep(FLUSH_INTERVAL);
    }
}

impl fmt::Debug for TraceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceFile").finish_non_exhaustive()
    }
}

impl RequestObserver for TraceFile {
    fn request(&self, label: RequestLabel) {
        self.append(&RequestLine { t: self.elapsed_ms(), op: "request", request: label.to_string() });
    }
}

impl StatementObserver for TraceFile {
    fn statement(&self, statement: &TracedStatement<'_>) {
        let TracedStatement { keyspace, table, token, kind, rows, bytes, request } = *statement;
        let op = match kind {
            StatementKind::Read => "read",
            StatementKind::Write => "write",
            StatementKind::Cas => "cas",
            StatementKind::Serial => "serial",
        };
        let (table, request) = (format!("{keyspace}.{table}"), request.map(|label| label.to_string()));
        self.append(&StatementLine { t: self.elapsed_ms(), table, token, op, rows, bytes, request });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_operate::ring::Trace;

    #[test]
    fn lines_are_what_the_ring_reads() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("trace.jsonl");
        let trace = TraceFile::create(&path).unwrap();
        let label = RequestLabel { method: "POST", route: "/v1/orders" };
        trace.request(label);
        let statement = TracedStatement {
            keyspace: "mw",
            table: "stock",
            token: Some(-7),
            kind: StatementKind::Cas,
            rows: 2,
            bytes: 90,
            request: Some(label),
        };
        trace.statement(&statement);
        trace.statement(&TracedStatement {
            token: None,
            kind: StatementKind::Read,
            request: None,
            ..statement
        });
        trace.flush();
        let text = std::fs::read_to_string(&path).unwrap();
        let shapes: Vec<String> =
            text.lines().map(|line| line.split_once(',').unwrap().1.to_owned()).collect();
        assert_eq!(
            shapes,
            [
                r#""op":"request","request":"POST /v1/orders"}"#,
                r#""table":"mw.stock","token":-7,"op":"cas","rows":2,"bytes":90,"request":"POST /v1/orders"}"#,
                r#""table":"mw.stock","token":null,"op":"read","rows":2,"bytes":90}"#,
            ]
        );
        Trace::read(text.as_bytes()).unwrap();
    }
}
