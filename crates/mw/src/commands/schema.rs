//! `mw schema`: the CQL of the model, applied to a cluster and compared with it.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::schema::{Drift, Progress};

use crate::config::{Config, ConfigArgs};
use crate::{runtime, terminal};

/// The schema of a Cassandra cluster: read it, apply it, compare it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
These commands are about the cluster of [store.cassandra], whatever store.engine is.

Examples:
  mw schema plan | less
  mw schema apply --config mw.toml
  mw schema drift --config mw.toml")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the CQL for the configured data centres, copies and policy; no cluster is needed
    #[command(after_help = "\
Examples:
  mw schema plan
  mw schema plan --set store.cassandra.replication.core='{dc1 = 3, dc2 = 3}'
  mw schema plan --set store.cassandra.policy.stock.gc_grace=3d | grep -A30 'mobile_world.stock '")]
    Plan(ConfigArgs),

    /// Bring the cluster's schema up to date: what is missing is made, table options become the policy's
    #[command(after_help = "\
What was applied before is left alone, so it may be run again at any time; of several processes that apply at once one \
does it and the others wait. Copies of keyspaces that are there already are not changed: that needs ALTER KEYSPACE and a \
full repair.

Examples:
  mw schema apply
  mw schema apply --set store.cassandra.replication.default.dc1=1     for a cluster of one node
  mw schema apply --set store.cassandra.keyspace=staging")]
    Apply(ConfigArgs),

    /// Compare the cluster's schema with the model, the copies and the policy
    #[command(after_help = "\
Exit code 0: everything is as it should be. Exit code 1: there is drift, each listed, or it could not be looked at.

Examples:
  mw schema drift
  mw schema drift --config mw.toml")]
    Drift(ConfigArgs),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Plan(config) => {
            let config = Config::load(&config.sources())?;
            let plan = config.cassandra.schema().plan().context("plan the schema")?;
            terminal::print(&plan)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Apply(config) => apply(&Config::load(&config.sources())?),
        Command::Drift(config) => drift(&Config::load(&config.sources())?),
    }
}

fn apply(config: &Config) -> Result<ExitCode> {
    terminal::log(&config.log);
    let options = &config.cassandra;
    let run = runtime::single()?.block_on(async {
        let session = connect(options).await.context("connect to Cassandra")?;
        options.schema().apply(&session, &told).await.context("apply the schema")
    })?;
    let done = match run {
        0 => "nothing to do".to_owned(),
        1 => "1 statement run".to_owned(),
        run => format!("{run} statements run"),
    };
    terminal::print(&format!("the schema of {} is up to date: {done}\n", options.keyspace))?;
    Ok(ExitCode::SUCCESS)
}

fn told(progress: Progress<'_>) {
    match progress {
        Progress::Waiting => terminal::note("another process applies the schema: waiting for it"),
        Progress::Statement { done, total, statement } => {
            let first = statement.lines().next().unwrap_or_default();
            let short = first.split(" WITH ").next().unwrap_or_default().trim_end_matches([' ', '(']);
            terminal::note(&format!("{:>2}/{total} {short}", done + 1));
        }
    }
}

fn drift(config: &Config) -> Result<ExitCode> {
    terminal::log(&config.log);
    let options = &config.cassandra;
    let drifts = runtime::single()?.block_on(async {
        let session = connect(options).await.context("connect to Cassandra")?;
        options.schema().drift(&session).await.context("compare the schema")
    })?;
    terminal::print(&report(&options.keyspace, &drifts))?;
    Ok(if drifts.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(keyspace: &str, drifts: &[Drift]) -> String {
    let verdict = match drifts.len() {
        0 => "no drift".to_owned(),
        1 => "1 difference".to_owned(),
        count => format!("{count} differences"),
    };
    let lines = drifts.iter().map(|drift| format!("  {drift}\n"));
    let verdict = format!("compared the schema of {keyspace} with the cluster: {verdict}\n");
    std::iter::once(verdict).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_lists_every_difference() {
        assert_eq!(report("shop", &[]), "compared the schema of shop with the cluster: no drift\n");
        let drifts = [
            Drift::NoTable { table: "shop.stock".to_owned() },
            Drift::NoKeyspace { keyspace: "shop_carts".to_owned() },
        ];
        assert_eq!(
            report("shop", &drifts),
            "compared the schema of shop with the cluster: 2 differences\n  table shop.stock: is missing\n  \
             keyspace shop_carts: is missing\n"
        );
    }
}
