//! Bucketing: unbounded lists are divided into partitions by month, by slice and shard of a day, or by price band.

use crate::ids::OrderId;
use crate::lanes::Lane;
use crate::money::Money;
use crate::time::{Date, Timestamp};

/// The bucket count of a key's partitions from an instant on: the buckets of a month, a price band or a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub starts_at: Timestamp,
    pub buckets: u32,
}

impl Plan {
    /// The plan in effect at an instant: the last one that has started. `plans` are oldest first.
    pub fn at(plans: &[Self], at: Timestamp) -> Self {
        let started = plans.iter().rev().find(|plan| plan.starts_at <= at);
        started.copied().unwrap_or(Self { starts_at: Timestamp::EPOCH, buckets: 1 })
    }
}

/// A bucket of a calendar month (UTC) under a plan. A name means one period of time: buckets of different plans have
/// different names, even with the same bucket count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonthBucket {
    pub name: String,
    /// No row of the bucket is older.
    pub starts_at: Timestamp,
}

/// Days of every month for the division into buckets.
const MONTH_DAYS: u32 = 31;
/// The largest bucket count of a month: a day is never divided.
pub const MONTH_BUCKETS_MAX: u32 = MONTH_DAYS;

impl MonthBucket {
    /// The bucket of an instant.
    pub fn of(at: Timestamp, plan: Plan) -> Self {
        let (year, month, day) = at.date().civil();
        let buckets = plan.buckets.clamp(1, MONTH_DAYS);
        let bucket = (day - 1) * buckets / MONTH_DAYS;
        // The first day of the bucket.
        let first = (bucket * MONTH_DAYS).div_ceil(buckets);
        let days = at.date().as_days() - i32::try_from(day - 1 - first).unwrap_or_default();
        let mut name = if buckets == 1 {
            format!("{year:04}-{month:02}")
        } else {
            format!("{year:04}-{month:02}/{bucket}of{buckets}")
        };
        let first = Date::from_days(days).midnight();
        if plan.starts_at > first {
            // The rows before the start of this plan are in a bucket of the previous plan.
            name = format!("{name}@{}", plan.starts_at);
        }
        Self { name, starts_at: first.max(plan.starts_at) }
    }
}

/// Shards of a group in a slice at most. At one instant a process has so many partitions to write to, and a page reads so many of
/// each process.
pub const GROUP_SHARDS_MAX: u32 = 32;
/// Groups of shards. Two processes that have the same group share partitions, and nothing else changes.
const SHARD_GROUPS: u32 = 1_024;
const DAY_MS: i64 = 86_400_000;
const DAY_SLICES_MAX: u32 = 1_440;
/// The largest bucket count of a day: slices of a minute.
pub const DAY_BUCKETS_MAX: u32 = GROUP_SHARDS_MAX * DAY_SLICES_MAX;
/// The bucket count of a day without a plan: slices of seven and a half minutes. At 500 orders a second of one process a
/// partition gets 7 000 orders with two rows each, less than 10 MiB.
pub const DAY_BUCKETS: u32 = GROUP_SHARDS_MAX * 192;

/// A slice of a day (UTC) under a plan. It has several partitions, the shards of each group, and a list reads the slices one
/// after another.
/// A name means one period of time, as with [`MonthBucket`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaySlice {
    pub name: String,
    /// No row of the slice is older.
    pub starts_at: Timestamp,
    pub shards: u32,
}

impl DaySlice {
    /// The slice of an instant. The buckets of a plan are shards first, then slices of time.
    pub fn of(at: Timestamp, plan: Plan) -> Self {
        let buckets = plan.buckets.clamp(1, DAY_BUCKETS_MAX);
        let shards = buckets.min(GROUP_SHARDS_MAX);
        let slices = i64::from(buckets / shards);
        let midnight = at.date().midnight();
        let into_day = at.as_millis() - midnight.as_millis();
        let slice = into_day * slices / DAY_MS;
        let starts_at = midnight.plus_millis((slice * DAY_MS + slices - 1) / slices);
        let mut name = format!("{slice}of{slices}x{shards}");
        if plan.starts_at > midnight {
            name = format!("{name}@{}", plan.starts_at);
        }
        Self { name, starts_at: starts_at.max(plan.starts_at), shards }
    }

