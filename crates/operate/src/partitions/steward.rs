//! The background task of every process: it publishes what the process counted in a window. One process merges what all have
//! published, stores the noteworthy partitions, and makes and ends bucket plans.
//!
//! Two processes may merge the same window for a moment: both come to the same plans, and a size may be counted twice.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::Timestamp;
use mw_store::Result;
use mw_store::partitions::{BucketPlan, PartitionState, PartitionStats, PartitionStore};
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::adaptation::{Adapt, Situation};
use super::counting::PartitionCounters;
use super::judgement::{Limits, judge};
use super::summary::WindowSummary;

/// Between two looks at the clock, and at the rate that decides about sampling.
const TICK: Duration = Duration::from_secs(1);
/// For the summaries of the other processes to arrive, as a part of the window and at most.
const SETTLE_PART: u32 = 4;
const SETTLE_MAX: Duration = Duration::from_secs(5);
const DAY_MS: i64 = 86_400_000;

#[derive(Debug, Clone, Copy)]
pub struct StewardSettings {
    pub limits: Limits,
    pub adapt: Adapt,
}

/// The time of this machine.
pub type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

pub struct Steward {
    counters: Arc<PartitionCounters>,
    store: Arc<dyn PartitionStore>,
    settings: StewardSettings,
    now: Now,
    metrics: StewardMetrics,
}

impl fmt::Debug for Steward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steward").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct StewardMetrics {
    noteworthy: IntGaugeVec,
    plans: IntCounterVec,
    windows: IntCounter,
    failures: IntCounter,
}

impl StewardMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            noteworthy: IntGaugeVec::new(
                Opts::new(
                    "mw_partitions_noteworthy",
                    "Hot and wide partitions of the last merged window, by table",
                ),
                &["table", "state"],
            )?,
            plans: IntCounterVec::new(
                Opts::new("mw_partition_plans_total", "Bucket plans that this process made or advised"),
                &["table", "action"],
            )?,
            windows: IntCounter::new(
                "mw_partition_windows_total",
                "Windows of partition statistics that this process published",
            )?,
            failures: IntCounter::new(
                "mw_partition_window_failures_total",
                "Windows of partition statistics that could not be published or merged",
            )?,
        };
        registry.register(Box::new(metrics.noteworthy.clone()))?;
        registry.register(Box::new(metrics.plans.clone()))?;
        registry.register(Box::new(metrics.windows.clone()))?;
        registry.register(Box::new(metrics.failures.clone()))?;
        Ok(metrics)
    }

    fn show(&self, judged: &[PartitionStats]) {
        self.noteworthy.reset();
        for stats in judged.iter().filter(|stats| stats.state != PartitionState::Ok) {
            self.noteworthy.with_label_values(&[stats.table.as_str(), stats.state.name()]).inc();
        }
    }
}

impl Steward {
    /// Fails where the registry has series of these names already.
    pub fn new(
        counters: Arc<PartitionCounters>,
        store: Arc<dyn PartitionStore>,
        settings: StewardSettings,
        now: Now,
        registry: &Registry,
    ) -> Result<Self, prometheus::Error> {
        Ok(Self { counters, store, settings, now, metrics: StewardMetrics::register(registry)? })
    }

