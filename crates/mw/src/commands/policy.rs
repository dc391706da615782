//! `mw policy`: the policy of every table of a Cassandra cluster, and how stale the response of each call may be; on MongoDB
//! where each call reads.

mod calls;
mod mongodb;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use mw_store_cassandra::connect::HINT_WINDOW;
use mw_store_cassandra::policy::{format_duration, level_name, serial_name};
use mw_store_cassandra::{Class, Options, Table};
use serde::Serialize;

use self::calls::{CALLS, Call};
use crate::config::{Config, ConfigArgs, Engine};
use crate::terminal::{self, columns};

/// Print the policy of the Cassandra tables or of reads on MongoDB, and how stale the response of each call may be
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each table has consistency levels for writes, reads, stale reads and LWTs (serial); read repair; gc_grace, which also \
bounds how long hints are kept; a repair interval; a TTL; a compaction strategy. Change them under \
[store.cassandra.policy.<table>]. A combination that may lose or resurrect data is refused, here and at startup. \
`mw schema apply` sets the table options.

With --store mongodb it prints read preference, read concern and staleness of each call; change them under \
[store.mongodb.policy.<call>].

Examples:
  mw policy
  mw policy --store mongodb
  mw policy --json | jq '.tables[] | select(.lwt) | .table'
  mw policy --set store.cassandra.policy.product_by_id.stale_read=LOCAL_QUORUM")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.config.sources())?;
    if config.engine == Engine::Mongodb {
        return mongodb::run(&config.mongodb, args.json);
    }
    let report = Report::of(&config.cassandra);
    if args.json {
        let json = serde_json::to_string_pretty(&report).context("write the policy as JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&report.text())
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    local_dc: &'a str,
    /// By replication class and data centre.
    replication_factor: BTreeMap<&'static str, &'a BTreeMap<String, u32>>,
    tables: Vec<TableRow>,
    calls: Vec<CallRow>,
    /// How long a process serves a product that it has read; 0: the cache is off.
    product_cache_ttl_ms: u128,
}

#[derive(Debug, Serialize)]
struct TableRow {
    table: &'static str,
    class: &'static str,
    write: &'static str,
    read: &'static str,
    /// Of tables with stale reads.
    stale_read: Option<&'static str>,
    /// Of tables with LWTs.
    serial: Option<&'static str>,
    lwt: bool,
    read_repair: &'static str,
    gc_grace_seconds: u64,
    hint_window_seconds: u64,
    repair_interval_seconds: Option<u64>,
    ttl_seconds: Option<u64>,
    compaction: String,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct CallRow {
    call: &'static str,
    routes: &'static str,
    level: &'static str,
    tables: Vec<&'static str>,
    /// 0: the response reflects every acknowledged write.
    max_staleness_seconds: u64,
}

impl<'a> Report<'a> {
    fn of(options: &'a Options) -> Self {
        let factors = Class::ALL.iter().map(|class| (class.name(), options.replication.of(*class)));
        Self {
            local_dc: &options.local_dc,
            replication_factor: factors.collect(),
            tables: Table::ALL.iter().map(|table| table_row(*table, options)).collect(),
            calls: CALLS.iter().map(|call| call_row(call, options)).collect(),
            product_cache_ttl_ms: options.effective_product_cache_ttl().as_millis(),
        }
    }

    fn text(&self) -> String {
        let factors = self.replication_factor.iter().map(|(class, factors)| {
            let factors: Vec<String> =
                factors.iter().map(|(dc, factor)| format!("{factor} in {dc}")).collect();
            format!("{class} {}", factors.join(", "))
        });
        let reasons = self.tables.iter().map(|row| vec![row.table.to_owned(), row.reason.to_owned()]);
        format!(
            "Table policy for processes in data centre {}. Replication factor: {}.\n\n{}\nStaleness of responses.\n\n{}\n\
             {}\n\nReasons.\n\n{}",
            self.local_dc,
            factors.collect::<Vec<_>>().join("; "),
            columns(&self.table_lines()),
            columns(&self.call_lines()),
            self.product_cache(),
            columns(&reasons.collect::<Vec<_>>())
        )
    }

    fn product_cache(&self) -> String {
        match self.product_cache_ttl_ms {
            0 => "The product cache is off: every product is read from Cassandra.".to_owned(),
            ttl => {
                let ttl = if ttl % 1_000 == 0 { format!("{}s", ttl / 1_000) } else { format!("{ttl}ms") };
                format!("A process serves a cached product for {ttl} (store.cassandra.product_cache_ttl).")
            }
        }
    }

    fn table_lines(&self) -> Vec<Vec<String>> {
        let heads = [
            "table",
            "class",
            "write",
            "read",
            "stale read",
            "serial",
            "read repair",
            "gc_grace",
            "hint window",
            "repair interval",
            "ttl",
            "compaction",
        ];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        lines.extend(self.tables.iter().map(|row| {
            let span = |seconds: u64| format_duration(Duration::from_secs(seconds));
            vec![
                row.table.to_owned(),
                row.class.to_owned(),
                row.write.to_owned(),
                row.read.to_owned(),
                row.stale_read.unwrap_or("-").to_owned(),
                row.serial.unwrap_or("-").to_owned(),
                row.read_repair.to_owned(),
                span(row.gc_grace_seconds),
                span(row.hint_window_seconds),
                row.repair_interval_seconds.map_or("off".to_owned(), span),
                row.ttl_seconds.map_or("-".to_owned(), span),
                row.compaction.clone(),
            ]
        }));
        lines
    }

    fn call_lines(&self) -> Vec<Vec<String>> {
        let heads = ["call", "max staleness", "level", "tables", "routes"];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        lines.extend(self.calls.iter().map(|row| {
            let staleness = match row.max_staleness_seconds {
                0 => "none".to_owned(),
                seconds => format_duration(Duration::from_secs(seconds)),
            };
            let (call, level, routes) = (row.call.to_owned(), row.level.to_owned(), row.routes.to_owned());
            vec![call, staleness, level, row.tables.join(", "), routes]
        }));
        lines
    }
}

fn table_row(table: Table, options: &Options) -> TableRow {
    let policy = options.policy.of(table);
    let lwt = table.traits().has_lwt;
    TableRow {
        table: table.name(),
        class: table.class().name(),
        write: level_name(policy.write),
        read: level_name(policy.read),
        stale_read: table.has_stale_read().then(|| level_name(policy.stale_read)),
        serial: lwt.then(|| serial_name(policy.serial)),
        lwt,
        read_repair: policy.read_repair.name(),
        gc_grace_seconds: policy.gc_grace.as_secs(),
        hint_window_seconds: options.policy.hint_window(table, HINT_WINDOW).as_secs(),
        repair_interval_seconds: policy.repair.map(|interval| interval.as_secs()),
        ttl_seconds: policy.ttl.map(|ttl| ttl.as_secs()),
        compaction: policy.compaction.to_string(),
        reason: table.reason(),
    }
}

fn call_row(call: &Call, options: &Options) -> CallRow {
    CallRow {
        call: call.name,
        routes: call.routes,
        level: call.read.name(),
        tables: call.tables.iter().map(|table| table.name()).collect(),
        max_staleness_seconds: call.max_staleness(options).map_or(0, |staleness| staleness.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new(vec!["127.0.0.1:9042".to_owned()], "dc1")
    }

    #[test]
    fn every_table_and_call_has_a_line() {
        let options = options();
        let text = Report::of(&options).text();
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
        assert!(line("product ").contains("  30s  "), "{text}");
        assert!(line("prices when an order is placed").contains("  none "), "{text}");
        assert!(text.contains("Replication factor: carts 3 in dc1; "), "{text}");
        assert!(text.contains("A process serves a cached product for 5s"), "{text}");
    }

    #[test]
    fn the_product_cache_is_off_where_reads_of_products_are_never_stale() {
        let mut options = options();
        options.policy.set("product_by_id", "stale_read", "LOCAL_QUORUM").unwrap();
        let report = Report::of(&options);
        assert_eq!(report.product_cache_ttl_ms, 0);
        assert!(report.text().contains("The product cache is off"));
    }

    #[test]
    fn json_has_durations_in_seconds() {
        let options = options();
        let json = serde_json::to_value(Report::of(&options)).unwrap();
        let stock = json["tables"].as_array().unwrap().iter().find(|it| it["table"] == "stock").unwrap();
        assert_eq!(stock["gc_grace_seconds"], 172_800);
        assert_eq!(stock["lwt"], true);
        assert_eq!(stock["ttl_seconds"], serde_json::Value::Null);
        assert_eq!(json["replication_factor"]["core"]["dc1"], 3);
        assert_eq!(json["calls"].as_array().unwrap().len(), CALLS.len());
    }
}
