//! `mw policy`: how every table of a cluster is used and kept, and how old the answer of each call may be.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use mw_store_cassandra::connect::HINT_WINDOW;
use mw_store_cassandra::policy::{CALLS, Call, Rules, level_name, serial_name, show_span};
use mw_store_cassandra::{Class, Options, Table};
use serde::Serialize;

use crate::config::{Config, ConfigArgs};
use crate::terminal::{self, columns};

/// Print the policy of a cluster's tables, and how old the answers of calls may be
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each table has a consistency level for its writes, reads, reads of the showcase and conditional writes; read repair; how \
long deletions and hints are kept; how often copies are compared; a time to live; a compaction. Change them under \
[store.cassandra.policy.<table>]: what could lose data is refused, here as well as at the start. `mw schema apply` gives \
tables their options.

Examples:
  mw policy
  mw policy --json | jq '.tables[] | select(.conditional) | .table'
  mw policy --set store.cassandra.policy.product_by_id.showcase=LOCAL_QUORUM")]
pub(crate) struct Args {
    /// Print it as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.config.sources())?;
    let printed = Printed::of(&config.cassandra);
    if args.json {
        let json = serde_json::to_string_pretty(&printed).context("write the policy as JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&printed.text())
}

#[derive(Debug, Serialize)]
struct Printed<'a> {
    local_dc: &'a str,
    copies: BTreeMap<&'static str, &'a BTreeMap<String, u32>>,
    tables: Vec<TableRow>,
    calls: Vec<CallRow>,
    /// How long a process shows a card again that it has read.
    cards_kept_milliseconds: u128,
}

#[derive(Debug, Serialize)]
struct TableRow {
    table: &'static str,
    class: &'static str,
    write: &'static str,
    read: &'static str,
    /// Of tables that the showcase reads.
    showcase: Option<&'static str>,
    /// Of tables with conditional writes.
    serial: Option<&'static str>,
    conditional: bool,
    read_repair: &'static str,
    gc_grace_seconds: u64,
    hints_seconds: u64,
    repair_seconds: Option<u64>,
    ttl_seconds: Option<u64>,
    compaction: String,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct CallRow {
    call: &'static str,
    routes: &'static str,
    reads: &'static str,
    tables: Vec<&'static str>,
    may_lag_seconds: u64,
}

impl<'a> Printed<'a> {
    fn of(options: &'a Options) -> Self {
        Self {
            local_dc: &options.local_dc,
            copies: Class::ALL.iter().map(|class| (class.name(), options.replication.of(*class))).collect(),
            tables: Table::ALL.iter().map(|table| table_row(*table, options)).collect(),
            calls: CALLS.iter().map(|call| call_row(call, options)).collect(),
            cards_kept_milliseconds: options.cards_kept_for().as_millis(),
        }
    }

    fn text(&self) -> String {
        let copies = self.copies.iter().map(|(class, copies)| {
            let copies: Vec<String> = copies.iter().map(|(dc, factor)| format!("{factor} in {dc}")).collect();
            format!("copies of {class}: {}", copies.join(", "))
        });
        let reasons = self.tables.iter().map(|row| vec![row.table.to_owned(), row.reason.to_owned()]);
        let kept = match self.cards_kept_milliseconds {
            0 => "Every card is read when it is asked for.".to_owned(),
            kept => format!("A process shows a card again for {kept} ms (store.cassandra.keep_cards)."),
        };
        format!(
            "The policy of tables, seen from data centre {}; {}.\n\n{}\nHow old an answer may be.\n\n{}\n{kept}\n\n\
             Why.\n\n{}",
            self.local_dc,
            copies.collect::<Vec<_>>().join("; "),
            columns(&self.table_lines()),
            columns(&self.call_lines()),
            columns(&reasons.collect::<Vec<_>>())
        )
    }

    fn table_lines(&self) -> Vec<Vec<String>> {
        let heads = [
            "table",
            "class",
            "write",
            "read",
            "showcase",
            "serial",
            "read repair",
            "gc grace",
            "hints",
            "repair",
            "ttl",
            "compaction",
        ];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        lines.extend(self.tables.iter().map(|row| {
            let span = |seconds: u64| show_span(Duration::from_secs(seconds));
            vec![
                row.table.to_owned(),
                row.class.to_owned(),
                row.write.to_owned(),
                row.read.to_owned(),
                row.showcase.unwrap_or("-").to_owned(),
                row.serial.unwrap_or("-").to_owned(),
                row.read_repair.to_owned(),
                span(row.gc_grace_seconds),
                span(row.hints_seconds),
                row.repair_seconds.map_or("off".to_owned(), span),
                row.ttl_seconds.map_or("-".to_owned(), span),
                row.compaction.clone(),
            ]
        }));
        lines
    }

