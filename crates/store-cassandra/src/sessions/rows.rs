//! Rows of `sessions_by_id`: a header, changed by conditional statements, and the activity row of the session that the header
//! names, changed by plain writes. Of activity and of each key of the data the later write counts.
//!
//! Both are kept for two lifetimes. The first activity in each lifetime goes into the header together with everything that the
//! activity row has, so no cell is needed after its TTL.

use std::collections::BTreeMap;

use mw_codec::changes::subjects::SessionState;
use mw_domain::{GeoZone, Session, SessionId, Timestamp, UserId};
use mw_store::{Result, StoreError};
use scylla::DeserializeRow;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlTimestamp, MaybeUnset};
use uuid::Uuid;

use super::cells::{Cell, Cells};
use super::{Statements, lifetime_ms};
use crate::CassandraStore;
use crate::carts::protocol::Stamp;
use crate::driver::statements::{Cql, Row, unset_if_null};
use crate::driver::time::{from_cql, to_cql, ttl_seconds};
use crate::revision::{CasLoop, NextRevision, Revision};

pub(super) const COLUMNS: &str = "session_id, rev, recent_op_tokens, user_id, geo_zone, ip, user_agent, device_type, created_at, \
     op_id, current_incarnation, base_activity, base_data, incarnation, activity, data";

/// A session that ends sooner than this is prolonged by a conditional write: only that is ordered with the creation of the next
/// session under the same id. Longer than a request and the clock skew together.
const NEAR_EXPIRY_MS: i64 = 60_000;

/// The stamp of the write, the last activity and the expiry.
type ActivityCell = (Stamp, CqlTimestamp, CqlTimestamp);

fn activity_cell(session: &Session, stamp: Stamp) -> ActivityCell {
    (stamp, to_cql(session.last_activity), to_cql(session.expires_at))
}

#[derive(Debug, DeserializeRow)]
pub(super) struct SessionRow {
    pub(super) session_id: String,
    rev: Option<i64>,
    recent_op_tokens: Option<Vec<Uuid>>,
    user_id: Option<String>,
    geo_zone: Option<String>,
    ip: Option<String>,
    user_agent: Option<String>,
    device_type: Option<String>,
    created_at: Option<CqlTimestamp>,
    op_id: Option<Uuid>,
    current_incarnation: Option<i64>,
    base_activity: Option<ActivityCell>,
    base_data: Option<BTreeMap<String, Cell>>,
    incarnation: Option<i64>,
    activity: Option<ActivityCell>,
    data: Option<BTreeMap<String, Cell>>,
}

/// The rows of a session id. A session that has ended leaves its revision and its incarnation.
#[derive(Debug, Default)]
pub(super) struct StoredSession {
    revision: Revision,
    /// Grows with every session under the id; the key of the activity row.
    incarnation: Stamp,
    /// Above or at every write that was read.
    newest_stamp: Stamp,
    cells: Cells,
    /// The cells that the activity row has.
    plain: Cells,
    /// The last activity and the expiry that the header has.
    base: Option<(Timestamp, Timestamp)>,
    /// It may have expired.
    pub(super) session: Option<Session>,
    /// The operation that created the session.
    pub(super) op_id: Option<Uuid>,
}

impl SessionRow {
    pub(super) fn into_stored(self) -> Result<StoredSession> {
        let session_id = self.session_id.clone();
        let corrupt = |column| {
            StoreError::Corrupt(format!("cannot read {column} of session {session_id} in sessions_by_id"))
        };
        let revision = Revision::new(self.rev, self.recent_op_tokens);
        let incarnation = self.current_incarnation.unwrap_or_default();
        let (Some(created_at), Some(base)) = (self.created_at, self.base_activity) else {
            return Ok(StoredSession {
                revision,
                incarnation,
                newest_stamp: incarnation,
                ..Default::default()
            });
        };
        let (mut cells, mut plain, mut activity) = (Cells::new(self.base_data), Cells::default(), base);
        if self.incarnation == Some(incarnation) {
            plain = Cells::new(self.data);
            cells = cells.overlay(plain.clone());
            activity = self.activity.filter(|activity| activity.0 > base.0).unwrap_or(base);
        }
        let user_id = self.user_id.map(|id| UserId::parse(&id)).transpose();
        let geo_zone = self.geo_zone.map(|zone| GeoZone::parse(&zone)).transpose();
        let session = Session {
            session_id: SessionId::parse(&self.session_id).map_err(|_| corrupt("session_id"))?,
            user_id: user_id.map_err(|_| corrupt("user_id"))?,
            geo_zone: geo_zone.map_err(|_| corrupt("geo_zone"))?,
            ip: self.ip,
            user_agent: self.user_agent,
            device_type: self.device_type,
            data: cells.data(),
            created_at: from_cql(created_at),
            last_activity: from_cql(activity.1),
            expires_at: from_cql(activity.2),
        };
        Ok(StoredSession {
            revision,
            incarnation,
            newest_stamp: activity.0.max(cells.newest_stamp()).max(incarnation),
            cells,
            plain,
            base: Some((from_cql(base.1), from_cql(base.2))),
            session: Some(session),
            op_id: self.op_id,
        })
    }
}

