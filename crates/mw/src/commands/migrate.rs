//! `mw migrate`: moves a shop from MongoDB to the embedded engine while its programs write.
//!
//! The store in the target directory is opened by one process. While `run` has it, the other commands ask that process through a
//! socket in the directory; otherwise they open the store themselves.

mod run;
mod show;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use mw_migrate::control::{Request, Response, ask};
use mw_migrate::{CutOver, Cutover, Phase, Settings, Source, clear_target, finish, status};
use mw_store_embedded::EmbeddedStore;

use crate::config::{Config, ConfigArgs, Engine};
use crate::storage::Storage;
use crate::{runtime, terminal};

/// Move a shop from MongoDB to the embedded engine while its programs write
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The source is a replica set or a sharded cluster with the collections products, orders and carts, in the shape of any program; the \
database is the path of its URI, or mobile_world. The target is the data directory (--data). Commands other than plan and run reach \
the running migration through a socket in that directory. docs/migration.md has the whole course.

Examples:
  mw migrate plan --from mongodb://db1,db2/shop?replicaSet=rs0
  mw migrate run --from mongodb://db1,db2/shop?replicaSet=rs0 --data /var/lib/mw
  mw migrate status --data /var/lib/mw
  mw migrate rejected --data /var/lib/mw --json | jq '.items[] | select(.blocking)'
  mw migrate verify --data /var/lib/mw
  mw migrate cutover --data /var/lib/mw
  mw migrate finish --from mongodb://db1,db2/shop?replicaSet=rs0 --data /var/lib/mw")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Args)]
