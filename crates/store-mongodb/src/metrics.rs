//! What the engine counts, as series of `/metrics`: calls by the number of shards they ask, unreadable documents, hot categories
//! and products. They are read from the counts when they are collected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mw_store::Collector;
use prometheus::core::Desc;
use prometheus::proto::MetricFamily;
use prometheus::{Error, GaugeVec, IntCounter, IntCounterVec, Opts};

use crate::shards::CallCounts;

/// Hot keys of each kind: label values are bounded.
const HOT: usize = 10;

struct MongodbMetrics {
    counts: Arc<CallCounts>,
    unreadable_documents: Arc<AtomicU64>,
    calls: IntCounterVec,
    unreadable: IntCounter,
    hot: GaugeVec,
}

pub(crate) fn collector(
    counts: &Arc<CallCounts>,
    unreadable_documents: &Arc<AtomicU64>,
) -> Result<Box<dyn Collector>, Error> {
    let calls = Opts::new(
        "mw_mongodb_calls_total",
        "Statements by the number of shards they ask under the configured keys.",
    );
    let unreadable = Opts::new(
        "mw_mongodb_unreadable_documents_total",
        "Documents that could not be read and were left out.",
    );
    let hot =
        Opts::new("mw_mongodb_hot_share", "Share of the hottest categories and products since the start.");
    Ok(Box::new(MongodbMetrics {
        counts: Arc::clone(counts),
        unreadable_documents: Arc::clone(unreadable_documents),
        calls: IntCounterVec::new(calls, &["call", "shards"])?,
        unreadable: IntCounter::with_opts(unreadable)?,
        hot: GaugeVec::new(hot, &["kind", "key"])?,
    }))
}

impl Collector for MongodbMetrics {
    fn desc(&self) -> Vec<&Desc> {
        [self.calls.desc(), self.unreadable.desc(), self.hot.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counts = self.counts.snapshot();
        self.calls.reset();
        for (call, by_shards) in &counts.calls {
            for (shards, count) in ["one", "several", "all"].into_iter().zip(by_shards) {
                if *count > 0 {
                    self.calls.with_label_values(&[call.as_str(), shards]).inc_by(*count);
                }
            }
        }
        self.unreadable.reset();
        self.unreadable.inc_by(self.unreadable_documents.load(Ordering::Relaxed));
        self.hot.reset();
        for (kind, keys, total) in [
            ("category", &counts.categories, counts.categories_total),
            ("product", &counts.products, counts.products_total),
        ] {
            for (key, count) in keys.iter().take(HOT) {
                self.hot.with_label_values(&[kind, key.as_str()]).set(share(*count, total));
            }
        }
        [self.calls.collect(), self.unreadable.collect(), self.hot.collect()].concat()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share is shown with a few digits")]
fn share(count: u64, total: u64) -> f64 {
    count as f64 / total.max(1) as f64
}
