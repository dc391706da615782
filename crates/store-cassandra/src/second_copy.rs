//! When a second copy of a statement is sent: when the first takes far longer than statements take these days.
//!
//! A copy saves a request whose node stands still. On a cluster that is merely busy every statement is slow, and copies of
//! them all would make it slower. So the usual time is followed, and a copy waits for a multiple of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use scylla::policies::speculative_execution::{Context, SpeculativeExecutionPolicy};

/// Copies besides the first.
const COPIES: usize = 2;
/// No copy is sent earlier. A write that failed later than that may have been written by another copy.
pub(crate) const EARLIEST: Duration = Duration::from_millis(250);
/// However slow the cluster is: more than half of the nodes may stand still.
const LATEST: Duration = Duration::from_secs(1);
/// So many times the usual time.
const TIMES: u64 = 3;
/// One statement moves what is usual by this part of it.
const STEP: u64 = 64;

/// The time that half of the statements take less than, as it moves.
#[derive(Debug, Default)]
pub(crate) struct SecondCopy {
    usual_us: AtomicU64,
}

impl SecondCopy {
    /// A statement took this long.
    pub(crate) fn took(&self, time: Duration) {
        let took = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let usual = self.usual_us.load(Ordering::Relaxed);
        let step = usual / STEP + 1;
        // Two that finish at once may count as one: it is an estimate.
        let next = if took > usual { usual.saturating_add(step) } else { usual.saturating_sub(step) };
        self.usual_us.store(next, Ordering::Relaxed);
    }

    fn after(&self) -> Duration {
        let usual = Duration::from_micros(self.usual_us.load(Ordering::Relaxed).saturating_mul(TIMES));
        usual.clamp(EARLIEST, LATEST)
    }
}

impl SpeculativeExecutionPolicy for SecondCopy {
    fn max_retry_count(&self, _: &Context) -> usize {
        COPIES
    }

    fn retry_interval(&self, _: &Context) -> Duration {
        self.after()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn copies_follow_what_is_usual_and_not_what_is_rare() {
        let copies = SecondCopy::default();
        assert_eq!(copies.after(), EARLIEST);
        for turn in 0..10_000 {
            copies.took(if turn % 3 == 0 { ms(5_000) } else { ms(2) });
        }
        assert_eq!(copies.after(), EARLIEST, "one node of three stands still");
        for turn in 0..10_000 {
            copies.took(ms(190 + turn % 20));
        }
        let after = copies.after();
        assert!(ms(550) < after && after < ms(650), "the cluster is busy: {after:?}");
        for _ in 0..10_000 {
            copies.took(ms(5_000));
        }
        assert_eq!(copies.after(), LATEST, "and not for ever");
        for _ in 0..1_000 {
            copies.took(ms(2));
        }
        assert_eq!(copies.after(), EARLIEST, "it is over");
    }
}
