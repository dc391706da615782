//! `mw verify`: reads every block of a backup and audits its stock.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::stock;
use crate::terminal::{self, Progress};

/// Check a backup: every block is read, every row, and the stock is audited
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The latest backup of the directory is checked. Exit code 0: it is whole and its stock has no drift. Exit code 1: it is damaged, or \
its stock drifted. It needs little space: tables are shared with the copy that is opened.

Examples:
  mw verify /backup/shop")]
pub(crate) struct Args {
    /// Directory of the backups
    #[arg(value_name = "DIRECTORY")]
    backups: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let progress = Progress::endless_bytes("reading");
    let verified = mw_store_embedded::verify(&args.backups, &|bytes| progress.at(bytes))?;
    drop(progress);
    terminal::print(&format!(
        "backup {} of {} is whole: {}, {} MiB, {}, {}\n{}",
        verified.backup,
        verified.taken_at,
        terminal::count(verified.tables as u64, "table"),
        verified.bytes / (1 << 20),
        terminal::count(verified.rows, "row"),
        terminal::count(verified.commit_sequence, "commit"),
        stock::report(&verified.audit)
    ))?;
    Ok(stock::verdict(&verified.audit))
}
