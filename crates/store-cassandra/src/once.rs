//! Doing a thing once: keys of requests, claimed before the effect and told the answer after it.
//!
//! A key is claimed by a conditional write that also names the operation (`op_id`). Keys share partitions by their hash, so
//! that those who come at the same time are claimed by one write. Whoever finds a claim without an answer does the operation again under the same id: every effect looks for its id first, so doing it again finds what
//! was done and finishes the rest. The answer is a cell of its own that is only ever written with one value.

use mw_codec::once::{decode_outcome, encode_outcome};
use mw_domain::Timestamp;
use mw_domain::limits::IDEMPOTENCY_HOURS;
use mw_store::once::{Outcome, Remembered};
use mw_store::{Done, Once, Refusal, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{Access, Cql, Row};
use crate::guard::half_done;
use crate::outcome::Verdict;
use crate::registers::Registers;
use crate::tables::Table;
use crate::time::{from_cql, to_cql, ttl_seconds};

/// Rounds of claiming before giving up; each is lost to somebody else who got further.
const ROUNDS: usize = 16;
/// Partitions of keys. Few enough that a crowd meets in them; a day of a large shop is some megabytes in each.
const SHARDS: u8 = 32;

/// What a key says to somebody who comes with it.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The first: do it under this id. `maybe_done` where somebody began under it before.
    Do { op_id: Uuid, maybe_done: bool },
    /// It was done; this is the answer.
    Done(Box<Outcome>),
}

/// How an answer is remembered, and read out of what was.
pub(crate) type Memory<T> = (fn(&T) -> Outcome, fn(Outcome) -> Option<T>);

#[derive(Debug)]
pub(crate) struct Claims {
    read: PreparedStatement,
    insert: Arc<PreparedStatement>,
    take_over: Arc<PreparedStatement>,
    answer: Arc<PreparedStatement>,
    free: Arc<PreparedStatement>,
    registers: Registers<i32, String>,
}

type KeyRow = (Option<Vec<u8>>, Option<Uuid>, Option<scylla::value::CqlTimestamp>, Option<Vec<u8>>);

/// The partition of a key. Every process must find the same.
fn shard_of(key: &str) -> i32 {
    let first = Sha256::digest(key.as_bytes()).first().copied().unwrap_or_default();
    i32::from(first % SHARDS)
}

