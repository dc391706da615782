//! Terminal output: results on standard output; progress, notes, logs and errors on standard error.

use std::io::{self, ErrorKind, IsTerminal, Write};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use tracing_subscriber::EnvFilter;

use crate::config::LogConfig;
use mw_http::export_format::Counts;

/// A number with its noun, in the plural unless it is one.
pub(crate) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Writes a command's result. A closed pipe (`mw config | head`) is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to standard output"),
    }
}

/// Prints an error with its causes in one line.
pub(crate) fn error(error: &anyhow::Error) {
    note(&format!("{error:#}"));
}

/// Prints a note beside the result.
pub(crate) fn note(text: &str) {
    // Without standard error the note is lost, which is fine.
    let _ = writeln!(io::stderr().lock(), "mw: {text}");
}

/// Sends the log to standard error.
pub(crate) fn log(config: &LogConfig) {
    let filter = EnvFilter::new(&config.filter);
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // Tests run several commands in one process; the first subscriber stays.
    let _ = if config.json { subscriber.json().try_init() } else { subscriber.try_init() };
}

/// `5 records (carts 3, orders 2)`.
pub(crate) fn counted(counts: &Counts) -> String {
    let kinds: Vec<String> = counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let records = count(counts.values().sum(), "record");
    if kinds.is_empty() { records } else { format!("{records} ({})", kinds.join(", ")) }
}

/// Lines in columns, two spaces apart; the last column is not padded.
pub(crate) fn columns(lines: &[Vec<String>]) -> String {
    let mut widths = Vec::new();
    for line in lines {
        widths.resize(widths.len().max(line.len()), 0);
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A progress bar, shown where standard error is a terminal, removed when dropped.
pub(crate) struct Progress(ProgressBar);

const COUNTED: &str = "{msg} [{bar:40}] {human_pos}/{human_len} ({eta})";
const BYTES: &str = "{msg} [{bar:40}] {bytes}/{total_bytes} ({eta})";
const ENDLESS: &str = "{msg} {spinner} {human_pos}";
const ENDLESS_BYTES: &str = "{msg} {spinner} {bytes}";

impl Progress {
    /// With a known or estimated total.
    pub(crate) fn of(what: &'static str, total: u64) -> Self {
        Self::styled(ProgressBar::new(total), what, COUNTED)
    }

    pub(crate) fn of_bytes(what: &'static str, total: u64) -> Self {
        Self::styled(ProgressBar::new(total), what, BYTES)
    }

    /// With an unknown total.
    pub(crate) fn endless(what: &'static str) -> Self {
        Self::styled(ProgressBar::new_spinner(), what, ENDLESS)
    }

    pub(crate) fn endless_bytes(what: &'static str) -> Self {
        Self::styled(ProgressBar::new_spinner(), what, ENDLESS_BYTES)
    }

    fn styled(bar: ProgressBar, what: &'static str, template: &str) -> Self {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(bar.with_style(style).with_message(what))
    }

    pub(crate) fn advance(&self, by: usize) {
        self.0.inc(by as u64);
    }

    pub(crate) fn at(&self, position: u64) {
        self.0.set_position(position);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
