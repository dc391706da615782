//! Stock by product and zone: the reads, the back office's commands, and the modules of a stock partition.
//!
//! Every change of a partition goes through its keeper, which writes the header and the ledger rows in one
//! conditional batch. So a crash leaves each partition either before or after a command, never in between.

pub(crate) mod audit;
pub(crate) mod compaction;
mod expired_holds;
pub(crate) mod forwarding;
pub(crate) mod holds;
pub(crate) mod keeper;
pub(crate) mod migration;
pub(crate) mod rows;
mod shortages;

pub(crate) use mw_store::stock::{decision, ledger};

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::stock::Delta;
use mw_domain::{GeoZone, ProductId, Reservation, ReservationId, Timestamp, ZoneStock};
use mw_store::stock::{Adjust, Audit, Reserve, SetOnHand};
use mw_store::{Done, Freshness, Refusal, RequestIdentity, Result, Stock, StoreError};
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;
use crate::stock::decision::{Decision, StockCommand, StockKey};
use crate::stock::ledger::{END_OF_TIME, LedgerState, StockHeader, Transition};
use crate::stock::rows::{HeaderRow, SELECT_HEADER, read_header};

/// Stock partitions read or changed at the same time for one request.
pub(crate) const CONCURRENT_LINES: usize = 16;
/// Zones of one product.
const ZONES_MAX: i32 = 10_000;
/// Ledger rows in memory at a time while expired holds are searched.
const EXPIRED_PAGE: i32 = 256;

#[derive(Debug)]
pub(crate) struct Statements {
    header: PreparedStatement,
    stale_header: PreparedStatement,
    zones: PreparedStatement,
    expired: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::Stock;
        let zones = "SELECT geo_zone FROM {} WHERE product_id = ? LIMIT ?";
        let expired = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND until >= ? AND until <= ?";
        let mut expired = cql.prepare(table, Access::Read, expired).await?;
        expired.set_page_size(EXPIRED_PAGE);
        Ok(Self {
            header: cql.prepare(table, Access::Read, SELECT_HEADER).await?,
            stale_header: cql.prepare(table, Access::StaleRead, SELECT_HEADER).await?,
            zones: cql.prepare(Table::StockZones, Access::Read, zones).await?,
            expired,
        })
    }
}

impl CassandraStore {
    /// The header of a partition; `None` where the zone has no stock of the product.
    pub(crate) async fn header(
        &self,
        stock_key: &StockKey,
        freshness: Freshness,
    ) -> Result<Option<StockHeader>> {
        let statement = match freshness {
            Freshness::StaleOk => &self.stock.stale_header,
            Freshness::Latest => &self.stock.header,
        };
        let values = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str());
        let row: Option<HeaderRow> = self.cql.first(statement, values).await?;
        let header = row.map(read_header).transpose()?;
        Ok(header.filter(|header| header.rev.is_some()))
    }

    /// The stock level as a reader sees it: units of expired holds count as available.
    pub(crate) async fn level_at(
        &self,
        stock_key: &StockKey,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        let header = self.header(stock_key, freshness).await?;
        let Some(mut header) = header.filter(StockHeader::has_level) else { return Ok(None) };
        if let Some(earliest) = header.earliest_hold_end.filter(|earliest| now >= *earliest) {
            let expired = self.expired_units(stock_key, (earliest, now)).await?;
            let release = Delta { on_hand: 0, reserved: -expired };
            header.level = header.level.moved(release).unwrap_or(header.level);
        }
        Ok(Some(ZoneStock {
            product_id: stock_key.product_id.clone(),
            geo_zone: stock_key.geo_zone.clone(),
            level: header.level,
            updated_at: header.updated_at,
        }))
    }

    async fn check_product_exists(&self, product_id: &ProductId) -> Result<()> {
        match self.offers.offer(&self.cql, product_id.clone()).await? {
            Some(_) => Ok(()),
            None => Err(Refusal::ProductNotFound(product_id.clone()).into()),
        }
    }

    /// Refuses an operation of the back office for good, by a void row under its id; `false` where another process
    /// has done the operation meanwhile.
    pub(crate) async fn void_operation(
        &self,
        stock_key: &StockKey,
        op_id: Uuid,
        now: Timestamp,
    ) -> Result<bool> {
        Ok(self.void_or_result(stock_key, op_id, now).await?.is_none())
    }

    /// Voids an operation of the back office; the stock right after it where another process has done it meanwhile.
    async fn void_or_result(
        &self,
        stock_key: &StockKey,
        op_id: Uuid,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        // A refusal does not create the partition of a zone without stock.
        if self.header(stock_key, Freshness::Latest).await?.is_none() {
            return Ok(None);
        }
        let transition = Transition::VoidIfAbsent;
        let void = StockCommand::Advance { until: END_OF_TIME, op_id, quantity: 0, transition };
        match self.submit(stock_key, void, now).await? {
            Decision::Done { state: Some(LedgerState::Void), .. } => Ok(None),
            Decision::Done { state: Some(LedgerState::Set | LedgerState::Adjusted), stock } => {
                Ok(Some(stock))
            }
            other => Err(other.unexpected()),
        }
    }

    /// Sets the units on hand of any product, listed or not.
    pub(crate) async fn put_on_hand(
        &self,
        stock_key: &StockKey,
        op_id: Uuid,
        on_hand: u64,
        expected: Option<u64>,
        now: Timestamp,
    ) -> Result<ZoneStock> {
        decided_stock(self.submit(stock_key, StockCommand::Set { op_id, on_hand, expected }, now).await?)
    }

    /// Adds or removes units under the id of a request. A crash after the keeper's write leaves the ledger row: a
    /// second request with the same key finds it, returns the level that it records, and stores the outcome. Without a
    /// second request nothing is missing.
    async fn adjust_once(
        &self,
        stock_key: &StockKey,
        (op_id, delta, note): (Uuid, i64, String),
        is_keyed: bool,
        now: Timestamp,
    ) -> Result<ZoneStock> {
        self.check_product_exists(&stock_key.product_id).await?;
        let decision = self.submit(stock_key, StockCommand::Adjust { op_id, delta, note }, now).await?;
        if is_keyed && matches!(decision, Decision::Refused(_)) {
            // A crash here leaves a refusal that no row records: a second request with the same key decides anew.
            let made = self.void_or_result(stock_key, op_id, now).await;
            if let Some(stock) = made.map_err(StoreError::after_first_effect)? {
                // Another process with the same key found enough units since, and made the adjustment. Its row has the
                // level that the other process returns, so both return the same.
                return Ok(stock);
            }
        }
        decided_stock(decision)
    }
}

