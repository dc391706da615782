//! What `mw migrate` prints: text for people, JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use mw_migrate::plan::Plan;
use mw_migrate::{CutOver, Cutover, Difference, Kind, RejectedDocument, Status, Verified};
use serde::Serialize;

use crate::terminal::columns;

/// Differences and rejected documents that the text lists; JSON has all of them.
const LISTED: usize = 50;

fn json(value: &impl Serialize) -> Result<String> {
    Ok(format!("{}\n", serde_json::to_string(value)?))
}

#[derive(Serialize)]
struct StatusJson<'a> {
    phase: &'a str,
    collections: BTreeMap<&'a str, CountsJson>,
    lag_seconds: Option<f64>,
    verified_up_to: Option<String>,
    can_cut_over: bool,
    blocked_by: &'a [String],
    oplog_hours: Option<f64>,
}

#[derive(Serialize)]
struct CountsJson {
    total: u64,
    copied: u64,
    changes: u64,
    rejected: u64,
    mismatched: u64,
}

pub(super) fn status_json(status: &Status) -> Result<String> {
    let counts = |kind: Kind| {
        let it = status.counts.of(kind);
        let counts = CountsJson {
            total: it.total,
            copied: it.copied,
            changes: it.changes,
            rejected: it.rejected,
            mismatched: it.mismatched,
        };
        (kind.collection(), counts)
    };
    json(&StatusJson {
        phase: status.phase.as_str(),
        collections: Kind::ALL.into_iter().map(counts).collect(),
        lag_seconds: status.lag_seconds,
        verified_up_to: status.verified_up_to.map(|at| at.to_string()),
        can_cut_over: status.can_cut_over(),
        blocked_by: &status.blocked_by,
        oplog_hours: status.oplog_hours,
    })
}

pub(super) fn status_text(status: &Status) -> String {
    let mut text = format!("phase {}\n\n", status.phase.as_str());
    let mut lines = vec![
        ["collection", "total", "copied", "changes", "rejected", "mismatched"].map(str::to_owned).to_vec(),
    ];
    for kind in Kind::ALL {
        let it = status.counts.of(kind);
        let numbers =
            [it.total, it.copied, it.changes, it.rejected, it.mismatched].map(|number| number.to_string());
        lines.push(std::iter::once(kind.collection().to_owned()).chain(numbers).collect());
    }
    text.push_str(&columns(&lines));
    text.push('\n');
    if let Some(lag) = status.lag_seconds {
        let _ = writeln!(text, "behind the source: {lag:.1} s");
    }
    if let Some(hours) = status.oplog_hours {
        let _ = writeln!(text, "the source's oplog goes back {hours:.1} h");
    }
    match status.verified_up_to {
        Some(at) => drop(writeln!(text, "equal up to {at}")),
        None => text.push_str("nothing is verified yet\n"),
    }
    if status.can_cut_over() {
        text.push_str("it can be cut over: `mw migrate cutover`\n");
    }
    for reason in &status.blocked_by {
        let _ = writeln!(text, "it cannot be cut over: {reason}");
    }
    text
}

/// One line of a run without a terminal.
pub(super) fn progress_line(status: &Status, rate: Option<f64>) -> String {
    let sum = |of: fn(&mw_migrate::Counts) -> u64| -> u64 {
        Kind::ALL.into_iter().map(|kind| of(status.counts.of(kind))).sum()
    };
    let (copied, total) = (sum(|it| it.copied), sum(|it| it.total));
    let mut line = format!("{}: {copied} of {total} documents copied", status.phase.as_str());
    if let Some(rate) = rate.filter(|rate| *rate > 0.0) {
        #[expect(clippy::cast_precision_loss, reason = "counts of documents are far below 2^53")]
        let left = total.saturating_sub(copied) as f64 / rate;
        let _ = write!(line, ", {rate:.0} a second, {left:.0} s left");
    }
    let _ = write!(line, ", {} changes taken, {} rejected", sum(|it| it.changes), sum(|it| it.rejected));
    if let Some(lag) = status.lag_seconds {
        let _ = write!(line, ", {lag:.1} s behind");
    }
    line
}

