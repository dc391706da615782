//! Write timestamps of a migration: microseconds, shifted below zero, so that every write of the service is newer.

/// Above every clock of this and the next two centuries in microseconds, and small enough that the difference to the service's
/// timestamps is short in storage.
const SHIFT: i64 = 1 << 53;

/// The write timestamp of one change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(i64);

impl Stamp {
    pub(super) const fn at(micros: i64) -> Self {
        Self(micros.saturating_sub(SHIFT))
    }

    /// For `USING TIMESTAMP`.
    pub(crate) const fn get(self) -> i64 {
        self.0
    }

    pub(super) const fn from_stored(stamp: i64) -> Self {
        Self(stamp)
    }

    /// The moment that the stamp stands for.
    pub(crate) const fn micros(self) -> i64 {
        self.0.saturating_add(SHIFT)
    }

    /// The stamps of a batch, beginning with this one.
    pub(super) fn following(self) -> impl Iterator<Item = Self> {
        (self.0..).map(Self)
    }

    #[must_use]
    pub(super) fn plus(self, count: usize) -> Self {
        Self(self.0.saturating_add(i64::try_from(count).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_below_every_timestamp_of_the_service_and_in_order() {
        let year_2200 = 7_258_118_400_000_000;
        let stamp = Stamp::at(year_2200);
        assert!(stamp.get() < 0 && Stamp::at(0) < stamp);
        assert_eq!(stamp.micros(), year_2200);
        let batch: Vec<Stamp> = stamp.following().take(3).collect();
        assert!(batch.is_sorted() && batch.last().is_some_and(|last| *last < stamp.plus(3)));
    }
}
