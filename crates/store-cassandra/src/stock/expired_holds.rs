//! Holds whose time is over and that still count as reserved: readers subtract them, the next hold releases them.
//!
//! The header's `earliest_hold_end` is a lower bound: a partition without expired holds is never searched, and a search
//! begins at it, behind the tombstones of compacted rows. Commands raise it when it has passed, and so do the timers of
//! reservations and ledger compaction, or every reader of a product that does not sell would search.

use std::collections::HashSet;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{ReservationId, Timestamp};
use mw_store::{Freshness, Result, StoreError};
use scylla::response::PagingState;

use crate::CassandraStore;
use crate::driver::time::to_cql;
use crate::stock::CONCURRENT_LINES;
use crate::stock::decision::{Decision, StockCommand, StockKey};
use crate::stock::forwarding::SubmitAttempts;
use crate::stock::ledger::{END_OF_TIME, LedgerRow, LedgerState, Transition};
use crate::stock::rows::{StoredRow, read_rows};

/// Holds of one partition released at the same time.
const CONCURRENT_RELEASES: usize = 64;
/// Times that one command waits for expired holds to be released.
const EXPIRE_ROUNDS: usize = 6;

impl CassandraStore {
    /// Submits a command to the keeper of a partition; releases expired holds first where the keeper asks for it.
    pub(crate) async fn submit(
        &self,
        stock_key: &StockKey,
        command: StockCommand,
        now: Timestamp,
    ) -> Result<Decision> {
        let mut attempts = SubmitAttempts::default();
        for _ in 0..EXPIRE_ROUNDS {
            let submitting = (command.clone(), now);
            match self.keepers.submit_again(&self.cql, stock_key, submitting, &mut attempts).await? {
                Decision::ExpireHoldsFirst => {
                    // The command itself is not applied here, whatever became of the expired holds; one that was forwarded may
                    // be.
                    let released = self.release_expired_holds(stock_key, now).await;
                    released.map_err(|error| attempts.error(error.before_first_effect()))?;
                }
                decision => {
                    self.compaction.enqueue(stock_key, now);
                    return Ok(decision);
                }
            }
        }
        let StockKey { product_id, geo_zone } = stock_key;
        Err(attempts.error(StoreError::Unavailable(format!(
            "gave up after {EXPIRE_ROUNDS} rounds of releasing expired holds of {product_id} in {geo_zone}"
        ))))
    }

    /// Units of expired holds that still count as reserved.
    pub(super) async fn expired_units(
        &self,
        stock_key: &StockKey,
        between: (Timestamp, Timestamp),
    ) -> Result<i64> {
        let mut units = 0;
        let mut from = PagingState::start();
        loop {
            let (expired, next) = self.expired_holds(stock_key, between, from).await?;
            units += expired.iter().map(|row| row.quantity).sum::<i64>();
            let Some(next) = next else { return Ok(units) };
            from = next;
        }
    }

    /// A page of expired holds that still count as reserved, and where the next page begins. They ended between the
    /// earliest end of the header and now.
    async fn expired_holds(
        &self,
        stock_key: &StockKey,
        (earliest, now): (Timestamp, Timestamp),
        from: PagingState,
    ) -> Result<(Vec<LedgerRow>, Option<PagingState>)> {
        let (product_id, geo_zone) = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str());
        let values = (product_id, geo_zone, to_cql(earliest), to_cql(now));
        let (rows, next) = self.cql.page::<StoredRow>(&self.stock.expired, values, from).await?;
        let is_open = |row: &LedgerRow| row.state == LedgerState::Held && row.until != END_OF_TIME;
        Ok((read_rows(rows)?.into_iter().filter(is_open).collect(), next))
    }

    /// Releases the expired holds of a partition, then raises its `earliest_hold_end`. Does nothing before that has passed.
    async fn release_expired_holds(&self, stock_key: &StockKey, now: Timestamp) -> Result<()> {
        let _lock = self.locks.partition(&("settle", stock_key)).await;
        let Some(earliest) = self.passed_hold_end(stock_key, now).await? else { return Ok(()) };
        let mut from = PagingState::start();
        loop {
            let (expired, next) = self.expired_holds(stock_key, (earliest, now), from).await?;
            let releases: Vec<_> =
                expired.into_iter().map(|row| self.release_expired_hold(stock_key, row, now)).collect();
            stream::iter(releases).buffer_unordered(CONCURRENT_RELEASES).try_collect::<()>().await?;
            let Some(next) = next else { break };
            from = next;
        }
        // A crash here leaves the bound too low, which is true and costs the next command another search: that
        // command's process raises it.
        self.raise_earliest_hold_end(stock_key, now).await
    }

    async fn raise_earliest_hold_end(&self, stock_key: &StockKey, now: Timestamp) -> Result<()> {
        let raise = StockCommand::RaiseEarliestHoldEnd;
        self.keepers.submit(&self.cql, stock_key, raise, now).await.map(drop)
    }

    /// Raises the earliest hold end if it has passed. Holds that are still to be released keep it low.
    pub(super) async fn raise_passed_hold_end(&self, stock_key: &StockKey, now: Timestamp) -> Result<()> {
        match self.passed_hold_end(stock_key, now).await? {
            Some(_) => self.raise_earliest_hold_end(stock_key, now).await,
            None => Ok(()),
        }
    }

    /// The earliest hold end of a partition, if it has passed.
    async fn passed_hold_end(&self, stock_key: &StockKey, now: Timestamp) -> Result<Option<Timestamp>> {
        let header = self.header(stock_key, Freshness::Latest).await?;
        Ok(header.and_then(|header| header.earliest_hold_end).filter(|earliest| now >= *earliest))
    }

    /// Raises the earliest hold ends that have passed, without waiting for a sale. A crash or a failure leaves bounds
    /// that are too low; the next command on the product, or ledger compaction, raises them.
    pub(crate) async fn raise_passed_hold_ends(&self, stock_keys: HashSet<StockKey>, now: Timestamp) {
        let raises = stock_keys.into_iter().map(|stock_key| async move {
            if let Err(error) = self.raise_passed_hold_end(&stock_key, now).await {
                let StockKey { product_id, geo_zone } = &stock_key;
                tracing::debug!(%error, %product_id, %geo_zone, "raise the earliest hold end");
            }
        });
        stream::iter(raises.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_LINES).collect::<()>().await;
    }

    /// Releases one expired hold: with its whole reservation, or alone where the reservation was never written.
    async fn release_expired_hold(&self, stock_key: &StockKey, row: LedgerRow, now: Timestamp) -> Result<()> {
        if let Some(reservation) = self.stored_reservation(ReservationId::new(row.op_id)).await? {
            self.expire_reservation(&reservation, now).await?;
        }
        // A crash here leaves the hold of a reservation without a row, or of one whose row says that it ended. The
        // next command on this partition finds the hold expired and releases it.
        let release = StockCommand::Advance {
            until: row.until,
            op_id: row.op_id,
            quantity: u32::try_from(row.quantity).unwrap_or_default(),
            transition: Transition::Release,
        };
        self.keepers.submit(&self.cql, stock_key, release, now).await?;
        // A crash here leaves a level that the feed shows with the next change of this stock.
        self.report_zones(&stock_key.product_id, std::iter::once(&stock_key.geo_zone)).await
    }
}
