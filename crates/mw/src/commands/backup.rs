//! `mw backup`: a physical copy of a shop that runs or is stopped.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mw_store::backup::BackupProgress;
use serde_json::{Value, json};

use crate::config::{Config, ConfigArgs, Engine};
use crate::runtime;
use crate::shop_client::{RemoteArgs, ShopClient};
use crate::terminal::{self, Progress};

const PATH: &str = "/v1/operations/backup";
/// Between two looks at the progress of the running shop.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Take a physical backup of an embedded shop, running or stopped
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The directory is on the machine of the shop. On the same file system table files are hard links, elsewhere copies; a further \
backup adds only what is new. A backup has every write that was acknowledged before it began. With `store.embedded.archive` \
it can be restored to any moment after it.

Examples:
  mw backup --url http://127.0.0.1:8080 --to /backup/shop
  mw backup --url https://shop:8443 --ca /etc/mw/tls.crt --token \"$OPERATOR\" --to /backup/shop
  mw backup --data /var/lib/mw --to /backup/shop")]
pub(crate) struct Args {
    /// Directory of the backups: new, empty, or with earlier backups
    #[arg(long, value_name = "DIRECTORY")]
    to: PathBuf,

    /// How many backups stay in the directory
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,

    #[command(flatten)]
    remote: RemoteArgs,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let to = std::path::absolute(&args.to).with_context(|| format!("read --to {}", args.to.display()))?;
    let text = match args.remote.client()? {
        Some(client) => runtime::single()?.block_on(remote(&client, &to, args.keep))?,
        None => stopped(args, &to)?,
    };
    terminal::print(&format!("{text} in {}\n", to.display()))
}

fn stopped(args: &Args, to: &std::path::Path) -> Result<String> {
    let config = Config::load(&args.config.sources())?;
    ensure!(
        config.engine == Engine::Embedded,
        "take a backup: only the embedded engine has one; use `mw export` on a cluster"
    );
    terminal::log(&config.log);
    let progress = Progress::endless_bytes("backing up");
    let at = |state: BackupProgress| progress.at(state.bytes);
    let keep = usize::try_from(args.keep).unwrap_or(usize::MAX);
    let archive = config.embedded.archive.as_ref().map(std::path::absolute).transpose()?;
    let summary = mw_store_embedded::back_up_stopped(&config.embedded.path, archive, to, keep, &at)?;
    let BackupProgress { tables, new_tables, new_bytes, .. } = summary.progress;
    Ok(sentence(summary.number, &summary.taken_at.to_string(), tables as u64, new_tables as u64, new_bytes))
}

async fn remote(client: &ShopClient, to: &std::path::Path, keep: u32) -> Result<String> {
    let to = to.to_str().context("read --to: it is not UTF-8")?;
    let mut state = client.post_json(PATH, &json!({ "to": to, "keep": keep, "confirm": true })).await?;
    let progress = Progress::endless_bytes("backing up");
    loop {
        let number = |name: &str| state.get(name).and_then(Value::as_u64).unwrap_or_default();
        let text = |name: &str| state.get(name).and_then(Value::as_str).unwrap_or_default();
        progress.at(number("bytes"));
        match text("state") {
            "done" => {
                let (tables, new_tables) = (number("tables"), number("new_tables"));
                return Ok(sentence(
                    number("number"),
                    text("taken_at"),
                    tables,
                    new_tables,
                    number("new_bytes"),
                ));
            }
            "running" => tokio::time::sleep(POLL_INTERVAL).await,
            _ => bail!("take a backup: {}", text("error")),
        }
        state = client.get_json(PATH).await?;
    }
}

fn sentence(number: u64, taken_at: &str, tables: u64, new_tables: u64, new_bytes: u64) -> String {
    let mib = new_bytes / (1 << 20);
    let tables = terminal::count(tables, "table");
    format!("backup {number} of {taken_at}: {tables}, {new_tables} of them new ({mib} MiB)")
}