#[derive(Serialize)]
struct Items<T> {
    items: Vec<T>,
}

#[derive(Serialize)]
struct RejectedJson<'a> {
    collection: &'a str,
    id: &'a str,
    reason: &'a str,
    advice: &'a str,
    blocking: bool,
}

fn rejected_item(it: &RejectedDocument) -> RejectedJson<'_> {
    RejectedJson {
        collection: &it.collection,
        id: &it.id,
        reason: &it.reason,
        advice: &it.advice,
        blocking: it.blocking,
    }
}

pub(super) fn rejected_json(rejected: &[RejectedDocument]) -> Result<String> {
    json(&Items { items: rejected.iter().map(rejected_item).collect() })
}

pub(super) fn rejected_text(rejected: &[RejectedDocument]) -> String {
    if rejected.is_empty() {
        return "no document is rejected\n".to_owned();
    }
    let mut text = String::new();
    for it in rejected.iter().take(LISTED) {
        let blocking = if it.blocking { "" } else { " (does not block the cutover)" };
        let _ = writeln!(text, "{} {}: {}{blocking}\n    {}", it.collection, it.id, it.reason, it.advice);
    }
    if rejected.len() > LISTED {
        let _ = writeln!(text, "and {} more: --json lists all", rejected.len() - LISTED);
    }
    text
}

#[derive(Serialize)]
struct VerifiedJson<'a> {
    equal: bool,
    equal_up_to: Option<String>,
    compared: BTreeMap<&'a str, u64>,
    repaired: u64,
    mismatches: Vec<DifferenceJson<'a>>,
}

#[derive(Serialize)]
struct DifferenceJson<'a> {
    collection: &'a str,
    id: &'a str,
    mismatch: &'a str,
}

fn difference_item(it: &Difference) -> DifferenceJson<'_> {
    DifferenceJson { collection: it.collection, id: &it.id, mismatch: &it.what }
}

pub(super) fn verified_json(verified: &Verified) -> Result<String> {
    json(&VerifiedJson {
        equal: verified.is_equal(),
        equal_up_to: verified.is_equal().then(|| verified.up_to.to_string()),
        compared: Kind::ALL.into_iter().map(Kind::collection).zip(verified.compared).collect(),
        repaired: verified.repaired,
        mismatches: verified.differences.iter().map(difference_item).collect(),
    })
}

pub(super) fn verified_text(verified: &Verified) -> String {
    let compared: Vec<String> = Kind::ALL
        .into_iter()
        .zip(verified.compared)
        .map(|(kind, count)| format!("{count} {}", kind.collection()))
        .collect();
    let mut text = format!("compared {}\n", compared.join(", "));
    if verified.repaired > 0 {
        let _ = writeln!(text, "{} documents differed and were written again", verified.repaired);
    }
    if verified.is_equal() {
        let _ = writeln!(text, "equal up to {}", verified.up_to);
        return text;
    }
    text.push_str(&differences(&verified.differences));
    text.push_str("not equal: --repair reads and writes these documents again\n");
    text
}

fn differences(differences: &[Difference]) -> String {
    let mut text = String::new();
    for it in differences.iter().take(LISTED) {
        let _ = writeln!(text, "{} {}: {}", it.collection, it.id, it.what);
    }
    if differences.len() > LISTED {
        let _ = writeln!(text, "and {} more: --json lists all", differences.len() - LISTED);
    }
    text
}

pub(super) fn cutover_text(done: &CutOver, cutover: Cutover) -> String {
    match done {
        CutOver::Done { pause } => {
            let block =
                if cutover.block { "; the source takes no writes until `mw migrate finish`" } else { "" };
            format!("cut over: writes stood still for {:.1} s{block}\n", pause.as_secs_f64())
        }
        CutOver::Refused(reasons) => {
            let mut text = "not cut over, nothing was changed\n".to_owned();
            for reason in reasons {
                let _ = writeln!(text, "{reason}");
            }
            text
        }
        CutOver::WentBack { why, differences: found, pause } => format!(
            "not cut over: {why}. The source takes writes again after {:.1} s, and is followed as before; nothing is lost\n{}",
            pause.as_secs_f64(),
            differences(found)
        ),
    }
}

