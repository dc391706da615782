//! Adaptive bucketing: which bucket plans the judged partitions call for.
//!
//! A plan is made only where finer buckets help. Buckets of a month are periods of time and bound a partition's size; they do not
//! spread the writes of an instant. The same holds for a day that has all its shards. A price band is divided by price, which
//! helps with both.

use mw_domain::Timestamp;
use mw_store::partitions::{BucketPlan, BucketUnit, BucketedTable, MadeBy, PartitionState, PartitionStats};

use super::judgement::{Limits, to_f64};

/// `operate.partitions.adapt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adapt {
    /// Plans are made and ended.
    Auto,
    /// Plans are logged for the operator to make.
    Advise,
    Off,
}

/// A plan that was made by itself ends after this time without a hot or wide partition.
const QUIET_SECONDS: i64 = 24 * 3_600;
/// Shards of a day's slice at most, as `domain::buckets` divides them.
const DAY_SHARDS: u32 = 32;
const DAY_SECONDS: f64 = 86_400.0;
const MONTH_SECONDS: f64 = 31.0 * DAY_SECONDS;
/// A price band has no end: its growth is projected for this time.
const BAND_HORIZON_SECONDS: f64 = DAY_SECONDS;

/// What the plans are made from.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    pub tables: &'a [BucketedTable],
    /// Every plan, oldest first within a key.
    pub plans: &'a [BucketPlan],
    pub limits: Limits,
    pub now: Timestamp,
    /// The earliest start of a plan.
    pub earliest: Timestamp,
}

