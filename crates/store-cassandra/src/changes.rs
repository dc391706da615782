//! The change feed: every process writes a lane of references to what has changed, and readers read the resources.
//!
//! A change is in the lane of its process before its request is acknowledged. An operation of several partitions has an intent:
//! a crash before the row leaves the intent, and recovery, which repeats the last steps, writes the row into its own lane. A
//! change may thus be in two lanes; its id is made of the subject and its version, so it is the same. A reader gets stock and active
//! carts as they are when they are read, at a quorum, so a later change is never read before an earlier one. Steps of an order are read
//! from its events; a product, a session and a closed cart are in the row. A step of an order, a product or a session that follows
//! another within [`RECENT_MS`] names that too, unless this process has reported it, because its row may still be on its way. For the same
//! reason the row of a cart that is opened has the cart that was closed before.

mod lane;
mod position;
mod reader;
mod recent;
mod resources;
mod tail;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use mw_codec::changes::subjects::{ProductState, SessionState, Subject};
use mw_domain::{GeoZone, Order, OrderId, Product, ProductId, SessionId, Timestamp};
use mw_store::changes::{Changes, ChangesPage, FeedSettings, ReadChanges, Topic, empty_page};
use mw_store::{Position, Result, StoreError};
use tokio::sync::OnceCell;

use crate::CassandraStore;
use crate::driver::statements::Cql;
use crate::products::StoredProduct;
use lane::Lane;
use position::FeedPosition;
use recent::RecentSteps;
use tail::Tail;

/// Longer than any row of the feed is on its way.
const RECENT_MS: i64 = 60_000;
/// A request waits this long for its row in the feed, and is ambiguous then.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The feed of this process.
#[derive(Debug)]
pub(crate) struct Feed {
    settings: FeedSettings,
    clock: fn() -> SystemTime,
    /// Begun with the first change: commands that change nothing leave no lane behind.
    lane: OnceCell<Lane>,
    recent_orders: RecentSteps<OrderId>,
    recent_products: RecentSteps<ProductId>,
    recent_sessions: RecentSteps<SessionId>,
    statements: Arc<reader::Statements>,
    tail: Tail,
}

impl Feed {
    pub(crate) async fn prepare(
        cql: &Cql,
        settings: FeedSettings,
        clock: fn() -> SystemTime,
    ) -> Result<Self> {
        Ok(Self {
            settings,
            clock,
            lane: OnceCell::new(),
            recent_orders: RecentSteps::new(),
            recent_products: RecentSteps::new(),
            recent_sessions: RecentSteps::new(),
            statements: Arc::new(reader::Statements::prepare(cql).await?),
            tail: Tail::new(),
        })
    }

    pub(crate) const fn writes(&self, topic: Topic) -> bool {
        self.settings.topics.contains(topic)
    }

    /// Writes what has changed, as far as its topics are written. Failures are ambiguous, as the change itself is made.
    pub(crate) async fn write(&self, cql: &Arc<Cql>, mut subjects: Vec<Subject>) -> Result<()> {
        subjects.retain(|subject| self.writes(topic_of(subject)));
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

    /// Records where the lane of this process ends.
    pub(crate) async fn close(&self, cql: &Cql) {
        let Some(lane) = self.lane.get() else { return };
        if let Err(error) = lane.close(cql).await {
            tracing::debug!(%error, "record the end of the lane of the change feed");
        }
    }
}

/// A step of an order, for the feed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderStep {
    pub(crate) version: u64,
    /// Whether stock has moved with it.
    pub(crate) moves_units: bool,
    /// When the step before it was made, unless it is long ago.
    pub(crate) previous_at: Option<Timestamp>,
}

impl CassandraStore {
    /// Reports a step of an order, and the stock that moved with it.
    pub(crate) async fn report_step(&self, order: &Order, step: OrderStep, now: Timestamp) -> Result<()> {
        let OrderStep { version, moves_units, previous_at } = step;
        let order_id = order.order_id;
        let is_late = previous_at.is_some_and(|before| is_recent(before, now))
            && !self.feed.recent_orders.has(&order_id, version - 1);
        let first = if is_late { 1 } else { version };
        self.report_steps(order, first..=version, moves_units).await?;
        self.feed.recent_orders.add(order_id, version);
        Ok(())
    }

    /// Reports every step of an order up to a version, after a crash or a failure: any of them may be missing.
    pub(crate) async fn report_recovered(&self, order: &Order, version: u64) -> Result<()> {
        self.report_steps(order, 1..=version.max(order.version), true).await
    }

