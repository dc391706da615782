//! `mw import`: reads a file of `mw export` into this store.
//!
//! Records are written in batches, each together with a checkpoint, so that a repeated import resumes after the last
//! batch. The header line names the import: a truncated file and the complete one are the same import.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use mw_domain::Currency;
use mw_store::ExportImport;
use mw_store::export::{Checkpoint, Record};
use sha2::{Digest, Sha256};

use crate::config::{Config, ConfigArgs};
use crate::runtime;
use crate::storage::Storage;
use crate::terminal::{self, Progress};
use mw_http::export_format::{self, Counts, End, Line};

/// The maximum of records of a batch.
const BATCH_RECORDS: usize = 500;
/// The maximum of bytes of a batch.
const BATCH_BYTES: usize = 4 << 20;
/// Exports have lines of at most 16 MiB; those of earlier releases may hold the whole ledger of a busy product.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// Read a file of `mw export` into this store
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An interrupted import resumes when it is run again with the same file. A line that cannot be \
read stops the import with its number; nothing of its batch is applied. The server must not be running on the same data.

Examples:
  mw import shop.ndjson
  gunzip -c shop.ndjson.gz | mw import -
  mw import shop.ndjson --data /var/lib/mw
  mw import shop.ndjson --store cassandra --config mw.toml     migrate from one machine to a cluster")]
pub(crate) struct Args {
    /// File to read, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Import into a store that is not empty; records with the same id are replaced
    #[arg(long)]
    into_non_empty: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.config.sources())?.without_listener();
    terminal::log(&config.log);
    let source = args.file.display().to_string();
    let (mut lines, progress) = open(&args.file)?;
    let begun = Begun::read(&mut lines, config.currency()).with_context(|| format!("import {source}"))?;
    let done = runtime::single()?.block_on(async {
        let storage = Storage::open(&config).await?;
        let done = begun.import(&*storage.shared(), lines, &progress, args.into_non_empty).await;
        storage.close().await;
        done.with_context(|| format!("import {source}"))
    })?;
    terminal::note(&done.to_string());
    Ok(())
}

fn open(path: &Path) -> Result<(Lines<Box<dyn BufRead>>, Progress)> {
    if path == Path::new("-") {
        let input = Box::new(BufReader::new(io::stdin()));
        return Ok((Lines::new(input), Progress::endless_bytes("importing")));
    }
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let input = Box::new(BufReader::new(file));
    Ok((Lines::new(input), Progress::of_bytes("importing", bytes)))
}

/// An import whose header has been read.
pub(crate) struct Begun {
    name: String,
}

/// The result of an import.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) earlier: u64,
    pub(crate) now: Counts,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "imported {}", terminal::counted(&self.now))?;
        if self.earlier > 0 {
            write!(f, "; {} were imported by an earlier run", self.earlier)?;
        }
        Ok(())
    }
}

impl Begun {
    pub(crate) fn read(lines: &mut Lines<impl BufRead>, currency: Currency) -> Result<Self> {
        let line = lines.next()?.ok_or_else(|| anyhow!("the file is empty"))?;
        let header = export_format::read_header(line).map_err(|what| anyhow!("line 1: {what}"))?;
        ensure!(
            header.currency == currency.as_str(),
            "the file is in {} and this shop in {currency}: set shop.currency to import it",
            header.currency
        );
        Ok(Self { name: format!("{:x}", Sha256::digest(line)) })
    }