impl Situation<'_> {
    /// The last plan of a key.
    fn last(&self, table: &str, key: &str) -> Option<&BucketPlan> {
        let of_key = self.plans.iter().filter(|plan| plan.table == table && plan.key == key);
        of_key.max_by_key(|plan| plan.from)
    }

    /// The plans that the partitions of a window call for, one a key at most.
    pub fn finer(&self, judged: &[PartitionStats]) -> Vec<BucketPlan> {
        let mut made: Vec<BucketPlan> = Vec::new();
        for stats in judged.iter().filter(|stats| stats.state != PartitionState::Ok) {
            let Some(table) = self.tables.iter().find(|table| table.table == stats.table) else { continue };
            let last = self.last(&stats.table, &stats.key);
            // A plan that has not started yet, or has only just started, has not shown what it does.
            let settles_at = self.now.plus_millis(-self.window_ms());
            if last.is_some_and(|last| last.from > settles_at) {
                continue;
            }
            let current = last.map_or(table.default_buckets, |last| last.buckets);
            let buckets = self.buckets_for(table, current, stats).min(table.buckets_max);
            let is_planned = |plan: &BucketPlan| plan.table == stats.table && plan.key == stats.key;
            if buckets <= current {
                continue;
            }
            if let Some(planned) = made.iter_mut().find(|plan| is_planned(plan)) {
                planned.buckets = planned.buckets.max(buckets);
                continue;
            }
            made.push(self.plan(&stats.table, &stats.key, buckets));
        }
        made
    }

    /// The plans that end those made by themselves whose keys were quiet for a day. `known` has every noteworthy partition.
    pub fn ended(&self, known: &[PartitionStats]) -> Vec<BucketPlan> {
        let is_quiet = |plan: &BucketPlan, table: &BucketedTable| {
            let quiet_from = self.now.plus_seconds(-QUIET_SECONDS);
            let recent = known.iter().filter(|stats| {
                stats.table == plan.table && stats.key == plan.key && stats.updated_at > quiet_from
            });
            // In coarser buckets a partition gets as much more as there are fewer of them.
            let coarser = u64::from(plan.buckets / table.default_buckets.max(1)).max(1);
            recent.fold(true, |quiet, stats| {
                let fits = stats.bytes.saturating_mul(coarser) < self.limits.wide_bytes / 2;
                quiet && stats.state == PartitionState::Ok && fits
            })
        };
        let mut ended = Vec::new();
        for plan in self.plans.iter().filter(|plan| plan.made_by == MadeBy::Auto) {
            let Some(table) = self.tables.iter().find(|table| table.table == plan.table) else { continue };
            let is_last = self.last(&plan.table, &plan.key) == Some(plan);
            let is_old = plan.from <= self.now.plus_seconds(-QUIET_SECONDS);
            if is_last && is_old && plan.buckets > table.default_buckets && is_quiet(plan, table) {
                ended.push(self.plan(&plan.table, &plan.key, table.default_buckets));
            }
        }
        ended
    }

    fn plan(&self, table: &str, key: &str, buckets: u32) -> BucketPlan {
        let (table, key) = (table.to_owned(), key.to_owned());
        BucketPlan { table, key, buckets, from: self.earliest, made_by: MadeBy::Auto }
    }

    fn window_ms(&self) -> i64 {
        i64::try_from(self.limits.window.as_millis()).unwrap_or(i64::MAX)
    }

    /// The bucket count that keeps a partition of this kind below half of the limit, or spreads its traffic.
    fn buckets_for(&self, table: &BucketedTable, current: u32, stats: &PartitionStats) -> u32 {
        if stats.state == PartitionState::Hot {
            return match table.unit {
                BucketUnit::Month => current,
                BucketUnit::Day => current.max(DAY_SHARDS),
                BucketUnit::PriceBand => current.saturating_mul(2),
            };
        }
        let projected = self.projected_bytes(table.unit, current, stats);
        if projected <= to_f64(self.limits.wide_bytes) {
            return current;
        }
        let parts = (projected / (to_f64(self.limits.wide_bytes) / 2.0)).ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to what a count can be"
        )]
        let parts = parts.clamp(2.0, f64::from(table.buckets_max)) as u32;
        current.saturating_mul(parts)
    }

    /// The bytes of a partition at the end of its period, if it goes on growing as it did.
    fn projected_bytes(&self, unit: BucketUnit, current: u32, stats: &PartitionStats) -> f64 {
        let millis = |from: Timestamp, to: Timestamp| {
            u64::try_from(to.as_millis() - from.as_millis()).unwrap_or_default()
        };
        let elapsed = to_f64(millis(stats.counted_from, self.now)) / 1_000.0;
        let elapsed = elapsed.max(self.limits.window.as_secs_f64());
        let period = match unit {
            BucketUnit::Month => MONTH_SECONDS / f64::from(current.max(1)),
            BucketUnit::Day => DAY_SECONDS / f64::from((current / DAY_SHARDS).max(1)),
            BucketUnit::PriceBand => BAND_HORIZON_SECONDS,
        };
        let bytes = to_f64(stats.bytes);
        bytes + bytes / elapsed * (period - elapsed).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);
    const TABLES: [BucketedTable; 3] = [
        BucketedTable {
            table: "orders_by_customer",
            default_buckets: 1,
            buckets_max: 31,
            unit: BucketUnit::Month,
            what: "",
        },
        BucketedTable {
            table: "orders_by_day",
            default_buckets: 64,
            buckets_max: 46_080,
            unit: BucketUnit::Day,
            what: "",
        },
        BucketedTable {
            table: "products_by_category",
            default_buckets: 1,
            buckets_max: 64,
            unit: BucketUnit::PriceBand,
            what: "",
        },
    ];

    fn situation(plans: &[BucketPlan]) -> Situation<'_> {
        let limits = Limits { window: Duration::from_mins(1), wide_bytes: 10 << 20 };
        Situation { tables: &TABLES, plans, limits, now: NOW, earliest: NOW.plus_seconds(60) }
    }

    fn stats(table: &str, state: PartitionState, bytes: u64, counted_hours: i64) -> PartitionStats {
        PartitionStats {
            table: table.to_owned(),
            key: "k".to_owned(),
            bucket: "b".to_owned(),
            reads_per_s: 0.0,
            writes_per_s: 0.0,
            rows: 1,
            bytes,
            share: 0.0,
            error_per_s: 0.0,
            state,
            counted_from: NOW.plus_seconds(-counted_hours * 3_600),
            updated_at: NOW,
        }
    }

    fn plan(table: &str, buckets: u32, hours: i64, made_by: MadeBy) -> BucketPlan {
        let from = NOW.plus_seconds(hours * 3_600);
        BucketPlan { table: table.to_owned(), key: "k".to_owned(), buckets, from, made_by }
    }

    fn buckets(plans: &[BucketPlan], stats: PartitionStats) -> Option<u32> {
        situation(plans).finer(&[stats]).first().map(|plan| plan.buckets)
    }

    #[test]
    fn a_wholesaler_that_fills_a_month_gets_finer_buckets_before_the_limit() {
        let wholesaler = |bytes, hours| stats("orders_by_customer", PartitionState::Wide, bytes, hours);
        // 1.5 MiB in a day are 46 MiB in a month: nine buckets of at most 5 MiB.
        assert_eq!(buckets(&[], wholesaler(3 << 19, 24)), Some(10));
        // 1.5 MiB in 20 days stay below the limit.
        assert_eq!(buckets(&[], wholesaler(3 << 19, 20 * 24)), None);
        assert_eq!(buckets(&[], wholesaler(200 << 20, 24)), Some(31), "no finer than days");
        let made = situation(&[]).finer(&[wholesaler(3 << 19, 24)]);
        assert_eq!((made[0].from, made[0].made_by), (NOW.plus_seconds(60), MadeBy::Auto));
    }

    #[test]
    fn a_plan_that_is_coming_or_as_fine_as_needed_is_not_made_again() {
        let wide = || stats("orders_by_customer", PartitionState::Wide, 3 << 19, 24);
        assert_eq!(buckets(&[plan("orders_by_customer", 2, 1, MadeBy::Operator)], wide()), None);
        assert_eq!(buckets(&[plan("orders_by_customer", 31, -48, MadeBy::Operator)], wide()), None);
        assert_eq!(buckets(&[plan("orders_by_day", 64, 1, MadeBy::Operator)], wide()), Some(10));
    }

    #[test]
    fn heat_is_spread_where_buckets_can_spread_it() {
        let hot = |table| stats(table, PartitionState::Hot, 0, 1);
        assert_eq!(buckets(&[], hot("orders_by_customer")), None);
        assert_eq!(buckets(&[], hot("stock")), None);
        assert_eq!(buckets(&[], hot("orders_by_day")), None, "it has all its shards");
        assert_eq!(
            buckets(&[plan("orders_by_day", 4, -48, MadeBy::Operator)], hot("orders_by_day")),
            Some(32)
        );
        assert_eq!(buckets(&[], hot("products_by_category")), Some(2));
    }

    #[test]
    fn a_day_that_outgrows_its_slices_gets_more_of_them() {
        // 64 buckets are two slices of 12 hours: 6 MiB in an hour are 72 MiB in such a slice.
        assert_eq!(buckets(&[], stats("orders_by_day", PartitionState::Wide, 6 << 20, 1)), Some(64 * 15));
    }

    #[test]
    fn only_a_quiet_plan_that_was_made_by_itself_ends() {
        let of = |made_by, hours| plan("orders_by_customer", 8, hours, made_by);
        let ended = |plans: &[BucketPlan], known: &[PartitionStats]| {
            situation(plans).ended(known).iter().map(|plan| plan.buckets).collect::<Vec<_>>()
        };
        assert_eq!(ended(&[of(MadeBy::Auto, -25)], &[]), [1]);
        assert!(ended(&[of(MadeBy::Auto, -23)], &[]).is_empty(), "not a day old");
        assert!(ended(&[of(MadeBy::Operator, -25)], &[]).is_empty());
        let wide = stats("orders_by_customer", PartitionState::Wide, 2 << 20, 1);
        assert!(ended(&[of(MadeBy::Auto, -25)], std::slice::from_ref(&wide)).is_empty());
        let small = stats("orders_by_customer", PartitionState::Ok, 100_000, 1);
        assert_eq!(ended(&[of(MadeBy::Auto, -25)], std::slice::from_ref(&small)), [1]);
        // Eight of these would be one wide partition again.
        let sizeable = stats("orders_by_customer", PartitionState::Ok, 1_000_000, 1);
        assert!(ended(&[of(MadeBy::Auto, -25)], std::slice::from_ref(&sizeable)).is_empty());
        let old = PartitionStats { updated_at: NOW.plus_seconds(-QUIET_SECONDS - 1), ..wide };
        assert_eq!(ended(&[of(MadeBy::Auto, -48)], &[old]), [1]);
        assert!(
            ended(&[of(MadeBy::Auto, -48), plan("orders_by_customer", 1, -30, MadeBy::Auto)], &[]).is_empty()
        );
    }
}
