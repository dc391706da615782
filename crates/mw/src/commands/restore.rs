//! `mw restore`: a new data directory from a backup, to its own moment or to a later one.

use std::path::PathBuf;

use anyhow::{Context, Result};
use mw_domain::Timestamp;

use crate::terminal::{self, Progress};

/// Restore a backup into a new data directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every file is checked while it is copied. With --to the commits that the archive has are applied up to that moment; the archive is the \
one of the shop's configuration when the backup was taken, or that of --archive. A directory that is not wholly restored is never \
served. A restored shop needs an archive of its own.

Examples:
  mw restore /backup/shop --data /var/lib/mw-restored
  mw restore /backup/shop --data /var/lib/mw-restored --to 2026-11-17T12:00:00Z")]
pub(crate) struct Args {
    /// Directory of the backups, or an archive from the shop's first commit on
    #[arg(value_name = "DIRECTORY")]
    backups: PathBuf,

    /// The new data directory
    #[arg(long, value_name = "DIRECTORY")]
    data: PathBuf,

    /// The moment of the shop, in RFC 3339 [default: that of the latest backup]
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,

    /// The archive, where it is not the one that the backup names
    #[arg(long, value_name = "DIRECTORY")]
    archive: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let moment = |text: &String| Timestamp::parse(text).with_context(|| format!("read --to {text}"));
    let to = args.to.as_ref().map(moment).transpose()?;
    let progress = Progress::endless_bytes("restoring");
    let at = |bytes| progress.at(bytes);
    let restored = mw_store_embedded::restore(&args.backups, &args.data, to, args.archive.as_deref(), &at)?;
    drop(progress);
    let source = match restored.backup {
        0 => "the archive".to_owned(),
        number => format!("backup {number}"),
    };
    terminal::print(&format!(
        "restored {source} into {}: the shop of {} after {} commits, {} of them from the archive\n",
        args.data.display(),
        restored.as_of,
        restored.commit_sequence,
        restored.replayed
    ))
}
