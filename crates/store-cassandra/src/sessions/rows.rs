//! The row of a session: read, and the conditional statement that a change of it becomes.

use std::collections::BTreeMap;

use mw_domain::{GeoZone, Session, SessionId, Timestamp, UserId};
use mw_store::{Result, StoreError};
use scylla::DeserializeRow;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlTimestamp, MaybeUnset};
use uuid::Uuid;

use super::Statements;
use crate::CassandraStore;
use crate::cql::{Cql, Row};
use crate::guard::{Guard, Next, Rounds};
use crate::time::{from_cql, to_cql, ttl_seconds};

pub(super) const COLUMNS: &str = "session_id, rev, marks, user_id, geo_zone, ip, user_agent, device_type, data, \
     created_at, last_activity, expires_at, op_id";

#[derive(Debug, DeserializeRow)]
pub(super) struct SessionRow {
    session_id: String,
    rev: Option<i64>,
    marks: Option<Vec<Uuid>>,
    user_id: Option<String>,
    geo_zone: Option<String>,
    ip: Option<String>,
    user_agent: Option<String>,
    device_type: Option<String>,
    data: Option<BTreeMap<String, String>>,
    created_at: Option<CqlTimestamp>,
    last_activity: Option<CqlTimestamp>,
    expires_at: Option<CqlTimestamp>,
    op_id: Option<Uuid>,
}

/// What is stored under a session's id.
#[derive(Debug, Default)]
pub(super) struct Found {
    guard: Guard,
    /// It may have expired.
    pub(super) session: Option<Session>,
    /// What created it.
    pub(super) op_id: Option<Uuid>,
}

impl SessionRow {
    pub(super) fn into_found(self) -> Result<Found> {
        let damaged = |what: &str| StoreError::Corrupt(format!("{what} of session {}", self.session_id));
        let guard = Guard::new(self.rev, self.marks);
        let (Some(created_at), Some(last_activity), Some(expires_at)) =
            (self.created_at, self.last_activity, self.expires_at)
        else {
            return Ok(Found { guard, session: None, op_id: None });
        };
        let user_id = self.user_id.map(|id| UserId::parse(&id)).transpose();
        let geo_zone = self.geo_zone.map(|zone| GeoZone::parse(&zone)).transpose();
        let session = Session {
            session_id: SessionId::parse(&self.session_id).map_err(|_| damaged("the id"))?,
            user_id: user_id.map_err(|_| damaged("the user"))?,
            geo_zone: geo_zone.map_err(|_| damaged("the zone"))?,
            ip: self.ip,
            user_agent: self.user_agent,
            device_type: self.device_type,
            data: self.data.unwrap_or_default(),
            created_at: from_cql(created_at),
            last_activity: from_cql(last_activity),
            expires_at: from_cql(expires_at),
        };
        Ok(Found { guard, session: Some(session), op_id: self.op_id })
    }
}

/// One conditional change of a session.
pub(super) struct Change<'s> {
    next: Next,
    session_id: SessionId,
    look: &'s PreparedStatement,
    rows: [(&'s PreparedStatement, Row); 1],
}

impl Change<'_> {
    /// `true`: done. `false`: another change was faster.
    pub(super) async fn settle(&self, cql: &Cql, rounds: &mut Rounds) -> Result<bool> {
        rounds.settle(cql, &self.next, &self.rows, self.look, (self.session_id.as_str(),)).await
    }
}

impl Found {
    pub(super) fn live_at(&self, now: Timestamp) -> Option<&Session> {
        self.session.as_ref().filter(|session| !session.is_expired(now))
    }

    pub(super) fn saving<'s>(
        &self,
        statements: &'s Statements,
        session: &Session,
        op_id: Option<Uuid>,
        now: Timestamp,
    ) -> Change<'s> {
        let next = self.guard.next();
        let before = self.session.as_ref();
        let row = (
            ttl_seconds(now, session.expires_at),
            next.rev,
            next.marks.clone(),
            written(before.and_then(|it| it.user_id.as_ref()), session.user_id.as_ref(), UserId::as_str),
            written(before.and_then(|it| it.geo_zone.as_ref()), session.geo_zone.as_ref(), GeoZone::as_str),
            written(before.and_then(|it| it.ip.as_ref()), session.ip.as_ref(), String::as_str),
            written(
                before.and_then(|it| it.user_agent.as_ref()),
                session.user_agent.as_ref(),
                String::as_str,
            ),
            written(
                before.and_then(|it| it.device_type.as_ref()),
                session.device_type.as_ref(),
                String::as_str,
            ),
            session.data.clone(),
            to_cql(session.created_at),
            to_cql(session.last_activity),
            to_cql(session.expires_at),
            op_id,
            session.session_id.as_str().to_owned(),
            next.expected,
        );
        Change {
            next,
            session_id: session.session_id.clone(),
            look: &statements.look,
            rows: [(&statements.save, Box::new(row))],
        }
    }

    /// Only the revision stays, for as long as something may be on its way.
    pub(super) fn ending<'s>(&self, statements: &'s Statements, session_id: &SessionId) -> Change<'s> {
        let next = self.guard.next();
        let ttl = ttl_seconds(Timestamp::EPOCH, Timestamp::EPOCH);
        let row = (ttl, next.rev, next.marks.clone(), session_id.as_str().to_owned(), next.expected);
        Change {
            next,
            session_id: session_id.clone(),
            look: &statements.look,
            rows: [(&statements.end, Box::new(row))],
        }
    }
}

/// Leaves a column alone that was and stays empty: writing nothing into it would be a tombstone.
fn written<T>(before: Option<&T>, after: Option<&T>, text: fn(&T) -> &str) -> MaybeUnset<Option<String>> {
    match (before, after) {
        (None, None) => MaybeUnset::Unset,
        (_, after) => MaybeUnset::Set(after.map(|value| text(value).to_owned())),
    }
}

impl CassandraStore {
    pub(super) async fn read_session(&self, session_id: &SessionId) -> Result<Found> {
        let row: Option<SessionRow> = self.cql.first(&self.sessions.read, (session_id.as_str(),)).await?;
        row.map_or_else(|| Ok(Found::default()), SessionRow::into_found)
    }
}
