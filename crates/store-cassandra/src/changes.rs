//! The change feed: every process writes a lane of references to what has changed, and readers read the resources.
//!
//! A change is in the lane of its process before its request is acknowledged. An operation of several partitions has an intent:
//! a crash before the row leaves the intent, and recovery, which repeats the last steps, writes the row into its own lane. A
//! change may thus be in two lanes; its id is made of the subject and its version, so it is the same. A reader gets each subject
//! as it is when it is read, at a quorum, so a later change is never read before an earlier one. Steps of an order are read from
//! its events; a step that follows others within [`RECENT_MS`] names those too, because their rows may still be on their way.

mod lane;
mod position;
mod reader;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use mw_codec::changes::subjects::Subject;
use mw_domain::{GeoZone, Order, Product, ProductId, Timestamp};
use mw_store::changes::{Changes, ChangesPage, FeedSettings, ReadChanges, Topic, Topics, empty_page};
use mw_store::{Position, Result, StoreError};
use tokio::sync::OnceCell;

use crate::CassandraStore;
use crate::driver::statements::Cql;
use lane::Lane;

/// The topics that this engine can write.
const SUPPORTED: [Topic; 3] = [Topic::Orders, Topic::Stock, Topic::Products];
/// Longer than any row of the feed is on its way.
const RECENT_MS: i64 = 60_000;
/// A request waits this long for its row in the feed, and is ambiguous then.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks for changes of other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The feed of this process.
#[derive(Debug)]
pub(crate) struct Feed {
    settings: FeedSettings,
    clock: fn() -> SystemTime,
    /// Begun with the first change: commands that change nothing leave no lane behind.
    lane: OnceCell<Lane>,
    statements: reader::Statements,
}

impl Feed {
    pub(crate) async fn prepare(
        cql: &Cql,
        settings: FeedSettings,
        clock: fn() -> SystemTime,
    ) -> Result<Self> {
        let topics = SUPPORTED.into_iter().filter(|topic| settings.topics.contains(*topic)).collect();
        Ok(Self {
            settings: FeedSettings { topics, ..settings },
            clock,
            lane: OnceCell::new(),
            statements: reader::Statements::prepare(cql).await?,
        })
    }

    const fn writes(&self, topic: Topic) -> bool {
        self.settings.topics.contains(topic)
    }

    /// Writes what has changed, as far as its topics are written. Failures are ambiguous, as the change itself is made.
    async fn write(&self, cql: &Arc<Cql>, subjects: Vec<Subject>) -> Result<()> {
        if subjects.is_empty() {
            return Ok(());
        }
        let write = async {
            let start = || Lane::start(cql, self.settings.retention_ms, self.clock);
            self.lane.get_or_try_init(start).await?.write(&subjects).await
        };
        let late =
            |_| StoreError::Ambiguous("write the change feed: the change is made, its row is late".into());
        tokio::time::timeout(WRITE_TIMEOUT, write)
            .await
            .unwrap_or_else(|elapsed| Err(late(elapsed)))
            .map_err(StoreError::after_first_effect)
    }
}

impl CassandraStore {
    /// Reports a step of an order, and the stock that moved with it. `is_recent`: the step before it may still be on its way to
    /// the feed.
    pub(crate) async fn report_step(
        &self,
        order: &Order,
        version: u64,
        moves_units: bool,
        is_recent: bool,
    ) -> Result<()> {
        let mut subjects = Vec::new();
        if self.feed.writes(Topic::Orders) {
            let first = if is_recent { 1 } else { version };
            let step = |version| Subject::Order { order_id: order.order_id, version };
            subjects.extend((first..=version).map(step));
        }
        if moves_units {
            let products = order.lines.iter().map(|line| &line.product_id);
            self.add_stock(&mut subjects, products, &order.geo_zone);
        }
        self.feed.write(&self.cql, subjects).await
    }

    /// Reports the stock of some products in a zone.
    pub(crate) async fn report_stock<'a>(
        &self,
        products: impl Iterator<Item = &'a ProductId>,
        geo_zone: &GeoZone,
    ) -> Result<()> {
        let mut subjects = Vec::new();
        self.add_stock(&mut subjects, products, geo_zone);
        self.feed.write(&self.cql, subjects).await
    }

    /// Reports a product.
    pub(crate) async fn report_product(&self, product_id: &ProductId) -> Result<()> {
        let is_written = self.feed.writes(Topic::Products);
        let subjects = is_written.then(|| Subject::Product(product_id.clone())).into_iter().collect();
        self.feed.write(&self.cql, subjects).await
    }

    /// Reports a product with its stock in some zones.
    pub(crate) async fn report_import<'a>(
        &self,
        product: &Product,
        zones: impl Iterator<Item = &'a GeoZone>,
    ) -> Result<()> {
        let product_id = &product.product_id;
        let mut subjects = Vec::new();
        if self.feed.writes(Topic::Products) {
            subjects.push(Subject::Product(product_id.clone()));
        }
        for zone in zones {
            self.add_stock(&mut subjects, std::iter::once(product_id), zone);
        }
        self.feed.write(&self.cql, subjects).await
    }

    fn add_stock<'a>(
        &self,
        subjects: &mut Vec<Subject>,
        products: impl Iterator<Item = &'a ProductId>,
        geo_zone: &GeoZone,
    ) {
        if self.feed.writes(Topic::Stock) {
            let stock = |product_id: &ProductId| Subject::Stock {
                product_id: product_id.clone(),
                geo_zone: geo_zone.clone(),
            };
            subjects.extend(products.map(stock));
        }
    }
}

/// Whether the row of a step at `before` may still be on its way at `now`.
pub(crate) fn is_recent(before: Timestamp, now: Timestamp) -> bool {
    now.as_millis().saturating_sub(before.as_millis()) < RECENT_MS
}

#[async_trait]
impl Changes for CassandraStore {
    fn feed(&self) -> FeedSettings {
        self.feed.settings
    }

    async fn changes(&self, request: ReadChanges) -> Result<ChangesPage> {
        if self.feed.settings.topics == Topics::NONE {
            return empty_page(&request);
        }
        self.read_changes(request).await
    }

    async fn changes_after(&self, _: &Position) -> Result<()> {
        let Some(lane) = self.feed.lane.get() else {
            tokio::time::sleep(POLL_INTERVAL).await;
            return Ok(());
        };
        let mut written = lane.written();
        written.borrow_and_update();
        // A change that this process writes ends the wait; those of others are found after the interval.
        let _ = tokio::time::timeout(POLL_INTERVAL, written.changed()).await;
        Ok(())
    }
}
