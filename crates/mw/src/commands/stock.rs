//! `mw stock audit`: proves the stock figures from the ledger.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use clap::Subcommand;
use mw_store::stock::{Audit, Drift};

use crate::config::{Config, ConfigArgs};
use crate::runtime;
use crate::storage::Storage;
use crate::terminal::{self, Progress};

/// Look after the stock
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Recompute every figure from the ledger and the open holds, and report what does not add up
    #[command(after_help = "\
Exit code 0: every figure is explained. Exit code 1: there is drift, each listed, or the audit could not be made. The \
server must not be running on the same data directory; on a cluster the shop may go on selling.

Examples:
  mw stock audit
  mw stock audit --data /var/lib/mw
  mw stock audit --store cassandra --config mw.toml")]
    Audit {
        #[command(flatten)]
        config: ConfigArgs,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Command::Audit { config } = &args.command;
    let config = Config::load(&config.sources())?;
    terminal::log(&config.log);
    let audit = runtime::single()?.block_on(async {
        let storage = Storage::open_existing(&config).await?;
        let progress = Progress::endless("auditing figures");
        let seen = AtomicU64::new(0);
        // Told from whichever thread is at work; the bar only ever grows.
        let told = |figures| progress.at(seen.fetch_max(figures, Ordering::Relaxed).max(figures));
        let audit = storage.shared().audit(&told).await.context("audit the stock");
        drop(progress);
        storage.close().await;
        audit
    })?;
    terminal::print(&report(&audit))?;
    Ok(if audit.drifts.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(audit: &Audit) -> String {
    let verdict = match audit.drifts.len() {
        0 => "no drift".to_owned(),
        1 => "1 figure drifted".to_owned(),
        count => format!("{count} figures drifted"),
    };
    let mut text =
        format!("audited {} stock figures against {} movements: {verdict}\n", audit.figures, audit.movements);
    for drift in &audit.drifts {
        text.push_str(&line(drift));
    }
    text
}

fn line(drift: &Drift) -> String {
    format!(
        "  {} in {}: recorded on_hand {} and reserved {}; the ledger says {} and {}; open holds have {}\n",
        drift.product_id,
        drift.geo_zone,
        drift.recorded.on_hand,
        drift.recorded.reserved,
        drift.ledger.on_hand,
        drift.ledger.reserved,
        drift.held
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_domain::stock::Delta;
    use mw_domain::{GeoZone, Level, ProductId};

    #[test]
    fn a_report_names_every_figure_that_drifted() {
        let mut audit = Audit { figures: 7, movements: 20, drifts: Vec::new() };
        assert_eq!(report(&audit), "audited 7 stock figures against 20 movements: no drift\n");
        audit.drifts.push(Drift {
            product_id: ProductId::parse("p-1").unwrap(),
            geo_zone: GeoZone::parse("spb").unwrap(),
            recorded: Level { on_hand: 5, reserved: 1 },
            ledger: Delta { on_hand: 4, reserved: 1 },
            held: 1,
        });
        assert_eq!(
            report(&audit),
            "audited 7 stock figures against 20 movements: 1 figure drifted\n  \
             p-1 in spb: recorded on_hand 5 and reserved 1; the ledger says 4 and 1; open holds have 1\n"
        );
    }
}
