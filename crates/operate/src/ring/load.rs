//! The load of the nodes and of the partitions.

use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

use super::topology::Topology;
use super::trace::{Op, Statement, Trace};
use super::{Moved, Options, Quantiles, Report, TableReport};

/// Windows in which the busiest node is compared with the mean.
const WINDOW_MS: f64 = 100.0;
const SECOND_MS: f64 = 1_000.0;
const DAY_SECONDS: f64 = 86_400.0;
/// A partition that is written for this share of the trace or more is taken to be written all day. One that is written for less is
/// divided by time: what it received is multiplied by the compression alone.
const LASTING_SHARE: f64 = 0.5;

/// One statement of the merged traces, at compressed time.
struct Placed<'a> {
    statement: &'a Statement,
    process: usize,
    table: usize,
    compressed_ms: f64,
}

/// The traces as one load.
struct Load<'a> {
    tables: Vec<&'a str>,
    statements: Vec<Placed<'a>>,
    requests: u64,
    /// How many times faster than it was traced.
    compression: f64,
    true_ms: f64,
    compressed_ms: f64,
}

pub(super) fn report(traces: &[Trace], options: &Options) -> Report {
    let load = Load::of(traces, options.rate);
    let topology = Topology::new(options.nodes, options.vnodes, options.replicas, options.seed);
    let by_table = load.by_table();
    let tables = load.tables.iter().zip(&by_table);
    Report {
        requests: load.requests,
        statements_per_request: ratio(load.statements.len(), load.requests),
        node_max_over_mean: load.node_max_over_mean(&topology),
        tables: tables.map(|(name, statements)| ((*name).to_owned(), load.table(statements))).collect(),
        moved_by_a_node: load.moved(&topology, options),
    }
}

impl<'a> Load<'a> {
    fn of(traces: &'a [Trace], rate: f64) -> Self {
        let spans: Vec<(f64, f64)> = traces.iter().filter_map(|trace| trace.span_ms).collect();
        let first = spans.iter().map(|span| span.0).fold(f64::INFINITY, f64::min);
        let last = spans.iter().map(|span| span.1).fold(f64::NEG_INFINITY, f64::max);
        // A trace of one instant has no rate of its own.
        let true_ms = (last - first).max(1.0);
        let requests: u64 = traces.iter().map(|trace| trace.requests).sum();
        let compression = rate * true_ms / SECOND_MS / as_f64(requests.max(1));
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for name in traces.iter().flat_map(|trace| &trace.tables) {
            let next = names.len();
            names.entry(name).or_insert(next);
        }
        let mut tables = vec![""; names.len()];
        for (name, index) in &names {
            if let Some(table) = tables.get_mut(*index) {
                *table = name;
            }
        }
        let mut statements = Vec::with_capacity(traces.iter().map(|trace| trace.statements.len()).sum());
        for (process, trace) in traces.iter().enumerate() {
            let indexes: Vec<usize> =
                trace.tables.iter().map(|name| names.get(name.as_str()).copied().unwrap_or(0)).collect();
            statements.extend(trace.statements.iter().map(|statement| Placed {
                statement,
                process,
                table: indexes.get(statement.table).copied().unwrap_or(0),
                compressed_ms: (statement.at_ms - first) / compression,
            }));
        }
        Self { tables, statements, requests, compression, true_ms, compressed_ms: true_ms / compression }
    }

