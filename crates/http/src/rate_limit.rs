//! A rate limit in one atomic: the generic cell rate algorithm (GCRA), which stores the theoretical arrival time of the
//! next request that keeps to the rate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct RateLimit {
    epoch: Instant,
    interval_ns: u64,
    arrival_ns: AtomicU64,
}

impl RateLimit {
    /// A rate of 0 counts as 1.
    pub(crate) fn per_second(rate: u32) -> Self {
        let interval_ns = SECOND_NS / u64::from(rate.max(1));
        Self { epoch: Instant::now(), interval_ns, arrival_ns: AtomicU64::new(0) }
    }

    /// Counts one request against the rate; the error is how long to wait for it.
    pub(crate) fn try_acquire(&self) -> Result<(), Duration> {
        self.try_acquire_at(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn try_acquire_at(&self, now_ns: u64) -> Result<(), Duration> {
        // A burst may run ahead of the rate by the requests of one second.
        let burst_ns = SECOND_NS.max(self.interval_ns);
        let mut arrival = self.arrival_ns.load(Ordering::Relaxed);
        loop {
            let after = arrival.max(now_ns).saturating_add(self.interval_ns);
            let ahead = after - now_ns;
            if ahead > burst_ns {
                return Err(Duration::from_nanos(ahead - burst_ns));
            }
            match self.arrival_ns.compare_exchange_weak(arrival, after, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(current) => arrival = current,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_the_requests_of_one_second_and_then_the_rate_holds() {
        let limit = RateLimit::per_second(10);
        let at = SECOND_NS;
        assert_eq!((0..20).filter(|_| limit.try_acquire_at(at).is_ok()).count(), 10);
        assert_eq!(limit.try_acquire_at(at), Err(Duration::from_millis(100)));
        assert!(limit.try_acquire_at(at + SECOND_NS / 10).is_ok());
        assert!(limit.try_acquire_at(at + SECOND_NS / 10).is_err());
    }

    #[test]
    fn a_rate_of_one_admits_one_request_a_second() {
        let limit = RateLimit::per_second(1);
        assert!(limit.try_acquire_at(0).is_ok());
        assert!(limit.try_acquire_at(0).is_err());
        assert!(limit.try_acquire_at(SECOND_NS).is_ok());
    }
}
