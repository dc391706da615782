//! `mw migrate run`: the migration itself, with its progress on standard error.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mw_migrate::{Ended, Kind, Parts, Phase, RunOptions, Status};
use tokio::signal::unix::{SignalKind, signal};

use super::target::Target;
use super::{connect, settings, show};
use crate::config::Config;
use crate::runtime;
use crate::terminal::{self, Progress};

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

pub(super) fn run(config: &Config, uri: &str, options: RunOptions) -> Result<ExitCode> {
    let ended = runtime::serving(config.workers)?.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("watch for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("watch for signals")?;
        let source = Arc::new(connect(config, uri).await?);
        let target = Target::open(config).await?;
        let parts = Parts {
            source: Arc::clone(&source),
            target: Arc::clone(&target.store),
            settings: settings(config),
            listener: target.listener()?,
        };
        let teller = Mutex::new(Teller::new());
        let tell = |status: &Status| teller.lock().unwrap_or_else(PoisonError::into_inner).tell(status);
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let ended = mw_migrate::run(parts, options, &tell, stop).await;
        source.close().await;
        target.close().await;
        ended.context("migrate")
    })?;
    terminal::print(match ended {
        Ended::CutOver => {
            "the cutover is done: this store is the shop. Next: point the shop's programs to `mw serve`, then `mw migrate finish`\n"
        }
        Ended::Aborted => "the migration is aborted, and what it copied is dropped\n",
        Ended::Stopped => "stopped; `mw migrate run` goes on from here\n",
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Tells an operator how far it is: a progress bar, or a line from time to time.
struct Teller {
    bar: Option<Progress>,
    is_terminal: bool,
    last_line: Option<Instant>,
    last: Option<(Phase, u64, Instant)>,
}

impl Teller {
    fn new() -> Self {
        Self { bar: None, is_terminal: stderr().is_terminal(), last_line: None, last: None }
    }

    fn tell(&mut self, status: &Status) {
        let copied: u64 = Kind::ALL.into_iter().map(|kind| status.counts.of(kind).copied).sum();
        let total: u64 = Kind::ALL.into_iter().map(|kind| status.counts.of(kind).total).sum();
        let is_copying = status.phase == Phase::Copy;
        if self.is_terminal && is_copying {
            self.bar.get_or_insert_with(|| Progress::of("copying", total)).at(copied);
            return;
        }
        self.bar = None;
        let is_other_phase = self.last.is_none_or(|(phase, ..)| phase != status.phase);
        let is_due = self.last_line.is_none_or(|at| at.elapsed() >= LINE_EVERY);
        if !is_other_phase && !is_due {
            return;
        }
        let rate = self
            .last
            .filter(|_| is_copying)
            .map(|(_, before, at)| per_second(copied.saturating_sub(before), at));
        terminal::note(&show::progress_line(status, rate));
        (self.last, self.last_line) = (Some((status.phase, copied, Instant::now())), Some(Instant::now()));
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of documents are far below 2^53")]
fn per_second(documents: u64, since: Instant) -> f64 {
    documents as f64 / since.elapsed().as_secs_f64().max(0.001)
}
