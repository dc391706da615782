//! Progress of a run: one line that is rewritten on a terminal, else a line every few seconds.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use mw_loadgen::{Event, Progress};

use crate::terminal;

/// Between two lines where a line cannot be rewritten.
const PAUSE: Duration = Duration::from_secs(10);

pub(super) struct Live {
    mode: Mode,
    told_at: Option<Instant>,
}

enum Mode {
    Quiet,
    Line,
    Log,
}

impl Live {
    pub(super) fn new(is_quiet: bool) -> Self {
        let mode = match (is_quiet, io::stderr().is_terminal()) {
            (true, _) => Mode::Quiet,
            (false, true) => Mode::Line,
            (false, false) => Mode::Log,
        };
        Self { mode, told_at: None }
    }

    pub(super) fn show(&mut self, event: &Event) {
        match self.mode {
            Mode::Quiet => {}
            // Without standard error the progress is lost, which is fine.
            Mode::Line => drop(write!(io::stderr().lock(), "\r\x1b[2K{}", line(event))),
            Mode::Log => {
                if is_news(event) || self.told_at.is_none_or(|at| at.elapsed() >= PAUSE) {
                    self.told_at = Some(Instant::now());
                    terminal::note(&line(event));
                }
            }
        }
    }

    pub(super) fn clear(&self) {
        if matches!(self.mode, Mode::Line) {
            let _ = write!(io::stderr().lock(), "\r\x1b[2K");
        }
    }
}

/// Events that happen once.
fn is_news(event: &Event) -> bool {
    match event {
        Event::Probed { .. } | Event::Checking { .. } => true,
        Event::Setup { .. } | Event::Second(_) => false,
    }
}

fn line(event: &Event) -> String {
    match event {
        Event::Setup { what, done, total } => format!("setting up {what}: {done} of {total}"),
        Event::Probed { rate } => format!("maximum rate: {rate:.0} requests/s"),
        Event::Checking { orders } => format!("reading back {orders} orders and the stock"),
        Event::Second(second) => second_line(second),
    }
}

fn second_line(progress: &Progress) -> String {
    let phase = if progress.is_warm_up { "warming up" } else { "measuring" };
    let errors = if progress.errors > 0 { format!(", {} errors", progress.errors) } else { String::new() };
    let ms = |us: u64| Duration::from_micros(us).as_secs_f64() * 1e3;
    format!(
        "{phase} {} of {} s: {}/s, p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms{errors}",
        progress.second,
        progress.of,
        progress.rate,
        ms(progress.p50_us),
        ms(progress.p99_us),
        ms(progress.max_us)
    )
}
