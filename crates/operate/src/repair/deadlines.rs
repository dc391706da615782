//! Deadlines: a table must be repaired as a whole within `gc_grace` of its last whole repair, or deleted rows may come back.

use std::time::Duration;

use mw_domain::Timestamp;
use mw_store::cluster::{RepairState, TableRepair};

/// The repair of one node, as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRun {
    /// The table; `None` for a run of auto-repair, which repairs all tables.
    pub table: Option<String>,
    pub node: String,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    pub failed_ranges: u64,
    pub skipped_ranges: u64,
    /// The start of the last run in which no range failed or was skipped.
    pub last_complete: Option<Timestamp>,
}

/// What the policy says about the repair of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRepairPolicy {
    pub table: String,
    pub interval: Duration,
    pub gc_grace: Duration,
}

fn plus(at: Timestamp, duration: Duration) -> Timestamp {
    at.plus_millis(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

/// How the repair of a table stands, from the runs on all nodes. The table is whole as of the start of the oldest of the nodes' last
/// complete runs; a node without one makes it unknown. Whether it runs now, the caller knows.
pub fn table_repair(
    policy: &TableRepairPolicy,
    nodes: &[String],
    runs: &[NodeRun],
    now: Timestamp,
) -> TableRepair {
    let is_of_table = |run: &&NodeRun| run.table.as_deref().is_none_or(|table| table == policy.table);
    let last_of = |node: &String| {
        let of_node = runs.iter().filter(is_of_table).filter(|run| run.node == *node);
        of_node.filter_map(|run| run.last_complete).max()
    };
    let mut last_whole_repair = nodes.iter().map(last_of).min().flatten();
    if nodes.iter().any(|node| last_of(node).is_none()) {
        last_whole_repair = None;
    }
    // Of each node the newest run counts: an older one that failed has been made up for.
    let newest = |node: &String| {
        let of_node = runs.iter().filter(is_of_table).filter(|run| run.node == *node);
        of_node.max_by_key(|run| run.finished_at)
    };
    let newest: Vec<&NodeRun> = nodes.iter().filter_map(newest).collect();
    let deadline = last_whole_repair.map(|last| plus(last, policy.gc_grace));
    let state = match (last_whole_repair, deadline) {
        (Some(last), Some(deadline)) if now <= deadline => {
            if now > plus(last, policy.interval) {
                RepairState::Late
            } else {
                RepairState::Ok
            }
        }
        (Some(_), Some(_)) => RepairState::Missed,
        _ => RepairState::Unknown,
    };
    TableRepair {
        table: policy.table.clone(),
        interval: policy.interval,
        last_whole_repair,
        deadline,
        running: false,
        failed_ranges: newest.iter().map(|run| run.failed_ranges).sum(),
        skipped_ranges: newest.iter().map(|run| run.skipped_ranges).sum(),
        state,
    }
}

/// The part of `gc_grace` that is left when a deadline counts more than a blackout.
const LAST_PART: i64 = 4;

/// Whether a table must be repaired now, blackout or not: less than a quarter of its `gc_grace` is left.
pub fn must_run_now(policy: &TableRepairPolicy, deadline: Option<Timestamp>, now: Timestamp) -> bool {
    let gc_grace_ms = i64::try_from(policy.gc_grace.as_millis()).unwrap_or(i64::MAX);
    deadline.is_some_and(|deadline| now >= deadline.plus_millis(-(gc_grace_ms / LAST_PART)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);
    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    fn policy() -> TableRepairPolicy {
        TableRepairPolicy { table: "stock".to_owned(), interval: DAY, gc_grace: 2 * DAY }
    }

    fn run(table: Option<&str>, node: &str, hours_ago: i64, failed: u64, skipped: u64) -> NodeRun {
        let started_at = NOW.plus_seconds(-hours_ago * 3_600);
        NodeRun {
            table: table.map(str::to_owned),
            node: node.to_owned(),
            started_at,
            finished_at: started_at.plus_seconds(60),
            failed_ranges: failed,
            skipped_ranges: skipped,
            last_complete: (failed + skipped == 0).then_some(started_at),
        }
    }

    fn stands(runs: &[NodeRun]) -> TableRepair {
        table_repair(&policy(), &["n1".to_owned(), "n2".to_owned()], runs, NOW)
    }

    #[test]
    fn the_oldest_node_decides_about_the_deadline() {
        let ok = stands(&[run(None, "n1", 3, 0, 0), run(None, "n2", 5, 0, 0)]);
        assert_eq!((ok.state, ok.last_whole_repair), (RepairState::Ok, Some(NOW.plus_seconds(-5 * 3_600))));
        assert_eq!(ok.deadline, Some(NOW.plus_seconds(43 * 3_600)));
        assert_eq!(stands(&[run(None, "n1", 3, 0, 0), run(None, "n2", 30, 0, 0)]).state, RepairState::Late);
        assert_eq!(stands(&[run(None, "n1", 3, 0, 0), run(None, "n2", 49, 0, 0)]).state, RepairState::Missed);
        assert_eq!(
            stands(&[run(None, "n1", 3, 0, 0)]).state,
            RepairState::Unknown,
            "a node was never repaired"
        );
        assert_eq!(stands(&[]).state, RepairState::Unknown);
    }

    #[test]
    fn an_interrupted_or_empty_run_does_not_count() {
        let interrupted = run(None, "n2", 1, 3, 0);
        let skipped = run(None, "n2", 1, 0, 2);
        for (bad, failed_ranges, skipped_ranges) in [(interrupted, 3, 0), (skipped, 0, 2)] {
            let stands = stands(&[run(None, "n1", 3, 0, 0), bad]);
            assert_eq!(stands.state, RepairState::Unknown);
            assert_eq!((stands.failed_ranges, stands.skipped_ranges), (failed_ranges, skipped_ranges));
        }
        // An earlier complete run still counts.
        let kept = NodeRun { last_complete: Some(NOW.plus_seconds(-40 * 3_600)), ..run(None, "n2", 1, 3, 0) };
        let stands = stands(&[run(None, "n1", 3, 0, 0), kept]);
        assert_eq!((stands.state, stands.failed_ranges), (RepairState::Late, 3));
    }

    #[test]
    fn a_run_of_one_table_does_not_count_for_another() {
        let of = |table| stands(&[run(Some(table), "n1", 1, 0, 0), run(Some(table), "n2", 1, 0, 0)]).state;
        assert_eq!((of("stock"), of("orders")), (RepairState::Ok, RepairState::Unknown));
    }

    #[test]
    fn the_last_quarter_before_a_deadline_overrides_a_blackout() {
        let must = |hours: i64| must_run_now(&policy(), Some(NOW.plus_seconds(hours * 3_600)), NOW);
        assert!(!must(13) && must(12) && must(0) && must(-5));
        assert!(
            !must_run_now(&policy(), None, NOW),
            "a table that was never repaired waits for the blackout to end"
        );
    }
}
