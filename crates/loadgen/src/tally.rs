//! What was measured: histograms, counts and errors of each call, and every second of the run by itself.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::schedule::Nanos;

/// Microseconds; what takes longer is counted as this long.
const LATENCY_MAX_US: u64 = 600_000_000;
/// Three figures: no more than a thousandth off.
const PRECISION: u8 = 3;

/// Latencies in microseconds.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    #[expect(clippy::expect_used, reason = "the bounds are constants that the histogram accepts")]
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_MAX_US, PRECISION).expect("bounds of a histogram"))
    }

    pub(crate) fn record(&mut self, nanos: Nanos) {
        self.0.saturating_record((nanos / 1_000).max(1));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // All have the same bounds, so nothing is out of range.
        let _ = self.0.add(&other.0);
    }

    pub(crate) fn mean_us(&self) -> f64 {
        self.0.mean()
    }

    pub(crate) fn max_us(&self) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.max() }
    }

    pub(crate) fn quantile_us(&self, quantile: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_quantile(quantile) }
    }

    /// Counts of steps that grow by a tenth, as (up to µs, count), from the first that has any to the last.
    pub(crate) fn steps(&self) -> Vec<(u64, u64)> {
        let steps =
            self.0.iter_log(10, 1.1).map(|it| (it.value_iterated_to(), it.count_since_last_iteration()));
        let mut steps: Vec<(u64, u64)> = steps.skip_while(|(_, count)| *count == 0).collect();
        while steps.last().is_some_and(|(_, count)| *count == 0) {
            steps.pop();
        }
        steps
    }
}

/// What became of the requests of one kind.
#[derive(Debug, Clone)]
pub(crate) struct CallTally {
    pub(crate) latencies: Latencies,
    /// As expected, refusals of the trade included, within the measured time.
    pub(crate) answered: u64,
    /// Of them, those that were refused as the workload expects.
    pub(crate) refused: BTreeMap<String, u64>,
    /// By code of the API, status, or what happened to the connection.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Sent again, since what had become of them was unknown.
    pub(crate) repeated: u64,
}

impl CallTally {
    pub(crate) fn new() -> Self {
        Self {
            latencies: Latencies::new(),
            answered: 0,
            refused: BTreeMap::new(),
            errors: BTreeMap::new(),
            repeated: 0,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies);
        self.answered += other.answered;
        self.repeated += other.repeated;
        for (name, count) in &other.refused {
            *self.refused.entry(name.clone()).or_default() += count;
        }
        for (name, count) in &other.errors {
            *self.errors.entry(name.clone()).or_default() += count;
        }
    }
}

/// One second of one thread, or of all of them together.
#[derive(Debug, Clone)]
pub(crate) struct Second {
    pub(crate) is_warm_up: bool,
    /// From the beginning of the warm-up or of the measurement.
    pub(crate) index: u64,
    pub(crate) latencies: Latencies,
    pub(crate) answered: u64,
    pub(crate) errors: u64,
}

impl Second {
    pub(crate) fn new(is_warm_up: bool, index: u64) -> Self {
        Self { is_warm_up, index, latencies: Latencies::new(), answered: 0, errors: 0 }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies);
        self.answered += other.answered;
        self.errors += other.errors;
    }
}

/// What one thread measured.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    pub(crate) calls: Vec<CallTally>,
    /// Flows that were due and never begun, since no connection was free.
    pub(crate) unsent: u64,
    /// How long those had been due when the run ended.
    pub(crate) unsent_for: Latencies,
    /// How late the generator itself was with what it had a free connection for.
    pub(crate) lag: Latencies,
    /// Processor time of the thread, and the time it was looked at for.
    pub(crate) busy: Nanos,
    pub(crate) watched: Nanos,
    /// When the measurement ended: as planned, or earlier.
    pub(crate) ended: Nanos,
}

impl Tally {
    /// All calls together, and what was never sent with the time it had waited.
    pub(crate) fn total(&self) -> CallTally {
        let mut all = CallTally::new();
        self.calls.iter().for_each(|call| all.add(call));
        all.latencies.add(&self.unsent_for);
        all
    }

    pub(crate) fn new(calls: usize) -> Self {
        Self {
            calls: vec![CallTally::new(); calls],
            unsent: 0,
            unsent_for: Latencies::new(),
            lag: Latencies::new(),
            busy: 0,
            watched: 0,
            ended: 0,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.calls.iter_mut().zip(&other.calls) {
            mine.add(theirs);
        }
        self.unsent += other.unsent;
        self.unsent_for.add(&other.unsent_for);
        self.lag.add(&other.lag);
        self.busy += other.busy;
        self.watched += other.watched;
        self.ended = self.ended.max(other.ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn near(value: u64, wanted: u64) -> bool {
        value.abs_diff(wanted) <= wanted / 500 + 1
    }

    #[test]
    fn merged_histograms_are_as_one_that_saw_all() {
        let (mut low, mut high, mut both) = (Latencies::new(), Latencies::new(), Latencies::new());
        for value in 1..=900 {
            low.record(value * MS / 100);
            both.record(value * MS / 100);
        }
        for value in 1..=100 {
            high.record(value * 50 * MS);
            both.record(value * 50 * MS);
        }
        low.add(&high);
        assert_eq!(low.0.len(), 1_000);
        for quantile in [0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0] {
            assert_eq!(low.quantile_us(quantile), both.quantile_us(quantile), "{quantile}");
        }
        assert_eq!(low.steps(), both.steps());
        assert!(near(low.max_us(), 5_000_000));
        assert!(near(low.quantile_us(0.5), 5_000));
    }

    #[test]
    fn steps_add_up_to_the_count() {
        let mut latencies = Latencies::new();
        for value in 1..5_000_u64 {
            latencies.record(value * value * 100);
        }
        let steps = latencies.steps();
        assert_eq!(steps.iter().map(|(_, count)| count).sum::<u64>(), latencies.0.len());
        assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(steps.first().is_some_and(|(_, count)| *count > 0));
    }

    #[test]
    fn nothing_recorded_is_nothing_and_too_much_is_the_most() {
        let mut latencies = Latencies::new();
        assert_eq!((latencies.quantile_us(0.99), latencies.max_us()), (0, 0));
        assert!(latencies.steps().is_empty());
        latencies.record(u64::MAX);
        assert!(near(latencies.max_us(), LATENCY_MAX_US));
    }

    #[test]
    fn tallies_of_threads_add_up() {
        let mut one = CallTally::new();
        one.answered = 3;
        one.errors.insert("503 overloaded".to_owned(), 1);
        let mut other = CallTally::new();
        other.answered = 4;
        other.repeated = 1;
        other.errors.insert("503 overloaded".to_owned(), 2);
        other.errors.insert("timed out".to_owned(), 5);
        one.add(&other);
        assert_eq!((one.answered, one.repeated, one.errors["timed out"]), (7, 1, 5));
        assert_eq!(one.errors["503 overloaded"], 3);
    }
}
