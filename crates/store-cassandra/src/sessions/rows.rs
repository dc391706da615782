//! Rows of `sessions_by_id`: a session is read from one, and a change of a session is one conditional statement.

use std::collections::BTreeMap;

use mw_domain::{GeoZone, Session, SessionId, Timestamp, UserId};
use mw_store::{Result, StoreError};
use scylla::DeserializeRow;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use super::Statements;
use crate::CassandraStore;
use crate::driver::statements::{Cql, Row, unset_if_null};
use crate::driver::time::{from_cql, to_cql, ttl_seconds};
use crate::revision::{CasLoop, NextRevision, Revision};

pub(super) const COLUMNS: &str = "session_id, rev, recent_op_tokens, user_id, geo_zone, ip, user_agent, device_type, data, \
     created_at, last_activity, expires_at, op_id";

#[derive(Debug, DeserializeRow)]
pub(super) struct SessionRow {
    session_id: String,
    rev: Option<i64>,
    recent_op_tokens: Option<Vec<Uuid>>,
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

/// The row of a session id. A session that has ended leaves its revision.
#[derive(Debug, Default)]
pub(super) struct StoredSession {
    revision: Revision,
    /// It may have expired.
    pub(super) session: Option<Session>,
    /// The operation that created the session.
    pub(super) op_id: Option<Uuid>,
}

impl SessionRow {
    pub(super) fn into_stored(self) -> Result<StoredSession> {
        let corrupt = |column| {
            StoreError::Corrupt(format!(
                "cannot read {column} of session {} in sessions_by_id",
                self.session_id
            ))
        };
        let revision = Revision::new(self.rev, self.recent_op_tokens);
        let (Some(created_at), Some(last_activity), Some(expires_at)) =
            (self.created_at, self.last_activity, self.expires_at)
        else {
            return Ok(StoredSession { revision, session: None, op_id: None });
        };
        let user_id = self.user_id.map(|id| UserId::parse(&id)).transpose();
        let geo_zone = self.geo_zone.map(|zone| GeoZone::parse(&zone)).transpose();
        let session = Session {
            session_id: SessionId::parse(&self.session_id).map_err(|_| corrupt("session_id"))?,
            user_id: user_id.map_err(|_| corrupt("user_id"))?,
            geo_zone: geo_zone.map_err(|_| corrupt("geo_zone"))?,
            ip: self.ip,
            user_agent: self.user_agent,
            device_type: self.device_type,
            data: self.data.unwrap_or_default(),
            created_at: from_cql(created_at),
            last_activity: from_cql(last_activity),
            expires_at: from_cql(expires_at),
        };
        Ok(StoredSession { revision, session: Some(session), op_id: self.op_id })
    }
}

/// One change of a session, on the condition of its revision.
pub(super) struct SessionUpdate<'s> {
    next: NextRevision,
    session_id: SessionId,
    serial_revision: &'s PreparedStatement,
    rows: [(&'s PreparedStatement, Row); 1],
}

impl SessionUpdate<'_> {
    /// `true`: applied. `false`: another change came first; read the session again.
    pub(super) async fn apply(&self, cql: &Cql, cas_loop: &mut CasLoop) -> Result<bool> {
        let key = (self.session_id.as_str(),);
        cas_loop.apply(cql, &self.next, &self.rows, self.serial_revision, key).await
    }
}

impl StoredSession {
    pub(super) fn live_at(&self, now: Timestamp) -> Option<&Session> {
        self.session.as_ref().filter(|session| !session.is_expired(now))
    }

    /// The update that writes the session; `op_id` is the operation that created it.
    pub(super) fn save<'s>(
        &self,
        statements: &'s Statements,
        session: &Session,
        op_id: Option<Uuid>,
        now: Timestamp,
    ) -> SessionUpdate<'s> {
        let next = self.revision.next();
        let before = self.session.as_ref();
        let row = (
            ttl_seconds(now, session.expires_at),
            next.rev,
            next.recent_op_tokens.clone(),
            unset_if_null(
                before.and_then(|it| it.user_id.as_ref()),
                session.user_id.as_ref().map(ToString::to_string),
            ),
            unset_if_null(
                before.and_then(|it| it.geo_zone.as_ref()),
                session.geo_zone.as_ref().map(ToString::to_string),
            ),
            unset_if_null(before.and_then(|it| it.ip.as_ref()), session.ip.clone()),
            unset_if_null(before.and_then(|it| it.user_agent.as_ref()), session.user_agent.clone()),
            unset_if_null(before.and_then(|it| it.device_type.as_ref()), session.device_type.clone()),
            session.data.clone(),
            to_cql(session.created_at),
            to_cql(session.last_activity),
            to_cql(session.expires_at),
            op_id,
            session.session_id.as_str().to_owned(),
            next.expected,
        );
        SessionUpdate {
            next,
            session_id: session.session_id.clone(),
            serial_revision: &statements.serial_revision,
            rows: [(&statements.update, Box::new(row))],
        }
    }

    /// The update that ends the session. Its revision stays for as long as an older change may be in flight.
    pub(super) fn end<'s>(&self, statements: &'s Statements, session_id: &SessionId) -> SessionUpdate<'s> {
        let next = self.revision.next();
        let ttl = ttl_seconds(Timestamp::EPOCH, Timestamp::EPOCH);
        let row =
            (ttl, next.rev, next.recent_op_tokens.clone(), session_id.as_str().to_owned(), next.expected);
        SessionUpdate {
            next,
            session_id: session_id.clone(),
            serial_revision: &statements.serial_revision,
            rows: [(&statements.end, Box::new(row))],
        }
    }
}

impl CassandraStore {
    pub(super) async fn read_session(&self, session_id: &SessionId) -> Result<StoredSession> {
        let row: Option<SessionRow> = self.cql.first(&self.sessions.read, (session_id.as_str(),)).await?;
        row.map_or_else(|| Ok(StoredSession::default()), SessionRow::into_stored)
    }
}
