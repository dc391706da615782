//! `mw export`: writes the whole store as NDJSON.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mw_shop::{Clock, SystemClock};
use mw_store::export::Record;
use mw_store::{ExportImport, PageRequest};

use crate::config::{Config, ConfigArgs};
use crate::export_format::{self, Counts, Header};
use crate::runtime;
use crate::storage::Storage;
use crate::terminal::{self, Progress};

/// Records of one page.
const PAGE: usize = 500;
/// Lines in memory before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// Write the whole store as NDJSON: a backup, or a migration to another engine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first line is a header, the last has the number of records. A file appears under its name only when it is \
complete. The server must not be running on the same data directory; on a cluster stop all processes too, or the file is not \
a consistent snapshot.

Examples:
  mw export --output shop.ndjson
  mw export | gzip > shop.ndjson.gz
  mw export --data /var/lib/mw --output /backup/shop.ndjson
  mw export --store cassandra --config mw.toml --output shop.ndjson")]
pub(crate) struct Args {
    /// File to write, or - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.config.sources())?.without_listener();
    terminal::log(&config.log);
    let header = Header::new(config.currency(), SystemClock.now());
    let written = runtime::single()?.block_on(async {
        let storage = Storage::open_existing(&config).await?;
        let written = write(&*storage.shared(), &header, &args.output).await;
        storage.close().await;
        written
    })?;
    terminal::note(&format!("exported {}", terminal::counted(&written)));
    Ok(())
}

async fn write(store: &dyn ExportImport, header: &Header, output: &Path) -> Result<Counts> {
    if output == Path::new("-") {
        let mut out = BufWriter::new(io::stdout().lock());
        let counts = write_all(store, header, &mut out).await?;
        out.flush().context("write to standard output")?;
        Ok(counts)
    } else if is_stream(output) {
        to_stream(store, header, output).await
    } else {
        to_file(store, header, output).await
    }
}

/// Whether the path is a device or a pipe, which is written to and not replaced.
fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

async fn to_stream(store: &dyn ExportImport, header: &Header, path: &Path) -> Result<Counts> {
    let writing = || format!("write {}", path.display());
    let mut out = BufWriter::new(File::options().write(true).open(path).with_context(writing)?);
    let counts = write_all(store, header, &mut out).await?;
    out.flush().with_context(writing)?;
    Ok(counts)
}

/// Writes a partial file, syncs it, and renames it: a crash before the rename leaves the old file.
async fn to_file(store: &dyn ExportImport, header: &Header, path: &Path) -> Result<Counts> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let writing = || format!("write {}", partial.display());
    let file = File::create(&partial).with_context(writing)?;
    let mut out = BufWriter::new(file);
    let written = async {
        let counts = write_all(store, header, &mut out).await?;
        out.flush().with_context(writing)?;
        out.get_ref().sync_all().with_context(writing)?;
        fs::rename(&partial, path)
            .with_context(|| format!("rename {} to {}", partial.display(), path.display()))?;
        sync_folder(path).with_context(writing)?;
        anyhow::Ok(counts)
    }
    .await;
    if written.is_err() {
        // The write error is reported; a failure to remove the partial file adds nothing to it.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Syncs the folder, so that the rename survives a power cut.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

pub(crate) async fn write_all(
    store: &dyn ExportImport,
    header: &Header,
    out: &mut impl Write,
) -> Result<Counts> {
    let export = store.export().await.context("begin the export")?;
    let progress = Progress::of("exporting", export.estimate());
    let mut counts = Counts::new();
    let mut lines = Vec::new();
    export_format::write_header(header, &mut lines)?;
    let mut request = PageRequest::first(PAGE);
    loop {
        let page = export.page(request).await.context("read records")?;
        progress.advance(page.items.len());
        for part in page.items.into_iter().flat_map(Record::into_parts) {
            *counts.entry(export_format::kind(&part)).or_default() += 1;
            export_format::write_record(&part, &mut lines)?;
            if lines.len() >= WRITE_BYTES {
                out.write_all(&lines).context("write records")?;
                lines.clear();
            }
        }
        match page.next {
            Some(next) => {
                request = PageRequest { limit: PAGE, after: Some(next) };
            }
            None => break,
        }
    }
    export_format::write_end(counts.values().sum(), &mut lines)?;
    out.write_all(&lines).context("write records")?;
    Ok(counts)
}
