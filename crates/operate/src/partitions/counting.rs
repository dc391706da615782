//! Counting the accesses of this process, by table and partition, in bounded memory.
//!
//! Below [`EXACT_RATE_MAX`] accesses a second all of them are counted. Above it one of [`SAMPLED_OF`] is, at random, and the
//! bounds get [`SIGMAS`] standard deviations wider. A table has a frequent-items sketch (Misra–Gries with purges) of reads and one
//! of writes a window, and one of bytes a day, for partitions that grow slowly.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use datasketches::frequencies::{ErrorType, FrequentItemsSketch};
use mw_store::partitions::{AccessKind, PartitionAccess, PartitionObserver};
use rustc_hash::FxHashMap;

use super::summary::{HeavyItems, TableSummary, WindowSummary, write_item};

/// Slots of a sketch of reads or writes: the error is at most 0.35 % of a window's accesses, a third of what makes a partition hot.
const SKETCH_SLOTS: usize = 1_024;
/// Slots of a sketch of bytes: the error is at most 0.03 % of the bytes of a day.
const GROWTH_SLOTS: usize = 16_384;
/// Items of a summary.
const ITEMS_MAX: usize = 128;
/// A partition that gets less in a day is not reported as growing.
const GROWTH_MIN_BYTES: u64 = 64 * 1024;
/// Growing partitions that are reported a day, by table.
const GROWING_MAX: usize = 4_096;
/// Tables that are counted.
const TABLES_MAX: usize = 64;
/// Accesses a second that are all counted.
const EXACT_RATE_MAX: u64 = 2_000;
/// Above that rate one of so many accesses is counted.
const SAMPLED_OF: NonZeroU32 = NonZeroU32::new(16).unwrap();
/// Standard deviations that the bounds of sampled counts are apart.
const SIGMAS: u64 = 5;

/// The counters of one process.
#[derive(Debug, Default)]
pub struct PartitionCounters {
    tables: RwLock<FxHashMap<Box<str>, Mutex<TableSketches>>>,
    accesses: AtomicU64,
    is_sampling: AtomicBool,
}

#[derive(Debug)]
struct TableSketches {
    reads: Counted,
    writes: Counted,
    rows: u64,
    bytes: u64,
    growth: Option<FrequentItemsSketch<String>>,
    /// The bytes of a partition that summaries of the day have reported.
    reported: FxHashMap<String, u64>,
    /// The item of an access, to save an allocation.
    name: String,
}

/// A sketch, and whether it counted samples.
#[derive(Debug)]
struct Counted {
    sketch: Option<FrequentItemsSketch<String>>,
    weight_max: u32,
}

impl Default for Counted {
    fn default() -> Self {
        Self { sketch: FrequentItemsSketch::new(SKETCH_SLOTS).ok(), weight_max: 1 }
    }
}

impl Default for TableSketches {
    fn default() -> Self {
        Self {
            reads: Counted::default(),
            writes: Counted::default(),
            rows: 0,
            bytes: 0,
            growth: FrequentItemsSketch::new(GROWTH_SLOTS).ok(),
            reported: FxHashMap::default(),
            name: String::new(),
        }
    }
}

impl Counted {
    fn add(&mut self, item: &str, weight: u32) {
        if let Some(sketch) = &mut self.sketch {
            sketch.update_with_count_ref(item, u64::from(weight));
            self.weight_max = self.weight_max.max(weight);
        }
    }

