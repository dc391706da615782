//! The steps of orders and products that this process has reported in the last minutes, so that a later step need not name them again.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A step is remembered for this time at least, and for twice as long at most.
const KEPT: Duration = Duration::from_mins(1);
/// Subjects remembered in [`KEPT`]; beyond that older ones are forgotten early, and named again.
const SUBJECTS_MAX: usize = 65_536;

#[derive(Debug)]
pub(super) struct RecentSteps<K>(Mutex<Generations<K>>);

#[derive(Debug)]
struct Generations<K> {
    young: HashMap<K, u64>,
    old: HashMap<K, u64>,
    since: Instant,
}

impl<K: Eq + Hash> RecentSteps<K> {
    pub(super) fn new() -> Self {
        let (young, old) = (HashMap::new(), HashMap::new());
        Self(Mutex::new(Generations { young, old, since: Instant::now() }))
    }

    /// Whether this process has reported the subject up to the version.
    pub(super) fn has(&self, subject: &K, version: u64) -> bool {
        let Generations { young, old, .. } = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        young.get(subject).or_else(|| old.get(subject)).is_some_and(|reported| *reported >= version)
    }

    pub(super) fn add(&self, subject: K, version: u64) {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.young.len() >= SUBJECTS_MAX || steps.since.elapsed() >= KEPT {
            steps.old = std::mem::take(&mut steps.young);
            steps.since = Instant::now();
        }
        let reported = steps.old.get(&subject).copied().unwrap_or_default();
        let reported = steps.young.get(&subject).copied().unwrap_or_default().max(reported).max(version);
        steps.young.insert(subject, reported);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_known_with_those_before_it_until_many_others_were_added() {
        let steps = RecentSteps::new();
        assert!(!steps.has(&0, 1));
        steps.add(0, 2);
        steps.add(0, 1);
        assert!(steps.has(&0, 1) && steps.has(&0, 2) && !steps.has(&0, 3));
        for number in 1..SUBJECTS_MAX {
            steps.add(number, 1);
        }
        steps.add(SUBJECTS_MAX, 1);
        assert!(steps.has(&0, 2), "in the old generation");
        for number in 0..SUBJECTS_MAX {
            steps.add(2 * SUBJECTS_MAX + number, 1);
        }
        assert!(!steps.has(&0, 1), "the map does not grow");
    }
}
