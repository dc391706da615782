//! Notes changes in the transaction that makes them.
//!
//! `since` is the cluster time that the transaction has seen. Who changes a subject again has seen the commit of the change
//! before, whose `since` is before that commit: so `since` orders the changes of a subject, whatever process makes them.

use mongodb::ClientSession;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, doc, serialize_to_document};
use mw_codec::changes::ChangeRef;
use mw_store::{Result, StoreError};

use crate::MongoStore;
use crate::driver::transaction::Stop;

impl MongoStore {
    /// Notes those of the changes whose topic is written. The last statement of a transaction.
    pub(crate) async fn record(
        &self,
        session: &mut ClientSession,
        changes: impl IntoIterator<Item = ChangeRef<'_>>,
    ) -> Result<(), Stop> {
        let mut encoded = Vec::new();
        for change in changes.into_iter().filter(|change| self.feed.writes(change.topic())) {
            mw_codec::changes::append(&mut encoded, change);
        }
        if encoded.is_empty() {
            return Ok(());
        }
        let bytes = mw_codec::changes::encode(&encoded);
        let pending = doc! {
            "_id": ObjectId::new(),
            "since": cluster_time(session)?,
            "changes": Binary { subtype: BinarySubtype::Generic, bytes },
        };
        self.feed.pending.insert_one(pending).session(session).await?;
        self.feed.noted.notify_one();
        Ok(())
    }
}

/// The newest cluster time in an answer to this session.
fn cluster_time(session: &ClientSession) -> Result<Bson> {
    let seen = session.cluster_time().and_then(|time| serialize_to_document(time).ok());
    let seen = seen.and_then(|mut time| time.remove("clusterTime"));
    seen.ok_or_else(|| StoreError::Unavailable("note changes: the servers tell no cluster time".to_owned()))
}