/// One change of a session, on the condition of its revision.
pub(super) struct SessionUpdate<'s> {
    next: NextRevision,
    session_id: SessionId,
    serial_revision: &'s PreparedStatement,
    rows: [(&'s PreparedStatement, Row); 1],
}

impl<'s> SessionUpdate<'s> {
    fn new(
        next: NextRevision,
        session_id: &SessionId,
        statements: &'s Statements,
        statement: &'s PreparedStatement,
        row: Row,
    ) -> Self {
        let (session_id, serial_revision) = (session_id.clone(), &statements.serial_revision);
        Self { next, session_id, serial_revision, rows: [(statement, row)] }
    }

    /// `true`: applied. `false`: another change came first; read the session again.
    pub(super) async fn apply(&self, cql: &Cql, cas_loop: &mut CasLoop) -> Result<bool> {
        let key = (self.session_id.as_str(),);
        cas_loop.apply(cql, &self.next, &self.rows, self.serial_revision, key).await
    }
}

/// What a write of the header binds, its revision and its incarnation aside.
struct HeaderValues {
    ttl: i32,
    texts: [MaybeUnset<Option<String>>; 5],
    created_at: CqlTimestamp,
    op_id: Option<Uuid>,
    activity: ActivityCell,
    data: BTreeMap<String, Cell>,
    key: String,
}

/// How long the rows of a session are kept: until it cannot be prolonged by plain writes any more, and as long again.
fn keep_seconds(session: &Session, now: Timestamp) -> i32 {
    ttl_seconds(now, session.expires_at.plus_millis(lifetime_ms(session)))
}

impl StoredSession {
    pub(super) fn live_at(&self, now: Timestamp) -> Option<&Session> {
        self.session.as_ref().filter(|session| !session.is_expired(now))
    }

    pub(super) const fn newest_stamp(&self) -> Stamp {
        self.newest_stamp
    }

    /// Whether `session` may be stored by a plain write: the header lives long enough, and no other session can take the id before
    /// the write arrives.
    pub(super) fn takes_plain_write(&self, session: &Session, now: Timestamp) -> bool {
        let lifetime = lifetime_ms(session);
        let period = |at: Timestamp| at.as_millis().checked_div(lifetime);
        let remaining_ms = |until: Timestamp| until.as_millis().saturating_sub(now.as_millis());
        let is_near = self.session.as_ref().is_none_or(|it| remaining_ms(it.expires_at) < NEAR_EXPIRY_MS);
        let is_current = self.base.is_some_and(|(activity, until)| {
            until.as_millis().saturating_sub(activity.as_millis()) == lifetime
                && period(activity) == period(session.last_activity)
        });
        is_current && !is_near
    }

    /// The plain write of activity and data: a row for [`Statements::touch`].
    pub(super) fn touch(&self, session: &Session, now: Timestamp, stamp: Stamp) -> Result<Row> {
        let changes = self.cells.changes_to(&session.data, stamp);
        self.cells.clone().overlay(changes.clone()).check_size()?;
        Ok(Box::new((
            stamp,
            keep_seconds(session, now),
            activity_cell(session, stamp),
            changes.into_map(),
            session.session_id.as_str().to_owned(),
            self.incarnation,
        )))
    }

    /// The conditional write of the session with everything that its activity row has.
    pub(super) fn save<'s>(
        &self,
        statements: &'s Statements,
        session: &Session,
        now: Timestamp,
        stamp: Stamp,
    ) -> SessionUpdate<'s> {
        let next = self.revision.next();
        let (header, expected) = (self.header(session, now, stamp), next.expected);
        let (rev, tokens) = (next.rev, next.recent_op_tokens.clone());
        let HeaderValues {
            ttl,
            texts: [user, zone, ip, agent, device],
            created_at,
            op_id,
            activity,
            data,
            key,
        } = header;
        let incarnation = self.incarnation;
        let row = (
            ttl,
            rev,
            tokens,
            user,
            zone,
            ip,
            agent,
            device,
            created_at,
            op_id,
            incarnation,
            activity,
            data,
            key,
            expected,
        );
        SessionUpdate::new(next, &session.session_id, statements, &statements.update, Box::new(row))
    }

    /// A new session under the id. Of the session before, plain writes may still arrive: they go to the activity row of its
    /// incarnation.
    pub(super) fn successor(&self, op_id: Option<Uuid>, stamp: Stamp) -> Self {
        let (revision, session) = (self.revision.clone(), self.session.clone());
        Self { revision, incarnation: stamp, session, op_id, ..Self::default() }
    }

    /// The plain write of a new session under an id that was never used: a row for [`Statements::insert`].
    pub(super) fn insert(&self, session: &Session, now: Timestamp, stamp: Stamp) -> Row {
        let next = self.revision.next();
        let (rev, tokens) = (next.rev, next.recent_op_tokens);
        let HeaderValues {
            ttl,
            texts: [user, zone, ip, agent, device],
            created_at,
            op_id,
            activity,
            data,
            key,
        } = self.header(session, now, stamp);
        let incarnation = self.incarnation;
        Box::new((
            ttl,
            rev,
            tokens,
            user,
            zone,
            ip,
            agent,
            device,
            created_at,
            op_id,
            incarnation,
            activity,
            data,
            key,
        ))
    }

    fn header(&self, session: &Session, now: Timestamp, stamp: Stamp) -> HeaderValues {
        let before = self.session.as_ref();
        let ttl = keep_seconds(session, now);
        // Twice as long as the rows are kept, in microseconds.
        let oldest_plain = stamp.saturating_sub(2_000_000 * i64::from(ttl));
        let cells = self.cells.clone().overlay(self.cells.changes_to(&session.data, stamp));
        let text = |of: fn(&Session) -> Option<String>| unset_if_null(before.and_then(of), of(session));
        HeaderValues {
            ttl,
            texts: [
                text(|it| it.user_id.as_ref().map(ToString::to_string)),
                text(|it| it.geo_zone.as_ref().map(ToString::to_string)),
                text(|it| it.ip.clone()),
                text(|it| it.user_agent.clone()),
                text(|it| it.device_type.clone()),
            ],
            created_at: to_cql(session.created_at),
            op_id: self.op_id,
            activity: activity_cell(session, stamp),
            data: cells.without_removals_before(oldest_plain, &self.plain).into_map(),
            key: session.session_id.as_str().to_owned(),
        }
    }

    /// The last change that was read, for the change feed: the session, or that it has ended.
    pub(super) fn last_change(&self, session_id: &SessionId) -> Option<SessionState> {
        let (session_id, stamp) = (session_id.clone(), self.newest_stamp);
        // Of an end the stamp has the time.
        let ended_at = Timestamp::from_millis(stamp / 1_000);
        let at = self.session.as_ref().map_or(ended_at, |session| session.last_activity);
        (stamp > 0).then(|| SessionState { session_id, at, stamp, session: self.session.clone() })
    }

    /// The update that ends the session. Its revision stays for as long as an older change may be in flight, and the stamp of the end
    /// as its incarnation.
    pub(super) fn end<'s>(
        &self,
        statements: &'s Statements,
        session_id: &SessionId,
        stamp: Stamp,
    ) -> SessionUpdate<'s> {
        let next = self.revision.next();
        let ttl = ttl_seconds(Timestamp::EPOCH, Timestamp::EPOCH);
        let key = session_id.as_str().to_owned();
        let row = (ttl, next.rev, next.recent_op_tokens.clone(), stamp, key, next.expected);
        SessionUpdate::new(next, session_id, statements, &statements.end, Box::new(row))
    }
}

impl CassandraStore {
    pub(super) async fn read_session(&self, session_id: &SessionId) -> Result<StoredSession> {
        let row: Option<SessionRow> = self.cql.first(&self.sessions.read, (session_id.as_str(),)).await?;
        row.map_or_else(|| Ok(StoredSession::default()), SessionRow::into_stored)
    }
}
