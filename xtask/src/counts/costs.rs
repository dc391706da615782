//! Costs of a request: the stored file, and the comparison with it.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Tolerance for instructions and bytes: the code layout changes with any edit.
const GROWTH_MAX: f64 = 0.05;
/// Allocations of reads are constant. Writes have random ones (the heights of a skip list), so the tolerance is one in a
/// hundred, and at least half an allocation.
const ALLOCATIONS_GROWTH_MAX: f64 = 0.01;
const ALLOCATIONS_SLACK: f64 = 0.5;

const HEADING: &str = "\
# What a request on a hot route costs from the socket to the disk and back, on the embedded engine:
# instructions, allocations and their bytes. Checked by `cargo xtask counts`, written by
# `cargo xtask counts --write`; docs/performance.md says how they are counted.

";

/// The cost of one request.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cost {
    instructions: f64,
    allocations: f64,
    bytes: f64,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct RouteCosts {
    /// By route, in the order in which they are counted.
    costs: Vec<(String, Cost)>,
}

/// The program's report of a route.
#[derive(Debug, PartialEq)]
pub(super) struct Usage {
    pub(super) route: String,
    requests: u32,
    allocations: u64,
    bytes: u64,
}

impl Usage {
    /// One a line: route, requests, allocations and bytes of all of them.
    pub(super) fn parse_all(report: &str) -> Result<Vec<Self>> {
        let usages: Vec<Self> = report
            .lines()
            .map(|line| Self::parse(line).with_context(|| format!("read the line {line:?}")))
            .collect::<Result<_>>()?;
        ensure!(!usages.is_empty(), "the program reported no route");
        Ok(usages)
    }

    fn parse(line: &str) -> Result<Self> {
        let mut fields = line.split('\t');
        let mut next = || fields.next().context("a field is missing");
        let usage = Self {
            route: next()?.to_owned(),
            requests: next()?.parse()?,
            allocations: next()?.parse()?,
            bytes: next()?.parse()?,
        };
        ensure!(usage.requests > 0, "no requests");
        Ok(usage)
    }
}

#[expect(clippy::cast_precision_loss, reason = "the sums of a few hundred requests are far below 2^52")]
fn each(sum: u64, requests: u32) -> f64 {
    sum as f64 / f64::from(requests)
}

impl RouteCosts {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let costs: BTreeMap<String, Cost> = toml::from_str(text)?;
        Ok(Self { costs: costs.into_iter().collect() })
    }

    pub(super) fn push(&mut self, usage: &Usage, instructions: u64) {
        let requests = usage.requests;
        let cost = Cost {
            instructions: each(instructions, requests).round(),
            allocations: (each(usage.allocations, requests) * 10.0).round() / 10.0,
            bytes: each(usage.bytes, requests).round(),
        };
        self.costs.push((usage.route.clone(), cost));
    }

    /// The instructions that the other costs have more, of a request of each route, as a part of ours.
    pub(super) fn more_instructions(&self, other: &Self) -> f64 {
        let sum = |costs: &Self| costs.costs.iter().map(|(_, cost)| cost.instructions).sum::<f64>();
        sum(other) / sum(self).max(1.0) - 1.0
    }

    /// The text of the file.
    pub(super) fn file(&self) -> String {
        let row = |(route, cost): &(String, Cost)| {
            let Cost { instructions, allocations, bytes } = cost;
            format!(
                "{route:<17}= {{ instructions = {instructions:>7}, allocations = {allocations:>5}, bytes = {bytes:>6} }}\n"
            )
        };
        HEADING.to_owned() + &self.costs.iter().map(row).collect::<String>()
    }

    /// Compares the stored costs with new ones.
    pub(super) fn compare(&self, now: &Self) -> Comparison {
        let find = |costs: &[(String, Cost)], route: &str| {
            costs.iter().find(|(name, _)| name == route).map(|(_, cost)| *cost)
        };
        let mut rows: Vec<Row> = now
            .costs
            .iter()
            .map(|(route, cost)| Row {
                route: route.clone(),
                before: find(&self.costs, route),
                now: Some(*cost),
            })
            .collect();
        let gone = self.costs.iter().filter(|(route, _)| find(&now.costs, route).is_none());
        rows.extend(gone.map(|(route, cost)| Row { route: route.clone(), before: Some(*cost), now: None }));
        Comparison { rows }
    }
}

