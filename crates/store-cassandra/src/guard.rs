//! Changes of a guarded partition: read, compute, and one conditional batch on its revision.
//!
//! A guarded partition counts its changes (`rev`) and remembers the tokens of the last few (`marks`, newest first). A change
//! is computed from what was read and holds only if the revision is still that; otherwise nothing of it is written, and
//! it is computed again. Where the answer of a write is lost, the same batch is sent again: of the two only one can hold, and
//! the token tells whether one did.

use std::time::Duration;

use mw_store::{Result, StoreError};
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use crate::cql::{Cql, Row};
use crate::outcome::Verdict;

/// Tokens that a partition remembers.
const MARKS: usize = 8;
/// Rounds that a change may lose to others.
const ROUNDS_MAX: usize = 16;
/// Times that a batch is sent whose answers are lost.
const SENDS_MAX: usize = 3;
/// The longest pause after a lost round.
const PAUSE_MS_MAX: u128 = 64;

/// Where a partition stands, as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// `None` where there is no such partition.
    rev: Option<i64>,
    marks: Vec<Uuid>,
}

/// The change that follows what was read: the values of the guard's statement.
#[derive(Debug, Clone)]
pub(crate) struct Next {
    /// For `IF rev = ?`.
    pub(crate) expected: Option<i64>,
    pub(crate) rev: i64,
    pub(crate) marks: Vec<Uuid>,
    token: Uuid,
}

impl Guard {
    pub(crate) fn new(rev: Option<i64>, marks: Option<Vec<Uuid>>) -> Self {
        Self { rev, marks: marks.unwrap_or_default() }
    }

    pub(crate) fn next(&self) -> Next {
        self.next_as(Uuid::new_v4())
    }

    /// The change of an operation that may be asked about later.
    pub(crate) fn next_as(&self, token: Uuid) -> Next {
        let marks = std::iter::once(token).chain(self.marks.iter().copied()).take(MARKS).collect();
        Next { expected: self.rev, rev: self.rev.unwrap_or(0) + 1, marks, token }
    }

    /// Whether the change of this token is one of the last few.
    pub(crate) fn remembers(&self, token: Uuid) -> bool {
        self.marks.contains(&token)
    }

    /// What this later state says of a change that was tried.
    fn tells(&self, tried: &Next) -> Fate {
        if self.remembers(tried.token) {
            return Fate::Done;
        }
        if self.rev == tried.expected {
            return Fate::Open;
        }
        let since = self.rev.map(|rev| rev - tried.expected.unwrap_or(0));
        match since.and_then(|since| usize::try_from(since).ok()) {
            Some(1..=MARKS) => Fate::Lost,
            _ => Fate::Forgotten,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    /// Another change took its place: it can never hold again.
    Lost,
    /// Neither it nor another happened; it may still be on its way.
    Open,
    /// So much happened since that nobody can tell.
    Forgotten,
}

/// The rounds of one change, until it holds.
#[derive(Debug)]
pub(crate) struct Rounds {
    what: &'static str,
    lost: usize,
}

impl Rounds {
    /// `what` names the thing that is changed: "a cart".
    pub(crate) const fn of(what: &'static str) -> Self {
        Self { what, lost: 0 }
    }

    /// Sends a batch whose first statement is the guard's. `true`: it is done. `false`: surely not, because of another
    /// change; read again and compute again. `look` reads `rev, marks` of the partition `key` at the serial level.
    pub(crate) async fn settle(
        &mut self,
        cql: &Cql,
        next: &Next,
        batch: &[(&PreparedStatement, Row)],
        look: &PreparedStatement,
        key: impl SerializeRow,
    ) -> Result<bool> {
        match cql.cas_batch(batch).await? {
            Verdict::Applied => return Ok(true),
            Verdict::NotApplied => return self.lost().await,
            Verdict::Unknown => {}
        }
        for _ in 1..SENDS_MAX {
            match self.look(cql, next, look, &key).await? {
                Fate::Done => return Ok(true),
                Fate::Lost => return self.lost().await,
                Fate::Forgotten => break,
                Fate::Open => {}
            }
            match cql.cas_batch(batch).await {
                Ok(Verdict::Applied) => return Ok(true),
                Ok(Verdict::NotApplied | Verdict::Unknown) => {}
                Err(error) => return Err(self.in_doubt(&error.to_string())),
            }
        }
        match self.look(cql, next, look, &key).await? {
            Fate::Done => Ok(true),
            Fate::Lost => self.lost().await,
            Fate::Open | Fate::Forgotten => Err(self.in_doubt("no answer")),
        }
    }

    async fn look(
        &self,
        cql: &Cql,
        next: &Next,
        look: &PreparedStatement,
        key: impl SerializeRow,
    ) -> Result<Fate> {
        let row = cql.first::<(Option<i64>, Option<Vec<Uuid>>)>(look, key).await;
        let (rev, marks) = row.map_err(|error| self.in_doubt(&error.to_string()))?.unwrap_or_default();
        Ok(Guard::new(rev, marks).tells(next))
    }

    fn in_doubt(&self, detail: &str) -> StoreError {
        StoreError::Ambiguous(format!("change {}: {detail}", self.what))
    }

    async fn lost(&mut self) -> Result<bool> {
        self.lost += 1;
        if self.lost == ROUNDS_MAX {
            return Err(StoreError::Unavailable(format!("{} is being fought for", self.what)));
        }
        // Whoever fights from another process pauses for another time.
        let most = (1_u128 << self.lost).min(PAUSE_MS_MAX);
        let pause = Uuid::new_v4().as_u128() % most;
        tokio::time::sleep(Duration::from_millis(u64::try_from(pause).unwrap_or(0))).await;
        Ok(false)
    }
}

/// Brings a change of a guarded partition to its end that a node has begun with, so that what is read next shows it. `look` is
/// as in [`Rounds::settle`].
pub(crate) async fn see_through(cql: &Cql, look: &PreparedStatement, key: impl SerializeRow) -> Result<()> {
    cql.first::<(Option<i64>, Option<Vec<Uuid>>)>(look, key).await.map(drop)
}

/// An error after something was done already: the whole of it may be done or not.
pub(crate) fn half_done(error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(detail) => StoreError::Ambiguous(detail),
        StoreError::Overloaded => StoreError::Ambiguous("storage has too much waiting".to_owned()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partition after so many more changes of others.
    fn after(guard: &Guard, changes: usize) -> Guard {
        (0..changes).fold(guard.clone(), |guard, _| {
            let next = guard.next();
            Guard::new(Some(next.rev), Some(next.marks))
        })
    }

    #[test]
    fn a_change_is_recognised_until_it_is_forgotten() {
        for begin in [Guard::default(), after(&Guard::default(), 20)] {
            let tried = begin.next();
            let done = Guard::new(Some(tried.rev), Some(tried.marks.clone()));
            assert_eq!(begin.tells(&tried), Fate::Open);
            for others in 0..MARKS {
                assert_eq!(after(&done, others).tells(&tried), Fate::Done, "{others}");
                assert_eq!(after(&begin, others + 1).tells(&tried), Fate::Lost, "{others}");
            }
            assert_eq!(after(&done, MARKS).tells(&tried), Fate::Forgotten);
            assert_eq!(after(&begin, MARKS + 1).tells(&tried), Fate::Forgotten);
        }
    }

    #[test]
    fn a_partition_that_began_anew_tells_nothing() {
        let tried = after(&Guard::default(), 3).next();
        assert_eq!(Guard::default().tells(&tried), Fate::Forgotten);
        assert_eq!(after(&Guard::default(), 1).tells(&tried), Fate::Forgotten);
    }
}
