//! What is seen while a run goes on: one line that changes on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use mw_loadgen::{Event, Progress};

use crate::terminal;

/// Between two lines where no line can be changed.
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
            // Nobody is left to be told where standard error is gone.
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

/// What happens once.
fn is_news(event: &Event) -> bool {
    match event {
        Event::Probed { .. } | Event::Checking { .. } => true,
        Event::Setup { .. } | Event::Second(_) => false,
    }
}

fn line(event: &Event) -> String {
    match event {
        Event::Setup { what, done, total } => format!("setting up {what}: {done} of {total}"),
        Event::Probed { rate } => format!("the server takes {rate:.0} requests/s"),
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