#[derive(Serialize)]
struct PlanJson<'a> {
    possible: bool,
    source: &'a str,
    collections: Vec<CollectionJson<'a>>,
    statuses: Vec<PlannedStatusJson<'a>>,
    balancer_enabled: Option<bool>,
    oplog_hours: Option<f64>,
    copy_seconds: u64,
    needed_bytes: u64,
    problems: &'a [String],
    notes: &'a [String],
}

#[derive(Serialize)]
struct CollectionJson<'a> {
    name: &'a str,
    documents: u64,
    bytes: u64,
    sharded: bool,
    shapes: &'a BTreeMap<&'static str, u64>,
    ids: &'a BTreeMap<String, u64>,
    sampled: u64,
    rejected: u64,
    examples: Vec<RejectedJson<'a>>,
}

#[derive(Serialize)]
struct PlannedStatusJson<'a> {
    word: &'a str,
    documents: u64,
    becomes: Option<&'a str>,
}

pub(super) fn plan_json(plan: &Plan) -> Result<String> {
    let collections = plan.collections.iter().map(|it| CollectionJson {
        name: it.name,
        documents: it.documents,
        bytes: it.bytes,
        sharded: it.sharded,
        shapes: &it.shapes,
        ids: &it.ids,
        sampled: it.sampled,
        rejected: it.rejected,
        examples: it.examples.iter().map(rejected_item).collect(),
    });
    let statuses = plan.statuses.iter().map(|it| PlannedStatusJson {
        word: &it.word,
        documents: it.documents,
        becomes: it.becomes.map(mw_domain::OrderStatus::as_str),
    });
    json(&PlanJson {
        possible: plan.is_possible(),
        source: &plan.source,
        collections: collections.collect(),
        statuses: statuses.collect(),
        balancer_enabled: plan.balancer_enabled,
        oplog_hours: plan.oplog_hours,
        copy_seconds: plan.copy_seconds,
        needed_bytes: plan.needed_bytes,
        problems: &plan.problems,
        notes: &plan.notes,
    })
}

pub(super) fn plan_text(plan: &Plan) -> String {
    let mut text = format!("{}\n\n", plan.source);
    let mut lines =
        vec![["collection", "documents", "bytes", "shapes", "ids", "rejected"].map(str::to_owned).to_vec()];
    for it in &plan.collections {
        let shapes: Vec<String> = it.shapes.iter().map(|(shape, count)| format!("{shape} {count}")).collect();
        let ids: Vec<String> = it.ids.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        lines.push(vec![
            it.name.to_owned(),
            it.documents.to_string(),
            it.bytes.to_string(),
            shapes.join(", "),
            ids.join(", "),
            format!("{} of {} sampled", it.rejected, it.sampled),
        ]);
    }
    text.push_str(&columns(&lines));
    text.push('\n');
    for status in &plan.statuses {
        let becomes = status.becomes.map_or("is rejected", mw_domain::OrderStatus::as_str);
        let _ = writeln!(text, "status \"{}\" ({} orders) -> {becomes}", status.word, status.documents);
    }
    for it in plan.collections.iter().flat_map(|it| &it.examples) {
        let _ = writeln!(text, "{} {}: {}\n    {}", it.collection, it.id, it.reason, it.advice);
    }
    if let Some(hours) = plan.oplog_hours {
        let _ =
            writeln!(text, "the oplog goes back {hours:.1} h; the copy takes about {} s", plan.copy_seconds);
    }
    for note in &plan.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for problem in &plan.problems {
        let _ = writeln!(text, "problem: {problem}");
    }
    text.push_str(if plan.is_possible() {
        "possible: `mw migrate run`\n"
    } else {
        "not possible as it is\n"
    });
    text
}
