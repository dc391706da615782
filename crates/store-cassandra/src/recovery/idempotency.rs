//! Idempotency keys: a key is claimed before the effect of its request, and the outcome is stored under it afterwards.
//!
//! A claim is a conditional write that names the operation (`op_id`). Each key is a partition of its own. A request that finds
//! a claim without an outcome executes the operation again under the same id: every effect looks for its id first, so the
//! second execution finds what the first one did and finishes the rest. The outcome is a cell that is only ever written with
//! one value.
//!
//! A key that is released is not deleted: its row names no operation and has expired, so that a claim which arrives late finds
//! it taken, and the next request takes it over.

use std::sync::Arc;

use mw_codec::idempotency::{decode_outcome, encode_outcome};
use mw_domain::limits::IDEMPOTENCY_HOURS;
use mw_domain::{IdempotencyKey, Timestamp};
use mw_store::idempotency::{Outcome, StoredOutcome, StoredValue};
use mw_store::{Done, Fingerprint, Refusal, RequestIdentity, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::certainty::CasResult;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql, ttl_seconds};
use crate::revision::gave_up;
use crate::schema::tables::Table;

/// Rounds of claiming before giving up; each is lost to another request with the same key.
const CLAIM_ROUNDS: usize = 16;
/// How long a released key refuses a late claim: as long as the claim would have stayed.
const RELEASED_TTL_SECONDS: i32 = 2 * 86_400;
/// The `keep_until` of a released key: over for every request.
const RELEASED: CqlTimestamp = CqlTimestamp(0);

/// What a request with a key has to do.
#[derive(Debug)]
pub(crate) enum Claim {
    /// Execute the operation under this id. `is_retry`: an earlier execution may have begun under it.
    Execute { op_id: Uuid, is_retry: bool },
    /// The operation is done: return this outcome.
    Replay(Box<Outcome>),
}

#[derive(Debug)]
pub(crate) struct Claims {
    read: PreparedStatement,
    insert: PreparedStatement,
    take_over: PreparedStatement,
    store_outcome: PreparedStatement,
    release: PreparedStatement,
}

/// A key as it is stored.
struct StoredClaim {
    fingerprint: Vec<u8>,
    op_id: Uuid,
    keep_until: Timestamp,
    outcome: Option<Vec<u8>>,
}

impl StoredClaim {
    const fn is_expired(&self, now: Timestamp) -> bool {
        now.as_millis() >= self.keep_until.as_millis()
    }

    fn is_same_request(&self, identity: &RequestIdentity) -> bool {
        self.fingerprint == identity.fingerprint.0
    }

    /// What the claim means to another request with the same key.
    fn into_claim(self, identity: &RequestIdentity) -> Result<Claim> {
        if !self.is_same_request(identity) {
            return Err(Refusal::KeyReused.into());
        }
        Ok(match self.outcome {
            Some(bytes) => Claim::Replay(Box::new(decode_outcome(&bytes)?)),
            None => Claim::Execute { op_id: self.op_id, is_retry: true },
        })
    }
}

/// A key as errors name it.
fn subject(identity: &RequestIdentity) -> String {
    format!("idempotency key {}", identity.key.as_str())
}

