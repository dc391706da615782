//! `mw lab ring`: the statements of traced processes on a ring of any size.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mw_operate::ring::{Options, Report, TableReport, Trace, simulate};

use crate::terminal::{self, columns};

/// Lay traced statements on a ring of nodes, and show which nodes and partitions they load
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Traces are written by `mw serve --store cassandra --set store.cassandra.trace=trace.jsonl`, one file a process. A statement counts \
once at each replica of its token; time is compressed to --rate requests a second.

A key is even when the busiest node stays below 1.5 times the mean in 99 of 100 windows of 100 ms, no partition takes both more than \
1 % of its table's writes and more than 200 writes a second, none takes more than 50 lightweight transactions a second, and less than \
2 % of a table's writes meet a write of another process (`meeting`, at true speed). What exceeds these is marked with `!`; partitions \
of hit products in `stock` are expected to.

Examples:
  mw lab ring --trace trace.jsonl --nodes 30
  mw lab ring --trace a.jsonl --trace b.jsonl --nodes 50 --rate 80000 --json | jq .node_max_over_mean")]
pub(crate) struct Args {
    /// A trace of one process; give it once for each process
    #[arg(long = "trace", value_name = "FILE", required = true)]
    traces: Vec<PathBuf>,

    /// Nodes of the ring
    #[arg(long, value_name = "N")]
    nodes: usize,

    /// Token ranges of each node (`num_tokens`)
    #[arg(long, value_name = "N", default_value_t = 16)]
    vnodes: usize,

    /// Replication factor
    #[arg(long, value_name = "N", default_value_t = 3)]
    replicas: usize,

    /// Requests a second that time is compressed to
    #[arg(long, value_name = "N", default_value_t = 50_000.0)]
    rate: f64,

    /// Seed of the order in which token ranges are dealt to the nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Args { nodes, vnodes, replicas, rate, seed, .. } = *args;
    let options = Options { nodes, vnodes, replicas, rate, seed };
    options.check()?;
    let traces = args.traces.iter().map(|path| read(path)).collect::<Result<Vec<Trace>>>()?;
    let report = simulate(&traces, &options)?;
    if args.json {
        let json = serde_json::to_string_pretty(&report).context("write the report as JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&text(&report, &options))
}

fn read(path: &Path) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("open the trace {}", path.display()))?;
    Trace::read(BufReader::new(file)).with_context(|| format!("read the trace {}", path.display()))
}

fn text(report: &Report, options: &Options) -> String {
    let mut lines = vec![
        ["table", "statements/request", "hottest", "writes/s", "LWT/s", "rows/day", "bytes/day", "meeting"]
            .map(str::to_owned)
            .to_vec(),
    ];
    lines.extend(report.tables.iter().map(|(name, table)| line(name, table)));
    let Report { requests, statements_per_request, node_max_over_mean, moved_by_a_node, .. } = report;
    format!(
        "{requests} requests, {statements_per_request:.2} statements each, on {} nodes at {:.0} requests/s\n\
         busiest node over the mean in 100 ms: median {:.2}, p99 {:.2}{}\n\
         a node added receives {:.1} % of the data, {} of a day's writes\n\n{}",
        options.nodes,
        options.rate,
        node_max_over_mean.p50,
        node_max_over_mean.p99,
        mark(node_max_over_mean.p99 > 1.5),
        moved_by_a_node.share * 100.0,
        bytes(moved_by_a_node.bytes),
        columns(&lines),
    )
}

fn line(name: &str, table: &TableReport) -> Vec<String> {
    let is_hot = table.hottest_partition_share > 0.01 && table.writes_per_second_max > 200.0;
    vec![
        name.to_owned(),
        format!("{:.3}", table.statements_per_request),
        format!("{:.2} %{}", table.hottest_partition_share * 100.0, mark(is_hot)),
        format!("{:.0}{}", table.writes_per_second_max, mark(is_hot)),
        format!("{:.0}{}", table.cas_per_second_max, mark(table.cas_per_second_max > 50.0)),
        format!("{:.0}{}", table.rows_per_day_max, mark(table.rows_per_day_max > 100_000.0)),
        format!("{}{}", bytes(table.bytes_per_day_max), mark(table.bytes_per_day_max > 10.0 * MIB)),
        format!("{:.2} %{}", table.meeting_share * 100.0, mark(table.meeting_share >= 0.02)),
    ]
}

const fn mark(is_exceeded: bool) -> &'static str {
    if is_exceeded { " !" } else { "" }
}

const MIB: f64 = 1_048_576.0;

fn bytes(count: f64) -> String {
    let units = [("GiB", 1_024.0 * MIB), ("MiB", MIB), ("KiB", 1_024.0)];
    let unit = units.into_iter().find(|(_, size)| count >= *size);
    unit.map_or_else(|| format!("{count:.0} B"), |(name, size)| format!("{:.1} {name}", count / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_a_bound_is_marked() {
        let cool = TableReport {
            hottest_partition_share: 0.5,
            writes_per_second_max: 3.0,
            ..TableReport::default()
        };
        assert!(!line("t", &cool).concat().contains('!'), "a small table may have one partition");
        let hot = TableReport { writes_per_second_max: 300.0, ..cool };
        assert_eq!(line("t", &hot)[2..4], ["50.00 % !", "300 !"]);
    }

    #[test]
    fn bytes_have_a_unit_that_a_person_reads() {
        assert_eq!(
            [12.0, 2_048.0, 10.0 * MIB, 6.5 * 1_024.0 * MIB].map(bytes),
            ["12 B", "2.0 KiB", "10.0 MiB", "6.5 GiB"]
        );
    }
}
