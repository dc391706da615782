//! How rows that grow without end are cut into partitions: by month, by day and shard, by price band.

use crate::ids::OrderId;
use crate::money::Money;
use crate::time::{Date, Period, Timestamp};

/// A calendar month in UTC, counted from year 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month(i64);

impl Month {
    pub fn of(at: Timestamp) -> Self {
        let (year, month, _) = at.date().civil();
        Self(year * 12 + i64::from(month) - 1)
    }

    /// The months that a period touches, newest first.
    pub fn newest_first(period: &Period) -> impl Iterator<Item = Self> + use<> {
        let newest = Self::of(period.to.plus_millis(-1)).0;
        let oldest = if period.is_empty() { newest + 1 } else { Self::of(period.from).0 };
        (oldest..=newest).rev().map(Self)
    }
}

impl std::fmt::Display for Month {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04}-{:02}", self.0.div_euclid(12), self.0.rem_euclid(12) + 1)
    }
}

/// The days that a period touches, newest first.
pub fn days_newest_first(period: &Period) -> impl Iterator<Item = Date> + use<> {
    let newest = period.to.plus_millis(-1).date().as_days();
    let oldest = if period.is_empty() { newest.saturating_add(1) } else { period.from.date().as_days() };
    (oldest..=newest).rev().map(Date::from_days)
}

/// Spreads the orders of one day over `shards` partitions, evenly and for ever the same way.
pub fn shard(order_id: OrderId, shards: u32) -> u32 {
    // The last bytes of a version 7 UUID are random; those of an id made from an ObjectId are zero, so all are mixed.
    let bits = order_id.uuid().as_u128();
    let folded = u64::try_from((bits >> 64) ^ (bits & u128::from(u64::MAX))).unwrap_or_default();
    let mixed = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    u32::try_from(mixed % u64::from(shards.max(1))).unwrap_or_default()
}

/// A band of prices: below 100, then 1, 2 and 5 times each power of ten, so that a wide range of prices is a few dozen
/// partitions and not thousands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Band(u8);

/// Lower bounds of the bands after the first, in whole units of the currency, for one power of ten.
const STEPS: [i64; 3] = [1, 2, 5];
const FIRST_BOUND_MINOR: i64 = 100 * 100;

impl Band {
    pub fn of(price: Money) -> Self {
        let mut band = 0;
        let mut decade = FIRST_BOUND_MINOR;
        loop {
            for step in STEPS {
                if price.as_minor() < decade.saturating_mul(step) {
                    return Self(band);
                }
                band += 1;
            }
            decade = decade.saturating_mul(10);
        }
    }

    pub const fn number(self) -> u8 {
        self.0
    }

    /// The bands that hold prices from `min` to `max`, cheapest first.
    pub fn between(min: Money, max: Money) -> impl DoubleEndedIterator<Item = Self> {
        (Self::of(min).0..=Self::of(max).0).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn months_and_days_of_a_period_come_newest_first_without_its_end() {
        let period = Period { from: at("2025-12-31T23:59:59Z"), to: at("2026-02-01") };
        let months: Vec<String> = Month::newest_first(&period).map(|month| month.to_string()).collect();
        assert_eq!(months, ["2026-01", "2025-12"]);
        let short = Period { from: at("2026-01-30"), to: at("2026-02-01") };
        let days: Vec<String> = days_newest_first(&short).map(|day| day.to_string()).collect();
        assert_eq!(days, ["2026-01-31", "2026-01-30"]);
        let empty = Period { from: at("2026-01-30"), to: at("2026-01-30") };
        assert_eq!(Month::newest_first(&empty).count() + days_newest_first(&empty).count(), 0);
    }

    #[test]
    fn bands_rise_with_the_price_and_are_few() {
        let bounds = ["0", "99.99", "100", "199.99", "200", "499.99", "500", "999.99", "1000", "1999.90"];
        let bands: Vec<u8> =
            bounds.iter().map(|text| Band::of(Money::parse(text).unwrap()).number()).collect();
        assert_eq!(bands, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(Band::between(Money::ZERO, Money::MAX).count(), 31);
    }

    #[test]
    fn shards_are_even_also_for_ids_that_differ_in_one_half() {
        for build in [|n: u128| Uuid::from_u128(n << 64 | 0x8 << 60), |n: u128| Uuid::from_u128(n)] {
            let mut counts = [0_u32; 8];
            for n in 0..8_000 {
                counts[shard(OrderId::new(build(n)), 8) as usize] += 1;
            }
            assert!(counts.iter().all(|count| (700..1_300).contains(count)), "{counts:?}");
        }
    }
}