    async fn report_steps(
        &self,
        order: &Order,
        versions: std::ops::RangeInclusive<u64>,
        moves_units: bool,
    ) -> Result<()> {
        let step = |version| Subject::Order { order_id: order.order_id, version };
        let mut subjects: Vec<Subject> = versions.map(step).collect();
        if moves_units {
            subjects.extend(order.lines.iter().map(|line| stock(&line.product_id, &order.geo_zone)));
        }
        self.feed.write(&self.cql, subjects).await
    }

    /// Reports the stock of some products in a zone.
    pub(crate) async fn report_stock<'a>(
        &self,
        products: impl Iterator<Item = &'a ProductId>,
        geo_zone: &GeoZone,
    ) -> Result<()> {
        let subjects = products.map(|product_id| stock(product_id, geo_zone)).collect();
        self.feed.write(&self.cql, subjects).await
    }

    /// Reports the stock of a product in some zones.
    pub(crate) async fn report_zones<'a>(
        &self,
        product_id: &ProductId,
        zones: impl Iterator<Item = &'a GeoZone>,
    ) -> Result<()> {
        let subjects = zones.map(|geo_zone| stock(product_id, geo_zone)).collect();
        self.feed.write(&self.cql, subjects).await
    }

    /// Reports a product as a change left it.
    pub(crate) async fn report_product(
        &self,
        stored: &StoredProduct,
        before: Option<&StoredProduct>,
    ) -> Result<()> {
        let Product { product_id, updated_at, .. } = &stored.product;
        let is_late = |before: &&StoredProduct| {
            is_recent(before.product.updated_at, *updated_at)
                && !self.feed.recent_products.has(product_id, before.rev.cast_unsigned())
        };
        let states = before.filter(is_late).into_iter().chain([stored]);
        self.feed.write(&self.cql, states.map(product).collect()).await?;
        self.feed.recent_products.add(product_id.clone(), stored.rev.cast_unsigned());
        Ok(())
    }
}

impl CassandraStore {
    /// Reports a session as a change left it; `before` is how it was read for that.
    pub(crate) async fn report_session(
        &self,
        before: Option<SessionState>,
        after: SessionState,
    ) -> Result<()> {
        if !self.feed.writes(Topic::Sessions) {
            return Ok(());
        }
        let (session_id, at, stamp) = (after.session_id.clone(), after.at, after.stamp);
        let is_late = |before: &SessionState| {
            is_recent(before.at, at)
                && !self.feed.recent_sessions.has(&session_id, before.stamp.cast_unsigned())
        };
        let states = before.filter(is_late).into_iter().chain([after]);
        let subjects = states.map(|state| Subject::Session(Box::new(state))).collect();
        self.feed.write(&self.cql, subjects).await?;
        self.feed.recent_sessions.add(session_id, stamp.cast_unsigned());
        Ok(())
    }
}

fn product(StoredProduct { product, rev, is_deleted, .. }: &StoredProduct) -> Subject {
    Subject::Product(Box::new(ProductState { product: product.clone(), rev: *rev, is_deleted: *is_deleted }))
}

/// Whether the row of a step at `before` may still be on its way at `now`.
fn is_recent(before: Timestamp, now: Timestamp) -> bool {
    now.as_millis().saturating_sub(before.as_millis()) < RECENT_MS
}

fn stock(product_id: &ProductId, geo_zone: &GeoZone) -> Subject {
    Subject::Stock { product_id: product_id.clone(), geo_zone: geo_zone.clone() }
}

const fn topic_of(subject: &Subject) -> Topic {
    match subject {
        Subject::Order { .. } => Topic::Orders,
        Subject::Stock { .. } => Topic::Stock,
        Subject::Product(_) => Topic::Products,
        Subject::Cart { .. } | Subject::CartClosed(_) => Topic::Carts,
        Subject::Session(_) => Topic::Sessions,
    }
}

#[async_trait]
impl Changes for CassandraStore {
    fn feed(&self) -> FeedSettings {
        self.feed.settings
    }

    async fn changes(&self, request: ReadChanges) -> Result<ChangesPage> {
        if self.feed.settings.topics.is_empty() {
            return empty_page(&request);
        }
        self.read_changes(request).await
    }

    async fn changes_after(&self, position: &Position) -> Result<()> {
        if self.feed.settings.topics.is_empty() {
            return std::future::pending().await;
        }
        let position = FeedPosition::decode(position)?;
        self.feed.tail.after(&position, (&self.cql, &self.feed.statements), self.feed.clock).await;
        Ok(())
    }
}
