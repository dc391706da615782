//! The commands, one file each.

mod backup;
mod bench;
mod cluster;
mod completions;
mod config;
mod export;
mod import;
mod lab;
mod migrate;
mod nodes;
mod partitions;
mod policy;
mod repair;
mod restore;
mod schema;
mod serve;
mod shards;
mod stock;
mod verify;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::terminal;

/// The storage of a shop: carts, sessions, orders, catalogue and stock.
#[derive(Debug, Parser)]
#[command(
    name = "mw",
    version,
    after_help = "Examples:\n  \
        mw serve                        serve ./data on 127.0.0.1:8080\n  \
        mw serve --demo                 the same, with a sample catalogue to try things on\n  \
        mw serve --store cassandra      the same shop on a cluster, after `mw schema apply`\n  \
        mw serve --store mongodb        the same shop on MongoDB\n  \
        mw export --output shop.ndjson  write everything that is stored to a file\n\n\
        `mw <COMMAND> --help` says more about each."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Config(config::Args),
    Schema(schema::Args),
    Policy(policy::Args),
    Partitions(partitions::Args),
    Cluster(cluster::Args),
    Shards(Box<shards::Args>),
    Nodes(nodes::Args),
    Repair(repair::Args),
    Stock(stock::Args),
    Export(export::Args),
    Import(import::Args),
    Backup(backup::Args),
    Verify(verify::Args),
    Restore(restore::Args),
    Migrate(Box<migrate::Args>),
    Bench(Box<bench::Args>),
    Lab(lab::Args),
    Completions(completions::Args),
    /// Print the version
    Version,
}

impl Cli {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Serve(args) => serve::run(&args),
            Command::Config(args) => config::run(&args),
            Command::Schema(args) => return schema::run(&args),
            Command::Policy(args) => policy::run(&args),
            Command::Partitions(args) => partitions::run(&args),
            Command::Cluster(args) => cluster::run(&args),
            Command::Shards(args) => shards::run(&args),
            Command::Nodes(args) => nodes::run(&args),
            Command::Repair(args) => return repair::run(&args),
            Command::Stock(args) => return stock::run(&args),
            Command::Export(args) => export::run(&args),
            Command::Import(args) => import::run(&args),
            Command::Backup(args) => backup::run(&args),
            Command::Verify(args) => return verify::run(&args),
            Command::Restore(args) => restore::run(&args),
            Command::Migrate(args) => return migrate::run(&args),
            Command::Bench(args) => return bench::run(&args),
            Command::Lab(args) => lab::run(&args),
            Command::Completions(args) => completions::run(&args),
            Command::Version => terminal::print(&format!("mw {}\n", env!("CARGO_PKG_VERSION"))),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
