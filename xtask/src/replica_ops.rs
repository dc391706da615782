//! `cargo xtask replica-ops`: local reads, local writes and lightweight transactions of a request on Cassandra. The nodes
//! of a real cluster count them, so other load on the machine does not change the result.

use crate::test_cluster::CassandraCluster;
use crate::{cargo, say};
use anyhow::{Context, Result, ensure};
use mw_cassandra_testbed::TEST_VARIABLE;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The stored counts, from the workspace root.
const FILE: &str = "crates/store-cassandra/replica_ops.toml";

const BUILD: &str = "test -p mw-store-cassandra --bench replica_ops --no-run --locked --message-format json-render-diagnostics";

/// Read by the counted program: the file for its report.
const REPORT_VARIABLE: &str = "MW_REPLICA_OPS_REPORT";

/// Tolerance: coordinators repeat a slow read at another replica now and then, and a round of background work may meet a
/// request.
const SLACK: f64 = 0.6;
const GROWTH_MAX: f64 = 0.02;

const HEADING: &str = "\
# What the replicas of a three-node cluster do for a request: local reads, local writes (the system's Paxos table included)
# and lightweight transactions. Requests are sent one by one, so nothing is coalesced. Checked by `cargo xtask replica-ops`,
# written by `cargo xtask replica-ops --write`; docs/scale.md says how they are counted.

";

/// The operations of one request.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ops {
    reads: f64,
    writes: f64,
    lwts: f64,
}

type RouteOps = BTreeMap<String, Ops>;

pub(crate) fn run(write: bool) -> Result<()> {
    let file = cargo::root().join(FILE);
    let kept = if write { None } else { Some(read(&file)?) };
    let mut cluster = CassandraCluster::begin();
    let program = cargo::program(BUILD)?;
    let addresses = cluster.value()?;
    say(format_args!("counting, which takes minutes"));
    let counted = count(&program, &addresses)?;
    let Some(kept) = kept else {
        fs::write(&file, text_of(&counted)).with_context(|| format!("write {}", file.display()))?;
        say(format_args!("wrote {FILE}"));
        return Ok(());
    };
    let (table, dearer) = compare(&kept, &counted);
    say(table);
    ensure!(
        dearer.is_empty(),
        "a request costs the replicas more than {FILE} allows ({}): save it elsewhere, or accept the new counts with \
         `cargo xtask replica-ops --write` and say why in the commit",
        dearer.join(", ")
    );
    Ok(())
}

fn read(file: &Path) -> Result<RouteOps> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("read {FILE} (`cargo xtask replica-ops --write` creates it)"))?;
    toml::from_str(&text).with_context(|| format!("read {FILE}"))
}

fn count(program: &Path, addresses: &str) -> Result<RouteOps> {
    let report = program.with_file_name("replica_ops.tsv");
    let status = Command::new(program)
        .current_dir(cargo::root())
        .env(TEST_VARIABLE, addresses)
        .env(REPORT_VARIABLE, &report)
        .stdin(Stdio::null())
        .status()
        .context("run the program that counts")?;
    ensure!(status.success(), "count: the program ended with {status}");
    parse(&fs::read_to_string(&report).context("read the report of the program")?)
}

/// One a line: route, requests, then reads, writes and lightweight transactions of all of them.
fn parse(report: &str) -> Result<RouteOps> {
    let mut routes = RouteOps::new();
    for line in report.lines() {
        let mut fields = line.split('\t');
        let mut next =
            || fields.next().with_context(|| format!("read the line {line:?}: a field is missing"));
        let route = next()?.to_owned();
        let requests: f64 = next()?.parse()?;
        let mut each = || -> Result<f64> {
            let sum: f64 = next()?.parse()?;
            Ok((sum / requests * 10.0).round() / 10.0)
        };
        let ops = Ops { reads: each()?, writes: each()?, lwts: each()? };
        ensure!(requests > 0.0, "read the line {line:?}: no requests");
        routes.insert(route, ops);
    }
    ensure!(!routes.is_empty(), "the program reported no route");
    Ok(routes)
}

/// The text of the file.
fn text_of(routes: &RouteOps) -> String {
    let row = |(route, Ops { reads, writes, lwts }): (&String, &Ops)| {
        format!("{route:<18}= {{ reads = {reads:>5.1}, writes = {writes:>5.1}, lwts = {lwts:>4.1} }}\n")
    };
    HEADING.to_owned() + &routes.iter().map(row).collect::<String>()
}

/// A table of both, and the routes that got dearer or are on one side only.
fn compare(kept: &RouteOps, now: &RouteOps) -> (String, Vec<String>) {
    let mut lines = vec![format!("{:<18} {:>14} {:>14} {:>14}", "a request of", "reads", "writes", "lwts")];
    let mut dearer = Vec::new();
    let mut routes: Vec<&String> = kept.keys().chain(now.keys()).collect();
    routes.sort_unstable();
    routes.dedup();
    for route in routes {
        let (before, now) = match (kept.get(route), now.get(route)) {
            (Some(before), Some(now)) => (before, now),
            (Some(_), None) => {
                dearer.push(format!("{route} is no longer counted"));
                continue;
            }
            _ => {
                dearer.push(format!("{route} is not in the file"));
                continue;
            }
        };
        let figures = [(before.reads, now.reads), (before.writes, now.writes), (before.lwts, now.lwts)];
        let shown: Vec<String> = figures
            .iter()
            .map(|(before, now)| format!("{:>14}", format!("{now:.1} ({:+.1})", now - before)))
            .collect();
        let is_dearer = figures.iter().any(|(before, now)| *now > before + SLACK.max(before * GROWTH_MAX));
        lines.push(format!("{route:<18} {}{}", shown.join(" "), if is_dearer { "  DEARER" } else { "" }));
        if is_dearer {
            dearer.push(route.clone());
        }
    }
    (lines.join("\n"), dearer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPS: Ops = Ops { reads: 16.0, writes: 50.0, lwts: 3.0 };

    fn one(ops: Ops) -> RouteOps {
        RouteOps::from([("order".to_owned(), ops)])
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        assert_eq!(toml::from_str::<RouteOps>(&text_of(&one(OPS))).unwrap(), one(OPS));
        assert_eq!(parse("order\t40\t640\t2000\t120\n").unwrap(), one(OPS));
        for bad in ["", "order\t40\t640", "order\t0\t1\t1\t1", "order\tmany\t1\t1\t1"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_dearer_route_fails_and_a_cheaper_one_does_not() {
        let dearer = |now| compare(&one(OPS), &one(now)).1;
        assert!(dearer(OPS).is_empty());
        assert!(dearer(Ops { reads: 16.5, writes: 51.0, ..OPS }).is_empty());
        assert!(dearer(Ops { reads: 10.0, writes: 20.0, lwts: 1.0 }).is_empty());
        assert_eq!(dearer(Ops { writes: 51.1, ..OPS }), ["order"]);
        assert_eq!(dearer(Ops { lwts: 4.0, ..OPS }), ["order"]);
        assert_eq!(compare(&one(OPS), &RouteOps::new()).1, ["order is no longer counted"]);
        assert_eq!(compare(&RouteOps::new(), &one(OPS)).1, ["order is not in the file"]);
    }

    #[test]
    fn the_committed_file_can_be_read() {
        read(&cargo::root().join(FILE)).expect("read");
    }
}
