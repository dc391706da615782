//! The report for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Report, Summary};
use crate::numbers::{float, whole};

/// Above this the generator may have been slower than the server.
const BUSY_LIMIT: f64 = 0.9;

pub(super) fn render(report: &Report) -> String {
    let mut text = format!("{}\n\n", headline(report));
    let mut rows: Vec<[String; 8]> =
        vec![["call", "requests", "rate/s", "p50", "p99", "p99.9", "max", "errors"].map(str::to_owned)];
    if report.calls.len() > 1 {
        rows.extend(report.calls.iter().map(|call| row(&call.name, &call.figures)));
    }
    rows.push(row("all", &report.total));
    text.push_str(&aligned(&rows));
    text.push('\n');
    for line in remarks(report) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    text
}

pub(super) fn headline(report: &Report) -> String {
    let settings = &report.settings;
    let load = match settings.rate {
        Some(rate) => format!("{} requests/s by schedule", grouped(whole(rate))),
        None => "closed loop".to_owned(),
    };
    let rounds = match report.rounds.len() {
        0 | 1 => String::new(),
        count => format!("{count} × "),
    };
    format!(
        "{}: {load}, {rounds}{} s after {} s of warm-up, {} connections, {} thread{}",
        settings.workload,
        trimmed(settings.duration_seconds),
        trimmed(settings.warm_up_seconds),
        settings.connections,
        settings.threads,
        if settings.threads == 1 { "" } else { "s" },
    )
}

/// Notes for a reader of the results.
pub(super) fn remarks(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let listed = |counts: &BTreeMap<String, u64>| {
        let each: Vec<String> =
            counts.iter().map(|(name, count)| format!("{name} {}", grouped(*count))).collect();
        each.join(", ")
    };
    if !report.total.errors.is_empty() {
        lines.push(format!("errors: {}", listed(&report.total.errors)));
    }
    if !report.total.refused.is_empty() {
        lines.push(format!("refused as expected: {}", listed(&report.total.refused)));
    }
    if report.repeated > 0 {
        lines.push(format!(
            "retries after a lost connection or an unknown outcome: {}",
            grouped(report.repeated)
        ));
    }
    if report.unsent > 0 {
        lines.push(format!(
            "the server did not keep up: {} scheduled flows were never sent, latencies are lower bounds",
            grouped(report.unsent)
        ));
    }
    if report.is_cut_short {
        lines.push("the run ended early".to_owned());
    }
    if report.generator.busy > BUSY_LIMIT {
        lines.push(format!(
            "the generator was busy {} % of the time and may be the bottleneck: raise --threads",
            whole(report.generator.busy * 100.0)
        ));
    } else {
        let lag = match report.generator.lag_p99_us {
            0 => String::new(),
            us => format!(", scheduling delay up to {} (p99)", time(us)),
        };
        lines.push(format!(
            "generator: busy {} % of its thread{}, {:.1} µs a request{lag}",
            whole(report.generator.busy * 100.0),
            if report.settings.threads == 1 { "" } else { "s" },
            report.generator.cpu_us_per_request
        ));
    }
    lines.extend(check_lines(report));
    lines
}

fn check_lines(report: &Report) -> Vec<String> {
    let Some(check) = &report.check else { return Vec::new() };
    if check.orders + check.orders_unresolved == 0 {
        return vec!["check: no orders were placed, nothing to check".to_owned()];
    }
    if check.orders > 0 && check.orders_unread == check.orders {
        return vec!["check FAILED: the server is unreachable, nothing could be read back".to_owned()];
    }
    let verdict = if check.passed { "passed" } else { "FAILED" };
    let mut lines = vec![format!(
        "check {verdict}: {} of {} acknowledged orders readable, {} units oversold, {} of {} stock levels match the orders",
        grouped(check.orders - check.orders_missing - check.orders_unread),
        grouped(check.orders),
        grouped(check.units_oversold),
        grouped(check.figures - check.figures_wrong),
        grouped(check.figures),
    )];
    if check.orders_unresolved > 0 {
        lines.push(format!("  {} orders have an unknown outcome", grouped(check.orders_unresolved)));
    }
    lines.extend(check.findings.iter().map(|finding| format!("  {finding}")));
    lines
}

fn row(name: &str, figures: &Summary) -> [String; 8] {
    let errors: u64 = figures.errors.values().sum();
    [
        name.to_owned(),
        grouped(figures.answered),
        grouped(whole(figures.rate)),
        time(figures.p50_us),
        time(figures.p99_us),
        time(figures.p999_us),
        time(figures.max_us),
        grouped(errors),
    ]
}

/// The first column to the left, the others to the right.
fn aligned(rows: &[[String; 8]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..8).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// `1 234 567`
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Microseconds with three digits and a unit.
pub(crate) fn time(us: u64) -> String {
    match us {
        0 => "-".to_owned(),
        1..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{} ms", three(float(us) / 1e3)),
        _ => format!("{} s", three(float(us) / 1e6)),
    }
}

fn three(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

fn trimmed(seconds: f64) -> String {
    format!("{seconds:.1}").trim_end_matches(".0").to_owned()
}
