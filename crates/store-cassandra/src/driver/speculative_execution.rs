//! Speculative execution starts after three times the moving median of the latency, clamped to 250 ms–1 s.
//!
//! It saves a request whose node is paused. On a cluster that is merely busy every statement is slow, and speculating on all of
//! them would make it slower; so the delay follows the median.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use scylla::policies::speculative_execution::{Context, SpeculativeExecutionPolicy};

/// Executions besides the first.
const EXTRA_EXECUTIONS: usize = 2;
/// No speculative execution starts earlier. A write that failed later may have been written by another execution.
pub(crate) const EARLIEST: Duration = Duration::from_millis(250);
/// Speculation starts by then however slow the cluster is: more than half of the nodes may be paused.
const LATEST: Duration = Duration::from_secs(1);
/// The delay as a multiple of the median.
const MEDIANS: u64 = 3;
/// One statement moves the median by this part of it.
const STEP_PART: u64 = 64;

/// The moving median of the latency.
#[derive(Debug, Default)]
pub(crate) struct SpeculativeExecution {
    median_us: AtomicU64,
}

impl SpeculativeExecution {
    /// Records the latency of a statement.
    pub(crate) fn record(&self, latency: Duration) {
        let latency = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let median = self.median_us.load(Ordering::Relaxed);
        let step = median / STEP_PART + 1;
        // Two concurrent statements may count as one: it is an estimate.
        let next = if latency > median { median.saturating_add(step) } else { median.saturating_sub(step) };
        self.median_us.store(next, Ordering::Relaxed);
    }

    fn delay(&self) -> Duration {
        let delay = Duration::from_micros(self.median_us.load(Ordering::Relaxed).saturating_mul(MEDIANS));
        delay.clamp(EARLIEST, LATEST)
    }
}

impl SpeculativeExecutionPolicy for SpeculativeExecution {
    fn max_retry_count(&self, _: &Context) -> usize {
        EXTRA_EXECUTIONS
    }

    fn retry_interval(&self, _: &Context) -> Duration {
        self.delay()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn delay_follows_the_median_and_ignores_outliers() {
        let speculation = SpeculativeExecution::default();
        assert_eq!(speculation.delay(), EARLIEST);
        for round in 0..10_000 {
            speculation.record(if round % 3 == 0 { ms(5_000) } else { ms(2) });
        }
        assert_eq!(speculation.delay(), EARLIEST, "one node of three is paused");
        for round in 0..10_000 {
            speculation.record(ms(190 + round % 20));
        }
        let delay = speculation.delay();
        assert!(ms(550) < delay && delay < ms(650), "the cluster is busy: {delay:?}");
        for _ in 0..10_000 {
            speculation.record(ms(5_000));
        }
        assert_eq!(speculation.delay(), LATEST, "clamped");
        for _ in 0..1_000 {
            speculation.record(ms(2));
        }
        assert_eq!(speculation.delay(), EARLIEST, "back to normal");
    }
}
