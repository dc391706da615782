//! `mw export`: writes the whole store as NDJSON.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use http::header::CONTENT_ENCODING;
use http_body_util::BodyExt;
use mw_http::export_format::{self, Counts, Header, Line};
use mw_shop::{Clock, SystemClock};
use mw_store::export::Record;
use mw_store::{ExportImport, PageRequest, SharedStore};

use crate::config::{Config, ConfigArgs};
use crate::runtime;
use crate::shop_client::{RemoteArgs, ShopClient};
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
complete. With --url the running shop is exported as of one moment; without it no server must be running on the same data \
directory. On a cluster each record is complete, and records may be of different moments.

Examples:
  mw export --output shop.ndjson
  mw export --url http://127.0.0.1:8080 --output shop.ndjson
  mw export | gzip > shop.ndjson.gz
  mw export --data /var/lib/mw --output /backup/shop.ndjson
  mw export --store cassandra --config mw.toml --output shop.ndjson")]
pub(crate) struct Args {
    /// File to write, or - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    #[command(flatten)]
    remote: RemoteArgs,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let written = match args.remote.client()? {
        Some(client) => runtime::single()?.block_on(write(&Source::Running(client), &args.output))?,
        None => export_stored(args)?,
    };
    terminal::note(&format!("exported {written}"));
    Ok(())
}

fn export_stored(args: &Args) -> Result<String> {
    let config = Config::load(&args.config.sources())?.without_listener();
    terminal::log(&config.log);
    let header = Header::new(config.currency(), SystemClock.now());
    runtime::single()?.block_on(async {
        let storage = Storage::open_existing(&config).await?;
        let source = Source::Store(storage.shared(), header);
        let written = write(&source, &args.output).await;
        drop(source);
        storage.close().await;
        written
    })
}

/// What is exported.
enum Source {
    Store(SharedStore, Header),
    Running(ShopClient),
}

impl Source {
    /// Writes all lines; returns how many records of each kind there are, as far as it is known.
    async fn write_all(&self, out: &mut impl Write) -> Result<String> {
        match self {
            Self::Store(store, header) => {
                write_all(store.as_ref(), header, out).await.map(|counts| terminal::counted(&counts))
            }
            Self::Running(client) => download(client, out).await,
        }
    }
}

/// Copies the export of a running shop, decompressed.
async fn download(client: &ShopClient, out: &mut impl Write) -> Result<String> {
    let response = client.get("/v1/operations/export", Some("zstd")).await?;
    let is_zstd = response.headers().get(CONTENT_ENCODING).is_some_and(|encoding| encoding == "zstd");
    let progress = Progress::endless_bytes("exporting");
    let mut lines = LastLine { out, last: Vec::new(), bytes: 0 };
    let mut body = response.into_body();
    let mut decoder = zstd::stream::write::Decoder::new(&mut lines).context("begin to decompress")?;
    while let Some(frame) = body.frame().await {
        let Ok(chunk) = frame.context("read the export")?.into_data() else { continue };
        if is_zstd {
            decoder.write_all(&chunk).context("write records")?;
        } else {
            decoder.get_mut().write_all(&chunk).context("write records")?;
        }
        progress.at(decoder.get_ref().bytes);
    }
    decoder.flush().context("write records")?;
    drop(decoder);
    match export_format::read_line(lines.last.trim_ascii_end()) {
        Ok(Line::End(end)) => Ok(format!("{} records", end.records)),
        _ => bail!("read the export: it ended early; see the log of the shop"),
    }
}

/// Remembers the last line that is written through it, or the end of it.
struct LastLine<'a, W> {
    out: &'a mut W,
    last: Vec<u8>,
    bytes: u64,
}

/// The last line of an export is short.
const LAST_LINE_BYTES_MAX: usize = 256;

impl<W: Write> Write for LastLine<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        let bytes = bytes.get(..written).unwrap_or_default();
        self.bytes += written as u64;
        // A line ends with its line feed, which the line after it replaces.
        if self.last.ends_with(b"\n") && !bytes.is_empty() {
            self.last.clear();
        }
        let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        match body.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => {
                self.last.clear();
                self.last.extend_from_slice(bytes.get(at + 1..).unwrap_or_default());
            }
            None => self.last.extend_from_slice(bytes),
        }
        let excess = self.last.len().saturating_sub(LAST_LINE_BYTES_MAX);
        self.last.drain(..excess);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

async fn write(source: &Source, output: &Path) -> Result<String> {
    if output == Path::new("-") {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = source.write_all(&mut out).await?;
        out.flush().context("write to standard output")?;
        Ok(written)
    } else if is_stream(output) {
        to_stream(source, output).await
    } else {
        to_file(source, output).await
    }
}

/// Whether the path is a device or a pipe, which is written to and not replaced.
fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

async fn to_stream(source: &Source, path: &Path) -> Result<String> {
    let writing = || format!("write {}", path.display());
    let mut out = BufWriter::new(File::options().write(true).open(path).with_context(writing)?);
    let written = source.write_all(&mut out).await?;
    out.flush().with_context(writing)?;
    Ok(written)
}

/// Writes a partial file, syncs it, and renames it: a crash before the rename leaves the old file.
async fn to_file(source: &Source, path: &Path) -> Result<String> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let writing = || format!("write {}", partial.display());
    let file = File::create(&partial).with_context(writing)?;
    let mut out = BufWriter::new(file);
    let written = async {
        let text = source.write_all(&mut out).await?;
        out.flush().with_context(writing)?;
        out.get_ref().sync_all().with_context(writing)?;
        fs::rename(&partial, path)
            .with_context(|| format!("rename {} to {}", partial.display(), path.display()))?;
        sync_folder(path).with_context(writing)?;
        anyhow::Ok(text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_found_however_the_bytes_arrive() {
        let text =
            format!("{{\"a\":1}}\n{}\n{{\"end\":{{\"records\":2}}}}\n", "x".repeat(1_000)).into_bytes();
        for size in [1, 2, 7, 100, 999, 5_000] {
            let mut out = Vec::new();
            let mut lines = LastLine { out: &mut out, last: Vec::new(), bytes: 0 };
            for chunk in text.chunks(size) {
                lines.write_all(chunk).unwrap();
            }
            assert_eq!(lines.last.trim_ascii_end(), b"{\"end\":{\"records\":2}}", "in chunks of {size}");
            assert_eq!(lines.bytes, text.len() as u64);
            assert_eq!(out, text);
        }
    }
}