    fn call_lines(&self) -> Vec<Vec<String>> {
        let mut lines = vec![["what", "may be old", "level", "tables", "routes"].map(str::to_owned).to_vec()];
        lines.extend(self.calls.iter().map(|row| {
            let lag = match row.may_lag_seconds {
                0 => "no".to_owned(),
                seconds => show_span(Duration::from_secs(seconds)),
            };
            vec![row.call.to_owned(), lag, row.reads.to_owned(), row.tables.join(", "), row.routes.to_owned()]
        }));
        lines
    }
}

fn table_row(table: Table, options: &Options) -> TableRow {
    let rules: &Rules = options.policy.of(table);
    let conditional = table.nature().is_conditional;
    TableRow {
        table: table.name(),
        class: table.class().name(),
        write: level_name(rules.write),
        read: level_name(rules.read),
        showcase: table.has_showcase().then(|| level_name(rules.showcase)),
        serial: conditional.then(|| serial_name(rules.serial)),
        conditional,
        read_repair: rules.read_repair.name(),
        gc_grace_seconds: rules.gc_grace.as_secs(),
        hints_seconds: options.policy.hint_life(table, HINT_WINDOW).as_secs(),
        repair_seconds: rules.repair.map(|interval| interval.as_secs()),
        ttl_seconds: rules.ttl.map(|ttl| ttl.as_secs()),
        compaction: rules.compaction.to_string(),
        reason: table.reason(),
    }
}

fn call_row(call: &Call, options: &Options) -> CallRow {
    let lag = options.policy.may_lag(call, &options.replication, &options.local_dc);
    CallRow {
        call: call.what,
        routes: call.routes,
        reads: call.reads.name(),
        tables: call.tables.iter().map(|table| table.name()).collect(),
        may_lag_seconds: lag.map_or(0, |lag| lag.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new(vec!["127.0.0.1:9042".to_owned()], "dc1")
    }

    #[test]
    fn every_table_and_call_has_its_line() {
        let options = options();
        let text = Printed::of(&options).text();
        for table in Table::ALL {
            assert_eq!(
                text.lines().filter(|line| line.starts_with(&format!("{table} "))).count(),
                2,
                "{table}\n{text}"
            );
        }
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            words(line("stock ")),
            [
                "stock",
                "core",
                "LOCAL_QUORUM",
                "LOCAL_QUORUM",
                "LOCAL_ONE",
                "LOCAL_SERIAL",
                "BLOCKING",
                "2d",
                "3h",
                "1d",
                "-",
                "LCS",
            ]
        );
        assert!(line("a product's card ").contains("  30s  "), "{text}");
        assert!(line("prices when an order is placed").contains("  no "), "{text}");
        assert!(text.contains("copies of carts: 3 in dc1"), "{text}");
        assert!(text.contains("A process shows a card again for 5000 ms"), "{text}");
    }

    #[test]
    fn cards_that_must_not_lag_are_not_kept() {
        let mut options = options();
        options.policy.set("product_by_id", "showcase", "LOCAL_QUORUM").unwrap();
        let printed = Printed::of(&options);
        assert_eq!(printed.cards_kept_milliseconds, 0);
        assert!(printed.text().contains("Every card is read when it is asked for."));
    }

    #[test]
    fn json_has_the_same_in_seconds() {
        let options = options();
        let json = serde_json::to_value(Printed::of(&options)).unwrap();
        let stock = json["tables"].as_array().unwrap().iter().find(|it| it["table"] == "stock").unwrap();
        assert_eq!(stock["gc_grace_seconds"], 172_800);
        assert_eq!(stock["conditional"], true);
        assert_eq!(stock["ttl_seconds"], serde_json::Value::Null);
        assert_eq!(json["copies"]["core"]["dc1"], 3);
        assert_eq!(json["calls"].as_array().unwrap().len(), CALLS.len());
    }
}
