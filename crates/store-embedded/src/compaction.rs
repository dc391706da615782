//! What happens while the engine compacts: expired rows are dropped, and the work is spread over time.
//!
//! A compaction is seconds of a processor in one piece, and the engine runs several at once. Left alone they push requests
//! aside; so each works for a moment and rests for a longer one. Where tables pile up that wait for it, all together take one
//! processor, and when the store closes they do not rest at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use mw_codec::VERSION;

use crate::tables::Table;

/// A row is dropped only this long after its expiry, so that a clock set forward by mistake costs nothing.
const GRACE_MS: i64 = 3_600_000;
/// How long a compaction works before it rests.
const WORK: Duration = Duration::from_millis(1);
/// All compactions together rest this many times as long as they work.
const REST: u32 = 3;
/// A pause is no longer than this, whatever the machine did to the work before it.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Rows between two looks at the clock.
const ROWS_A_LOOK: u32 = 16;

/// How fast compactions may go, shared by all of them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    running: AtomicU32,
    is_hurried: AtomicBool,
    is_closing: AtomicBool,
}

impl Pace {
    /// Whether compactions rest only so much that they leave each other room, from now on.
    pub(crate) fn hurry(&self, is_hurried: bool) {
        self.is_hurried.store(is_hurried, Ordering::Relaxed);
    }

    /// Nobody rests any more: somebody waits for the end of them.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// How long to rest after this much work.
    fn pause(&self, worked: Duration) -> Duration {
        if worked < WORK || self.is_closing() {
            return Duration::ZERO;
        }
        let running = self.running.load(Ordering::Relaxed).max(1);
        let times = if self.is_hurried.load(Ordering::Relaxed) { running - 1 } else { REST * running };
        (worked * times).min(PAUSE_MAX)
    }
}

/// Makes the filters through which the engine leads all rows that it compacts.
struct Filters {
    /// The time that the last write told the engine; `None` for tables whose rows stay.
    now_ms: Option<Arc<AtomicI64>>,
    pace: Arc<Pace>,
}

/// The filters of a table.
pub(crate) fn filters(name: &str, now_ms: &Arc<AtomicI64>, pace: &Arc<Pace>) -> Arc<dyn Factory> {
    let now_ms = Table::expires(name).then(|| Arc::clone(now_ms));
    Arc::new(Filters { now_ms, pace: Arc::clone(pace) })
}

impl Factory for Filters {
    fn name(&self) -> &'static str {
        "expiry and pace"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        let cutoff = |now_ms: &Arc<AtomicI64>| now_ms.load(Ordering::Relaxed).saturating_sub(GRACE_MS);
        Box::new(Filter::new(self.now_ms.as_ref().map(cutoff), &self.pace))
    }
}

/// One compaction.
struct Filter {
    cutoff_ms: Option<i64>,
    pace: Arc<Pace>,
    rows: u32,
    works_since: Instant,
}

impl Filter {
    fn new(cutoff_ms: Option<i64>, pace: &Arc<Pace>) -> Self {
        pace.running.fetch_add(1, Ordering::Relaxed);
        Self { cutoff_ms, pace: Arc::clone(pace), rows: 0, works_since: Instant::now() }
    }

    fn rest(&mut self) {
        self.rows += 1;
        if self.rows < ROWS_A_LOOK {
            return;
        }
        self.rows = 0;
        let pause = self.pace.pause(self.works_since.elapsed());
        if !pause.is_zero() {
            std::thread::sleep(pause);
            self.works_since = Instant::now();
        }
    }
}

impl CompactionFilter for Filter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        self.rest();
        let Some(cutoff_ms) = self.cutoff_ms else { return Ok(Verdict::Keep) };
        let value = item.value()?;
        Ok(if is_expired(&value, cutoff_ms) { Verdict::Remove } else { Verdict::Keep })
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        self.pace.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A value that cannot be understood is kept: whoever reads it will tell.
fn is_expired(value: &[u8], cutoff_ms: i64) -> bool {
    match value.split_first() {
        Some((&VERSION, rest)) => {
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
    fn all_compactions_together_rest_most_of_the_time() {
        let pace = Arc::new(Pace::default());
        let _one = Filter::new(None, &pace);
        assert_eq!(pace.pause(WORK), WORK * REST);
        let another = Filter::new(None, &pace);
        assert_eq!(pace.pause(2 * WORK), 2 * WORK * REST * 2);
        drop(another);
        assert_eq!(pace.pause(WORK), WORK * REST);
        assert_eq!(pace.pause(WORK / 2), Duration::ZERO, "it has hardly begun");
        assert_eq!(pace.pause(Duration::from_secs(9)), PAUSE_MAX);
        pace.hurry(true);
        assert_eq!(pace.pause(WORK), Duration::ZERO, "it is alone");
        let _another = Filter::new(None, &pace);
        assert_eq!(pace.pause(WORK), WORK, "they take turns");
        pace.close();
        assert_eq!(pace.pause(WORK), Duration::ZERO);
    }

    #[test]
    fn only_what_is_long_expired_is_dropped() {
        let value = |expiry: i64| [&[VERSION], expiry.to_be_bytes().as_slice(), b"rest"].concat();
        assert!(is_expired(&value(99), 100));
        assert!(is_expired(&value(100), 100));
        assert!(!is_expired(&value(101), 100));
        assert!(!is_expired(b"", 100));
        assert!(!is_expired(&[VERSION + 1; 20], i64::MAX));
    }

    #[test]
    fn compaction_drops_expired_rows_of_expiring_tables_only() {
        let folder = tempfile::tempdir().unwrap();
        let now_ms = Arc::new(AtomicI64::new(10 * GRACE_MS));
        let pace = Arc::new(Pace::default());
        let db = Database::builder(folder.path())
            .with_compaction_filter_factories(Arc::new(move |name| Some(filters(name, &now_ms, &pace))))
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
        let left = |table| tables.get(table).len().unwrap();
        assert_eq!((left(Table::Sessions), left(Table::Products)), (1, 2));
    }
}