pub(crate) fn missing_stock(stock_key: &StockKey) -> StoreError {
    let StockKey { product_id, geo_zone } = stock_key;
    StoreError::Corrupt(format!("read stock of {product_id} in {geo_zone}: partition is missing"))
}

fn decided_stock(decision: Decision) -> Result<ZoneStock> {
    match decision {
        Decision::Done { stock, .. } => Ok(stock),
        Decision::Refused(refusal) => Err(refusal.into()),
        other => Err(other.unexpected()),
    }
}

#[async_trait::async_trait]
impl Stock for CassandraStore {
    async fn zone_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        let stock_key = StockKey { product_id: product_id.clone(), geo_zone: geo_zone.clone() };
        self.level_at(&stock_key, freshness, now).await
    }

    async fn product_stock(
        &self,
        product_id: &ProductId,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>> {
        let zones: Vec<(String,)> =
            self.cql.rows(&self.stock.zones, (product_id.as_str(), ZONES_MAX)).await?;
        let stock_keys = zones.into_iter().map(|(zone,)| {
            let corrupt =
                || StoreError::Corrupt(format!("read zones of {product_id}: invalid zone {zone:?}"));
            let geo_zone = GeoZone::parse(&zone).map_err(|_| corrupt())?;
            Ok(StockKey { product_id: product_id.clone(), geo_zone })
        });
        let stock_keys: Vec<StockKey> = stock_keys.collect::<Result<_>>()?;
        let reads = stock_keys.iter().map(|stock_key| self.level_at(stock_key, freshness, now));
        let found: Vec<Option<ZoneStock>> =
            stream::iter(reads.collect::<Vec<_>>()).buffered(CONCURRENT_LINES).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
        self.check_sale(command.now)?;
        self.check_product_exists(&command.product_id).await?;
        let stock_key = StockKey { product_id: command.product_id, geo_zone: command.geo_zone };
        let SetOnHand { op, on_hand, expected_on_hand, now, .. } = command;
        let stock = self.put_on_hand(&stock_key, op, on_hand, expected_on_hand, now).await?;
        // A crash here leaves a change that was not acknowledged, and that the feed shows with the next one of this stock.
        self.report_zones(&stock_key.product_id, std::iter::once(&stock_key.geo_zone)).await?;
        Ok(stock)
    }

    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
        self.check_sale(command.now)?;
        let Adjust { product_id, geo_zone, delta, reason, op, now, identity } = command;
        let stock_key = StockKey { product_id, geo_zone };
        let is_keyed = identity.is_some();
        let work = async |op_id, _| {
            let stock = self.adjust_once(&stock_key, (op_id, delta, reason), is_keyed, now).await?;
            // A crash here leaves a key without an outcome: a second request finds the movement and reports it.
            self.report_zones(&stock_key.product_id, std::iter::once(&stock_key.geo_zone)).await?;
            Ok(stock)
        };
        self.idempotent(identity.as_ref(), op, now, work).await
    }

    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        self.check_sale(command.now)?;
        self.reserve_units(command).await
    }

    async fn reservation(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
    ) -> Result<Option<Reservation>> {
        self.visible_reservation(reservation_id, now).await
    }

    async fn confirm(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
        identity: Option<RequestIdentity>,
    ) -> Result<Done<Reservation>> {
        self.check_sale(now)?;
        self.confirm_reservation(reservation_id, now, identity).await
    }

    async fn release(&self, reservation_id: ReservationId, now: Timestamp) -> Result<()> {
        self.check_sale(now)?;
        self.release_reservation(reservation_id, now).await
    }

    async fn expire_reservations(&self, now: Timestamp, limit: usize) -> Result<usize> {
        if !self.may_expire(now) {
            return Ok(0);
        }
        self.expire_due_reservations(now, limit).await
    }

    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        self.audit_stock(progress).await
    }
}