struct FromArgs {
    /// The MongoDB URI of the source; its path names the database, else `mobile_world`
    #[arg(long = "from", value_name = "URI")]
    uri: String,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read the source and say whether and how it can be migrated; exit code 1: not as it is
    Plan {
        #[command(flatten)]
        from: FromArgs,

        #[command(flatten)]
        common: Common,
    },
    /// Copy and follow the source until the cutover; run again after an interruption
    Run {
        #[command(flatten)]
        from: FromArgs,

        /// Copy at most so many documents a second
        #[arg(long, value_name = "N/s", value_parser = rate)]
        rate: Option<u32>,

        /// Open a new change stream and read every document again, after the history was lost (error 286)
        #[arg(long)]
        recopy: bool,

        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Print how far the migration is
    Status {
        #[command(flatten)]
        common: Common,
    },
    /// List the documents that could not be taken, with what to do about each
    Rejected {
        #[command(flatten)]
        common: Common,
    },
    /// Compare both sides document by document; exit code 1: they differ, with the list
    Verify {
        /// Read the documents that differ again, write them again and compare once more
        #[arg(long)]
        repair: bool,

        #[command(flatten)]
        common: Common,
    },
    /// Stop the writes at the source, take the last changes and hand over to the target
    Cutover {
        /// Beyond it everything goes back to following
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
        timeout: Duration,

        /// Do not block writes at the source: its programs are stopped already
        #[arg(long)]
        no_block: bool,

        /// Leave rejected documents behind
        #[arg(long)]
        accept_rejected: bool,

        #[command(flatten)]
        config: ConfigArgs,
    },
    /// After the cutover: let the source take writes again and remove the state of the migration
    Finish {
        #[command(flatten)]
        from: FromArgs,

        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Drop the migration and everything that it copied
    Abort {
        /// Really
        #[arg(long)]
        yes: bool,

        #[command(flatten)]
        config: ConfigArgs,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Plan { from, common } => plan(&load(&common.config)?, &from.uri, common.json),
        Command::Run { from, rate, recopy, config } => {
            let options = mw_migrate::RunOptions { rate: *rate, recopy: *recopy };
            run::run(&load(config)?, &from.uri, options)
        }
        Command::Status { common } => status_of(&load(&common.config)?, common.json),
        Command::Rejected { common } => rejected(&load(&common.config)?, common.json),
        Command::Verify { repair, common } => verify(&load(&common.config)?, *repair, common.json),
        Command::Cutover { timeout, no_block, accept_rejected, config } => {
            let cutover = Cutover { timeout: *timeout, block: !no_block, accept_rejected: *accept_rejected };
            cut_over(&load(config)?, cutover)
        }
        Command::Finish { from, config } => end(&load(config)?, &from.uri),
        Command::Abort { yes, config } => abort(&load(config)?, *yes),
    }
}

fn load(args: &ConfigArgs) -> Result<Config> {
    let config = Config::load(&args.sources())?.without_listener();
    terminal::log(&config.log);
    ensure!(
        config.engine == Engine::Embedded,
        "the target of a migration is the embedded engine (--store embedded); to a cluster: migrate, `mw export`, and `mw import \
         --store cassandra`"
    );
    Ok(config)
}

/// `500/s`, or `500`.
fn rate(text: &str) -> Result<u32> {
    let number = text.strip_suffix("/s").unwrap_or(text).parse().ok();
    number.filter(|rate| *rate > 0).context("expected a number of documents a second, such as 500/s")
}

fn duration(text: &str) -> Result<Duration> {
    super::bench::duration(text)
}

fn settings(config: &Config) -> Settings {
    Settings {
        statuses: config.migration.statuses.clone(),
        zones: config.migration.zones.clone(),
        cart_lifetime: config.shop.carts,
    }
}

async fn connect(config: &Config, uri: &str) -> Result<Source> {
    ensure!(
        uri.starts_with("mongodb://") || uri.starts_with("mongodb+srv://"),
        "--from: a source is the URI of a MongoDB replica set or of mongos: mongodb://…"
    );
    let options = mw_migrate::source_options(uri, &config.mongodb).await?;
    Ok(Source::connect(&options).await?)
}

fn plan(config: &Config, uri: &str, json: bool) -> Result<ExitCode> {
    let plan = runtime::single()?.block_on(async {
        let source = connect(config, uri).await?;
        let free = free_bytes(&config.embedded.path);
        let plan = mw_migrate::plan::plan(&source, &settings(config), free).await;
        source.close().await;
        plan.context("plan the migration")
    })?;
    terminal::print(&if json { show::plan_json(&plan)? } else { show::plan_text(&plan) })?;
    Ok(if plan.is_possible() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is free where the target is, or will be.
fn free_bytes(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(existing).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Asks the running migration, or else opens the store.
async fn ask_or_open(config: &Config, request: Request) -> Result<Result<Response, Arc<EmbeddedStore>>> {
    if let Some(answer) = ask(&config.embedded.path, request).await? {
        if let Response::Failed(why) = answer {
            bail!("{why}");
        }
        return Ok(Ok(answer));
    }
    match Storage::open_existing(config).await? {
        Storage::Embedded { store, .. } => Ok(Err(store)),
        _ => bail!("the target of a migration is the embedded engine"),
    }
}

fn status_of(config: &Config, json: bool) -> Result<ExitCode> {
    let status = runtime::single()?.block_on(async {
        match ask_or_open(config, Request::Status).await? {
            Ok(Response::Status(status)) => anyhow::Ok(status),
            Ok(_) => bail!("the running migration gave another answer"),
            Err(store) => status::stopped(&*store).await?.context("the data directory holds no migration"),
        }
    })?;
    terminal::print(&if json { show::status_json(&status)? } else { show::status_text(&status) })?;
    Ok(ExitCode::SUCCESS)
}

fn rejected(config: &Config, json: bool) -> Result<ExitCode> {
    let rejected = runtime::single()?.block_on(async {
        match ask_or_open(config, Request::Rejected).await? {
            Ok(Response::Rejected(rejected)) => anyhow::Ok(rejected),
            Ok(_) => bail!("the running migration gave another answer"),
            Err(store) => Ok(status::rejected(&*store).await?),
        }
    })?;
    terminal::print(&if json { show::rejected_json(&rejected)? } else { show::rejected_text(&rejected) })?;
    Ok(ExitCode::SUCCESS)
}

const NOT_RUNNING: &str = "no process runs the migration: start `mw migrate run` and repeat the command";

/// Asks the running migration, which must be there.
fn ask_running(config: &Config, request: Request) -> Result<Response> {
    let answer = runtime::single()?.block_on(ask(&config.embedded.path, request))?;
    match answer.context(NOT_RUNNING)? {
        Response::Failed(why) => bail!("{why}"),
        answer => Ok(answer),
    }
}

fn verify(config: &Config, repair: bool, json: bool) -> Result<ExitCode> {
    let Response::Verified(verified) = ask_running(config, Request::Verify { repair })? else {
        bail!("the running migration gave another answer")
    };
    terminal::print(&if json { show::verified_json(&verified)? } else { show::verified_text(&verified) })?;
    Ok(if verified.is_equal() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cut_over(config: &Config, cutover: Cutover) -> Result<ExitCode> {
    let Response::CutOver(done) = ask_running(config, Request::CutOver(cutover))? else {
        bail!("the running migration gave another answer")
    };
    terminal::print(&show::cutover_text(&done, cutover))?;
    Ok(if matches!(done, CutOver::Done { .. }) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn end(config: &Config, uri: &str) -> Result<ExitCode> {
    runtime::single()?.block_on(async {
        let Err(store) = ask_or_open(config, Request::Status).await? else {
            bail!("finish: the migration is running; cut over first")
        };
        let source = connect(config, uri).await?;
        let finished = finish(&source, &*store).await;
        source.close().await;
        store.close();
        finished.context("finish the migration")
    })?;
    terminal::print(
        "the migration is finished: the source takes writes again, and the target has no state of the migration left\n",
    )?;
    Ok(ExitCode::SUCCESS)
}

fn abort(config: &Config, yes: bool) -> Result<ExitCode> {
    if !yes {
        terminal::print(
            "With --yes: drop the migration and everything that it copied to the target. Nothing was changed.\n",
        )?;
        return Ok(ExitCode::FAILURE);
    }
    runtime::single()?.block_on(async {
        if let Err(store) = ask_or_open(config, Request::Abort).await? {
            let phase = status::stopped(&*store).await?.map(|status| status.phase);
            ensure!(
                phase != Some(Phase::Done),
                "abort: the cutover is done and the target is the shop; `mw migrate finish` ends the migration"
            );
            ensure!(
                phase != Some(Phase::Cutover),
                "abort: a cutover was interrupted and writes at the source may be blocked: start `mw migrate run`, which lets them go \
                 on, and repeat the command"
            );
            clear_target(&*store).await?;
            store.close();
        }
        anyhow::Ok(())
    })?;
    terminal::print("the migration is aborted, and what it copied is dropped\n")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_of_documents_a_second() {
        assert_eq!(rate("500/s").unwrap(), 500);
        assert_eq!(rate("7").unwrap(), 7);
        for text in ["", "0", "0/s", "fast", "5/m"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