    pub(crate) async fn import(
        &self,
        store: &dyn ExportImport,
        mut lines: Lines<impl BufRead>,
        progress: &Progress,
        into_non_empty: bool,
    ) -> Result<Done> {
        let earlier = store.import_progress(&self.name).await.context("read the checkpoint of the import")?;
        if earlier == 0 && !into_non_empty {
            let empty = store.is_empty().await.context("check that the store is empty")?;
            ensure!(
                empty,
                "the store is not empty: import into an empty one, or repeat with --into-non-empty to add to it"
            );
        }
        if earlier > 0 {
            terminal::note(&format!("resuming after {earlier} records of an earlier run"));
        }
        skip(&mut lines, earlier)?;
        let mut batch = Batch::new(&self.name, earlier, store.imports_ledger_parts());
        let mut counts = Counts::new();
        while let Some(line) = lines.next()? {
            let bytes = line.len();
            let line = export_format::read_line(line);
            match line.map_err(|what| anyhow!("line {}: {what}", lines.number))? {
                Line::End(end) => {
                    batch.write(store).await?;
                    finish(&mut lines, &end, batch.done)?;
                    return Ok(Done { earlier, now: counts });
                }
                Line::Record(record) => {
                    *counts.entry(export_format::kind(&record)).or_default() += 1;
                    if batch.is_full() && !batch.is_continued_by(&record) {
                        batch.write(store).await?;
                    }
                    batch.push(*record, bytes).map_err(|what| anyhow!("line {}: {what}", lines.number))?;
                }
            }
            progress.at(lines.bytes);
        }
        batch.write(store).await?;
        bail!(
            "line {}: the file ends without its last line, so it was cut short; the {} records up to here are in the \
             store, repeat with the whole file",
            lines.number + 1,
            batch.done
        )
    }
}

fn skip(lines: &mut Lines<impl BufRead>, records: u64) -> Result<()> {
    for skipped in 0..records {
        let is_record = lines.next()?.is_some_and(|line| !line.starts_with(b"{\"end\""));
        ensure!(
            is_record,
            "the file has {skipped} records, but {records} of it were imported: it is not the same file"
        );
    }
    Ok(())
}

fn finish(lines: &mut Lines<impl BufRead>, end: &End, done: u64) -> Result<()> {
    let at = lines.number;
    ensure!(
        end.records == done,
        "line {at}: the file should have {} records and has {done}: lines are missing or were added",
        end.records
    );
    ensure!(lines.next()?.is_none(), "line {}: data after the last line of the export", lines.number);
    Ok(())
}

struct Batch<'a> {
    import: &'a str,
    records: Vec<Record>,
    /// Lines of the file that the records were made of.
    lines: u64,
    bytes: usize,
    /// Lines of the import in the store.
    done: u64,
    /// Whether the store takes the parts of a ledger one by one.
    takes_ledger_parts: bool,
}

impl<'a> Batch<'a> {
    const fn new(import: &'a str, done: u64, takes_ledger_parts: bool) -> Self {
        Self { import, records: Vec::new(), lines: 0, bytes: 0, done, takes_ledger_parts }
    }

    /// Whether the record must be in the same batch as the last one.
    const fn is_continued_by(&self, record: &Record) -> bool {
        !self.takes_ledger_parts && matches!(record, Record::Ledger { .. })
    }

    fn push(&mut self, record: Record, bytes: usize) -> Result<(), &'static str> {
        if self.is_continued_by(&record) {
            let is_absorbed = self.records.last_mut().is_some_and(|head| head.absorb(&record));
            if !is_absorbed {
                return Err("a part of a ledger does not follow the line of its stock level");
            }
        } else {
            self.records.push(record);
        }
        self.lines += 1;
        self.bytes += bytes;
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.records.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES
    }

    async fn write(&mut self, store: &dyn ExportImport) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        let records = std::mem::take(&mut self.records);
        let done = self.done + std::mem::take(&mut self.lines);
        let checkpoint = Checkpoint { import: self.import.to_owned(), done };
        store
            .import(records, checkpoint)
            .await
            .with_context(|| format!("write records {} to {done}", self.done + 1))?;
        self.done = done;
        self.bytes = 0;
        Ok(())
    }
}

