//! `mw schema`: prints the schema of a Cassandra cluster or of MongoDB, applies it, and compares the servers with it.

mod mongodb;

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::schema::Progress;

use crate::config::{Config, ConfigArgs, Engine};
use crate::{runtime, terminal};

/// Plan, apply and compare the schema of a Cassandra cluster or of MongoDB
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --store mongodb (or store.engine = \"mongodb\") these commands work on the servers of [store.mongodb], otherwise on the \
cluster of [store.cassandra].

Examples:
  mw schema plan | less
  mw schema apply --config mw.toml
  mw schema drift --store mongodb")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the CQL, or the commands for mongosh, of the configured schema; no cluster is needed
    #[command(after_help = "\
For MongoDB servers that can be reached, documents without the shard key are reported too.

Examples:
  mw schema plan
  mw schema plan --set store.cassandra.replication.core='{dc1 = 3, dc2 = 3}'
  mw schema plan --store mongodb --set 'store.mongodb.shard_keys.products=\"category: 1, _id: 1\"'
  mw schema plan --set store.cassandra.policy.stock.gc_grace=3d | grep -A30 'mobile_world.stock '")]
    Plan(ConfigArgs),

    /// Bring the cluster's schema up to date: create what is missing, alter table options to the policy
    #[command(after_help = "\
It may be run at any time: files that were applied before are skipped. Processes that apply at the same time take turns \
under a lock. The replication factor of an existing keyspace is not changed: that needs ALTER KEYSPACE and a full repair. On \
MongoDB a collection that has data is never sharded or resharded: see `mw shards reshard`.

Examples:
  mw schema apply
  mw schema apply --set store.cassandra.replication.default.dc1=1     # a cluster of one node
  mw schema apply --set store.cassandra.keyspace=staging
  mw schema apply --store mongodb")]
    Apply(ConfigArgs),

    /// List the differences between the cluster and the schema, the replication factors and the policy
    #[command(after_help = "\
Exit code 0: no drift. Exit code 1: there is drift, each difference on a line, or the cluster could not be read.

Examples:
  mw schema drift
  mw schema drift --config mw.toml")]
    Drift(ConfigArgs),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (Command::Plan(sources) | Command::Apply(sources) | Command::Drift(sources)) = &args.command;
    let config = Config::load(&sources.sources())?;
    let is_mongodb = config.engine == Engine::Mongodb;
    match &args.command {
        Command::Plan(_) if is_mongodb => mongodb::plan(&config),
        Command::Apply(_) if is_mongodb => mongodb::apply(&config),
        Command::Drift(_) if is_mongodb => mongodb::drift(&config),
        Command::Plan(_) => plan(&config),
        Command::Apply(_) => apply(&config),
        Command::Drift(_) => drift(&config),
    }
}

fn plan(config: &Config) -> Result<ExitCode> {
    let plan = config.cassandra.schema().plan().context("plan the schema")?;
    terminal::print(&plan)?;
    Ok(ExitCode::SUCCESS)
}

fn apply(config: &Config) -> Result<ExitCode> {
    terminal::log(&config.log);
    let options = &config.cassandra;
    let run = runtime::single()?.block_on(async {
        let session = connect(options).await.context("connect to Cassandra")?;
        options.schema().apply(&session, &show_progress).await.context("apply the schema")
    })?;
    terminal::print(&format!("the schema of {} is up to date: {}\n", options.keyspace, done(run)))?;
    Ok(ExitCode::SUCCESS)
}

fn done(run: usize) -> String {
    match run {
        0 => "nothing to do".to_owned(),
        1 => "1 statement run".to_owned(),
        run => format!("{run} statements run"),
    }
}

fn show_progress(progress: Progress<'_>) {
    match progress {
        Progress::Waiting => {
            terminal::note("wait for the schema lock: another process is applying the schema");
        }
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

fn report(keyspace: &str, drifts: &[impl Display]) -> String {
    let summary = match drifts.len() {
        0 => "no drift".to_owned(),
        1 => "1 difference".to_owned(),
        count => format!("{count} differences"),
    };
    let lines = drifts.iter().map(|drift| format!("  {drift}\n"));
    let summary = format!("compared the schema of {keyspace} with the cluster: {summary}\n");
    std::iter::once(summary).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_store_cassandra::schema::Drift;

    #[test]
    fn a_report_lists_every_difference() {
        assert_eq!(
            report("shop", &[] as &[Drift]),
            "compared the schema of shop with the cluster: no drift\n"
        );
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