impl Claims {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::IdempotencyKeys;
        let conditional = async |text| cql.prepare(table, Access::Cas, text).await.map(Arc::new);
        Ok(Self {
            read: cql
                .prepare(
                    table,
                    Access::Serial,
                    "SELECT fingerprint, op_id, keep_until, outcome FROM {} WHERE shard = ? AND key = ?",
                )
                .await?,
            insert: conditional(
                "INSERT INTO {} (shard, key, fingerprint, op_id, keep_until) VALUES (?, ?, ?, ?, ?) \
                 IF NOT EXISTS USING TTL ?",
            )
            .await?,
            take_over: conditional(
                "UPDATE {} USING TTL ? SET fingerprint = ?, op_id = ?, keep_until = ?, outcome = null \
                 WHERE shard = ? AND key = ? IF op_id = ?",
            )
            .await?,
            answer: conditional(
                "UPDATE {} USING TTL ? SET fingerprint = ?, op_id = ?, keep_until = ?, outcome = ? \
                 WHERE shard = ? AND key = ? IF op_id = ?",
            )
            .await?,
            free: conditional("DELETE FROM {} WHERE shard = ? AND key = ? IF op_id = ? AND outcome = null")
                .await?,
            registers: Registers::default(),
        })
    }

    async fn read(&self, cql: &Cql, key: &str) -> Result<Option<KeyRow>> {
        cql.first(&self.read, (shard_of(key), key)).await
    }

    /// Writes on the condition that the key's row says what it should, together with others of the same shard.
    async fn cas(
        &self,
        cql: &Arc<Cql>,
        once: &Once,
        statement: &Arc<PreparedStatement>,
        row: Row,
    ) -> Result<Verdict> {
        let key = once.key.as_str();
        self.registers.cas(cql, shard_of(key), key.to_owned(), vec![(Arc::clone(statement), row)]).await
    }

    async fn insert(&self, cql: &Arc<Cql>, once: &Once, op_id: Uuid, ttl: i32) -> Result<Verdict> {
        let key = once.key.as_str();
        let fingerprint = once.fingerprint.0.to_vec();
        let row = (shard_of(key), key.to_owned(), fingerprint, op_id, to_cql(once.keep_until), ttl);
        self.cas(cql, once, &self.insert, Box::new(row)).await
    }

    async fn take_over(
        &self,
        cql: &Arc<Cql>,
        once: &Once,
        op_id: Uuid,
        holder: Uuid,
        ttl: i32,
    ) -> Result<Verdict> {
        let key = once.key.as_str();
        let fingerprint = once.fingerprint.0.to_vec();
        let row = (ttl, fingerprint, op_id, to_cql(once.keep_until), shard_of(key), key.to_owned(), holder);
        self.cas(cql, once, &self.take_over, Box::new(row)).await
    }

    /// Claims a key for the operation `op_id`, or tells what is known of it.
    pub(crate) async fn claim(
        &self,
        cql: &Arc<Cql>,
        once: &Once,
        op_id: Uuid,
        now: Timestamp,
    ) -> Result<Claim> {
        // Whether a write of this claim may have come through; then no failure means that nothing was done.
        let mut maybe_mine = false;
        let told = |error, maybe_mine| if maybe_mine { half_done(error) } else { error };
        for _ in 0..ROUNDS {
            let ttl = ttl_seconds(now, once.keep_until);
            let inserted = self.insert(cql, once, op_id, ttl).await;
            match inserted.map_err(|error| told(error, maybe_mine))? {
                Verdict::Applied => return Ok(Claim::Do { op_id, maybe_done: false }),
                Verdict::Unknown => maybe_mine = true,
                Verdict::NotApplied => {}
            }
            let row = self.read(cql, once.key.as_str()).await.map_err(|error| told(error, maybe_mine))?;
            let Some((Some(fingerprint), Some(holder), Some(keep_until), answer)) = row else {
                continue;
            };
            if holder == op_id {
                return Ok(Claim::Do { op_id, maybe_done: !maybe_mine });
            }
            if now >= from_cql(keep_until) {
                let taken_over = self.take_over(cql, once, op_id, holder, ttl).await;
                match taken_over.map_err(|error| told(error, maybe_mine))? {
                    Verdict::Applied => return Ok(Claim::Do { op_id, maybe_done: false }),
                    Verdict::Unknown => maybe_mine = true,
                    Verdict::NotApplied => {}
                }
                continue;
            }
            if fingerprint != once.fingerprint.0 {
                return Err(Refusal::KeyReused.into());
            }
            return match answer {
                Some(bytes) => Ok(Claim::Done(Box::new(decode_outcome(&bytes)?))),
                None => Ok(Claim::Do { op_id: holder, maybe_done: true }),
            };
        }
        let fought_for = StoreError::Unavailable("an idempotency key is being fought for".to_owned());
        Err(told(fought_for, maybe_mine))
    }

    /// What a key says without claiming it; `None` where it is free.
    pub(crate) async fn look(&self, cql: &Cql, once: &Once, now: Timestamp) -> Result<Option<Claim>> {
        let row = self.read(cql, once.key.as_str()).await?;
        let Some((Some(fingerprint), Some(op_id), Some(keep_until), answer)) = row else {
            return Ok(None);
        };
        if now >= from_cql(keep_until) {
            return Ok(None);
        }
        if fingerprint != once.fingerprint.0 {
            return Err(Refusal::KeyReused.into());
        }
        Ok(Some(match answer {
            Some(bytes) => Claim::Done(Box::new(decode_outcome(&bytes)?)),
            None => Claim::Do { op_id, maybe_done: true },
        }))
    }

    /// Remembers the answer of an operation that was done.
    pub(crate) async fn answer(
        &self,
        cql: &Arc<Cql>,
        once: &Once,
        op_id: Uuid,
        now: Timestamp,
        outcome: &Outcome,
    ) -> Result<()> {
        let key = once.key.as_str();
        let row = (
            ttl_seconds(now, once.keep_until),
            once.fingerprint.0.to_vec(),
            op_id,
            to_cql(once.keep_until),
            encode_outcome(outcome),
            shard_of(key),
            key.to_owned(),
            op_id,
        );
        match self.cas(cql, once, &self.answer, Box::new(row)).await? {
            Verdict::Applied | Verdict::NotApplied => Ok(()),
            Verdict::Unknown => {
                Err(StoreError::Ambiguous("the answer of a key was not remembered".to_owned()))
            }
        }
    }

    /// Takes in a key of another store with its answer, in place of what the key says here.
    pub(crate) async fn keep(&self, cql: &Arc<Cql>, remembered: &Remembered) -> Result<()> {
        let Remembered { once, outcome } = remembered;
        let op_id = match outcome {
            Outcome::Placed(order_id) => order_id.uuid(),
            _ => Uuid::new_v4(),
        };
        let claimed_at = once.keep_until.plus_seconds(-IDEMPOTENCY_HOURS * 3_600);
        for _ in 0..ROUNDS {
            let row = self.read(cql, once.key.as_str()).await?;
            let ttl = ttl_seconds(claimed_at, once.keep_until);
            let verdict = match row.and_then(|(_, holder, ..)| holder) {
                Some(holder) if holder == op_id => Verdict::Applied,
                Some(holder) => self.take_over(cql, once, op_id, holder, ttl).await?,
                None => self.insert(cql, once, op_id, ttl).await?,
            };
            if verdict == Verdict::Applied {
                return self.answer(cql, once, op_id, claimed_at, outcome).await;
            }
        }
        Err(StoreError::Unavailable("an idempotency key is being fought for".to_owned()))
    }

    /// Gives back the key of an operation that was refused, unless somebody else has done it meanwhile.
    pub(crate) async fn free(&self, cql: &Arc<Cql>, once: &Once, op_id: Uuid) -> Result<()> {
        let key = once.key.as_str();
        let row = || Box::new((shard_of(key), key.to_owned(), op_id));
        match self.cas(cql, once, &self.free, row()).await? {
            Verdict::Applied | Verdict::NotApplied => Ok(()),
            Verdict::Unknown => match self.read(cql, key).await? {
                Some((_, Some(holder), _, None)) if holder == op_id => {
                    self.cas(cql, once, &self.free, row()).await.map(drop)
                }
                _ => Ok(()),
            },
        }
    }
}

