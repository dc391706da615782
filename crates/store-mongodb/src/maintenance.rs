//! Readiness, and removing what has expired. TTL indexes remove most of it by themselves; a purge does not wait for them.

use async_trait::async_trait;
use mongodb::Collection;
use mongodb::bson::{Bson, Document, doc};
use mw_domain::{ReservationStatus, Timestamp};
use mw_store::{Collector, Freshness, Maintenance, Readiness, Result};

use crate::MongoStore;
use crate::documents::times::to_bson_time;
use crate::metrics;

/// Documents of one statement.
const PURGED_AT_ONCE: usize = 1_000;

#[async_trait]
impl Maintenance for MongoStore {
    /// Ready while there is a primary that the majority follows.
    async fn ready(&self) -> Result<Readiness> {
        let criteria = self.reads.criteria(Freshness::Latest);
        self.read(self.collections.settings.find_one(doc! {}).selection_criteria(criteria)).await?;
        Ok(Readiness::default())
    }

    async fn purge_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let over = doc! { "$lte": to_bson_time(now) };
        // The holds of an expired reservation are released first: until then it explains them.
        let closed = doc! { "purge_at": over.clone(), "status": { "$ne": ReservationStatus::Held.as_str() } };
        let purges: [(&Collection<Document>, Document); 7] = [
            (&self.collections.carts, doc! { "purge_at": over.clone() }),
            (self.feed.numbered(), doc! { "purge_at": over.clone() }),
            (&self.collections.cart_owners, doc! { "purge_at": over.clone() }),
            (&self.collections.cart_history, doc! { "purge_at": over.clone() }),
            (&self.collections.sessions, doc! { "expires_at": over.clone() }),
            (&self.collections.idempotency_keys, doc! { "keep_until": over }),
            (&self.sales.reservations, closed),
        ];
        let mut left = limit;
        for (collection, filter) in purges {
            left -= self.purge(collection, filter, left).await?;
        }
        Ok(limit - left)
    }

    fn collectors(&self) -> Vec<Box<dyn Collector>> {
        metrics::collector(&self.counts, &self.unreadable)
            .inspect_err(|error| tracing::error!(%error, "describe metrics of the engine: they are missing"))
            .into_iter()
            .collect()
    }
}

impl MongoStore {
    /// Removes up to `limit` documents that match; returns how many.
    async fn purge(
        &self,
        collection: &Collection<Document>,
        filter: Document,
        limit: usize,
    ) -> Result<usize> {
        let mut removed = 0;
        while removed < limit {
            let wanted = PURGED_AT_ONCE.min(limit - removed);
            let query = collection
                .find(filter.clone())
                .projection(doc! { "_id": 1 })
                .limit(i64::try_from(wanted).unwrap_or(i64::MAX))
                .selection_criteria(self.reads.criteria(Freshness::Latest));
            let ids: Vec<Bson> =
                self.collect(query).await?.into_iter().filter_map(|mut found| found.remove("_id")).collect();
            if ids.is_empty() {
                break;
            }
            // A document that was written again since does not match any more and stays.
            let mut found = filter.clone();
            found.insert("_id", doc! { "$in": ids });
            let deleted = self.write(collection.delete_many(found)).await?;
            removed += usize::try_from(deleted.deleted_count).unwrap_or(usize::MAX);
        }
        Ok(removed)
    }
}
