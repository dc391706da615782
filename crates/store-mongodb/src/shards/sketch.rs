//! The heaviest keys of a stream in bounded memory (space-saving): a key that makes up more than one part in
//! [`CAPACITY`] of all counts is certainly among them.

use std::collections::HashMap;

/// Counted keys. With 512 keys of 64 bytes a sketch has less than 64 KiB.
const CAPACITY: usize = 512;

#[derive(Debug, Clone, Default)]
pub(super) struct Sketch {
    counts: HashMap<String, u64>,
    total: u64,
}

impl Sketch {
    pub(super) fn add(&mut self, key: &str) {
        self.total += 1;
        if let Some(count) = self.counts.get_mut(key) {
            *count += 1;
            return;
        }
        let mut start = 0;
        if self.counts.len() >= CAPACITY
            && let Some((rarest, count)) = self.counts.iter().min_by_key(|(_, count)| **count)
        {
            // The new key inherits the count: it is never underestimated.
            let rarest = rarest.clone();
            start = *count;
            self.counts.remove(&rarest);
        }
        self.counts.insert(key.to_owned(), start + 1);
    }

    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// The heaviest keys, the first of them the heaviest.
    pub(super) fn top(&self, limit: usize) -> Vec<(String, u64)> {
        let mut all: Vec<(String, u64)> =
            self.counts.iter().map(|(key, count)| (key.clone(), *count)).collect();
        all.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all.truncate(limit);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_key_is_found_among_many() {
        let mut sketch = Sketch::default();
        for number in 0..10_000 {
            sketch.add(&format!("rare-{number}"));
            if number % 10 == 0 {
                sketch.add("heavy");
            }
        }
        let top = sketch.top(3);
        assert_eq!(top.first().map(|(key, _)| key.as_str()), Some("heavy"));
        assert!(top[0].1 >= 1_000, "{top:?}");
        assert_eq!((sketch.total(), sketch.counts.len()), (11_000, CAPACITY));
    }
}
