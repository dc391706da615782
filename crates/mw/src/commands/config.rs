//! `mw config`: prints the configuration in effect.

use anyhow::Result;

use crate::config::{Config, ServerArgs, Settings, show};
use crate::terminal;

/// Print the configuration in effect, checked, with secrets masked
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every value is followed by where it came from. The output is TOML that --config reads, except for masked secrets.

Examples:
  mw config > mw.toml                          a file to start from
  mw config --config mw.toml                   check a file
  MW_ORDERS__PAYMENT_WINDOW=5s mw config       see what a variable does
  mw config --set server.max_in_flight=100     see what an override does")]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let settings = Settings::merge(&args.server.sources())?;
    Config::read(&settings)?.check_files()?;
    terminal::print(&show(&settings))
}
