//! Optimistic concurrency: a partition is read, its change computed, and one conditional batch on its revision applies it.
//!
//! Every change of such a partition increments its revision (`rev`) and puts its own token in front of the tokens of the last
//! few changes (`recent_op_tokens`). A batch holds only if the revision is still the one that was read; otherwise nothing of it
//! is written, and the change is computed again. When the result of a batch is lost, [`CasAttempt::fate`] decides from a
//! serial read whether it landed: the only place in the crate that answers this question.

use std::time::Duration;

use mw_store::{Result, StoreError};
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use crate::driver::certainty::CasResult;
use crate::driver::statements::{Cql, Row};

/// Tokens that a partition keeps. An order keeps the token of every event instead, which are fewer.
const RECENT_OP_TOKENS_MAX: usize = 8;
/// CAS rounds that a change may lose to other writers before it gives up.
const LOST_ROUNDS_MAX: usize = 16;
/// Times that a batch is sent when its results are lost.
const SENDS_MAX: usize = 3;
/// The longest pause after a lost round.
const PAUSE_MS_MAX: u128 = 64;

/// The revision of a partition as a read saw it, with the tokens of the changes that led to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Revision {
    /// `None` where the partition does not exist.
    rev: Option<i64>,
    recent_op_tokens: Vec<Uuid>,
}

/// The revision that a change makes of the one that was read: the values of its conditional statement.
#[derive(Debug, Clone)]
pub(crate) struct NextRevision {
    /// For `IF rev = ?`.
    pub(crate) expected: Option<i64>,
    pub(crate) rev: i64,
    pub(crate) recent_op_tokens: Vec<Uuid>,
    op_token: Uuid,
}

impl Revision {
    pub(crate) fn new(rev: Option<i64>, recent_op_tokens: Option<Vec<Uuid>>) -> Self {
        Self { rev, recent_op_tokens: recent_op_tokens.unwrap_or_default() }
    }

    pub(crate) fn next(&self) -> NextRevision {
        self.next_with_token(Uuid::new_v4())
    }

    /// The change of an operation that a later process may have to recognise.
    pub(crate) fn next_with_token(&self, op_token: Uuid) -> NextRevision {
        let recent_op_tokens = std::iter::once(op_token)
            .chain(self.recent_op_tokens.iter().copied())
            .take(RECENT_OP_TOKENS_MAX)
            .collect();
        NextRevision { expected: self.rev, rev: self.rev.unwrap_or(0) + 1, recent_op_tokens, op_token }
    }

    /// Whether so many changes were made, by whichever writer.
    pub(crate) fn has_reached(&self, rev: i64) -> bool {
        self.rev.is_some_and(|own| own >= rev)
    }

    /// Whether the change with this token is one of the last few.
    pub(crate) fn remembers(&self, op_token: Uuid) -> bool {
        self.recent_op_tokens.contains(&op_token)
    }
}

impl NextRevision {
    pub(crate) const fn attempt(&self) -> CasAttempt {
        CasAttempt { expected: self.expected, op_token: self.op_token }
    }
}

/// A conditional write that was sent: on which revision, and under which token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CasAttempt {
    pub(crate) expected: Option<i64>,
    pub(crate) op_token: Uuid,
}

/// What became of a conditional write whose result was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CasFate {
    Applied,
    /// Another change took its revision: it can never apply any more.
    Superseded,
    /// Neither it nor another change is visible; it may still be in flight.
    Pending,
    /// More changes happened since than the partition keeps tokens of.
    Unknown,
}

impl CasAttempt {
    /// Did the write land? `seen` must come from a serial read that started after the write was sent.
    pub(crate) fn fate(self, seen: &Revision) -> CasFate {
        if seen.remembers(self.op_token) {
            return CasFate::Applied;
        }
        if seen.rev == self.expected {
            return CasFate::Pending;
        }
        let since = seen.rev.map(|rev| rev - self.expected.unwrap_or(0));
        match since.and_then(|since| usize::try_from(since).ok()) {
            Some(1..=RECENT_OP_TOKENS_MAX) => CasFate::Superseded,
            _ => CasFate::Unknown,
        }
    }
}

/// The rounds of one change, until it applies.
#[derive(Debug)]
pub(crate) struct CasLoop {
    subject: String,
    lost: usize,
}

