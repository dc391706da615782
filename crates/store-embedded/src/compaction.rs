//! Compaction: the filter that drops expired rows, and the throttle that spreads the work over time.
//!
//! A compaction takes a processor for seconds, and fjall runs several at once, which delays requests. The throttle makes each
//! compaction thread work for a short slice and pause for a longer one. With a backlog in level 0 the compactions together may
//! use one processor; while the store closes they do not pause.
//!
//! A row is dropped only a grace period after its expiry, and readers check the expiry themselves: whether a compaction ran,
//! or a crash interrupted it, is never visible.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use mw_codec::VERSION;

use crate::tables::Table;

/// How long an expired row stays, so that a clock set forward by mistake for a moment deletes nothing.
pub(crate) const GRACE_MS: i64 = 3_600_000;
/// How long a compaction works before it pauses.
const WORK_SLICE: Duration = Duration::from_millis(1);
/// All compactions together pause this many times as long as they work.
const PAUSE_FACTOR: u32 = 3;
/// The longest pause, however long the machine delayed the work before it.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Rows between two readings of the clock.
const ROWS_PER_CLOCK_READ: u32 = 16;

/// The compaction throttle, shared by all compactions of a store.
#[derive(Debug, Default)]
pub(crate) struct CompactionThrottle {
    running: AtomicU32,
    is_backlogged: AtomicBool,
    is_closing: AtomicBool,
}

impl CompactionThrottle {
    /// With a backlog, compactions pause only for one another.
    pub(crate) fn set_backlogged(&self, is_backlogged: bool) {
        self.is_backlogged.store(is_backlogged, Ordering::Relaxed);
    }

    /// Ends all pauses: the store is closing and waits for running compactions.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// How long a compaction pauses after this much work.
    fn pause_after(&self, worked: Duration) -> Duration {
        if worked < WORK_SLICE || self.is_closing() {
            return Duration::ZERO;
        }
        let running = self.running.load(Ordering::Relaxed).max(1);
        let is_backlogged = self.is_backlogged.load(Ordering::Relaxed);
        let factor = if is_backlogged { running - 1 } else { PAUSE_FACTOR * running };
        (worked * factor).min(PAUSE_MAX)
    }
}

/// Makes the filter of each compaction of one table.
struct FilterFactory {
    /// The time of the latest maintenance; `None` for tables whose rows do not expire.
    now_ms: Option<Arc<AtomicI64>>,
    throttle: Arc<CompactionThrottle>,
}

/// The compaction filters of the table with this name on disk.
pub(crate) fn filters(
    table_name: &str,
    now_ms: &Arc<AtomicI64>,
    throttle: &Arc<CompactionThrottle>,
) -> Arc<dyn Factory> {
    let now_ms = Table::expires(table_name).then(|| Arc::clone(now_ms));
    Arc::new(FilterFactory { now_ms, throttle: Arc::clone(throttle) })
}

impl Factory for FilterFactory {
    fn name(&self) -> &'static str {
        "expiry and throttle"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        let cutoff = |now_ms: &Arc<AtomicI64>| now_ms.load(Ordering::Relaxed).saturating_sub(GRACE_MS);
        Box::new(ThrottledFilter::new(self.now_ms.as_ref().map(cutoff), &self.throttle))
    }
}

/// The filter of one running compaction.
struct ThrottledFilter {
    cutoff_ms: Option<i64>,
    throttle: Arc<CompactionThrottle>,
    /// Rows since the clock was read.
    rows: u32,
    slice_started_at: Instant,
}

impl ThrottledFilter {
    fn new(cutoff_ms: Option<i64>, throttle: &Arc<CompactionThrottle>) -> Self {
        throttle.running.fetch_add(1, Ordering::Relaxed);
        Self { cutoff_ms, throttle: Arc::clone(throttle), rows: 0, slice_started_at: Instant::now() }
    }

    fn pause_if_due(&mut self) {
        self.rows += 1;
        if self.rows < ROWS_PER_CLOCK_READ {
            return;
        }
        self.rows = 0;
        let pause = self.throttle.pause_after(self.slice_started_at.elapsed());
        if !pause.is_zero() {
            std::thread::sleep(pause);
            self.slice_started_at = Instant::now();
        }
    }
}

impl CompactionFilter for ThrottledFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        self.pause_if_due();
        let Some(cutoff_ms) = self.cutoff_ms else { return Ok(Verdict::Keep) };
        let value = item.value()?;
        Ok(if is_expired(&value, cutoff_ms) { Verdict::Remove } else { Verdict::Keep })
    }
}

