//! Statistics of a run: histograms, counts and errors of each call, and a time series by second.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::schedule::Nanos;

/// In microseconds; longer latencies count as this.
const LATENCY_MAX_US: u64 = 600_000_000;
/// Significant digits: an error of at most a thousandth.
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
        // All histograms have the same bounds, so no value is out of range.
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

    /// Counts by steps that grow by a tenth, as (upper bound in µs, count), from the first nonzero step to the last.
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

/// Statistics of one kind of call.
#[derive(Debug, Clone)]
pub(crate) struct CallStats {
    pub(crate) latencies: Latencies,
    /// Expected responses within the measured time, expected error codes included.
    pub(crate) answered: u64,
    /// Of them, those with an error code that the workload expects.
    pub(crate) refused: BTreeMap<String, u64>,
    /// By API code, status, or kind of connection failure.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Retries after an unknown outcome.
    pub(crate) repeated: u64,
}

impl CallStats {
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

/// Statistics of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Stats {
    pub(crate) calls: Vec<CallStats>,
    /// Flows that were due and never started, since no connection was free.
    pub(crate) unsent: u64,
    /// Their delay at the end of the run.
    pub(crate) unsent_for: Latencies,
    /// Scheduling delay of the generator while a connection was free.
    pub(crate) lag: Latencies,
    /// CPU time of the thread, and the wall time over which it was measured.
    pub(crate) busy: Nanos,
    pub(crate) watched: Nanos,
    /// When the measurement ended: as planned, or earlier.
    pub(crate) ended: Nanos,
}

impl Stats {
    /// All calls together, unsent flows included with their delay.
    pub(crate) fn total(&self) -> CallStats {
        let mut all = CallStats::new();
        self.calls.iter().for_each(|call| all.add(call));
        all.latencies.add(&self.unsent_for);
        all
    }

    pub(crate) fn new(calls: usize) -> Self {
        Self {
            calls: vec![CallStats::new(); calls],
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
    fn merged_histograms_equal_one_that_recorded_all() {
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
    fn an_empty_histogram_is_zero_and_long_latencies_saturate() {
        let mut latencies = Latencies::new();
        assert_eq!((latencies.quantile_us(0.99), latencies.max_us()), (0, 0));
        assert!(latencies.steps().is_empty());
        latencies.record(u64::MAX);
        assert!(near(latencies.max_us(), LATENCY_MAX_US));
    }

    #[test]
    fn stats_of_threads_add_up() {
        let mut one = CallStats::new();
        one.answered = 3;
        one.errors.insert("503 overloaded".to_owned(), 1);
        let mut other = CallStats::new();
        other.answered = 4;
        other.repeated = 1;
        other.errors.insert("503 overloaded".to_owned(), 2);
        other.errors.insert("timed out".to_owned(), 5);
        one.add(&other);
        assert_eq!((one.answered, one.repeated, one.errors["timed out"]), (7, 1, 5));
        assert_eq!(one.errors["503 overloaded"], 3);
    }
}