impl CasLoop {
    /// `subject` names what is changed, for errors: "cart u:anna".
    pub(crate) fn of(subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), lost: 0 }
    }

    /// Sends a batch whose first statement carries the condition. `true`: it applied. `false`: it certainly did not, since
    /// another change came first; read and compute again. `serial_read` selects `rev, recent_op_tokens` of the partition `key`.
    pub(crate) async fn apply(
        &mut self,
        cql: &Cql,
        next: &NextRevision,
        batch: &[(&PreparedStatement, Row)],
        serial_read: &PreparedStatement,
        key: impl SerializeRow,
    ) -> Result<bool> {
        match cql.cas_batch(batch).await? {
            CasResult::Applied => return Ok(true),
            CasResult::NotApplied => return self.lost().await,
            CasResult::Unknown => {}
        }
        // A crash here leaves a batch that applies whole or not at all: no process has to finish it.
        for _ in 1..SENDS_MAX {
            match self.fate(cql, next, serial_read, &key).await? {
                CasFate::Applied => return Ok(true),
                CasFate::Superseded => return self.lost().await,
                CasFate::Unknown => break,
                CasFate::Pending => {}
            }
            // The same batch with the same token: of the two sends at most one can apply.
            match cql.cas_batch(batch).await {
                Ok(CasResult::Applied) => return Ok(true),
                Ok(CasResult::NotApplied | CasResult::Unknown) => {}
                Err(error) => return Err(self.ambiguous(&error.to_string())),
            }
        }
        match self.fate(cql, next, serial_read, &key).await? {
            CasFate::Applied => Ok(true),
            CasFate::Superseded => self.lost().await,
            CasFate::Pending => {
                Err(self.ambiguous(&format!("no result after {SENDS_MAX} sends, may still be in flight")))
            }
            CasFate::Unknown => Err(self.ambiguous("no result, and more changes since than tokens are kept")),
        }
    }

    async fn fate(
        &self,
        cql: &Cql,
        next: &NextRevision,
        serial_read: &PreparedStatement,
        key: impl SerializeRow,
    ) -> Result<CasFate> {
        let row = cql.first::<(Option<i64>, Option<Vec<Uuid>>)>(serial_read, key).await;
        let (rev, recent_op_tokens) =
            row.map_err(|error| self.ambiguous(&error.to_string()))?.unwrap_or_default();
        Ok(next.attempt().fate(&Revision::new(rev, recent_op_tokens)))
    }

    fn ambiguous(&self, cause: &str) -> StoreError {
        StoreError::Ambiguous(format!("change {}: {cause}", self.subject))
    }

    async fn lost(&mut self) -> Result<bool> {
        self.lost += 1;
        if self.lost == LOST_ROUNDS_MAX {
            return Err(gave_up(LOST_ROUNDS_MAX, &self.subject));
        }
        // Random, so that two processes in contention do not meet again in the next round.
        let most = (1_u128 << self.lost).min(PAUSE_MS_MAX);
        let pause = Uuid::new_v4().as_u128() % most;
        tokio::time::sleep(Duration::from_millis(u64::try_from(pause).unwrap_or(0))).await;
        Ok(false)
    }
}

/// The error of a change that lost every CAS round to other writers. Nothing was applied.
pub(crate) fn gave_up(rounds: usize, subject: &str) -> StoreError {
    StoreError::Unavailable(format!("gave up after {rounds} lost CAS rounds on {subject} (contention)"))
}

/// Completes a Paxos round that a coordinator left unfinished on the partition, so that the next read shows its result.
/// `serial_read` is as in [`CasLoop::apply`].
pub(crate) async fn finish_paxos(
    cql: &Cql,
    serial_read: &PreparedStatement,
    key: impl SerializeRow,
) -> Result<()> {
    cql.first::<(Option<i64>, Option<Vec<Uuid>>)>(serial_read, key).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partition after so many more changes of other writers.
    fn after(revision: &Revision, changes: usize) -> Revision {
        (0..changes).fold(revision.clone(), |revision, _| applied(&revision.next()))
    }

    fn applied(next: &NextRevision) -> Revision {
        Revision::new(Some(next.rev), Some(next.recent_op_tokens.clone()))
    }

    #[test]
    fn fate_is_known_until_the_tokens_are_overwritten() {
        for before in [Revision::default(), after(&Revision::default(), 20)] {
            let next = before.next();
            let attempt = next.attempt();
            assert_eq!(attempt.fate(&before), CasFate::Pending);
            for others in 0..RECENT_OP_TOKENS_MAX {
                assert_eq!(attempt.fate(&after(&applied(&next), others)), CasFate::Applied, "{others}");
                assert_eq!(attempt.fate(&after(&before, others + 1)), CasFate::Superseded, "{others}");
            }
            assert_eq!(attempt.fate(&after(&applied(&next), RECENT_OP_TOKENS_MAX)), CasFate::Unknown);
            assert_eq!(attempt.fate(&after(&before, RECENT_OP_TOKENS_MAX + 1)), CasFate::Unknown);
        }
    }

    #[test]
    fn fate_is_unknown_when_the_partition_was_deleted_since() {
        let attempt = after(&Revision::default(), 3).next().attempt();
        assert_eq!(attempt.fate(&Revision::default()), CasFate::Unknown);
        assert_eq!(attempt.fate(&after(&Revision::default(), 1)), CasFate::Unknown);
    }

    #[test]
    fn first_change_of_a_partition_is_pending_until_the_partition_exists() {
        let attempt = Revision::default().next().attempt();
        assert_eq!(attempt.fate(&Revision::default()), CasFate::Pending);
        assert_eq!(attempt.fate(&after(&Revision::default(), 1)), CasFate::Superseded);
    }

    #[test]
    fn tokens_of_events_decide_like_tokens_of_a_partition() {
        // An order at version 3: its placing has no token, its two steps have one each.
        let [mine, other] = [Uuid::new_v4(), Uuid::new_v4()];
        let seen = Revision::new(Some(3), Some(vec![other, mine]));
        let fate = |expected, op_token| CasAttempt { expected: Some(expected), op_token }.fate(&seen);
        assert_eq!(fate(1, mine), CasFate::Applied);
        assert_eq!(fate(2, other), CasFate::Applied);
        assert_eq!(fate(2, Uuid::new_v4()), CasFate::Superseded);
        assert_eq!(fate(3, Uuid::new_v4()), CasFate::Pending);
    }
}
