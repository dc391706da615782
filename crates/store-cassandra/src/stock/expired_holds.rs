//! Holds whose time is over and that still count as reserved: readers subtract them, the next hold releases them.
//!
//! The header's `earliest_hold_end` is a lower bound, so a partition without expired holds is never searched.

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{ReservationId, Timestamp};
use mw_store::{Freshness, Result, StoreError};
use scylla::response::PagingState;

use crate::CassandraStore;
use crate::driver::time::to_cql;
use crate::stock::decision::{Decision, StockCommand, StockKey};
use crate::stock::forwarding::SubmitAttempts;
use crate::stock::ledger::{END_OF_TIME, LedgerRow, LedgerState, Transition};
use crate::stock::rows::{StoredRow, read_rows};

/// Holds of one partition released at the same time.
const CONCURRENT_RELEASES: usize = 64;
/// Ledger rows read to find the next open hold.
const NEXT_MAX: i32 = 500;
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
                    let released = self.release_expired_holds(stock_key, now).await;
                    released.map_err(|error| attempts.error(error))?;
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
    pub(super) async fn expired_units(&self, stock_key: &StockKey, now: Timestamp) -> Result<i64> {
        let mut units = 0;
        let mut from = PagingState::start();
        loop {
            let (expired, next) = self.expired_holds(stock_key, now, from).await?;
            units += expired.iter().map(|row| row.quantity).sum::<i64>();
            let Some(next) = next else { return Ok(units) };
            from = next;
        }
    }

    /// A page of expired holds that still count as reserved, and where the next page begins.
    async fn expired_holds(
        &self,
        stock_key: &StockKey,
        now: Timestamp,
        from: PagingState,
    ) -> Result<(Vec<LedgerRow>, Option<PagingState>)> {
        let values = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str(), to_cql(now));
        let (rows, next) = self.cql.page::<StoredRow>(&self.stock.expired, values, from).await?;
        let is_open = |row: &LedgerRow| row.state == LedgerState::Held && row.until != END_OF_TIME;
        Ok((read_rows(rows)?.into_iter().filter(is_open).collect(), next))
    }

    /// Releases the expired holds of a partition, then raises its `earliest_hold_end`.
    async fn release_expired_holds(&self, stock_key: &StockKey, now: Timestamp) -> Result<()> {
        let _lock = self.locks.partition(&("settle", stock_key)).await;
        let mut from = PagingState::start();
        loop {
            let (expired, next) = self.expired_holds(stock_key, now, from).await?;
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
        // The header is read before the rows: a hold that is added in between has a later revision, and the keeper
        // takes it into account.
        let Some(header) = self.header(stock_key, Freshness::Latest).await? else { return Ok(()) };
        let (product_id, geo_zone) = (stock_key.product_id.as_str(), stock_key.geo_zone.as_str());
        let values = (product_id, geo_zone, to_cql(now), to_cql(END_OF_TIME), NEXT_MAX);
        let rows = read_rows(self.cql.rows(&self.stock.next, values).await?)?;
        let is_truncated = rows.len() == usize::try_from(NEXT_MAX).unwrap_or_default();
        let open = rows.iter().find(|row| row.state == LedgerState::Held);
        let next = open.or_else(|| rows.last().filter(|_| is_truncated));
        let raise = StockCommand::RaiseEarliestHoldEnd {
            to: next.map(|row| row.until),
            rev: header.rev.unwrap_or_default(),
        };
        self.keepers.submit(&self.cql, stock_key, raise, now).await.map(drop)
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
        self.keepers.submit(&self.cql, stock_key, release, now).await.map(drop)
    }
}
