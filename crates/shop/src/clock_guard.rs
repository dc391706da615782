//! The time of background work. A wall clock that jumps forward (a resumed virtual machine, a wrong time server) must not
//! delete carts or cancel orders: until the jump is confirmed, background work goes on by the monotonic clock.
//!
//! A jump is confirmed when the monotonic clock has advanced by as much as the wall clock jumped, when the wall clock comes
//! back, or by an operator who restarts the process. Requests are stamped by the wall clock in any case.

use std::time::Duration;

use mw_domain::Timestamp;

/// The two clocks may differ by this much from one tick to the next.
const JUMP_MAX_MS: i64 = 60_000;
/// A clock that stays set back for so long is taken for the right one.
const BACK_ACCEPTED_AFTER: Duration = Duration::from_hours(1);

/// Both clocks as they were read together.
#[derive(Debug, Clone, Copy)]
struct Reading {
    wall: Timestamp,
    monotonic: Duration,
}

impl Reading {
    /// The wall time that the monotonic clock says.
    fn expected(&self, monotonic: Duration) -> Timestamp {
        let elapsed = monotonic.saturating_sub(self.monotonic).as_millis();
        self.wall.plus_millis(i64::try_from(elapsed).unwrap_or(i64::MAX))
    }
}

/// Compares the wall clock with the monotonic one.
#[derive(Debug, Default)]
pub(crate) struct ClockGuard {
    /// The last reading at which the clocks agreed.
    agreed: Option<Reading>,
    /// The first reading at which they did not.
    jumped: Option<Reading>,
}

/// The time by which rows may be expired, and how far the wall clock is ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trusted {
    pub(crate) now: Timestamp,
    pub(crate) jump_ms: i64,
}

impl ClockGuard {
    pub(crate) fn trust(&mut self, wall: Timestamp, monotonic: Duration) -> Trusted {
        let reading = Reading { wall, monotonic };
        let agreed = *self.agreed.get_or_insert(reading);
        let expected = agreed.expected(monotonic);
        let jump_ms = wall.as_millis().saturating_sub(expected.as_millis());
        if jump_ms.abs() <= JUMP_MAX_MS {
            return self.agree(reading);
        }
        let jumped = *self.jumped.get_or_insert(reading);
        let is_confirmed = if jump_ms > 0 {
            expected >= jumped.wall
        } else {
            monotonic.saturating_sub(jumped.monotonic) >= BACK_ACCEPTED_AFTER
        };
        if is_confirmed {
            return self.agree(reading);
        }
        Trusted { now: expected.min(wall), jump_ms }
    }

    fn agree(&mut self, reading: Reading) -> Trusted {
        self.agreed = Some(reading);
        self.jumped = None;
        Trusted { now: reading.wall, jump_ms: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::EPOCH.plus_seconds(seconds)
    }

    /// What is trusted `seconds` after the start while the wall clock is ahead by so many seconds.
    fn trusted(guard: &mut ClockGuard, seconds: u32, ahead: i64) -> (i64, i64) {
        let seconds_after = i64::from(seconds);
        let Trusted { now, jump_ms } =
            guard.trust(at(seconds_after + ahead), Duration::from_secs(u64::from(seconds)));
        (now.as_millis() / 1_000, jump_ms / 1_000)
    }

    #[test]
    fn a_jump_forward_is_not_trusted_until_the_monotonic_clock_confirms_it() {
        let mut guard = ClockGuard::default();
        assert_eq!(trusted(&mut guard, 0, 0), (0, 0));
        assert_eq!(trusted(&mut guard, 1, 30), (31, 0), "a small correction");
        assert_eq!(trusted(&mut guard, 2, 30), (32, 0));
        assert_eq!(trusted(&mut guard, 3, 30 + 8 * HOUR), (33, 8 * HOUR));
        assert_eq!(
            trusted(&mut guard, 1_000, 30 + 8 * HOUR),
            (1_030, 8 * HOUR),
            "it goes on by the other clock"
        );
        let confirmed = 8 * 3_600 + 3;
        assert_eq!(trusted(&mut guard, confirmed - 1, 30 + 8 * HOUR).1, 8 * HOUR);
        let wall = i64::from(confirmed) + 30 + 8 * HOUR;
        assert_eq!(trusted(&mut guard, confirmed, 30 + 8 * HOUR), (wall, 0));
    }

    #[test]
    fn a_jump_that_is_taken_back_leaves_nothing_behind() {
        let mut guard = ClockGuard::default();
        trusted(&mut guard, 0, 0);
        assert_eq!(trusted(&mut guard, 1, HOUR), (1, HOUR));
        assert_eq!(trusted(&mut guard, 2, 0), (2, 0));
        assert_eq!(trusted(&mut guard, 3, 2 * HOUR), (3, 2 * HOUR));
    }

    #[test]
    fn a_clock_that_is_set_back_is_trusted_because_it_expires_nothing_early() {
        let mut guard = ClockGuard::default();
        trusted(&mut guard, 0, 0);
        assert_eq!(trusted(&mut guard, 10, -HOUR), (10 - HOUR, -HOUR));
        assert_eq!(trusted(&mut guard, 20, 0), (20, 0), "the way back is no jump forward");
        assert_eq!(trusted(&mut guard, 30, -HOUR).1, -HOUR);
        assert_eq!(trusted(&mut guard, 30 + 3_600, -HOUR), (30, 0), "it is the right one by now");
    }
}
