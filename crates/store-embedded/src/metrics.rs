//! The engine's series on `/metrics`: the writer observes its batches, everything else is read when it is asked for.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fjall::Database;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts};

use crate::backup::now;
use crate::cache::ReadCache;
use crate::open::last_backup;
use crate::space::free_bytes;
use crate::tables::{Table, Tables};
use crate::writer::WriterStatus;

const SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const COMMANDS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0];

/// What the writer counts.
#[derive(Clone)]
pub(crate) struct WriterMetrics {
    commit: Histogram,
    sync: Histogram,
    commands: Histogram,
    /// Commands that wait for the writer.
    pub(crate) queued: IntGauge,
}

impl WriterMetrics {
    pub(crate) fn new() -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
        };
        Ok(Self {
            commit: histogram(
                "mw_embedded_commit_duration_seconds",
                "Time of a batch, from its first command to the end of its commit",
                SECONDS,
            )?,
            sync: histogram(
                "mw_embedded_fsync_duration_seconds",
                "Time to write a batch to the journal and to sync it, with the back-pressure of compactions",
                SECONDS,
            )?,
            commands: histogram(
                "mw_embedded_batch_commands",
                "Commands of a batch (group commit)",
                COMMANDS,
            )?,
            queued: IntGauge::new("mw_embedded_queue_commands", "Commands that wait for the writer")?,
        })
    }

    pub(crate) fn observe_batch(&self, commands: usize, took: Duration) {
        // A batch has at most 1 024 commands.
        self.commands.observe(f64::from(u32::try_from(commands).unwrap_or(u32::MAX)));
        self.commit.observe(took.as_secs_f64());
    }

    pub(crate) fn observe_sync(&self, took: Duration) {
        self.sync.observe(took.as_secs_f64());
    }
}

/// Where the rest of the series is read from.
pub(crate) struct Sources {
    pub(crate) path: PathBuf,
    pub(crate) db: Database,
    pub(crate) tables: Tables,
    pub(crate) cache: Arc<ReadCache>,
    pub(crate) status: Arc<WriterStatus>,
}

/// The series that are read when `/metrics` is.
struct Readings {
    cache_requests: IntCounterVec,
    compactions: IntCounter,
    compactions_running: IntGauge,
    level0_tables: IntGauge,
    journals: IntGauge,
    memtable_bytes: IntGauge,
    stored_bytes: IntGauge,
    free_bytes: IntGauge,
    writer_busy: Gauge,
    timer_overdue: Gauge,
    last_backup: Gauge,
}

impl Readings {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            cache_requests: IntCounterVec::new(
                Opts::new("mw_embedded_cache_requests_total", "Lookups in the caches, by cache and result"),
                &["cache", "result"],
            )?,
            compactions: IntCounter::new("mw_embedded_compactions_total", "Compactions that ended")?,
            compactions_running: IntGauge::new(
                "mw_embedded_compactions_running",
                "Compactions that run now",
            )?,
            level0_tables: IntGauge::new(
                "mw_embedded_level0_tables",
                "Table files in level 0, of the table that has most; writes stall from 20 on",
            )?,
            journals: IntGauge::new("mw_embedded_journals", "Journals on disk; the next start replays them")?,
            memtable_bytes: IntGauge::new(
                "mw_embedded_memtable_bytes",
                "Rows in memory that are not flushed",
            )?,
            stored_bytes: IntGauge::new("mw_embedded_stored_bytes", "Journals and table files on disk")?,
            free_bytes: IntGauge::new(
                "mw_embedded_free_bytes",
                "Free bytes on the disk of the data directory",
            )?,
            writer_busy: Gauge::new(
                "mw_embedded_writer_busy_seconds",
                "How long the running batch has been running",
            )?,
            timer_overdue: Gauge::new(
                "mw_embedded_timer_overdue_seconds",
                "How long the oldest hold or unpaid order that has ended waits to be expired",
            )?,
            last_backup: Gauge::new(
                "mw_embedded_last_backup_timestamp_seconds",
                "When the last backup was taken, in seconds since the epoch; 0: never",
            )?,
        })
    }

    fn all(&self) -> [&dyn Collector; 11] {
        [
            &self.cache_requests,
            &self.compactions,
            &self.compactions_running,
            &self.level0_tables,
            &self.journals,
            &self.memtable_bytes,
            &self.stored_bytes,
            &self.free_bytes,
            &self.writer_busy,
            &self.timer_overdue,
            &self.last_backup,
        ]
    }

    fn read(&self, sources: &Sources) {
        let Sources { path, db, tables, cache, status } = sources;
        for (name, (hits, misses)) in cache.lookups().into_iter().chain([("blocks", block_lookups(tables))]) {
            raise(&self.cache_requests.with_label_values(&[name, "hit"]), hits);
            raise(&self.cache_requests.with_label_values(&[name, "miss"]), misses);
        }
        raise(&self.compactions, db.compactions_completed() as u64);
        self.compactions_running.set(whole(db.active_compactions() as u64));
        let level0 = Table::ALL.iter().map(|table| tables.get(*table).l0_table_count()).max();
        self.level0_tables.set(whole(level0.unwrap_or_default() as u64));
        self.journals.set(whole(db.journal_count() as u64));
        self.memtable_bytes.set(whole(db.write_buffer_size()));
        self.stored_bytes.set(whole(db.disk_space().unwrap_or_default()));
        self.free_bytes.set(whole(free_bytes(path).unwrap_or_default()));
        self.writer_busy.set(status.busy_for().as_secs_f64());
        let next = status.next_hold_timer().min(status.next_payment_timer());
        self.timer_overdue.set(seconds(now().as_millis().saturating_sub(next.as_millis()).max(0)));
        self.last_backup.set(last_backup(path).map_or(0.0, |at| seconds(at.as_millis())));
    }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of our age are exact in a double")]
fn seconds(millis: i64) -> f64 {
    millis as f64 / 1_000.0
}

/// Raises a counter to what its source counts.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// Blocks found in the block cache, and blocks read from disk.
fn block_lookups(tables: &Tables) -> (u64, u64) {
    let mut sum = (0, 0);
    for table in Table::ALL {
        let metrics = tables.get(table).metrics();
        sum.0 += metrics.block_load_cached_count() as u64;
        sum.1 += metrics.block_load_io_count() as u64;
    }
    sum
}

/// All series of the engine.
struct EngineCollector {
    writer: WriterMetrics,
    sources: Sources,
    /// One reading at a time: two at once would raise a counter twice.
    readings: Mutex<Readings>,
    descriptors: Vec<Desc>,
}

pub(crate) fn collector(writer: WriterMetrics, sources: Sources) -> prometheus::Result<Box<dyn Collector>> {
    let readings = Readings::new()?;
    let descriptors =
        readings.all().into_iter().chain(of_writer(&writer)).flat_map(Collector::desc).cloned().collect();
    Ok(Box::new(EngineCollector { writer, sources, readings: Mutex::new(readings), descriptors }))
}

fn of_writer(writer: &WriterMetrics) -> [&dyn Collector; 4] {
    [&writer.commit, &writer.sync, &writer.commands, &writer.queued]
}

impl Collector for EngineCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptors.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        readings.read(&self.sources);
        readings.all().into_iter().chain(of_writer(&self.writer)).flat_map(Collector::collect).collect()
    }
}
