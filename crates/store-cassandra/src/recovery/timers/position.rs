//! Where a process stands in a shard of a timer queue, and what of it it reads next. Pure: no clock, no statements.
//!
//! The owner of a shard reads it every round. A process of a lower rank reads it less often and only what is overdue for so
//! long that every process of a higher rank should have fired it.

use mw_domain::Timestamp;

/// Rows are in partitions of this length.
pub(super) const BUCKET_MS: i64 = 600_000;
/// A timer that is so late for each process of a higher rank is fired by the next one.
pub(super) const OVERDUE_MS: i64 = 3_000;
/// A row may appear so much behind the rows that were read last: clocks differ by less.
const LATE_MS: i64 = 5_000;
/// Rows up to so long ago can be closed: no request takes longer to write one.
pub(super) const CLOSED_AFTER_MS: i64 = 60_000;
/// The owner closes what is behind it after so long.
const CLOSE_EVERY_MS: i64 = 120_000;
/// A timer that was added late, behind the rows that were read last, is looked for after so long.
const SWEEP_EVERY_MS: i64 = 5_000;
/// More buckets than these are looked up in the announcements first.
const BUCKETS_UNLISTED_MAX: i64 = 6;

/// How far a process has read one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    /// The rank of this process for the shard; a position of another rank is outdated.
    pub(super) rank: usize,
    /// Every timer before was fired, and none is added there any more.
    pub(super) from: Timestamp,
    /// Every timer before was fired when the shard was last read.
    pub(super) seen: Timestamp,
    /// The `now` of the last read.
    pub(super) read_at: Timestamp,
    /// The `now` of the last read from `from` on.
    pub(super) swept_at: Timestamp,
}

impl Position {
    /// A process that begins with a shard at `from`.
    pub(super) const fn start(rank: usize, from: Timestamp) -> Self {
        let never = Timestamp::from_millis(i64::MIN);
        Self { rank, from, seen: from, read_at: never, swept_at: never }
    }

    /// Whether the next read looks for timers that were added late.
    fn is_sweep(&self, now: Timestamp) -> bool {
        now.as_millis().saturating_sub(self.swept_at.as_millis()) >= SWEEP_EVERY_MS
    }

    /// The earliest timer that may not be fired yet.
    pub(super) fn lower_bound(&self, now: Timestamp) -> Timestamp {
        if self.is_sweep(now) { self.from } else { self.from.max(self.seen.plus_millis(-LATE_MS)) }
    }

    /// After a read up to `upper` whose first row was `oldest`.
    pub(super) fn after_read(mut self, oldest: Option<Timestamp>, upper: Timestamp, now: Timestamp) -> Self {
        if self.is_sweep(now) {
            self.swept_at = now;
        }
        self.seen = oldest.unwrap_or(upper).max(self.from);
        self.read_at = now;
        self
    }

    /// Up to where the owner closes the shard now, if it is time to.
    pub(super) fn closes_at(&self, now: Timestamp) -> Option<Timestamp> {
        let is_time = now.as_millis().saturating_sub(self.from.as_millis()) >= CLOSE_EVERY_MS;
        (self.rank == 0 && is_time).then(|| now.plus_millis(-CLOSED_AFTER_MS))
    }
}

/// Up to when a process of this rank fires timers at `now`; `None` where it is not its turn to read the shard.
pub(super) fn upper_bound(rank: usize, read_at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    let delay = i64::try_from(rank).unwrap_or(i64::MAX).saturating_mul(OVERDUE_MS);
    let is_turn = read_at.is_none_or(|read_at| {
        let since = now.as_millis().saturating_sub(read_at.as_millis());
        // A clock that was set back must not stop the timers.
        !(0..delay).contains(&since)
    });
    is_turn.then(|| Timestamp::from_millis(now.as_millis().saturating_sub(delay)))
}

/// The partitions between two moments, if they are few: else only the announced ones are read.
pub(super) fn buckets_between(from: Timestamp, upper: Timestamp) -> Option<std::ops::RangeInclusive<i64>> {
    let (first, last) = (bucket_of(from), bucket_of(upper));
    (last.saturating_sub(first) <= BUCKETS_UNLISTED_MAX).then_some(first..=last)
}

pub(super) const fn bucket_of(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(BUCKET_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn owner_reads_every_round_and_others_only_what_is_overdue() {
        assert_eq!(upper_bound(0, Some(at(100_000)), at(100_000)), Some(at(100_000)));
        assert_eq!(upper_bound(1, None, at(100_000)), Some(at(97_000)));
        assert_eq!(upper_bound(1, Some(at(98_000)), at(100_000)), None);
        assert_eq!(upper_bound(1, Some(at(97_000)), at(100_000)), Some(at(97_000)));
        assert_eq!(upper_bound(2, Some(at(97_000)), at(100_000)), None);
        assert_eq!(
            upper_bound(2, Some(at(200_000)), at(100_000)),
            Some(at(94_000)),
            "the clock was set back"
        );
    }

    #[test]
    fn reader_does_not_walk_through_what_it_has_fired() {
        let mut position = Position::start(0, at(0));
        position = position.after_read(Some(at(40_000)), at(50_000), at(50_000));
        assert_eq!(position.lower_bound(at(51_000)), at(35_000), "the row at 40 s may not be fired yet");
        position = position.after_read(None, at(51_000), at(51_000));
        assert_eq!(position.lower_bound(at(52_000)), at(46_000));
        position = position.after_read(Some(at(47_000)), at(52_000), at(52_000));
        assert_eq!(position.lower_bound(at(53_000)), at(42_000), "a late row is read until it is fired");
        assert_eq!(position.lower_bound(at(55_000)), at(0), "a sweep looks for timers that were added late");
    }

    #[test]
    fn only_the_owner_closes_and_never_what_a_request_may_still_write() {
        let owner = Position::start(0, at(0));
        assert_eq!(owner.closes_at(at(119_999)), None);
        assert_eq!(owner.closes_at(at(120_000)), Some(at(60_000)));
        assert_eq!(Position::start(1, at(0)).closes_at(at(600_000)), None);
    }

    #[test]
    fn long_absence_is_looked_up_in_the_announcements() {
        assert_eq!(buckets_between(at(599_999), at(600_000)), Some(0..=1));
        assert_eq!(buckets_between(at(0), at(86_400_000)), None);
    }
}
