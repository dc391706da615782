//! `mw lab`: experiments on keys and rings before a real cluster pays for them.

mod ring;

use anyhow::Result;
use clap::Subcommand;

/// Try keys on a simulated ring
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ring(ring::Args),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Command::Ring(ring) = &args.command;
    ring::run(ring)
}