    /// A slice by its name; `None` for any other text.
    pub fn named(name: &str, starts_at: Timestamp) -> Option<Self> {
        let (_, shards) = name.split_once('x')?;
        let shards = shards.split('@').next()?.parse().ok()?;
        let is_valid = (1..=GROUP_SHARDS_MAX).contains(&shards);
        is_valid.then(|| Self { name: name.to_owned(), starts_at, shards })
    }
}

/// The group of an order's shard: that of the process that made its id, so that processes do not share partitions. The mapping
/// never changes.
pub fn shard_group(order_id: OrderId) -> u32 {
    // The low bits of other ids are no lane: some are random, and an order each would have a group of its own.
    let is_stamped = order_id.uuid().get_version_num() == 7;
    if is_stamped { u32::from(Lane::of(order_id.uuid()).number()) % SHARD_GROUPS } else { 0 }
}

/// The shard of an order among the `shards` partitions of its group in a slice. The mapping is even and never changes.
pub fn shard(order_id: OrderId, shards: u32) -> u32 {
    // The last bytes of a version 7 UUID are random, those of an id made from an ObjectId are zero: all bytes are mixed.
    let bits = order_id.uuid().as_u128();
    let xored = u64::try_from((bits >> 64) ^ (bits & u128::from(u64::MAX))).unwrap_or_default();
    let mixed = xored.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    u32::try_from(mixed % u64::from(shards.max(1))).unwrap_or_default()
}

/// A price band: below 100, then from 1, 2 and 5 times each power of ten. A wide price range is a few dozen partitions
/// instead of thousands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Band(u8);

/// Lower bounds of the bands after the first, in whole units of the currency, for one power of ten.
const STEPS: [i64; 3] = [1, 2, 5];
const FIRST_BOUND_MINOR: i64 = 100 * 100;

impl Band {
    pub fn of(price: Money) -> Self {
        Self::with_bounds(price).0
    }

    /// The band of a price, its lower bound and its upper bound (exclusive), in minor units.
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

    /// The slice of a price when its band is divided into `slices` equal parts; the cheapest is 0.
    pub fn slice(price: Money, slices: u8) -> u8 {
        let (_, from, to) = Self::with_bounds(price);
        let into = i128::from(price.as_minor().saturating_sub(from).max(0));
        let slice = into * i128::from(slices) / i128::from(to.saturating_sub(from).max(1));
        u8::try_from(slice).unwrap_or_default()
    }

    pub const fn number(self) -> u8 {
        self.0
    }

    /// The bands of the prices from `min` to `max`, cheapest first.
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
    fn a_month_is_one_bucket_until_a_plan_divides_it() {
        let usual = Plan { starts_at: Timestamp::EPOCH, buckets: 1 };
        let finer = Plan { starts_at: at("2026-11-20"), buckets: 4 };
        let plans = [usual, finer];
        let bucket = |text: &str| MonthBucket::of(at(text), Plan::at(&plans, at(text)));
        assert_eq!(
            bucket("2026-11-19T23:59:59Z"),
            MonthBucket { name: "2026-11".into(), starts_at: at("2026-11-01") }
        );
        assert_eq!(
            bucket("2026-11-20"),
            MonthBucket { name: "2026-11/2of4@2026-11-20T00:00:00.000Z".into(), starts_at: at("2026-11-20") }
        );
        assert_eq!(bucket("2026-11-25").name, "2026-11/3of4");
        assert_eq!(
            bucket("2026-12-01"),
            MonthBucket { name: "2026-12/0of4".into(), starts_at: at("2026-12-01") }
        );
    }

