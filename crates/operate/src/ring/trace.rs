//! The trace of one process: a line per request and per statement, as `store.cassandra.trace` writes it.

use std::borrow::Cow;
use std::io::{BufRead, Read};

use rustc_hash::FxHashMap;
use serde::Deserialize;

/// The longest line; statements have far shorter ones.
const LINE_BYTES_MAX: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("read the trace: {0}")]
    Read(#[from] std::io::Error),
    #[error("line {line}: {detail}")]
    Line { line: u64, detail: String },
    #[error("there is no request in it: `op` \"request\" marks one")]
    NoRequests,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    Request,
    Read,
    Write,
    /// A lightweight transaction.
    Cas,
    /// A read at the serial level.
    Serial,
}

impl Op {
    pub(super) const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Cas)
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    t: f64,
    op: Op,
    #[serde(borrow, default)]
    table: Option<Cow<'a, str>>,
    #[serde(default)]
    token: Option<i64>,
    #[serde(default)]
    rows: u64,
    #[serde(default)]
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Statement {
    pub(super) at_ms: f64,
    /// An index into [`Trace::tables`].
    pub(super) table: usize,
    /// `None` for a range scan.
    pub(super) token: Option<i64>,
    pub(super) op: Op,
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

#[derive(Debug, Default)]
pub struct Trace {
    pub(super) tables: Vec<String>,
    pub(super) statements: Vec<Statement>,
    pub(super) requests: u64,
    /// Of the first and the last line.
    pub(super) span_ms: Option<(f64, f64)>,
}

impl Trace {
    /// Reads a trace to its end. A last line without its end is ignored: the process was killed while it wrote it.
    pub fn read(mut input: impl BufRead) -> Result<Self, TraceError> {
        let mut trace = Self::default();
        let mut tables: FxHashMap<String, usize> = FxHashMap::default();
        let mut text = Vec::new();
        for number in 1.. {
            text.clear();
            if input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text)? == 0 {
                break;
            }
            let is_whole = text.ends_with(b"\n");
            if text.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice::<Line<'_>>(&text) {
                Ok(line) => trace.add(&line, &mut tables).map_err(|detail| at(number, detail))?,
                Err(_) if !is_whole && text.len() as u64 != LINE_BYTES_MAX => break,
                Err(error) => return Err(at(number, error.to_string())),
            }
        }
        if trace.requests == 0 { Err(TraceError::NoRequests) } else { Ok(trace) }
    }

    fn add(&mut self, line: &Line<'_>, tables: &mut FxHashMap<String, usize>) -> Result<(), String> {
        let (first, last) = self.span_ms.unwrap_or((line.t, line.t));
        self.span_ms = Some((first.min(line.t), last.max(line.t)));
        if line.op == Op::Request {
            self.requests += 1;
            return Ok(());
        }
        let name = line.table.as_deref().ok_or("a statement has a `table`")?;
        let table = tables.get(name).copied().unwrap_or_else(|| {
            let table = self.tables.len();
            self.tables.push(name.to_owned());
            tables.insert(name.to_owned(), table);
            table
        });
        let Line { t: at_ms, token, op, rows, bytes, .. } = *line;
        self.statements.push(Statement { at_ms, table, token, op, rows, bytes });
        Ok(())
    }
}

fn at(line: u64, detail: String) -> TraceError {
    TraceError::Line { line, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = "{\"t\":1,\"op\":\"request\",\"request\":\"GET /healthz\"}\n";

    fn refused(text: &str) -> String {
        Trace::read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn requests_and_statements_are_told_apart() {
        let text = format!(
            "{REQUEST}\n{}\n{}\n",
            r#"{"t":2,"table":"mw.stock","token":-5,"op":"cas","rows":2,"bytes":90,"request":"POST /v1/orders"}"#,
            r#"{"t":9,"table":"mw.stock","token":null,"op":"read","rows":0,"bytes":0}"#,
        );
        let trace = Trace::read(text.as_bytes()).unwrap();
        assert_eq!(
            (trace.requests, trace.statements.len(), trace.tables.as_slice()),
            (1, 2, &["mw.stock".to_owned()][..])
        );
        assert_eq!(trace.span_ms, Some((1.0, 9.0)));
        assert!(trace.statements[0].op.is_write() && trace.statements[1].token.is_none());
    }

    #[test]
    fn a_line_that_a_killed_process_left_unfinished_is_ignored() {
        let trace = Trace::read(format!("{REQUEST}{{\"t\":2,\"op\":\"re").as_bytes()).unwrap();
        assert_eq!(trace.requests, 1);
    }

    #[test]
    fn a_bad_line_is_named() {
        assert!(refused(&format!("{REQUEST}nonsense\n")).starts_with("line 2: "));
        assert!(
            refused(&format!("{REQUEST}{{\"t\":1,\"op\":\"read\"}}\n"))
                .starts_with("line 2: a statement has a `table`")
        );
        assert!(refused("").contains("no request"));
    }
}
