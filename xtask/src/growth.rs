//! `cargo xtask growth`: a node joins a filled Cassandra cluster and a shard joins a filled MongoDB cluster, both under load, as a
//! table of what moved, how long it took and what requests noticed, beside what the models predict.

use crate::{cargo, say};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Read by the programs: the file for their report, and the network of the Cassandra cluster.
const REPORT_VARIABLE: &str = "MW_GROWTH_REPORT";
const NETWORK_VARIABLE: &str = "MW_GROWTH_NETWORK";
/// How far the measured share may be from the predicted one, as a part of it.
const TOLERANCE: f64 = 0.2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Database {
    Cassandra,
    Mongodb,
}

impl Database {
    const ALL: [Self; 2] = [Self::Cassandra, Self::Mongodb];

    const fn package(self) -> &'static str {
        match self {
            Self::Cassandra => "mw-store-cassandra",
            Self::Mongodb => "mw-store-mongodb",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

/// One growth of one collection or table.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    database: String,
    /// What decides where a row lies.
    key: String,
    event: String,
    /// Bytes that were stored before, replicas included.
    stored_bytes: u64,
    moved_bytes: u64,
    /// Of the stored bytes.
    share: f64,
    predicted_share: f64,
    seconds: f64,
    /// The share of all writes that the busiest node or shard took.
    busiest_share: f64,
    /// Requests of the prober.
    failed: u64,
    before_ms: Latency,
    during_ms: Latency,
    ok: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    items: Vec<Row>,
}

pub(crate) fn run(only: Option<Database>, json: Option<&Path>, network: Option<&str>) -> Result<()> {
    let mut items = Vec::new();
    for database in Database::ALL.into_iter().filter(|it| only.is_none_or(|only| only == *it)) {
        items.extend(measured(database, network)?);
    }
    let report = Report { items };
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&report).context("write JSON")?;
        fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    say(table(&report.items));
    let wrong: Vec<String> = report
        .items
        .iter()
        .filter(|row| !row.ok)
        .map(|row| format!("{} by {}: {}", row.database, row.key, row.event))
        .collect();
    ensure!(
        wrong.is_empty(),
        "the moved share differs by more than 20 % from the prediction: {}",
        wrong.join("; ")
    );
    Ok(())
}

fn measured(database: Database, network: Option<&str>) -> Result<Vec<Row>> {
    let package = database.package();
    let build = format!(
        "test -p {package} --bench growth --no-run --locked --message-format json-render-diagnostics"
    );
    let program = cargo::program(&build)?;
    say(format_args!("starting a cluster of {database:?}; this takes about three minutes"));
    let report = program.with_file_name(format!("growth-{package}.tsv"));
    let mut command = Command::new(&program);
    command.current_dir(cargo::root()).env(REPORT_VARIABLE, &report).stdin(Stdio::null());
    if let Some(network) = network {
        command.env(NETWORK_VARIABLE, network);
    }
    let status = command.status().context("run the program that grows a cluster")?;
    ensure!(status.success(), "grow a cluster of {database:?}: the program ended with {status}");
    parse(&fs::read_to_string(&report).context("read the report of the program")?)
}

fn parse(report: &str) -> Result<Vec<Row>> {
    let rows: Vec<Row> = report.lines().map(row).collect::<Result<_>>()?;
    ensure!(!rows.is_empty(), "the program reported nothing");
    Ok(rows)
}

/// Database, key, event, stored and moved bytes, predicted share, seconds, busiest share, failed requests, and the median and one of a
/// hundred latencies before and during.
fn row(line: &str) -> Result<Row> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [database, key, event, stored, moved, predicted, seconds, busiest, failed, rest @ ..] = &fields[..]
    else {
        bail!("read the line {line:?}: it has too few fields");
    };
    let latencies: Vec<f64> =
        rest.iter().map(|field| field.parse()).collect::<Result<_, _>>().context("read latencies")?;
    let [before_p50, before_p99, during_p50, during_p99] = latencies[..] else {
        bail!("read the line {line:?}: it has not four latencies");
    };
    let (stored_bytes, moved_bytes): (u64, u64) = (stored.parse()?, moved.parse()?);
    let predicted_share: f64 = predicted.parse()?;
    #[expect(clippy::cast_precision_loss, reason = "bytes of one machine, below 2^53")]
    let share = moved_bytes as f64 / stored_bytes.max(1) as f64;
    Ok(Row {
        database: (*database).to_owned(),
        key: (*key).to_owned(),
        event: (*event).to_owned(),
        stored_bytes,
        moved_bytes,
        share,
        predicted_share,
        seconds: seconds.parse()?,
        busiest_share: busiest.parse()?,
        failed: failed.parse()?,
        before_ms: Latency { p50: before_p50, p99: before_p99 },
        during_ms: Latency { p50: during_p50, p99: during_p99 },
        // Where nothing moved, nothing was measured.
        ok: moved_bytes > 0 && (share - predicted_share).abs() <= TOLERANCE * predicted_share,
    })
}

fn table(rows: &[Row]) -> String {
    let mut lines = vec![
        "| database | rows lie by | growth | stored MB | moved MB | share | predicted | seconds | busiest takes of the writes | \
         p50, p99 ms before | meanwhile | failed |"
            .to_owned(),
        format!("|{}", "---|".repeat(12)),
    ];
    for row in rows {
        let Row { database, key, event, seconds, failed, before_ms, during_ms, .. } = row;
        let note = if row.ok { "" } else { " **differs**" };
        lines.push(format!(
            "| {database} | {key} | {event} | {:.0} | {:.1} | {:.1} % | {:.1} %{note} | {seconds:.0} | {:.0} % | {} | {} | {failed} |",
            megabytes(row.stored_bytes),
            megabytes(row.moved_bytes),
            row.share * 100.0,
            row.predicted_share * 100.0,
            row.busiest_share * 100.0,
            shown(*before_ms),
            shown(*during_ms),
        ));
    }
    lines.join("\n")
}

#[expect(clippy::cast_precision_loss, reason = "bytes of one machine, below 2^53")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn shown(latency: Latency) -> String {
    format!("{:.0}, {:.0}", latency.p50, latency.p99)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(moved: u64) -> String {
        format!("Cassandra\ttoken\ta node joins three\t1000\t{moved}\t0.25\t40.5\t0.34\t0\t3\t12\t4\t30")
    }

    #[test]
    fn a_fifth_off_the_prediction_is_still_right() {
        let ok = |moved| row(&line(moved)).unwrap().ok;
        assert!(ok(250) && ok(201) && ok(299));
        assert!(!ok(199) && !ok(301) && !ok(0));
        let nothing = line(0).replace("0.25", "0");
        assert!(!row(&nothing).unwrap().ok, "where nothing moved nothing is shown");
    }

    #[test]
    fn a_damaged_report_is_refused() {
        for damaged in
            ["", "Cassandra\ttoken", &line(250).replace("\t30", ""), &line(250).replace("1000", "x")]
        {
            assert!(parse(damaged).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn the_table_marks_what_differs() {
        let rows = parse(&format!("{}\n{}", line(250), line(400))).unwrap();
        let text = table(&rows);
        assert!(text.contains("| 25.0 % | 25.0 % | 40 | 34 % | 3, 12 | 4, 30 | 0 |"), "{text}");
        assert_eq!(text.matches("**differs**").count(), 1, "{text}");
    }
}