    #[test]
    fn buckets_of_a_month_follow_one_another() {
        for buckets in 1..=31 {
            let plan = Plan { starts_at: Timestamp::EPOCH, buckets };
            let mut last = MonthBucket { name: String::new(), starts_at: at("2026-01-01") };
            for day in 0..31 {
                let now = at("2026-01-01").plus_seconds(day * 86_400);
                let bucket = MonthBucket::of(now, plan);
                assert!(
                    bucket.starts_at <= now && bucket.starts_at >= last.starts_at,
                    "{buckets} {bucket:?}"
                );
                if bucket.name != last.name {
                    assert_eq!(
                        bucket.starts_at, now,
                        "a bucket starts with its first day: {buckets} {bucket:?}"
                    );
                }
                last = bucket;
            }
        }
    }

    #[test]
    fn slices_of_a_day_follow_one_another_across_a_change_of_plan() {
        let change = at("2026-11-20T10:07:00Z");
        let plans = [
            Plan { starts_at: Timestamp::EPOCH, buckets: DAY_BUCKETS },
            Plan { starts_at: change, buckets: 7 * 32 },
            Plan { starts_at: at("2026-11-20T20:00:00Z"), buckets: 7 * 32 },
        ];
        let mut last = DaySlice { name: String::new(), starts_at: at("2026-11-20"), shards: 32 };
        let mut names = std::collections::HashSet::new();
        for minute in 0..1_440 {
            let now = at("2026-11-20").plus_seconds(minute * 60);
            let slice = DaySlice::of(now, Plan::at(&plans, now));
            assert!(slice.starts_at <= now && slice.starts_at >= last.starts_at, "{slice:?}");
            if slice.name != last.name {
                assert!(names.insert(slice.name.clone()), "a name is one period: {slice:?}");
                assert!(slice.starts_at > last.starts_at || minute == 0, "{slice:?} after {last:?}");
            }
            assert_eq!(DaySlice::named(&slice.name, slice.starts_at).as_ref(), Some(&slice));
            last = slice;
        }
        assert_eq!(names.len(), 81 + 4 + 2);
        assert!(names.contains("80of192x32") && names.contains("2of7x32@2026-11-20T10:07:00.000Z"));
        for damaged in ["", "3", "3of4", "3of4x", "3of4x0", "3of4x33"] {
            assert_eq!(DaySlice::named(damaged, change), None, "{damaged}");
        }
    }

    #[test]
    fn few_buckets_of_a_day_are_shards_and_many_are_slices_too() {
        let slice = |buckets| {
            let plan = Plan { starts_at: Timestamp::EPOCH, buckets };
            DaySlice::of(at("2026-11-20T12:00:00Z"), plan)
        };
        assert_eq!((slice(1).name.as_str(), slice(4).name.as_str()), ("0of1x1", "0of1x4"));
        assert_eq!(slice(64).name, "1of2x32");
        assert_eq!(slice(DAY_BUCKETS_MAX).name, "720of1440x32");
        assert_eq!(slice(u32::MAX), slice(DAY_BUCKETS_MAX));
    }

    #[test]
    fn a_partition_of_a_busy_day_stays_within_its_bound() {
        // 500 orders a second of one process, each two rows of at most 700 bytes.
        let plan = Plan { starts_at: Timestamp::EPOCH, buckets: DAY_BUCKETS };
        let (from, to) = (at("2026-11-20"), at("2026-11-21"));
        let mut slices = std::collections::HashSet::new();
        let mut now = from;
        while now < to {
            slices.insert(DaySlice::of(now, plan).name);
            now = now.plus_seconds(1);
        }
        let rows = 2 * 500 * 86_400 / (slices.len() * 32);
        assert!(rows < 100_000 && rows * 700 < 10 * 1024 * 1024, "{rows} rows");
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
    fn processes_have_groups_of_their_own_and_foreign_ids_share_one() {
        let stamped =
            |lane: u128| OrderId::new(Uuid::from_u128(0x0190 << 112 | 0x7 << 76 | 0x8 << 60 | lane));
        let groups: std::collections::HashSet<u32> =
            (0..500).map(|lane| shard_group(stamped(lane))).collect();
        assert_eq!(groups.len(), 500);
        assert_eq!(shard_group(stamped(0xffff)), 1_023);
        assert_eq!(shard_group(OrderId::new(Uuid::from_u128(0x4 << 76 | 0x8 << 60 | 0x4d))), 0);
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
