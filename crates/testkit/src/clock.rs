//! A clock that moves only when a test sets or advances it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use mw_domain::Timestamp;
use mw_shop::Clock;

#[derive(Debug)]
pub struct FakeClock {
    millis: AtomicI64,
    /// How far the wall clock was set, other than by passing time.
    jumped_millis: AtomicI64,
}

impl FakeClock {
    /// Noon of 2026-03-10: the default.
    pub const START: Timestamp = Timestamp::from_millis(1_773_144_000_000);

    pub fn new() -> Arc<Self> {
        Self::at(Self::START)
    }

    pub fn at(now: Timestamp) -> Arc<Self> {
        Arc::new(Self { millis: AtomicI64::new(now.as_millis()), jumped_millis: AtomicI64::new(0) })
    }

    pub fn set(&self, now: Timestamp) {
        self.millis.store(now.as_millis(), Ordering::SeqCst);
    }

    /// Advances the clock; returns the new time.
    pub fn advance(&self, by: Duration) -> Timestamp {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        let before = self.millis.fetch_add(by, Ordering::SeqCst);
        Timestamp::from_millis(before.saturating_add(by))
    }
}

impl FakeClock {
    /// Sets the wall clock forward while no time passes.
    pub fn jump(&self, by: Duration) -> Timestamp {
        self.jumped_millis.fetch_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
        self.advance(by)
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.millis.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        let passed = self.millis.load(Ordering::SeqCst) - self.jumped_millis.load(Ordering::SeqCst);
        Duration::from_millis(u64::try_from(passed).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_constant_until_the_clock_is_advanced() {
        let clock = FakeClock::new();
        assert_eq!(clock.now(), FakeClock::START);
        assert_eq!(clock.now(), FakeClock::START);
        let later = clock.advance(Duration::from_millis(1_500));
        assert_eq!((clock.now(), later), (FakeClock::START.plus_millis(1_500), later));
        clock.set(Timestamp::EPOCH);
        assert_eq!(clock.now(), Timestamp::EPOCH);
    }
}
