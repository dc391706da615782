//! `mw stock audit`: recomputes the stock levels from the ledger.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use clap::Subcommand;
use mw_store::stock::{Audit, Drift};

use crate::config::{Config, ConfigArgs};
use crate::runtime;
use crate::storage::Storage;
use crate::terminal::{self, Progress};

/// Check the stock
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Recompute every stock level from the ledger and the open holds, and report drift
    #[command(after_help = "\
Exit code 0: no drift. Exit code 1: drift, each listed, or the audit failed. The \
server must not be running on the same data directory; on a cluster the shop may stay online.

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
    let config = Config::load(&config.sources())?.without_listener();
    terminal::log(&config.log);
    let audit = runtime::single()?.block_on(async {
        let storage = Storage::open_existing(&config).await?;
        let progress = Progress::endless("auditing stock levels");
        let seen = AtomicU64::new(0);
        // Called from several threads; the position only grows.
        let message = |figures| progress.at(seen.fetch_max(figures, Ordering::Relaxed).max(figures));
        let audit = storage.shared().audit(&message).await.context("audit the stock");
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
        1 => "1 stock level drifted".to_owned(),
        count => format!("{count} stock levels drifted"),
    };
    let mut text =
        format!("audited {} stock levels against {} movements: {verdict}\n", audit.levels, audit.movements);
    for drift in &audit.drifts {
        text.push_str(&line(drift));
    }
    text
}

fn line(drift: &Drift) -> String {
    format!(
        "  {} in {}: recorded on_hand {} and reserved {}; the ledger has {} and {}; open holds have {}\n",
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
    fn a_report_names_every_level_that_drifted() {
        let mut audit = Audit { levels: 7, movements: 20, drifts: Vec::new() };
        assert_eq!(report(&audit), "audited 7 stock levels against 20 movements: no drift\n");
        audit.drifts.push(Drift {
            product_id: ProductId::parse("p-1").unwrap(),
            geo_zone: GeoZone::parse("spb").unwrap(),
            recorded: Level { on_hand: 5, reserved: 1 },
            ledger: Delta { on_hand: 4, reserved: 1 },
            held: 1,
        });
        assert_eq!(
            report(&audit),
            "audited 7 stock levels against 20 movements: 1 stock level drifted\n  \
             p-1 in spb: recorded on_hand 5 and reserved 1; the ledger has 4 and 1; open holds have 1\n"
        );
    }
}
