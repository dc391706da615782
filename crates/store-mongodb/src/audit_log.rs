//! The collection `audit_log`: what operators changed through the service. Commands that change shards write to it too
//! (`shards/action.rs`).

use async_trait::async_trait;
use mongodb::Collection;
use mongodb::bson::{Document, doc};
use mw_domain::Timestamp;
use mw_domain::time::Date;
use mw_store::audit::{AuditEntry, AuditLog, Operator};
use mw_store::{Freshness, Result};
use uuid::Uuid;

use crate::MongoStore;
use crate::documents::times::{read_time, to_bson_time};
use crate::shards::AUDIT_LOG;

#[async_trait]
impl AuditLog for MongoStore {
    async fn append(&self, entry: AuditEntry) -> Result<()> {
        let AuditEntry { at, operator: Operator { token, address }, action, result } = entry;
        let document = doc! {
            "_id": Uuid::new_v4().to_string(), "at": to_bson_time(at), "user": token, "address": address,
            "action": action, "outcome": result,
        };
        self.write(self.audit_log().insert_one(document)).await?;
        Ok(())
    }

    async fn entries(&self, day: Date, limit: usize) -> Result<Vec<AuditEntry>> {
        let period =
            doc! { "$gte": to_bson_time(day.midnight()), "$lt": to_bson_time(day.next().midnight()) };
        let log = self.audit_log();
        let find = log
            .find(doc! { "at": period })
            .sort(doc! { "at": -1 })
            .selection_criteria(self.reads.criteria(Freshness::Latest));
        let documents = self.read_all(find, limit).await?;
        Ok(documents.iter().map(entry).collect())
    }
}

impl MongoStore {
    fn audit_log(&self) -> Collection<Document> {
        self.client.database(&self.options.database).collection(AUDIT_LOG)
    }
}

fn entry(document: &Document) -> AuditEntry {
    let text = |name| document.get_str(name).unwrap_or_default().to_owned();
    AuditEntry {
        at: document.get("at").and_then(read_time).unwrap_or(Timestamp::EPOCH),
        operator: Operator { token: text("user"), address: text("address") },
        action: text("action"),
        result: text("outcome"),
    }
}