    fn summary(&self) -> HeavyItems {
        let Some(sketch) = &self.sketch else { return HeavyItems::default() };
        // The standard deviation of a count of `n` by samples that stand for `w` each is below the root of `n * w`.
        let spread = |count: u64| match self.weight_max {
            1 => 0,
            weight => SIGMAS * (count.saturating_mul(u64::from(weight)).isqrt() + 1),
        };
        let rows = sketch.frequent_items_with_threshold(ErrorType::NoFalseNegatives, 0);
        let widest = rows.iter().map(|row| spread(row.upper_bound())).max().unwrap_or_default();
        let items: BTreeMap<String, u64> = rows
            .into_iter()
            .map(|row| (row.lower_bound().saturating_sub(spread(row.lower_bound())), row))
            .filter(|(lower, _)| *lower > 0)
            .map(|(lower, row)| (row.item().clone(), lower))
            .collect();
        // An item that was never sampled may have occurred too.
        let max_error = sketch.maximum_error() + 2 * widest + spread(u64::from(self.weight_max));
        let max_error = if self.weight_max == 1 { sketch.maximum_error() } else { max_error };
        let mut heavy = HeavyItems { total: sketch.total_weight(), max_error, items };
        heavy.prune(ITEMS_MAX);
        heavy
    }
}

impl TableSketches {
    fn count(&mut self, access: &PartitionAccess<'_>, weight: u32) {
        let mut name = std::mem::take(&mut self.name);
        let item = if access.bucket.is_empty() {
            access.key
        } else {
            write_item(&mut name, access.key, access.bucket);
            name.as_str()
        };
        match access.kind {
            AccessKind::Read => self.reads.add(item, weight),
            AccessKind::Write => {
                self.writes.add(item, weight);
                self.rows += access.rows * u64::from(weight);
                let bytes = access.bytes.saturating_mul(u64::from(weight));
                self.bytes = self.bytes.saturating_add(bytes);
                if let Some(growth) = &mut self.growth {
                    growth.update_with_count_ref(item, bytes);
                }
            }
        }
        self.name = name;
    }

    /// What was counted since the last summary; a new day forgets the bytes of the last one.
    fn take_summary(&mut self, is_new_day: bool) -> TableSummary {
        let grown = self.grown();
        if is_new_day {
            self.growth = FrequentItemsSketch::new(GROWTH_SLOTS).ok();
            self.reported.clear();
        }
        TableSummary {
            reads: std::mem::take(&mut self.reads).summary(),
            writes: std::mem::take(&mut self.writes).summary(),
            rows: std::mem::take(&mut self.rows),
            bytes: std::mem::take(&mut self.bytes),
            grown,
        }
    }

    fn grown(&mut self) -> BTreeMap<String, u64> {
        let Some(growth) = &self.growth else { return BTreeMap::new() };
        let heavy = growth.frequent_items_with_threshold(ErrorType::NoFalsePositives, GROWTH_MIN_BYTES);
        let mut grown = BTreeMap::new();
        for row in heavy.iter().take(ITEMS_MAX) {
            let is_known = self.reported.contains_key(row.item());
            if !is_known && self.reported.len() >= GROWING_MAX {
                continue;
            }
            let reported = self.reported.entry(row.item().clone()).or_default();
            let more = row.lower_bound().saturating_sub(*reported);
            if more > 0 {
                *reported += more;
                grown.insert(row.item().clone(), more);
            }
        }
        grown
    }
}

