//! Which partitions are hot or wide, from the merged summaries of two windows and what is known of sizes.
//!
//! Hot: over 1 % of the table's traffic and over 200 accesses a second, by lower bounds, in two windows in a row. Wide: over a tenth
//! of `operate.partitions.wide`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_domain::Timestamp;
use mw_store::partitions::{PartitionState, PartitionStats};

use super::summary::{TableSummary, WindowSummary, item, parts};

/// The share of the table's traffic above which a partition is hot, as a divisor.
const HOT_SHARE_OF: u64 = 100;
/// Accesses a second above which a partition is hot.
const HOT_PER_SECOND: u64 = 200;
/// A partition is wide from this part of the limit on; over the limit it gets a plan.
const WARNING_PART: u64 = 10;
/// Partitions of a table that a window reports for their traffic.
const BUSIEST_MAX: usize = 32;
/// Partitions of a table that are known at most; further ones are reported only if they are hot or wide.
const KNOWN_MAX: usize = 2_048;

/// What makes a partition noteworthy.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub window: Duration,
    pub wide_bytes: u64,
}

impl Limits {
    /// A partition with more bytes is wide.
    pub const fn warning_bytes(&self) -> u64 {
        self.wide_bytes / WARNING_PART
    }

    fn per_second(&self, count: u64) -> f64 {
        to_f64(count) / self.window.as_secs_f64()
    }

