//! How rows that grow without end are cut into partitions: by month, by day and shard, by price band.

use crate::ids::OrderId;
use crate::money::Money;
use crate::time::{Date, Timestamp};

/// How finely the partitions of a key are cut from an instant on: a month or a price band into so many pieces, a day into
/// so many shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub starts_at: Timestamp,
    pub cut: u32,
}

impl Plan {
    /// The plan that holds at a moment: the last of those that have started. `plans` are oldest first.
    pub fn at(plans: &[Self], at: Timestamp) -> Self {
        let started = plans.iter().rev().find(|plan| plan.starts_at <= at);
        started.copied().unwrap_or(Self { starts_at: Timestamp::EPOCH, cut: 1 })
    }
}

/// A piece of a calendar month (UTC), cut by a plan. Pieces of different plans have different names, also where they are cut
/// alike: a name stands for one stretch of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonthPiece {
    pub name: String,
    /// Nothing in it is older.
    pub starts_at: Timestamp,
}

/// Days that a month is taken to have when it is cut into pieces.
const MONTH_DAYS: u32 = 31;
/// Pieces of a month at most: a day is not cut.
pub const MONTH_PIECES_MAX: u32 = MONTH_DAYS;

impl MonthPiece {
    /// The piece that a moment falls into.
    pub fn of(at: Timestamp, plan: Plan) -> Self {
        let (year, month, day) = at.date().civil();
        let cut = plan.cut.clamp(1, MONTH_DAYS);
        let piece = (day - 1) * cut / MONTH_DAYS;
        // The first day that falls into the piece.
        let first = (piece * MONTH_DAYS).div_ceil(cut);
        let days = at.date().as_days() - i32::try_from(day - 1 - first).unwrap_or_default();
        let mut name = if cut == 1 {
            format!("{year:04}-{month:02}")
        } else {
            format!("{year:04}-{month:02}/{piece}of{cut}")
        };
        let first = Date::from_days(days).midnight();
        if plan.starts_at > first {
            // The plan before has the beginning of the piece.
            name = format!("{name}@{}", plan.starts_at);
        }
        Self { name, starts_at: first.max(plan.starts_at) }
    }
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
        Self::with_bounds(price).0
    }

    /// The band of a price, where it begins and where the next one does, in minor units.
    fn with_bounds(price: Money) -> (Self, i64, i64) {
        let mut band = 0;
        let mut from = 0;
        let mut decade = FIRST_BOUND_MINOR;
        loop {
            for step in STEPS {
                let to = decade.saturating_mul(step);
                if price.as_minor() < to {
                    return (Self(band), from, to);
                }
                band += 1;
                from = to;
            }
            decade = decade.saturating_mul(10);
        }
    }

    /// Which of `slices` equal parts of its band a price stands in, the cheapest being 0.
    pub fn slice(price: Money, slices: u8) -> u8 {
        let (_, from, to) = Self::with_bounds(price);
        let into = i128::from(price.as_minor().saturating_sub(from).max(0));
        let slice = into * i128::from(slices) / i128::from(to.saturating_sub(from).max(1));
        u8::try_from(slice).unwrap_or_default()
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
    fn a_month_is_one_piece_until_a_plan_cuts_it() {
        let usual = Plan { starts_at: Timestamp::EPOCH, cut: 1 };
        let finer = Plan { starts_at: at("2026-11-20"), cut: 4 };
        let plans = [usual, finer];
        let piece = |text: &str| MonthPiece::of(at(text), Plan::at(&plans, at(text)));
        assert_eq!(
            piece("2026-11-19T23:59:59Z"),
            MonthPiece { name: "2026-11".into(), starts_at: at("2026-11-01") }
        );
        assert_eq!(
            piece("2026-11-20"),
            MonthPiece { name: "2026-11/2of4@2026-11-20T00:00:00.000Z".into(), starts_at: at("2026-11-20") }
        );
        assert_eq!(piece("2026-11-25").name, "2026-11/3of4");
        assert_eq!(
            piece("2026-12-01"),
            MonthPiece { name: "2026-12/0of4".into(), starts_at: at("2026-12-01") }
        );
    }

    #[test]
    fn pieces_of_a_month_follow_one_another() {
        for cut in 1..=31 {
            let plan = Plan { starts_at: Timestamp::EPOCH, cut };
            let mut last = MonthPiece { name: String::new(), starts_at: at("2026-01-01") };
            for day in 0..31 {
                let now = at("2026-01-01").plus_seconds(day * 86_400);
                let piece = MonthPiece::of(now, plan);
                assert!(piece.starts_at <= now && piece.starts_at >= last.starts_at, "{cut} {piece:?}");
                if piece.name != last.name {
                    assert_eq!(piece.starts_at, now, "a piece starts with its first day: {cut} {piece:?}");
                }
                last = piece;
            }
        }
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
    fn slices_of_a_band_rise_with_the_price_and_are_even() {
        let slices = |text: &str| Band::slice(Money::parse(text).unwrap(), 4);
        assert_eq!(["0", "24.99", "25", "50", "99.99"].map(slices), [0, 0, 1, 2, 3]);
        assert_eq!(["200", "274.99", "275", "350", "499.99"].map(slices), [0, 0, 1, 2, 3]);
        for price in [Money::ZERO, Money::from_minor(12_345), Money::MAX] {
            assert_eq!(Band::slice(price, 1), 0);
            assert!(Band::slice(price, 64) < 64);
        }
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