    fn by_table(&self) -> Vec<Vec<&Placed<'a>>> {
        let mut tables: Vec<Vec<&Placed<'a>>> = self.tables.iter().map(|_| Vec::new()).collect();
        for placed in &self.statements {
            if let Some(statements) = tables.get_mut(placed.table) {
                statements.push(placed);
            }
        }
        tables
    }

    fn node_max_over_mean(&self, topology: &Topology) -> Quantiles {
        // The last window is left out where it is cut short by the end of the trace.
        let whole = window_of(self.compressed_ms, WINDOW_MS).max(1);
        let mut windows = vec![vec![0_u32; topology.nodes()]; whole];
        for placed in &self.statements {
            let Some(nodes) = windows.get_mut(window_of(placed.compressed_ms, WINDOW_MS)) else { continue };
            match placed.statement.token {
                Some(token) => {
                    for node in topology.replicas(token) {
                        if let Some(count) = nodes.get_mut(*node) {
                            *count += 1;
                        }
                    }
                }
                // A scan asks for every range.
                None => nodes.iter_mut().for_each(|count| *count += 1),
            }
        }
        let mut ratios: Vec<f64> = windows.iter().filter_map(|nodes| max_over_mean(nodes)).collect();
        ratios.sort_by(f64::total_cmp);
        Quantiles { p50: quantile(&ratios, 0.50), p99: quantile(&ratios, 0.99) }
    }

    fn table(&self, statements: &[&Placed<'a>]) -> TableReport {
        let writes: Vec<&Placed<'a>> =
            statements.iter().copied().filter(|placed| placed.statement.op.is_write()).collect();
        let hottest = self.hottest(&writes);
        let (rows_per_day_max, bytes_per_day_max) = self.per_day(&writes);
        TableReport {
            statements_per_request: ratio(statements.len(), self.requests),
            rows_per_day_max,
            bytes_per_day_max,
            meeting_share: meeting_share(&writes),
            ..hottest
        }
    }

    /// The busiest partition of any second.
    fn hottest(&self, writes: &[&Placed<'a>]) -> TableReport {
        // A last second that the end of the trace cuts short has few writes, and one of few is a large share.
        let whole = window_of(self.compressed_ms, SECOND_MS).max(1);
        let mut seconds: BTreeMap<usize, Second> = BTreeMap::new();
        for placed in writes {
            let second = window_of(placed.compressed_ms, SECOND_MS);
            let Some(token) = placed.statement.token.filter(|_| second < whole) else { continue };
            let (total, partitions) = seconds.entry(second).or_default();
            *total += 1;
            let (count, cas) = partitions.entry(token).or_default();
            *count += 1;
            *cas += u64::from(placed.statement.op == Op::Cas);
        }
        // Less than a second of trace is taken to go on as it began.
        let scale = (SECOND_MS / self.compressed_ms).max(1.0);
        let mut hottest = TableReport::default();
        for (total, partitions) in seconds.values() {
            for (count, cas) in partitions.values() {
                let (rate, share) = (as_f64(*count) * scale, as_f64(*count) / as_f64(*total));
                let known = (hottest.writes_per_second_max, hottest.hottest_partition_share);
                if (rate, share) > known {
                    hottest.writes_per_second_max = rate;
                    hottest.hottest_partition_share = share;
                }
                hottest.cas_per_second_max = hottest.cas_per_second_max.max(as_f64(*cas) * scale);
            }
        }
        hottest
    }

    /// The most rows and bytes that one partition receives in a day.
    fn per_day(&self, writes: &[&Placed<'a>]) -> (f64, f64) {
        let mut partitions: FxHashMap<i64, Received> = FxHashMap::default();
        for placed in writes {
            let Some(token) = placed.statement.token else { continue };
            partitions.entry(token).or_default().add(placed.statement);
        }
        let days = DAY_SECONDS * SECOND_MS / self.compressed_ms;
        let factor = |received: &Received| {
            let is_lasting = received.last_ms - received.first_ms >= LASTING_SHARE * self.true_ms;
            if is_lasting { days } else { self.compression.max(1.0) }
        };
        partitions.values().fold((0.0, 0.0), |(rows, bytes): (f64, f64), received| {
            let factor = factor(received);
            (rows.max(as_f64(received.rows) * factor), bytes.max(as_f64(received.bytes) * factor))
        })
    }

    fn moved(&self, topology: &Topology, options: &Options) -> Moved {
        let joined = topology.join(options.vnodes, options.replicas, options.seed);
        let (mut moved, mut all) = (0, 0);
        for placed in self.statements.iter().filter(|placed| placed.statement.op.is_write()) {
            let Some(token) = placed.statement.token else { continue };
            all += placed.statement.bytes;
            if topology.moves(&joined, token) {
                moved += placed.statement.bytes;
            }
        }
        let replicas = u64::try_from(options.replicas).unwrap_or(u64::MAX);
        let share = if all == 0 { 0.0 } else { as_f64(moved) / as_f64(all.saturating_mul(replicas)) };
        Moved { share, bytes: as_f64(moved) * DAY_SECONDS * SECOND_MS / self.compressed_ms }
    }
}

/// Writes of a table in one second: of all partitions, and of each with its lightweight transactions.
type Second = (u64, FxHashMap<i64, (u64, u64)>);

/// What one partition received.
struct Received {
    rows: u64,
    bytes: u64,
    first_ms: f64,
    last_ms: f64,
}

impl Default for Received {
    fn default() -> Self {
        Self { rows: 0, bytes: 0, first_ms: f64::INFINITY, last_ms: f64::NEG_INFINITY }
    }
}

impl Received {
    fn add(&mut self, statement: &Statement) {
        self.rows += statement.rows;
        self.bytes += statement.bytes;
        self.first_ms = self.first_ms.min(statement.at_ms);
        self.last_ms = self.last_ms.max(statement.at_ms);
    }
}

/// The share of writes that another process's write of the same partition is within a second of.
fn meeting_share(writes: &[&Placed<'_>]) -> f64 {
    let mut partitions: FxHashMap<i64, Vec<(f64, usize)>> = FxHashMap::default();
    let mut all = 0_usize;
    for placed in writes {
        let Some(token) = placed.statement.token else { continue };
        all += 1;
        partitions.entry(token).or_default().push((placed.statement.at_ms, placed.process));
    }
    let mut meeting = 0_usize;
    for writes in partitions.values_mut() {
        let processes: FxHashSet<usize> = writes.iter().map(|(_, process)| *process).collect();
        if processes.len() > 1 {
            writes.sort_by(|a, b| a.0.total_cmp(&b.0));
            meeting += (0..writes.len()).filter(|index| meets(writes, *index)).count();
        }
    }
    if all == 0 { 0.0 } else { as_f64(meeting as u64) / as_f64(all as u64) }
}

/// Whether a write of another process is within a second of this one, in writes sorted by time.
fn meets(writes: &[(f64, usize)], index: usize) -> bool {
    let Some((at, process)) = writes.get(index).copied() else { return false };
    let near = |other: &&(f64, usize)| (other.0 - at).abs() <= SECOND_MS;
    let (before, after) = writes.split_at(index);
    let is_other = |other: &(f64, usize)| other.1 != process;
    before.iter().rev().take_while(near).any(is_other) || after.iter().take_while(near).any(is_other)
}

fn max_over_mean(nodes: &[u32]) -> Option<f64> {
    let sum: u64 = nodes.iter().copied().map(u64::from).sum();
    let max = nodes.iter().copied().max()?;
    (sum > 0).then(|| f64::from(max) * as_f64(nodes.len() as u64) / as_f64(sum))
}

/// The nearest rank.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = window_of(as_f64(sorted.len() as u64) * share, 1.0);
    sorted.get(rank.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of windows: never negative, far below the limit"
)]
fn window_of(at: f64, width: f64) -> usize {
    (at.max(0.0) / width) as usize
}

fn ratio(count: usize, requests: u64) -> f64 {
    as_f64(count as u64) / as_f64(requests.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "shares of counted writes, exact where none or all are meant")]
mod tests {
    use super::super::simulate;
    use super::*;
    use std::fmt::Write;

    const OPTIONS: Options = Options { nodes: 30, vnodes: 16, replicas: 3, rate: 1_000.0, seed: 3 };

    /// A trace of so many requests a second for ten seconds, each with the statements that `per_request` writes.
    fn trace(rate: u64, mut per_request: impl FnMut(u64, u64, &mut String)) -> Trace {
        let mut text = String::new();
        for index in 0..rate * 10 {
            let at = index * 1_000 / rate;
            writeln!(text, r#"{{"t":{at},"op":"request","request":"GET /x"}}"#).unwrap();
            per_request(index, at, &mut text);
        }
        Trace::read(text.as_bytes()).unwrap()
    }

    fn statement(text: &mut String, at: u64, op: &str, token: i64) {
        writeln!(text, r#"{{"t":{at},"table":"mw.t","token":{token},"op":"{op}","rows":1,"bytes":100}}"#)
            .unwrap();
    }

    /// A token that differs for every index.
    fn spread(index: u64) -> i64 {
        index.wrapping_mul(0x9e37_79b9_7f4a_7c15).cast_signed()
    }

    #[test]
    fn even_keys_give_even_nodes_and_no_hot_partition() {
        let traces = [trace(1_000, |index, at, text| statement(text, at, "write", spread(index)))];
        let report = simulate(&traces, &OPTIONS).unwrap();
        assert_eq!((report.requests, report.statements_per_request), (10_000, 1.0));
        assert!(report.node_max_over_mean.p50 < 2.2, "{report:?}");
        let table = report.tables["mw.t"];
        assert!(table.hottest_partition_share < 0.01 && table.writes_per_second_max <= 1.0, "{table:?}");
        assert_eq!(table.meeting_share, 0.0);
    }

    #[test]
    fn a_partition_that_the_whole_shop_writes_is_found() {
        let hot = |index: u64| if index.is_multiple_of(10) { 77 } else { spread(index) };
        let traces = [trace(1_000, |index, at, text| statement(text, at, "cas", hot(index)))];
        let table = simulate(&traces, &OPTIONS).unwrap().tables["mw.t"];
        assert!((table.hottest_partition_share - 0.1).abs() < 0.01, "{table:?}");
        assert!((table.cas_per_second_max - 100.0).abs() < 2.0, "{table:?}");
        assert!((table.rows_per_day_max - 100.0 * 86_400.0).abs() < 0.01 * 8_640_000.0, "{table:?}");
        assert!((table.bytes_per_day_max / table.rows_per_day_max - 100.0).abs() < 0.1);
    }

    #[test]
    fn time_is_compressed_to_the_rate() {
        let traces = [trace(100, |_, at, text| statement(text, at, "write", 5))];
        let table = simulate(&traces, &Options { rate: 400.0, ..OPTIONS }).unwrap().tables["mw.t"];
        assert!((table.writes_per_second_max - 400.0).abs() < 8.0, "{table:?}");
    }

    #[test]
    fn one_partition_loads_its_replicas_alone() {
        let traces = [trace(1_000, |_, at, text| statement(text, at, "read", 5))];
        let report = simulate(&traces, &OPTIONS).unwrap();
        assert!((report.node_max_over_mean.p50 - 10.0).abs() < 0.01, "three of thirty: {report:?}");
    }

    #[test]
    fn processes_meet_where_they_write_one_partition_within_a_second() {
        let own = |process: u64| {
            trace(10, move |index, at, text| statement(text, at, "write", spread(index << 1 | process)))
        };
        let apart = simulate(&[own(0), own(1)], &OPTIONS).unwrap();
        assert_eq!(apart.tables["mw.t"].meeting_share, 0.0);
        let shared =
            |_| trace(10, |_, at, text| statement(text, at, "write", i64::try_from(at / 1_000).unwrap()));
        let together = simulate(&[shared(0), shared(1)], &OPTIONS).unwrap();
        assert_eq!(together.tables["mw.t"].meeting_share, 1.0);
        let alone = simulate(&[shared(0)], &OPTIONS).unwrap();
        assert_eq!(alone.tables["mw.t"].meeting_share, 0.0, "one process meets none");
    }

    #[test]
    fn a_partition_divided_by_time_is_not_extrapolated_to_a_day() {
        // Ten partitions a second: each lives for a tenth.
        let traces = [trace(1_000, |_, at, text| statement(text, at, "write", spread(at / 100)))];
        let table = simulate(&traces, &OPTIONS).unwrap().tables["mw.t"];
        assert!((table.rows_per_day_max - 100.0).abs() < 2.0, "{table:?}");
    }

    #[test]
    fn a_node_added_takes_its_share() {
        let traces = [trace(1_000, |index, at, text| statement(text, at, "write", spread(index)))];
        let moved = simulate(&traces, &OPTIONS).unwrap().moved_by_a_node;
        assert!((moved.share * 31.0 - 1.0).abs() < 0.25, "{moved:?}");
        let day = 1_000.0 * 86_400.0 * 100.0 * 3.0;
        assert!((moved.bytes / (moved.share * day) - 1.0).abs() < 0.01, "{moved:?}");
    }

    #[test]
    fn more_replicas_than_nodes_are_refused() {
        let refused = simulate(&[], &Options { nodes: 2, ..OPTIONS }).unwrap_err();
        assert_eq!(refused.to_string(), "replicas: 3 need as many nodes, and there are 2");
    }
}