thread_local! {
    static RANDOM: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

/// A pseudo-random number (xorshift): it decides which access is a sample.
fn random() -> u64 {
    RANDOM.with(|state| {
        let mut bits = state.get();
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        state.set(bits);
        bits
    })
}

impl PartitionObserver for PartitionCounters {
    fn sample(&self) -> Option<NonZeroU32> {
        self.accesses.fetch_add(1, Ordering::Relaxed);
        if !self.is_sampling.load(Ordering::Relaxed) {
            return Some(NonZeroU32::MIN);
        }
        random().is_multiple_of(u64::from(SAMPLED_OF.get())).then_some(SAMPLED_OF)
    }

    fn observe(&self, access: &PartitionAccess<'_>, stands_for: NonZeroU32) {
        let count = |table: &Mutex<TableSketches>| {
            table.lock().unwrap_or_else(PoisonError::into_inner).count(access, stands_for.get());
        };
        if let Some(table) = self.tables.read().unwrap_or_else(PoisonError::into_inner).get(access.table) {
            return count(table);
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        if tables.len() < TABLES_MAX {
            count(tables.entry(access.table.into()).or_default());
        }
    }
}

impl PartitionCounters {
    /// Adapts the sampling to the rate since the last call, which was so long ago.
    pub fn adapt_sampling(&self, elapsed: Duration) {
        let accesses = u128::from(self.accesses.swap(0, Ordering::Relaxed));
        let exact_max = u128::from(EXACT_RATE_MAX) * elapsed.as_millis() / 1_000;
        self.is_sampling.store(accesses > exact_max, Ordering::Relaxed);
    }

    /// What was counted since the last summary.
    pub fn take_summary(&self, is_new_day: bool) -> WindowSummary {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        let mut window = WindowSummary::default();
        for (name, table) in tables.iter() {
            let summary = table.lock().unwrap_or_else(PoisonError::into_inner).take_summary(is_new_day);
            if summary.traffic() > 0 || !summary.grown.is_empty() {
                window.tables.insert(name.to_string(), summary);
            }
        }
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write<'a>(key: &'a str, bucket: &'a str, bytes: u64) -> PartitionAccess<'a> {
        PartitionAccess { table: "orders", key, bucket, kind: AccessKind::Write, rows: 1, bytes }
    }

    fn count(counters: &PartitionCounters, access: &PartitionAccess<'_>) {
        if let Some(stands_for) = counters.sample() {
            counters.observe(access, stands_for);
        }
    }

    #[test]
    fn few_accesses_are_counted_exactly() {
        let counters = PartitionCounters::default();
        for number in 0..100 {
            count(&counters, &write(&format!("u-{}", number % 4), "2026-11", 10));
        }
        let summary = counters.take_summary(false);
        let orders = &summary.tables["orders"];
        assert_eq!((orders.traffic(), orders.rows, orders.bytes), (100, 100, 1_000));
        assert_eq!((orders.writes.lower("u-1\u{1f}2026-11"), orders.writes.max_error), (25, 0));
        assert_eq!(counters.take_summary(false), WindowSummary::default(), "a summary starts a new window");
    }

    #[test]
    fn sampled_counts_keep_their_bounds() {
        let counters = PartitionCounters::default();
        counters.accesses.store(EXACT_RATE_MAX + 1, Ordering::Relaxed);
        counters.adapt_sampling(Duration::from_secs(1));
        let heavy = 40_000;
        for number in 0..400_000 {
            let key = if number % 10 == 0 { "u-heavy".to_owned() } else { format!("u-{number}") };
            count(&counters, &write(&key, "", 1));
        }
        let summary = counters.take_summary(false);
        let writes = &summary.tables["orders"].writes;
        assert!(writes.lower("u-heavy") <= heavy && heavy <= writes.upper("u-heavy"), "{writes:?}");
        assert!(writes.lower("u-heavy") > heavy * 8 / 10, "{}", writes.lower("u-heavy"));
        assert!((380_000..420_000).contains(&writes.total), "{}", writes.total);
    }

    #[test]
    fn memory_is_bounded_by_the_slots() {
        let counters = PartitionCounters::default();
        for number in 0..300_000 {
            count(&counters, &write(&format!("u-{number}"), "", 700));
        }
        let tables = counters.tables.read().unwrap();
        let table = tables["orders"].lock().unwrap();
        assert!(table.writes.sketch.as_ref().unwrap().num_active_items() <= SKETCH_SLOTS);
        assert!(table.growth.as_ref().unwrap().num_active_items() <= GROWTH_SLOTS);
    }

    #[test]
    fn growth_is_reported_once_and_from_many_windows() {
        let counters = PartitionCounters::default();
        let mut reported = 0;
        for _ in 0..10 {
            // 10 KiB a window: too little for any single one of them.
            for _ in 0..10 {
                count(&counters, &write("wholesaler", "2026-11", 1_024));
            }
            let summary = counters.take_summary(false);
            reported +=
                summary.tables["orders"].grown.get("wholesaler\u{1f}2026-11").copied().unwrap_or_default();
        }
        assert_eq!(reported, 100 * 1_024);
        assert!(counters.take_summary(true).tables.is_empty());
    }
}
