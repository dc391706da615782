//! Cancels orders that were not paid in time. Every process may do it: a cancellation names the version that it saw, so an
//! order is cancelled once, and one that is paid meanwhile is not.

use futures_util::{StreamExt, stream};
use mongodb::bson::doc;
use mw_domain::{OrderStatus, Timestamp};
use mw_store::orders::SetStatus;
use mw_store::{Freshness, Orders as _, Refusal, Result, StoreError};

use crate::MongoStore;
use crate::documents::times::to_bson_time;
use crate::orders::documents::SERVICE;

/// Orders that are cancelled at the same time.
const CONCURRENT: usize = 64;
/// Orders of one call.
const CALL_MAX: usize = 1_000;

impl MongoStore {
    pub(super) async fn cancel_unpaid_orders(
        &self,
        now: Timestamp,
        note: &str,
        limit: usize,
    ) -> Result<usize> {
        let mut cancelled = 0;
        while cancelled < limit {
            let wanted = CALL_MAX.min(limit - cancelled);
            let filter = doc! {
                "status": OrderStatus::Created.as_str(),
                "pay_by": { "$lte": to_bson_time(now) },
                "placed_by": SERVICE,
            };
            let query = self
                .sales
                .orders
                .find(filter)
                .sort(doc! { "pay_by": 1 })
                .limit(i64::try_from(wanted).unwrap_or(i64::MAX))
                .selection_criteria(self.reads.criteria(Freshness::Latest));
            let found = self.collect(query).await?;
            let due: Vec<_> = found.iter().filter_map(|document| self.readable_order(document)).collect();
            let results: Vec<Result<bool>> =
                stream::iter(due.into_iter().map(|stored| self.cancel(stored.order, note, now)))
                    .buffer_unordered(CONCURRENT)
                    .collect()
                    .await;
            let mut round = 0;
            for result in results {
                round += usize::from(result?);
            }
            cancelled += round;
            if round == 0 || found.len() < wanted {
                break;
            }
        }
        Ok(cancelled)
    }

    /// Whether this call cancelled the order; another process may have been faster, or the user paid.
    async fn cancel(&self, order: mw_domain::Order, note: &str, now: Timestamp) -> Result<bool> {
        let command = SetStatus {
            order_id: order.order_id,
            of_user: None,
            to: OrderStatus::Cancelled,
            note: Some(note.to_owned()),
            expected_version: Some(order.version),
            now,
            identity: None,
        };
        match self.set_status(command).await {
            Ok(_) => Ok(true),
            Err(StoreError::Refused(refusal))
                if matches!(*refusal, Refusal::OrderVersion { .. } | Refusal::OrderNotFound(_)) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