impl Drop for ThrottledFilter {
    fn drop(&mut self) {
        self.throttle.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A value that cannot be decoded stays: its reader reports the damage.
pub(crate) fn is_expired(value: &[u8], cutoff_ms: i64) -> bool {
    is_expired_up_to(VERSION, value, cutoff_ms)
}

/// In every version up to `newest` the expiry follows the version: rows of an older release expire too.
fn is_expired_up_to(newest: u8, value: &[u8], cutoff_ms: i64) -> bool {
    match value.split_first() {
        Some((version, rest)) if (1..=newest).contains(version) => {
            rest.first_chunk::<8>().is_some_and(|expiry| i64::from_be_bytes(*expiry) <= cutoff_ms)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Tables;
    use fjall::Database;

    #[test]
    fn compactions_together_pause_most_of_the_time() {
        let throttle = Arc::new(CompactionThrottle::default());
        let _first = ThrottledFilter::new(None, &throttle);
        assert_eq!(throttle.pause_after(WORK_SLICE), WORK_SLICE * PAUSE_FACTOR);
        let second = ThrottledFilter::new(None, &throttle);
        assert_eq!(throttle.pause_after(2 * WORK_SLICE), 2 * WORK_SLICE * PAUSE_FACTOR * 2);
        drop(second);
        assert_eq!(throttle.pause_after(WORK_SLICE), WORK_SLICE * PAUSE_FACTOR);
        assert_eq!(throttle.pause_after(WORK_SLICE / 2), Duration::ZERO, "its slice is not over");
        assert_eq!(throttle.pause_after(Duration::from_secs(9)), PAUSE_MAX);
    }

    #[test]
    fn compactions_with_a_backlog_pause_only_for_one_another() {
        let throttle = Arc::new(CompactionThrottle::default());
        throttle.set_backlogged(true);
        let _first = ThrottledFilter::new(None, &throttle);
        assert_eq!(throttle.pause_after(WORK_SLICE), Duration::ZERO, "no other runs");
        let _second = ThrottledFilter::new(None, &throttle);
        assert_eq!(throttle.pause_after(WORK_SLICE), WORK_SLICE, "one of two runs");
        throttle.close();
        assert_eq!(throttle.pause_after(WORK_SLICE), Duration::ZERO, "the store closes");
    }

    #[test]
    fn only_rows_with_an_expiry_up_to_the_cutoff_are_expired() {
        let value = |expiry: i64| [&[VERSION], expiry.to_be_bytes().as_slice(), b"rest"].concat();
        assert!(is_expired(&value(99), 100));
        assert!(is_expired(&value(100), 100));
        assert!(!is_expired(&value(101), 100));
        assert!(!is_expired(b"", 100));
        assert!(!is_expired(&[VERSION + 1; 20], i64::MAX));
    }

    #[test]
    fn rows_of_an_older_version_expire_and_those_of_a_newer_one_stay() {
        let value = |version: u8| [&[version], 99_i64.to_be_bytes().as_slice(), b"rest"].concat();
        let expired: Vec<u8> = (0..6).filter(|version| is_expired_up_to(3, &value(*version), 100)).collect();
        assert_eq!(expired, [1, 2, 3]);
    }

    #[test]
    fn compaction_drops_expired_rows_of_expiring_tables_only() {
        let folder = tempfile::tempdir().unwrap();
        let now_ms = Arc::new(AtomicI64::new(10 * GRACE_MS));
        let throttle = Arc::new(CompactionThrottle::default());
        let db = Database::builder(folder.path())
            .with_compaction_filter_factories(Arc::new(move |name| Some(filters(name, &now_ms, &throttle))))
            .open()
            .unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        let value = |expiry: i64| [&[VERSION], expiry.to_be_bytes().as_slice()].concat();
        for table in [Table::Sessions, Table::Products] {
            let keyspace = tables.get(table);
            keyspace.insert("old", value(9 * GRACE_MS)).unwrap();
            keyspace.insert("within grace", value(9 * GRACE_MS + 1)).unwrap();
            keyspace.rotate_memtable_and_wait().unwrap();
            keyspace.major_compact().unwrap();
        }
        let rows = |table| tables.get(table).len().unwrap();
        assert_eq!((rows(Table::Sessions), rows(Table::Products)), (1, 2));
    }
}