impl Claims {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::IdempotencyKeys;
        let read = "SELECT fingerprint, op_id, keep_until, outcome FROM {} WHERE key = ?";
        // Not an INSERT, which would also write a row marker with a TTL of its own.
        let insert = "UPDATE {} USING TTL ? SET fingerprint = ?, op_id = ?, keep_until = ? WHERE key = ? IF op_id = null";
        let take_over = "UPDATE {} USING TTL ? SET fingerprint = ?, op_id = ?, keep_until = ?, outcome = null \
             WHERE key = ? IF op_id = ?";
        let store_outcome = "UPDATE {} USING TTL ? SET fingerprint = ?, op_id = ?, keep_until = ?, outcome = ? \
             WHERE key = ? IF op_id = ?";
        let release = "UPDATE {} USING TTL ? SET fingerprint = ?, op_id = ?, keep_until = ? \
             WHERE key = ? IF op_id = ? AND outcome = null";
        Ok(Self {
            read: cql.prepare(table, Access::Serial, read).await?,
            insert: cql.prepare(table, Access::Cas, insert).await?,
            take_over: cql.prepare(table, Access::Cas, take_over).await?,
            store_outcome: cql.prepare(table, Access::Cas, store_outcome).await?,
            release: cql.prepare(table, Access::Cas, release).await?,
        })
    }

    async fn read(&self, cql: &Cql, key: &str) -> Result<Option<StoredClaim>> {
        type KeyRow = (Option<Vec<u8>>, Option<Uuid>, Option<CqlTimestamp>, Option<Vec<u8>>);
        let row: Option<KeyRow> = cql.first(&self.read, (key,)).await?;
        Ok(match row {
            Some((Some(fingerprint), Some(op_id), Some(keep_until), outcome)) => {
                Some(StoredClaim { fingerprint, op_id, keep_until: from_cql(keep_until), outcome })
            }
            _ => None,
        })
    }

    async fn insert(
        &self,
        cql: &Cql,
        identity: &RequestIdentity,
        op_id: Uuid,
        keep_until: CqlTimestamp,
        ttl: i32,
    ) -> Result<CasResult> {
        let row = (ttl, &identity.fingerprint.0[..], op_id, keep_until, identity.key.as_str());
        cql.cas(&self.insert, row).await
    }

    async fn take_over(
        &self,
        cql: &Cql,
        identity: &RequestIdentity,
        op_id: Uuid,
        holder: Uuid,
        ttl: i32,
    ) -> Result<CasResult> {
        let keep_until = to_cql(identity.keep_until);
        let row = (ttl, &identity.fingerprint.0[..], op_id, keep_until, identity.key.as_str(), holder);
        cql.cas(&self.take_over, row).await
    }

    /// Claims a key for the operation `op_id`, or says what became of the operation that holds it.
    pub(crate) async fn claim(
        &self,
        cql: &Arc<Cql>,
        identity: &RequestIdentity,
        op_id: Uuid,
        now: Timestamp,
    ) -> Result<Claim> {
        // Whether a claim of this call may be stored. From then on no failure is "certainly not applied".
        let mut may_be_claimed = false;
        let failure = |error: StoreError, may_be_claimed| {
            if may_be_claimed { error.after_first_effect() } else { error }
        };
        for _ in 0..CLAIM_ROUNDS {
            let ttl = ttl_seconds(now, identity.keep_until);
            let inserted = self.insert(cql, identity, op_id, to_cql(identity.keep_until), ttl).await;
            // A crash here leaves a claim without outcome: the next request with the key executes under its id.
            match inserted.map_err(|error| failure(error, may_be_claimed))? {
                CasResult::Applied => return Ok(Claim::Execute { op_id, is_retry: false }),
                CasResult::Unknown => may_be_claimed = true,
                CasResult::NotApplied => {}
            }
            let stored = self.read(cql, identity.key.as_str()).await;
            let Some(stored) = stored.map_err(|error| failure(error, may_be_claimed))? else { continue };
            if stored.op_id == op_id {
                return Ok(Claim::Execute { op_id, is_retry: !may_be_claimed });
            }
            if !stored.is_expired(now) {
                return stored.into_claim(identity);
            }
            let taken_over = self.take_over(cql, identity, op_id, stored.op_id, ttl).await;
            match taken_over.map_err(|error| failure(error, may_be_claimed))? {
                CasResult::Applied => return Ok(Claim::Execute { op_id, is_retry: false }),
                CasResult::Unknown => may_be_claimed = true,
                CasResult::NotApplied => {}
            }
        }
        Err(failure(gave_up(CLAIM_ROUNDS, &subject(identity)), may_be_claimed))
    }

    /// The claim of a key, without claiming it; `None` where the key is free.
    pub(crate) async fn find(
        &self,
        cql: &Cql,
        identity: &RequestIdentity,
        now: Timestamp,
    ) -> Result<Option<Claim>> {
        let stored = self.read(cql, identity.key.as_str()).await?;
        stored.filter(|stored| !stored.is_expired(now)).map(|stored| stored.into_claim(identity)).transpose()
    }

    /// The request of an operation that holds its key without a stored outcome.
    pub(crate) async fn undecided(
        &self,
        cql: &Cql,
        key: &str,
        op_id: Uuid,
    ) -> Result<Option<RequestIdentity>> {
        let stored = self.read(cql, key).await?;
        let Some(stored) = stored.filter(|stored| stored.op_id == op_id && stored.outcome.is_none()) else {
            return Ok(None);
        };
        let corrupt =
            || StoreError::Corrupt(format!("read idempotency key {key:?}: invalid key or fingerprint"));
        let fingerprint = stored.fingerprint.try_into().map(Fingerprint).map_err(|_| corrupt())?;
        let key = IdempotencyKey::restore(key).map_err(|_| corrupt())?;
        Ok(Some(RequestIdentity { key, fingerprint, keep_until: stored.keep_until }))
    }

    /// Stores the outcome of an operation that is done.
    pub(crate) async fn store_outcome(
        &self,
        cql: &Arc<Cql>,
        identity: &RequestIdentity,
        op_id: Uuid,
        now: Timestamp,
        outcome: &Outcome,
    ) -> Result<()> {
        let row = (
            ttl_seconds(now, identity.keep_until),
            &identity.fingerprint.0[..],
            op_id,
            to_cql(identity.keep_until),
            encode_outcome(outcome),
            identity.key.as_str(),
            op_id,
        );
        match cql.cas(&self.store_outcome, row).await? {
            CasResult::Applied | CasResult::NotApplied => Ok(()),
            CasResult::Unknown => {
                Err(StoreError::Ambiguous(format!("store the outcome of {}: no result", subject(identity))))
            }
        }
    }

    /// Imports a key with its outcome from another store, replacing what is stored under the key here.
    pub(crate) async fn import(&self, cql: &Arc<Cql>, stored_outcome: &StoredOutcome) -> Result<()> {
        let StoredOutcome { identity, outcome } = stored_outcome;
        let op_id = match outcome {
            Outcome::Placed(order_id) => order_id.uuid(),
            _ => Uuid::new_v4(),
        };
        let claimed_at = identity.keep_until.plus_seconds(-IDEMPOTENCY_HOURS * 3_600);
        for _ in 0..CLAIM_ROUNDS {
            let stored = self.read(cql, identity.key.as_str()).await?;
            let ttl = ttl_seconds(claimed_at, identity.keep_until);
            let claimed = match stored.map(|stored| stored.op_id) {
                Some(holder) if holder == op_id => CasResult::Applied,
                Some(holder) => self.take_over(cql, identity, op_id, holder, ttl).await?,
                None => self.insert(cql, identity, op_id, to_cql(identity.keep_until), ttl).await?,
            };
            // A crash here leaves a claim without outcome: the import is repeated from its last recorded position.
            if claimed == CasResult::Applied {
                return self.store_outcome(cql, identity, op_id, claimed_at, outcome).await;
            }
        }
        Err(gave_up(CLAIM_ROUNDS, &subject(identity)))
    }

    /// Releases the key of an operation that was refused, unless another request completed it meanwhile. A claim of the
    /// operation that is still in flight finds the key taken.
    pub(crate) async fn release(
        &self,
        cql: &Arc<Cql>,
        identity: &RequestIdentity,
        op_id: Uuid,
    ) -> Result<()> {
        let key = identity.key.as_str();
        for _ in 0..CLAIM_ROUNDS {
            let (fingerprint, none) = (&identity.fingerprint.0[..], Uuid::new_v4());
            let row = (RELEASED_TTL_SECONDS, fingerprint, none, RELEASED, key, op_id);
            // A crash before this leaves the claim of a refused operation: the next request decides again under its id.
            if cql.cas(&self.release, row).await? == CasResult::Applied {
                return Ok(());
            }
            match self.read(cql, key).await? {
                Some(stored) if stored.op_id == op_id && stored.outcome.is_none() => {}
                Some(_) => return Ok(()),
                None => {
                    let refused = self.insert(cql, identity, none, RELEASED, RELEASED_TTL_SECONDS).await?;
                    if refused == CasResult::Applied {
                        return Ok(());
                    }
                }
            }
        }
        Err(gave_up(CLAIM_ROUNDS, &subject(identity)))
    }
}

