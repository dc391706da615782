//! `cargo xtask integrity`: hinted handoff, read repair and repair, each alone on a real cluster, as a table with times.

use crate::{cargo, say};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BUILD: &str =
    "test -p mw-store-cassandra --bench integrity --no-run --locked --message-format json-render-diagnostics";

/// Read by the program: the file for its report, and the network of its cluster.
const REPORT_VARIABLE: &str = "MW_INTEGRITY_REPORT";
const NETWORK_VARIABLE: &str = "MW_INTEGRITY_NETWORK";

/// One strategy on one table.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    strategy: String,
    table: String,
    /// Rows that a replica missed.
    diverged: u64,
    healed: u64,
    seconds: f64,
    /// Rows that the strategy is to heal, by the policy of the table.
    expected: u64,
    ok: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    items: Vec<Row>,
}

pub(crate) fn run(json: Option<&Path>, network: Option<&str>) -> Result<()> {
    let program = cargo::program(BUILD)?;
    say(format_args!("starting a cluster of three nodes; the whole takes about five minutes"));
    let report = Report { items: shown(&program, network)? };
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&report).context("write JSON")?;
        fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    say(table(&report.items));
    let wrong: Vec<String> = report
        .items
        .iter()
        .filter(|row| !row.ok)
        .map(|row| format!("{} of {}", row.strategy, row.table))
        .collect();
    ensure!(wrong.is_empty(), "healing differs from what the policy expects: {}", wrong.join(", "));
    Ok(())
}

fn shown(program: &Path, network: Option<&str>) -> Result<Vec<Row>> {
    let report: PathBuf = program.with_file_name("integrity.tsv");
    let mut command = Command::new(program);
    command.current_dir(cargo::root()).env(REPORT_VARIABLE, &report).stdin(Stdio::null());
    if let Some(network) = network {
        command.env(NETWORK_VARIABLE, network);
    }
    let status = command.status().context("run the program that shows the strategies")?;
    ensure!(status.success(), "show the strategies: the program ended with {status}");
    parse(&fs::read_to_string(&report).context("read the report of the program")?)
}

/// One a line: strategy, table, diverged, healed, seconds, expected.
fn parse(report: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in report.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [strategy, table, diverged, healed, seconds, expected] = fields[..] else {
            anyhow::bail!("read the line {line:?}: it has not six fields");
        };
        let (diverged, healed, expected): (u64, u64, u64) =
            (diverged.parse()?, healed.parse()?, expected.parse()?);
        rows.push(Row {
            strategy: strategy.to_owned(),
            table: table.to_owned(),
            diverged,
            healed,
            seconds: seconds.parse()?,
            expected,
            // Without divergence there is nothing to heal, and nothing is shown.
            ok: diverged > 0 && healed == expected,
        });
    }
    ensure!(!rows.is_empty(), "the program reported no strategy");
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let mut lines = vec!["| strategy | table | diverged | healed | seconds | expected |".to_owned()];
    lines.push("|---|---|---|---|---|---|".to_owned());
    for Row { strategy, table, diverged, healed, seconds, expected, ok } in rows {
        let note = if *ok { "" } else { " **differs**" };
        lines.push(format!(
            "| {strategy} | `{table}` | {diverged} | {healed} | {seconds:.1} | {expected}{note} |"
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_must_heal_exactly_what_the_policy_says() {
        let rows = parse("hints\tstock\t60\t60\t12.5\t60\nrepair\tcart_changes\t60\t0\t30.0\t0\n").unwrap();
        assert!(rows.iter().all(|row| row.ok), "{rows:?}");
        let ok = |line: &str| parse(line).unwrap()[0].ok;
        assert!(!ok("hints\tstock\t60\t59\t12.5\t60"), "one row is not healed");
        assert!(!ok("repair\tcart_changes\t60\t1\t30.0\t0"), "a strategy that is off heals nothing");
        assert!(!ok("hints\tstock\t0\t0\t1.0\t0"), "without divergence nothing is shown");
    }

    #[test]
    fn a_damaged_report_is_refused() {
        for damaged in ["", "hints\tstock\t60", "hints\tstock\tx\t1\t1\t1"] {
            assert!(parse(damaged).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn the_table_marks_what_differs() {
        let text = table(&parse("hints\tstock\t60\t59\t12.5\t60").unwrap());
        assert!(text.ends_with("| hints | `stock` | 60 | 59 | 12.5 | 60 **differs** |"), "{text}");
    }
}