    /// Runs until its task is aborted.
    pub async fn run(self) {
        let mut ticks = tokio::time::interval(TICK.min(self.settings.limits.window / SETTLE_PART));
        let mut adapted_at = Instant::now();
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut window, mut to_merge) = (self.window_at((self.now)()), None);
        loop {
            ticks.tick().await;
            self.counters.adapt_sampling(adapted_at.elapsed());
            adapted_at = Instant::now();
            let now = (self.now)();
            let present = self.window_at(now);
            if present != window {
                let is_new_day =
                    self.starts_at(present).div_euclid(DAY_MS) != self.starts_at(window).div_euclid(DAY_MS);
                self.log_failure("publish", self.publish(window, is_new_day).await);
                to_merge = Some(window);
                window = present;
            }
            let has_settled = now.as_millis() - self.starts_at(window) >= self.settle_ms();
            if let Some(ended) = to_merge.take_if(|_| has_settled)
                && self.store.merges()
            {
                self.log_failure("merge", self.merge(ended).await);
            }
        }
    }

    fn log_failure(&self, what: &str, done: Result<()>) {
        if let Err(error) = done {
            self.metrics.failures.inc();
            tracing::warn!(%error, "{what} a window of partition statistics: the window is left out");
        }
    }

    fn window_ms(&self) -> i64 {
        i64::try_from(self.settings.limits.window.as_millis()).unwrap_or(i64::MAX).max(1)
    }

    fn settle_ms(&self) -> i64 {
        let settle = (self.settings.limits.window / SETTLE_PART).min(SETTLE_MAX);
        i64::try_from(settle.as_millis()).unwrap_or_default()
    }

    /// The number of the window of an instant: the same in every process.
    pub fn window_at(&self, at: Timestamp) -> i64 {
        at.as_millis().div_euclid(self.window_ms())
    }

    fn starts_at(&self, window: i64) -> i64 {
        window.saturating_mul(self.window_ms())
    }

    /// Publishes what this process counted.
    pub async fn publish(&self, window: i64, is_new_day: bool) -> Result<()> {
        let summary = self.counters.take_summary(is_new_day);
        // A crash here loses what this process counted in the window: it is a statistic.
        self.store.publish_window(window, summary.encode()).await?;
        self.metrics.windows.inc();
        Ok(())
    }

    /// Merges a window of all processes, and acts on it.
    pub async fn merge(&self, window: i64) -> Result<()> {
        let current = self.merged(window).await?;
        let previous = self.merged(window - 1).await?;
        let now = (self.now)();
        let known = self.store.partition_stats(None).await?;
        let judged = judge(&current, &previous, &known, &self.settings.limits, now);
        for stats in judged.iter().filter(|stats| stats.state == PartitionState::Hot) {
            tracing::warn!(
                table = stats.table,
                key = stats.key,
                bucket = stats.bucket,
                reads_per_s = stats.reads_per_s,
                writes_per_s = stats.writes_per_s,
                error_per_s = stats.error_per_s,
                share = stats.share,
                "hot partition"
            );
        }
        self.metrics.show(&judged);
        // A crash here leaves the statistics of the window before; the next merge goes on from them.
        self.store.put_partition_stats(judged.clone()).await?;
        // A crash here leaves the partitions judged and no plan; the next window comes to the same plan.
        self.adapt(&judged, known, now).await
    }

    async fn merged(&self, window: i64) -> Result<WindowSummary> {
        let mut merged = WindowSummary::default();
        for bytes in self.store.published(window).await? {
            match WindowSummary::decode(&bytes) {
                Ok(summary) => merged.merge(&summary),
                Err(error) => tracing::warn!(%error, window, "skip the summary of a process"),
            }
        }
        Ok(merged)
    }

    /// Makes and ends plans.
    async fn adapt(
        &self,
        judged: &[PartitionStats],
        known: Vec<PartitionStats>,
        now: Timestamp,
    ) -> Result<()> {
        if self.settings.adapt == Adapt::Off || self.store.bucketed_tables().is_empty() {
            return Ok(());
        }
        let plans = self.store.bucket_plans().await?;
        let situation = Situation {
            tables: self.store.bucketed_tables(),
            plans: &plans,
            limits: self.settings.limits,
            now,
            earliest: self.store.earliest_start(now),
        };
        let is_judged = |stats: &PartitionStats| {
            judged.iter().any(|other| {
                (&other.table, &other.key, &other.bucket) == (&stats.table, &stats.key, &stats.bucket)
            })
        };
        let mut all: Vec<PartitionStats> = known.into_iter().filter(|stats| !is_judged(stats)).collect();
        all.extend_from_slice(judged);
        for plan in situation.finer(judged) {
            self.make(plan, "finer", now).await?;
        }
        for plan in situation.ended(&all) {
            self.make(plan, "ended", now).await?;
        }
        Ok(())
    }

    async fn make(&self, plan: BucketPlan, action: &str, now: Timestamp) -> Result<()> {
        let BucketPlan { table, key, buckets, from, .. } = &plan;
        if self.settings.adapt == Adapt::Advise {
            self.metrics.plans.with_label_values(&[table.as_str(), "advised"]).inc();
            tracing::warn!(
                table,
                key,
                buckets,
                "advise a bucket plan: make it with `mw partitions plan set`, or set operate.partitions.adapt = \"auto\""
            );
            return Ok(());
        }
        tracing::info!(table, key, buckets, %from, action, "make a bucket plan");
        self.metrics.plans.with_label_values(&[table.as_str(), action]).inc();
        self.store.put_bucket_plan(plan, now).await
    }
}