    /// Accesses in a window that a partition must exceed to be hot.
    fn hot_count(&self, traffic: u64) -> u64 {
        let by_rate = (HOT_PER_SECOND.saturating_mul(millis(self.window))) / 1_000;
        by_rate.max(traffic / HOT_SHARE_OF)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people, of counts far below 2^52")]
pub(super) const fn to_f64(count: u64) -> f64 {
    count as f64
}

/// The noteworthy partitions of a window, with `known` sizes brought up to date.
pub fn judge(
    current: &WindowSummary,
    previous: &WindowSummary,
    known: &[PartitionStats],
    limits: &Limits,
    now: Timestamp,
) -> Vec<PartitionStats> {
    let mut known_of: BTreeMap<&str, BTreeMap<String, &PartitionStats>> = BTreeMap::new();
    for stats in known {
        known_of.entry(&stats.table).or_default().insert(item(&stats.key, &stats.bucket), stats);
    }
    let nothing = TableSummary::default();
    let mut judged = Vec::new();
    for (table, summary) in &current.tables {
        let before = previous.tables.get(table).unwrap_or(&nothing);
        let known = known_of.remove(table.as_str()).unwrap_or_default();
        for partition in noteworthy(summary) {
            let stats =
                judge_one(table, partition, (summary, before), known.get(partition).copied(), limits, now);
            let is_known = known.contains_key(partition);
            if is_known || known.len() < KNOWN_MAX || stats.state != PartitionState::Ok {
                judged.push(stats);
            }
        }
    }
    judged
}

/// The busiest partitions of a table in a window, and those that grew.
fn noteworthy(summary: &TableSummary) -> BTreeSet<&str> {
    let counted: BTreeSet<&str> =
        summary.reads.items.keys().chain(summary.writes.items.keys()).map(String::as_str).collect();
    let mut busiest: Vec<(u64, &str)> =
        counted.into_iter().map(|partition| (summary.lower(partition), partition)).collect();
    busiest.sort_unstable_by(|a, b| b.cmp(a));
    busiest.truncate(BUSIEST_MAX);
    let busiest = busiest.into_iter().map(|(_, partition)| partition);
    busiest.chain(summary.grown.keys().map(String::as_str)).collect()
}

fn judge_one(
    table: &str,
    partition: &str,
    (current, previous): (&TableSummary, &TableSummary),
    known: Option<&PartitionStats>,
    limits: &Limits,
    now: Timestamp,
) -> PartitionStats {
    let (key, bucket) = parts(partition);
    let is_hot_in = |summary: &TableSummary| summary.lower(partition) > limits.hot_count(summary.traffic());
    let grown = current.grown.get(partition).copied().unwrap_or_default();
    let bytes = known.map_or(0, |known| known.bytes).saturating_add(grown);
    let row_bytes = current.bytes.checked_div(current.rows).unwrap_or_default().max(1);
    let rows = known.map_or(0, |known| known.rows).saturating_add(grown / row_bytes);
    let state = if is_hot_in(current) && is_hot_in(previous) {
        PartitionState::Hot
    } else if bytes > limits.warning_bytes() {
        PartitionState::Wide
    } else {
        PartitionState::Ok
    };
    let traffic = current.traffic().max(1);
    let window_ms = i64::try_from(millis(limits.window)).unwrap_or(i64::MAX);
    PartitionStats {
        table: table.to_owned(),
        key: key.to_owned(),
        bucket: bucket.to_owned(),
        reads_per_s: limits.per_second(current.reads.lower(partition)),
        writes_per_s: limits.per_second(current.writes.lower(partition)),
        rows,
        bytes,
        share: to_f64(current.lower(partition)) / to_f64(traffic),
        error_per_s: limits.per_second(current.reads.max_error.saturating_add(current.writes.max_error)),
        state,
        counted_from: known.map_or(now.plus_millis(-window_ms), |known| known.counted_from),
        updated_at: now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partitions::counting::PartitionCounters;
    use mw_store::partitions::{AccessKind, PartitionAccess, PartitionObserver};

    const LIMITS: Limits = Limits { window: Duration::from_mins(1), wide_bytes: 10 << 20 };
    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    /// A window of accesses, dealt to the processes in turn.
    fn window(processes: &[PartitionCounters], count: u64, key: impl Fn(u64) -> String) -> WindowSummary {
        for number in 0..count {
            let process = &processes[usize::try_from(number).unwrap() % processes.len()];
            let kind = if number % 5 == 0 { AccessKind::Write } else { AccessKind::Read };
            let key = key(number);
            let access = PartitionAccess { table: "stock", key: &key, bucket: "", kind, rows: 1, bytes: 100 };
            if let Some(stands_for) = process.sample() {
                process.observe(&access, stands_for);
            }
        }
        let mut merged = WindowSummary::default();
        for process in processes {
            let bytes = process.take_summary(false).encode();
            merged.merge(&WindowSummary::decode(&bytes).unwrap());
        }
        merged
    }

    fn processes(count: usize) -> Vec<PartitionCounters> {
        (0..count).map(|_| PartitionCounters::default()).collect()
    }

    /// Spreads numbers over keys without a pattern.
    fn spread(number: u64, keys: u64) -> u64 {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % keys
    }

    /// 2 % on one product, the rest on 50 000 others; 750 000 accesses are 12 500 a second.
    fn two_percent(number: u64) -> String {
        if spread(number, 1_000) < 20 {
            "hit".to_owned()
        } else {
            format!("p-{}", spread(number ^ 0x4d, 50_000))
        }
    }

    fn hot(stats: &[PartitionStats]) -> Vec<&str> {
        let hot = stats.iter().filter(|stats| stats.state == PartitionState::Hot);
        hot.map(|stats| stats.key.as_str()).collect()
    }

    #[test]
    fn two_percent_of_the_traffic_are_named_within_two_windows_with_bounds() {
        let processes = processes(1);
        let first = window(&processes, 750_000, two_percent);
        let second = window(&processes, 750_000, two_percent);
        assert!(
            hot(&judge(&first, &WindowSummary::default(), &[], &LIMITS, NOW)).is_empty(),
            "one window is not enough"
        );
        let stats = judge(&second, &first, &[], &LIMITS, NOW);
        assert_eq!(hot(&stats), ["hit"]);
        let hit = stats.iter().find(|stats| stats.key == "hit").unwrap();
        let (true_rate, lower) = (250.0, hit.reads_per_s + hit.writes_per_s);
        assert!(lower <= true_rate * 1.01 && true_rate * 0.99 <= lower + hit.error_per_s, "{hit:?}");
        assert!((0.01..0.021).contains(&hit.share), "{hit:?}");
    }

    #[test]
    fn an_even_load_makes_no_partition_hot() {
        for keys in [1_000, 50_000] {
            let processes = processes(1);
            let even = |number| format!("p-{}", spread(number, keys));
            let first = window(&processes, 750_000, even);
            let second = window(&processes, 750_000, even);
            assert!(hot(&judge(&second, &first, &[], &LIMITS, NOW)).is_empty(), "{keys} keys");
        }
    }

    #[test]
    fn eight_processes_come_to_the_same_judgement_as_one() {
        let processes = processes(8);
        let first = window(&processes, 750_000, two_percent);
        let second = window(&processes, 750_000, two_percent);
        let stats = judge(&second, &first, &[], &LIMITS, NOW);
        assert_eq!(hot(&stats), ["hit"]);
        let mut reversed = WindowSummary::default();
        reversed.merge(&second);
        assert_eq!(judge(&reversed, &first, &[], &LIMITS, NOW), stats);
    }

    #[test]
    fn sampled_processes_come_to_the_same_judgement() {
        let processes = processes(8);
        let sampled = |key: fn(u64) -> String| {
            for process in &processes {
                for _ in 0..3_000 {
                    let _ = process.sample();
                }
                process.adapt_sampling(Duration::from_secs(1));
            }
            window(&processes, 1_500_000, key)
        };
        let (first, second) = (sampled(two_percent), sampled(two_percent));
        assert_eq!(hot(&judge(&second, &first, &[], &LIMITS, NOW)), ["hit"]);
        let even = |number| format!("p-{}", spread(number, 1_000));
        let (first, second) = (sampled(even), sampled(even));
        assert!(hot(&judge(&second, &first, &[], &LIMITS, NOW)).is_empty());
    }

    #[test]
    fn a_busy_partition_of_a_quiet_table_is_not_hot() {
        let processes = processes(1);
        let all_on_one = |_| "only".to_owned();
        // 100 accesses a second, all of the table's traffic.
        let (first, second) = (window(&processes, 6_000, all_on_one), window(&processes, 6_000, all_on_one));
        let stats = judge(&second, &first, &[], &LIMITS, NOW);
        assert!(hot(&stats).is_empty() && stats[0].share > 0.99, "{stats:?}");
    }

    #[test]
    fn sizes_add_up_over_windows_and_a_tenth_of_the_limit_is_wide() {
        let mut summary = WindowSummary::default();
        let table = summary.tables.entry("orders_by_customer".to_owned()).or_default();
        (table.rows, table.bytes) = (10, 7_000);
        table.grown.insert(item("wholesaler", "2026-11"), 700_000);
        let nothing = WindowSummary::default();
        let first = judge(&summary, &nothing, &[], &LIMITS, NOW);
        assert_eq!((first[0].bytes, first[0].rows, first[0].state), (700_000, 1_000, PartitionState::Ok));
        let later = NOW.plus_seconds(60);
        let second = judge(&summary, &nothing, &first, &LIMITS, later);
        assert_eq!(
            (second[0].bytes, second[0].rows, second[0].state),
            (1_400_000, 2_000, PartitionState::Wide)
        );
        assert_eq!((second[0].counted_from, second[0].updated_at), (NOW.plus_seconds(-60), later));
        assert_eq!((second[0].key.as_str(), second[0].bucket.as_str()), ("wholesaler", "2026-11"));
    }
}