/// Lines of bounded length, without their ends; blank ones are left out.
pub(crate) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    /// Of the last line that was read, from 1.
    pub(crate) number: u64,
    /// Read so far.
    pub(crate) bytes: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0, bytes: 0 }
    }

    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>> {
        loop {
            self.line.clear();
            let mut bounded = Read::by_ref(&mut self.input).take(LINE_BYTES_MAX);
            let read = bounded
                .read_until(b'\n', &mut self.line)
                .with_context(|| format!("read line {}", self.number + 1))?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            self.bytes += read as u64;
            ensure!(
                (read as u64) < LINE_BYTES_MAX,
                "line {}: longer than {} MiB",
                self.number,
                LINE_BYTES_MAX >> 20
            );
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some(self.line.trim_ascii_end()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::commands::export::write_all;
    use crate::demo;
    use mw_domain::stock::{Cause, Delta};
    use mw_domain::{GeoZone, Level, Movement, ProductId, Timestamp, ZoneStock};
    use mw_http::export_format::Header;
    use mw_store::model::Model;
    use uuid::Uuid;

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    fn rub() -> Currency {
        Currency::parse("RUB").unwrap()
    }

    /// An export of the sample catalogue; `records` of it and then the end.
    async fn exported(records: usize) -> String {
        let store = Arc::new(Model::new());
        demo::fill_store(&store, NOW).await.unwrap();
        let mut text = Vec::new();
        write_all(&*store, &Header::new(rub(), NOW), &mut text).await.unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().take(1 + records).collect();
        format!("{}\n{{\"end\":{{\"records\":{records}}}}}\n", lines.join("\n"))
    }

    async fn import(store: &Model, text: &str, into_non_empty: bool) -> Result<Done> {
        let mut lines = Lines::new(text.as_bytes());
        let begun = Begun::read(&mut lines, rub())?;
        let progress = Progress::endless("importing");
        begun.import(store, lines, &progress, into_non_empty).await
    }

    async fn refused(store: &Model, text: &str) -> String {
        format!("{:#}", import(store, text, false).await.expect_err("must be refused"))
    }

    #[tokio::test]
    async fn no_exported_line_is_longer_than_16_mib_and_all_of_them_restore() {
        let movement = |number: u32| Movement {
            at: NOW.plus_millis(i64::from(number)),
            op: Uuid::from_u128(u128::from(number) + 1),
            cause: Cause::Adjust,
            delta: Delta { on_hand: 1, reserved: 0 },
            // The longest note in the longest form.
            note: Some("\u{1}".repeat(1_024)),
        };
        let stock = ZoneStock {
            product_id: ProductId::parse("p").unwrap(),
            geo_zone: GeoZone::parse("z").unwrap(),
            level: Level { on_hand: 3_000, reserved: 0 },
            updated_at: NOW,
        };
        let old = Model::new();
        let records = vec![Record::Stock { stock, ledger: (0..3_000).map(movement).collect() }];
        old.import(records, Checkpoint { import: "old".into(), done: 1 }).await.unwrap();
        let mut text = Vec::new();
        write_all(&old, &Header::new(rub(), NOW), &mut text).await.unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.len() > 16 << 20, "one line would be too long");
        assert!(text.lines().all(|line| line.len() <= 16 << 20));

        let new = Model::new();
        import(&new, &text, false).await.unwrap();
        let mut again = Vec::new();
        write_all(&new, &Header::new(rub(), NOW), &mut again).await.unwrap();
        let body = |text: &str| text.split_once('\n').unwrap().1.to_owned();
        assert!(body(&text) == body(&String::from_utf8(again).unwrap()), "the second export is the same");
    }

    #[test]
    fn a_store_that_takes_ledgers_whole_gets_the_parts_joined() {
        let (product_id, geo_zone) = (ProductId::parse("p").unwrap(), GeoZone::parse("z").unwrap());
        let stock = ZoneStock {
            product_id: product_id.clone(),
            geo_zone: geo_zone.clone(),
            level: Level::default(),
            updated_at: NOW,
        };
        let head = Record::Stock { stock, ledger: Vec::new() };
        let part = Record::Ledger { product_id, geo_zone, ledger: Vec::new() };
        let mut batch = Batch::new("x", 0, false);
        assert!(batch.push(part.clone(), 1).is_err(), "a part without its stock level");
        batch.push(head, 1).unwrap();
        assert!(batch.is_continued_by(&part));
        batch.push(part.clone(), 1).unwrap();
        assert_eq!((batch.records.len(), batch.lines), (1, 2));
        let mut batch = Batch::new("x", 0, true);
        batch.push(part, 1).unwrap();
        assert_eq!((batch.records.len(), batch.lines), (1, 1));
    }

    async fn body(store: &Model) -> String {
        let mut text = Vec::new();
        write_all(store, &Header::new(rub(), NOW), &mut text).await.unwrap();
        let text = String::from_utf8(text).unwrap();
        text.split_once('\n').unwrap().1.to_owned()
    }

    #[tokio::test]
    async fn an_export_is_imported_completely() {
        let text = exported(1_234).await;
        let store = Model::new();
        let done = import(&store, &text, false).await.unwrap();
        assert_eq!((done.earlier, done.now.values().sum::<u64>()), (0, 1_234));
        assert_eq!(body(&store).await, text.split_once('\n').unwrap().1);
        let again = import(&store, &text, false).await.unwrap();
        assert_eq!((again.earlier, again.now.len()), (1_234, 0));
    }

    #[tokio::test]
    async fn a_bad_line_stops_the_import_and_the_corrected_file_resumes() {
        let text = exported(1_200).await;
        let bad: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(at, line)| if at == 700 { "{\"product\":{}}".to_owned() } else { line.to_owned() })
            .collect();
        let store = Model::new();
        let message = refused(&store, &bad.join("\n")).await;
        assert!(message.starts_with("line 701: product: missing field"), "{message}");
        let name = Begun::read(&mut Lines::new(text.as_bytes()), rub()).unwrap().name;
        assert_eq!(store.import_progress(&name).await.unwrap(), 500);
        let done = import(&store, &text, false).await.unwrap();
        assert_eq!((done.earlier, done.now.values().sum::<u64>()), (500, 700));
        assert_eq!(body(&store).await, text.split_once('\n').unwrap().1);
    }

    #[tokio::test]
    async fn a_truncated_file_is_refused_and_the_complete_one_resumes() {
        let text = exported(600).await;
        let store = Model::new();
        let (cut, _) = text.split_at(text.rfind("{\"end\"").unwrap());
        let message = refused(&store, cut).await;
        assert!(message.starts_with("line 602: the file ends without its last line"), "{message}");
        let half = text.split_at(cut.len() - 20).0;
        let message = refused(&Model::new(), half).await;
        assert!(message.starts_with("line 601: "), "{message}");
        assert_eq!(import(&store, &text, false).await.unwrap().earlier, 600);
    }

    #[tokio::test]
    async fn missing_or_additional_lines_are_refused() {
        let text = exported(10).await;
        let fewer: Vec<&str> =
            text.lines().enumerate().filter(|(at, _)| *at != 5).map(|(_, line)| line).collect();
        let message = refused(&Model::new(), &fewer.join("\n")).await;
        assert!(message.contains("should have 10 records and has 9"), "{message}");
        let message = refused(&Model::new(), &format!("{text}\n\n{{}}\n")).await;
        assert!(message.starts_with("line 15: data after the last line"), "{message}");
        assert!(import(&Model::new(), &format!("{text}\n\n"), false).await.is_ok());
        let store = Model::new();
        import(&store, &text, false).await.unwrap();
        let message = refused(&store, text.split_at(text.len() / 2).0).await;
        assert!(message.contains("not the same file"), "{message}");
    }

    #[tokio::test]
    async fn a_store_that_is_not_empty_needs_an_option() {
        let store = Arc::new(Model::new());
        demo::fill_store(&store, NOW).await.unwrap();
        let text = exported(10).await;
        let message = refused(&store, &text).await;
        assert!(message.contains("--into-non-empty"), "{message}");
        assert!(import(&store, &text, true).await.is_ok());
    }

    #[tokio::test]
    async fn another_currency_and_no_header_are_refused() {
        let text = exported(1).await.replacen("RUB", "EUR", 1);
        let message = refused(&Model::new(), &text).await;
        assert!(message.contains("the file is in EUR and this shop in RUB"), "{message}");
        assert_eq!(refused(&Model::new(), "").await, "the file is empty");
        assert!(refused(&Model::new(), "{}").await.starts_with("line 1: "));
    }
}
