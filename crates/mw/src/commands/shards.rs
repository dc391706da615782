//! `mw shards`: how data and calls lie on the shards of MongoDB, advice on shard keys, and the commands that change shards.

mod change;
mod show;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use mw_store_mongodb::Options;
use mw_store_mongodb::connect::connect;
use mw_store_mongodb::shards::{self, Action};

use crate::config::{Config, ConfigArgs};
use crate::{runtime, terminal};

/// Show how data and calls lie on the shards of MongoDB, and change it
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
These commands work on the servers of [store.mongodb], whatever store.engine is. Without a subcommand: documents, bytes and \
ranges of every collection by shard, the members' replication lag, how many shards the calls of the service asked, the \
hottest categories and products, and the balancer. On a replica set there is one place, and nothing to change.

Commands that change shards print what they would do; with --yes they do it. Each is written to the collection audit_log.

Examples:
  mw shards
  mw shards --json | jq '.collections[] | {name, imbalance}'
  mw shards advise
  mw shards balancer window 01:00-05:00 --yes
  mw shards split products --at 'category: Electronics, _id: MinKey' --yes
  mw shards move products --from 'category: Electronics, _id: MinKey' --to shard-b --yes
  mw shards reshard products --key 'category: 1, _id: 1' --yes"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare the configured shard keys with their alternatives; changes nothing
    #[command(after_help = "\
Values and their frequency come from analyzeShardKey, or from a sample where it has no answer; calls from the counts of the \
service, inserts included.

Examples:
  mw shards advise
  mw shards advise --json | jq '.keys[] | select(.configured)'")]
    Advise {
        /// Print JSON
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        config: ConfigArgs,
    },

    #[command(flatten)]
    Change(Box<change::Command>),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        None => report(&Config::load(&args.config.sources())?, args.json),
        Some(Command::Advise { json, config }) => advise(&Config::load(&config.sources())?, *json),
        Some(Command::Change(command)) => {
            let config = Config::load(&command.config().sources())?;
            let action = command.action(&config.mongodb)?;
            change(&config, &action, command.is_confirmed())
        }
    }
}

fn report(config: &Config, json: bool) -> Result<()> {
    terminal::log(&config.log);
    let report = runtime::single()?.block_on(async {
        let client = connect(&config.mongodb).await.context("connect to MongoDB")?;
        shards::report(&client, &config.mongodb).await.context("read the shards")
    })?;
    terminal::print(&if json { show::report_json(&report)? } else { show::report_text(&report) })
}

fn advise(config: &Config, json: bool) -> Result<()> {
    terminal::log(&config.log);
    let advice = runtime::single()?.block_on(async {
        let client = connect(&config.mongodb).await.context("connect to MongoDB")?;
        shards::advise(&client, &config.mongodb).await.context("analyze the shard keys")
    })?;
    terminal::print(&if json { show::advice_json(&advice)? } else { show::advice_text(&advice) })
}

fn change(config: &Config, action: &Action, yes: bool) -> Result<()> {
    terminal::log(&config.log);
    let printed = runtime::single()?.block_on(async {
        let client = connect(&config.mongodb).await.context("connect to MongoDB")?;
        if !yes {
            let commands = action.plan(&client, &config.mongodb).await?;
            let commands = commands.join("\n  ");
            return anyhow::Ok(format!("With --yes: {action}\n  {commands}\nNothing was changed.\n"));
        }
        action.run(&client, &config.mongodb, &user()).await?;
        anyhow::Ok(format!("done: {action}\n"))
    })?;
    terminal::print(&printed)
}

/// The system's user, for the audit log.
fn user() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().filter_map(|name| std::env::var(name).ok());
    named.into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

/// Refuses collections that the commands do not know.
fn known_collection(collection: &str, options: &Options) -> Result<()> {
    let schema = mw_store_mongodb::schema::Schema::new(options);
    let names: Vec<&str> = schema.collections().iter().map(|it| it.name).collect();
    if !names.contains(&collection) {
        bail!("there is no collection \"{collection}\"; there are {}", names.join(", "));
    }
    Ok(())
}
