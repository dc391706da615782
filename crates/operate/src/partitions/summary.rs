//! What a process counted in a window, small enough to be exchanged: heavy items with their bounds.
//!
//! The true weight of an item is at least its `lower` and at most `lower + max_error`; of an item that is not listed, at
//! most `max_error`. Merging adds both, so merged bounds hold whatever the number of processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Between the key and the bucket of an item; neither an id nor a bucket has this character.
const SEPARATOR: char = '\u{1f}';

/// The item of a partition, as sketches and summaries name it.
pub(super) fn item(key: &str, bucket: &str) -> String {
    let mut item = String::with_capacity(key.len() + bucket.len() + 1);
    write_item(&mut item, key, bucket);
    item
}

/// Replaces a text by the item of a partition.
pub(super) fn write_item(item: &mut String, key: &str, bucket: &str) {
    item.clear();
    item.push_str(key);
    if !bucket.is_empty() {
        item.push(SEPARATOR);
        item.push_str(bucket);
    }
}

/// The key and the bucket of an item.
pub(super) fn parts(item: &str) -> (&str, &str) {
    item.split_once(SEPARATOR).unwrap_or((item, ""))
}

/// The heaviest items of a stream with weights.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeavyItems {
    /// The weight of the whole stream.
    pub total: u64,
    pub max_error: u64,
    /// Lower bounds.
    pub items: BTreeMap<String, u64>,
}

impl HeavyItems {
    pub fn lower(&self, item: &str) -> u64 {
        self.items.get(item).copied().unwrap_or_default()
    }

    pub fn upper(&self, item: &str) -> u64 {
        self.lower(item).saturating_add(self.max_error)
    }

    pub fn merge(&mut self, other: &Self) {
        self.total = self.total.saturating_add(other.total);
        self.max_error = self.max_error.saturating_add(other.max_error);
        for (item, lower) in &other.items {
            let sum = self.items.entry(item.clone()).or_default();
            *sum = sum.saturating_add(*lower);
        }
    }

    /// Keeps the heaviest items; the error grows by the heaviest one that is dropped.
    pub fn prune(&mut self, items_max: usize) {
        if self.items.len() <= items_max {
            return;
        }
        let mut lowers: Vec<u64> = self.items.values().copied().collect();
        lowers.sort_unstable_by(|a, b| b.cmp(a));
        let heaviest_dropped = lowers.get(items_max).copied().unwrap_or_default();
        self.items.retain(|_, lower| *lower > heaviest_dropped);
        self.max_error = self.max_error.saturating_add(heaviest_dropped);
    }
}

/// One table in a window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSummary {
    pub reads: HeavyItems,
    pub writes: HeavyItems,
    /// Rows and bytes written.
    pub rows: u64,
    pub bytes: u64,
    /// Bytes that were written to partitions with many of them since the last summary; lower bounds.
    pub grown: BTreeMap<String, u64>,
}

impl TableSummary {
    /// Reads and writes.
    pub fn traffic(&self) -> u64 {
        self.reads.total.saturating_add(self.writes.total)
    }

    /// A lower bound of the reads and writes of an item.
    pub fn lower(&self, item: &str) -> u64 {
        self.reads.lower(item).saturating_add(self.writes.lower(item))
    }

    pub fn merge(&mut self, other: &Self) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.rows = self.rows.saturating_add(other.rows);
        self.bytes = self.bytes.saturating_add(other.bytes);
        for (item, bytes) in &other.grown {
            *self.grown.entry(item.clone()).or_default() += bytes;
        }
    }
}

/// All tables in a window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSummary {
    pub tables: BTreeMap<String, TableSummary>,
}

#[derive(Debug, thiserror::Error)]
#[error("decode a summary of partitions: {0}")]
pub struct DamagedSummary(#[from] serde_json::Error);

impl WindowSummary {
    pub fn merge(&mut self, other: &Self) {
        for (table, summary) in &other.tables {
            self.tables.entry(table.clone()).or_default().merge(summary);
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, DamagedSummary> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heavy(items: &[(&str, u64)], max_error: u64) -> HeavyItems {
        let items: BTreeMap<String, u64> = items.iter().map(|(item, n)| ((*item).to_owned(), *n)).collect();
        HeavyItems { total: items.values().sum(), max_error, items }
    }

    #[test]
    fn dropped_items_stay_within_the_error() {
        let mut pruned = heavy(&[("a", 90), ("b", 40), ("c", 40), ("d", 7)], 5);
        pruned.prune(2);
        assert_eq!(pruned.items.keys().collect::<Vec<_>>(), ["a"]);
        assert!(pruned.upper("b") >= 45 && pruned.upper("a") >= 95, "{pruned:?}");
        assert_eq!(pruned.total, 177, "pruning does not change the total");
    }

    #[test]
    fn merged_bounds_are_sums() {
        let mut merged = heavy(&[("a", 10)], 1);
        merged.merge(&heavy(&[("a", 5), ("b", 3)], 2));
        assert_eq!((merged.lower("a"), merged.upper("a")), (15, 18));
        assert_eq!((merged.lower("b"), merged.upper("b")), (3, 6));
        assert_eq!((merged.lower("c"), merged.upper("c")), (0, 3));
    }

    #[test]
    fn items_have_a_key_and_a_bucket() {
        assert_eq!(parts(&item("u-1", "2026-11")), ("u-1", "2026-11"));
        assert_eq!(parts(&item("p/1", "")), ("p/1", ""));
        assert_eq!(parts(&item("", "2026-11-18/3of96x32/7")), ("", "2026-11-18/3of96x32/7"));
    }

    #[test]
    fn a_summary_survives_its_bytes() {
        let table = TableSummary { reads: heavy(&[("a", 1)], 2), rows: 3, ..TableSummary::default() };
        let summary = WindowSummary { tables: BTreeMap::from([("stock".to_owned(), table)]) };
        assert_eq!(WindowSummary::decode(&summary.encode()).unwrap(), summary);
        assert!(WindowSummary::decode(b"{").is_err());
    }
}
