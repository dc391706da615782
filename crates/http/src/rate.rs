//! A request rate in one atomic (GCRA): the theoretical arrival time of the next request that keeps to the rate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct RateLimit {
    epoch: Instant,
    interval_ns: u64,
    next_ns: AtomicU64,
}

impl RateLimit {
    /// A rate of 0 is taken as 1.
    pub(crate) fn per_second(rate: u32) -> Self {
        let interval_ns = SECOND_NS / u64::from(rate.max(1));
        Self { epoch: Instant::now(), interval_ns, next_ns: AtomicU64::new(0) }
    }

    /// Takes one request from the rate, or says how long to wait for it.
    pub(crate) fn take(&self) -> Result<(), Duration> {
        self.take_at(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn take_at(&self, now_ns: u64) -> Result<(), Duration> {
        // A burst may run ahead of the rate by one second's worth.
        let burst_ns = SECOND_NS.max(self.interval_ns);
        let mut next = self.next_ns.load(Ordering::Relaxed);
        loop {
            let after = next.max(now_ns).saturating_add(self.interval_ns);
            let ahead = after - now_ns;
            if ahead > burst_ns {
                return Err(Duration::from_nanos(ahead - burst_ns));
            }
            match self.next_ns.compare_exchange_weak(next, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(current) => next = current,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_a_seconds_worth_and_then_the_rate_holds() {
        let limit = RateLimit::per_second(10);
        let at = SECOND_NS;
        assert_eq!((0..20).filter(|_| limit.take_at(at).is_ok()).count(), 10);
        assert_eq!(limit.take_at(at), Err(Duration::from_millis(100)));
        assert!(limit.take_at(at + SECOND_NS / 10).is_ok());
        assert!(limit.take_at(at + SECOND_NS / 10).is_err());
    }

    #[test]
    fn one_a_second_lets_one_through() {
        let limit = RateLimit::per_second(1);
        assert!(limit.take_at(0).is_ok());
        assert!(limit.take_at(0).is_err());
        assert!(limit.take_at(SECOND_NS).is_ok());
    }
}
