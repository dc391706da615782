//! Idempotency keys. The outcome is stored in the transaction that has the effect, so a key is stored if and only if
//! its request took effect. Of two duplicates at once one conflicts, begins again and finds the outcome.

use mongodb::ClientSession;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};
use mw_domain::Timestamp;
use mw_store::idempotency::{Outcome, StoredOutcome, StoredValue};
use mw_store::{Done, Refusal, RequestIdentity, Result, StoreError};

use crate::MongoStore;
use crate::documents::times::{read_time, to_bson_time};
use crate::driver::transaction::Stop;

impl MongoStore {
    /// The outcome stored under the key of a request; `None` if the key is free or the request has none. Refuses: `KeyReused`.
    pub(crate) async fn stored_outcome(
        &self,
        session: &mut ClientSession,
        identity: Option<&RequestIdentity>,
        now: Timestamp,
    ) -> Result<Option<Outcome>, Stop> {
        let Some(identity) = identity else { return Ok(None) };
        let filter = doc! { "_id": identity.key.as_str() };
        let Some(stored) = self.collections.idempotency_keys.find_one(filter).session(session).await? else {
            return Ok(None);
        };
        let stored = read(&stored)?;
        if now >= stored.identity.keep_until {
            return Ok(None);
        }
        if stored.identity.fingerprint != identity.fingerprint {
            return Err(Refusal::KeyReused.into());
        }
        Ok(Some(stored.outcome))
    }

    /// The replay of a request; `None` if it is to be carried out.
    pub(crate) async fn replay<T: StoredValue>(
        &self,
        session: &mut ClientSession,
        identity: Option<&RequestIdentity>,
        now: Timestamp,
    ) -> Result<Option<Done<T>>, Stop> {
        let Some(outcome) = self.stored_outcome(session, identity, now).await? else { return Ok(None) };
        // One fingerprint is one request, so an outcome of another kind belongs to another request.
        let value = T::from_outcome(outcome).ok_or(Refusal::KeyReused)?;
        Ok(Some(Done::replay(value)))
    }

    /// Stores the outcome with the effect.
    pub(crate) async fn store_outcome(
        &self,
        session: &mut ClientSession,
        identity: Option<&RequestIdentity>,
        outcome: impl FnOnce() -> Outcome,
    ) -> Result<(), Stop> {
        let Some(identity) = identity else { return Ok(()) };
        let filter = doc! { "_id": identity.key.as_str() };
        let document = write(identity, &outcome());
        self.collections.idempotency_keys.replace_one(filter, document).upsert(true).session(session).await?;
        Ok(())
    }
}

/// The document of a key, as it is stored and exported.
pub(crate) fn write(identity: &RequestIdentity, outcome: &Outcome) -> Document {
    let bytes = mw_codec::idempotency::encode(identity, outcome);
    doc! {
        "_id": identity.key.as_str(),
        "keep_until": to_bson_time(identity.keep_until),
        "outcome": Binary { subtype: BinarySubtype::Generic, bytes },
    }
}

pub(crate) fn read(document: &Document) -> Result<StoredOutcome> {
    let damaged = || StoreError::Corrupt("cannot read idempotency key".to_owned());
    let Some(Bson::Binary(outcome)) = document.get("outcome") else { return Err(damaged()) };
    let mut stored = mw_codec::idempotency::decode(&outcome.bytes)?;
    stored.identity.keep_until = document.get("keep_until").and_then(read_time).ok_or_else(damaged)?;
    Ok(stored)
}