#[derive(Debug)]
pub(super) struct Comparison {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    route: String,
    before: Option<Cost>,
    now: Option<Cost>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assessment {
    Same,
    Better,
    Worse(&'static str),
    /// Not in the file.
    New,
    /// Only in the file.
    Gone,
}

impl Assessment {
    fn describe(self) -> String {
        match self {
            Self::Same => "ok".to_owned(),
            Self::Better => "better".to_owned(),
            Self::Worse(what) => format!("WORSE: {what}"),
            Self::New => "NOT IN THE FILE".to_owned(),
            Self::Gone => "NO LONGER COUNTED".to_owned(),
        }
    }
}

impl Row {
    fn assess(&self) -> Assessment {
        match (self.before, self.now) {
            (Some(before), Some(now)) => assess(before, now),
            (None, _) => Assessment::New,
            (Some(_), None) => Assessment::Gone,
        }
    }
}

fn assess(before: Cost, now: Cost) -> Assessment {
    let allocations_slack = ALLOCATIONS_SLACK.max(before.allocations * ALLOCATIONS_GROWTH_MAX);
    if now.instructions > before.instructions * (1.0 + GROWTH_MAX) {
        Assessment::Worse("instructions")
    } else if now.allocations > before.allocations + allocations_slack {
        Assessment::Worse("allocations")
    } else if now.bytes > before.bytes * (1.0 + GROWTH_MAX) {
        Assessment::Worse("bytes")
    } else if now.instructions < before.instructions * (1.0 - GROWTH_MAX)
        || now.allocations < before.allocations - allocations_slack
        || now.bytes < before.bytes * (1.0 - GROWTH_MAX)
    {
        Assessment::Better
    } else {
        Assessment::Same
    }
}

impl Comparison {
    /// Also where a route is counted that the file does not know, or the other way round.
    pub(super) fn is_worse(&self) -> bool {
        self.rows.iter().any(|row| !matches!(row.assess(), Assessment::Same | Assessment::Better))
    }

    pub(super) fn is_better(&self) -> bool {
        self.rows.iter().any(|row| row.assess() == Assessment::Better)
    }

    pub(super) fn table(&self) -> String {
        let mut lines = vec![format!(
            "{:<17} {:>13} {:>7} {:>12} {:>7} {:>8} {:>7}  result",
            "a request of", "instructions", "", "allocations", "", "bytes", ""
        )];
        for row in &self.rows {
            let figure = |pick: fn(&Cost) -> f64| {
                let now = row.now.map(|cost| pick(&cost));
                let change = row.before.zip(now).map(|(before, now)| change(pick(&before), now));
                (now.map_or("-".to_owned(), |now| now.to_string()), change.unwrap_or_default())
            };
            let (instructions, by_instructions) = figure(|cost| cost.instructions);
            let (allocations, by_allocations) = figure(|cost| cost.allocations);
            let (bytes, by_bytes) = figure(|cost| cost.bytes);
            lines.push(format!(
                "{:<17} {instructions:>13} {by_instructions:>7} {allocations:>12} {by_allocations:>7} {bytes:>8} \
                 {by_bytes:>7}  {}",
                row.route,
                row.assess().describe()
            ));
        }
        lines.join("\n")
    }
}

/// In percent; empty for a cost of 0.
fn change(before: f64, now: f64) -> String {
    if before > 0.0 { format!("{:+.1}%", (now / before - 1.0) * 100.0) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Cost = Cost { instructions: 40_000.0, allocations: 30.0, bytes: 5_000.0 };

    fn costs(costs: &[(&str, Cost)]) -> RouteCosts {
        RouteCosts { costs: costs.iter().map(|(route, cost)| ((*route).to_owned(), *cost)).collect() }
    }

    #[test]
    fn costs_are_those_of_one_request() {
        let usages = Usage::parse_all("cart\t400\t12000\t2000100\n").expect("read");
        let mut counted = RouteCosts::default();
        counted.push(&usages[0], 16_000_123);
        assert_eq!(counted, costs(&[("cart", COST)]));
    }

    #[test]
    fn what_costs_more_is_a_part_of_all_routes() {
        let (kept, dearer) =
            (Cost { instructions: 60_000.0, ..COST }, Cost { instructions: 61_000.0, ..COST });
        let more = costs(&[("cart", COST), ("order", kept)])
            .more_instructions(&costs(&[("cart", COST), ("order", dearer)]));
        assert!((more - 0.01).abs() < 1e-9, "{more}");
    }

    #[test]
    fn an_incomplete_report_is_refused() {
        for bad in ["", "cart\t400\t12000", "cart\tmany\t1\t1", "cart\t0\t1\t1"] {
            assert!(Usage::parse_all(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let odd = Cost { allocations: 30.5, ..COST };
        let written = costs(&[("cart", COST), ("set_line", odd)]);
        assert_eq!(RouteCosts::parse(&written.file()).expect("read"), written);
        assert!(RouteCosts::parse("cart = { instructions = 1, allocations = 1 }").is_err());
        assert!(RouteCosts::parse("cart = { instructions = 1, allocations = 1, bytes = 1, x = 1 }").is_err());
    }

    #[test]
    fn growth_beyond_the_allowance_is_worse() {
        let cases = [
            (Cost { instructions: 42_000.0, ..COST }, Assessment::Same),
            (Cost { instructions: 42_001.0, ..COST }, Assessment::Worse("instructions")),
            (Cost { allocations: 30.5, ..COST }, Assessment::Same),
            (Cost { allocations: 31.0, ..COST }, Assessment::Worse("allocations")),
            (Cost { bytes: 5_250.0, ..COST }, Assessment::Same),
            (Cost { bytes: 5_251.0, ..COST }, Assessment::Worse("bytes")),
            (Cost { instructions: 37_999.0, ..COST }, Assessment::Better),
            (Cost { allocations: 29.0, ..COST }, Assessment::Better),
            // One improvement does not compensate for another cost.
            (Cost { instructions: 10_000.0, allocations: 31.0, ..COST }, Assessment::Worse("allocations")),
        ];
        for (now, expected) in cases {
            assert_eq!(assess(COST, now), expected, "{now:?}");
        }
    }

    #[test]
    fn a_route_on_one_side_only_fails() {
        let (one, two) = (costs(&[("cart", COST)]), costs(&[("cart", COST), ("order", COST)]));
        assert!(!two.compare(&two).is_worse());
        for (kept, now, messages) in [(&one, &two, "NOT IN THE FILE"), (&two, &one, "NO LONGER COUNTED")] {
            let comparison = kept.compare(now);
            assert!(comparison.is_worse() && comparison.table().contains(messages), "{}", comparison.table());
        }
    }

    #[test]
    fn the_table_has_the_changes() {
        let now = costs(&[("cart", Cost { instructions: 44_000.0, ..COST })]);
        let table = costs(&[("cart", COST)]).compare(&now).table();
        let row: Vec<&str> = table.lines().nth(1).expect("a row").split_whitespace().collect();
        assert_eq!(
            row,
            ["cart", "44000", "+10.0%", "30", "+0.0%", "5000", "+0.0%", "WORSE:", "instructions"]
        );
    }
}