impl CassandraStore {
    /// Does `work` once a key, and gives the first answer again to whoever comes later. `work` is told the id to work under
    /// and whether somebody may have begun under it. Without a key it is simply done.
    pub(crate) async fn keyed<T, F>(
        &self,
        once: Option<&Once>,
        op_id: Uuid,
        now: Timestamp,
        (remember, recall): Memory<T>,
        work: impl FnOnce(Uuid, bool) -> F,
    ) -> Result<Done<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let Some(once) = once else {
            return work(op_id, false).await.map(Done::first);
        };
        let _turn = self.locks.key(once.key.as_str()).await;
        let (op_id, maybe_done) = match self.claims.claim(&self.cql, once, op_id, now).await? {
            Claim::Do { op_id, maybe_done } => (op_id, maybe_done),
            // One fingerprint is one request, so an answer of another kind belongs to another request.
            Claim::Done(outcome) => {
                let value = recall(*outcome).ok_or(Refusal::KeyReused)?;
                return Ok(Done::again(value));
            }
        };
        match work(op_id, maybe_done).await {
            Ok(value) => {
                let answer = remember(&value);
                self.claims.answer(&self.cql, once, op_id, now, &answer).await.map_err(half_done)?;
                Ok(Done { value, replayed: maybe_done })
            }
            Err(StoreError::Refused(refusal)) => {
                self.claims.free(&self.cql, once, op_id).await?;
                Err(StoreError::Refused(refusal))
            }
            // Surely not done and maybe done alike keep the claim: whoever comes again goes on under the same id.
            Err(error) => Err(error),
        }
    }
}