impl CassandraStore {
    /// Executes `work` once per key and replays its outcome to later requests. `work` gets the id to execute under, and whether
    /// an earlier execution may have begun under it. Without a key it is executed as it is.
    pub(crate) async fn idempotent<T: StoredValue, F>(
        &self,
        identity: Option<&RequestIdentity>,
        op_id: Uuid,
        now: Timestamp,
        work: impl FnOnce(Uuid, bool) -> F,
    ) -> Result<Done<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let Some(identity) = identity else {
            return work(op_id, false).await.map(Done::first);
        };
        let _lock = self.locks.idempotency_key(identity.key.as_str()).await;
        let (op_id, is_retry) = match self.claims.claim(&self.cql, identity, op_id, now).await? {
            Claim::Execute { op_id, is_retry } => (op_id, is_retry),
            Claim::Replay(outcome) => {
                let value = T::from_outcome(*outcome).ok_or(Refusal::KeyReused)?;
                return Ok(Done::replay(value));
            }
        };
        // A crash from here on leaves the claim: the next request with the key executes again under the same id.
        match work(op_id, is_retry).await {
            Ok(value) => {
                // A crash here leaves the effect without an outcome: the next request finds the effect by its id.
                self.claims
                    .store_outcome(&self.cql, identity, op_id, now, &value.to_outcome())
                    .await
                    .map_err(StoreError::after_first_effect)?;
                Ok(Done { value, replayed: is_retry })
            }
            Err(StoreError::Refused(refusal)) => {
                // A crash here leaves the claim of a refused operation: the next request decides again under its id.
                self.claims.release(&self.cql, identity, op_id).await?;
                Err(StoreError::Refused(refusal))
            }
            // Any other failure keeps the claim: the next request with the key goes on under the same id.
            Err(error) => Err(error),
        }
    }
}
