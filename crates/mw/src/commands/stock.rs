//! `mw stock audit`: recomputes the stock levels from the ledger.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use clap::Subcommand;
use mw_domain::stock::Delta;
use mw_domain::{GeoZone, Level, ProductId};
use mw_store::stock::{Audit, Drift};
use serde::Deserialize;

use crate::config::{Config, ConfigArgs};
use crate::runtime;
use crate::shop_client::{RemoteArgs, ShopClient};
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
Exit code 0: no drift. Exit code 1: drift, each listed, or the audit failed. With \
--url the running shop audits itself; without it no server must be running on the same data directory. On a cluster the shop may \
stay online either way.

Examples:
  mw stock audit
  mw stock audit --url http://127.0.0.1:8080
  mw stock audit --data /var/lib/mw
  mw stock audit --store cassandra --config mw.toml")]
    Audit {
        #[command(flatten)]
        remote: RemoteArgs,

        #[command(flatten)]
        config: ConfigArgs,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Command::Audit { remote, config } = &args.command;
    let audit = match remote.client()? {
        Some(client) => runtime::single()?.block_on(audit_running(&client))?,
        None => audit_stored(config)?,
    };
    terminal::print(&report(&audit))?;
    Ok(verdict(&audit))
}

fn audit_stored(config: &ConfigArgs) -> Result<Audit> {
    let config = Config::load(&config.sources())?.without_listener();
    terminal::log(&config.log);
    runtime::single()?.block_on(async {
        let storage = Storage::open_existing(&config).await?;
        let progress = Progress::endless("auditing stock levels");
        let seen = AtomicU64::new(0);
        // Called from several threads; the position only grows.
        let message = |figures| progress.at(seen.fetch_max(figures, Ordering::Relaxed).max(figures));
        let audit = storage.shared().audit(&message).await.context("audit the stock");
        drop(progress);
        storage.close().await;
        audit
    })
}

async fn audit_running(client: &ShopClient) -> Result<Audit> {
    let _progress = Progress::endless("auditing stock levels");
    let reply = client.get_json("/v1/operations/stock/audit").await?;
    let reply: AuditReply = serde_json::from_value(reply).context("read the audit")?;
    let drifts = reply.drifts.into_iter().map(DriftReply::drift).collect::<Result<_>>()?;
    Ok(Audit { levels: reply.levels, movements: reply.movements, external: reply.external, drifts })
}

/// The audit as the API writes it.
#[derive(Debug, Deserialize)]
struct AuditReply {
    levels: u64,
    movements: u64,
    external: u64,
    drifts: Vec<DriftReply>,
}

#[derive(Debug, Deserialize)]
struct DriftReply {
    product_id: String,
    geo_zone: String,
    recorded: UnitsReply,
    ledger: UnitsReply,
    held: u64,
}

#[derive(Debug, Deserialize)]
struct UnitsReply {
    on_hand: i64,
    reserved: i64,
}

impl DriftReply {
    fn drift(self) -> Result<Drift> {
        let units = |units: i64| u64::try_from(units).context("read the audit");
        Ok(Drift {
            product_id: ProductId::parse(&self.product_id).context("read the audit")?,
            geo_zone: GeoZone::parse(&self.geo_zone).context("read the audit")?,
            recorded: Level {
                on_hand: units(self.recorded.on_hand)?,
                reserved: units(self.recorded.reserved)?,
            },
            ledger: Delta { on_hand: self.ledger.on_hand, reserved: self.ledger.reserved },
            held: self.held,
        })
    }
}

pub(super) fn verdict(audit: &Audit) -> ExitCode {
    if audit.drifts.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(super) fn report(audit: &Audit) -> String {
    let verdict = match audit.drifts.len() {
        0 => "no drift".to_owned(),
        1 => "1 stock level drifted".to_owned(),
        count => format!("{count} stock levels drifted"),
    };
    let external = match audit.external {
        0 => String::new(),
        count => format!(" ({count} by other programs)"),
    };
    let mut text = format!(
        "audited {} stock levels against {} movements{external}: {verdict}\n",
        audit.levels, audit.movements
    );
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

    #[test]
    fn a_report_names_every_level_that_drifted() {
        let mut audit = Audit { levels: 7, movements: 20, ..Audit::default() };
        assert_eq!(report(&audit), "audited 7 stock levels against 20 movements: no drift\n");
        let shared = Audit { external: 3, ..audit.clone() };
        let by_others = "audited 7 stock levels against 20 movements (3 by other programs): no drift\n";
        assert_eq!(report(&shared), by_others);
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
