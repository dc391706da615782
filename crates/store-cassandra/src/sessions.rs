//! Sessions: each is a partition with a header and an activity row. Activity and data are plain writes to the activity row;
//! creating under a chosen id or key, binding a user, ending, and the first activity in each lifetime are conditional writes to
//! the header. A session that has ended leaves its revision for a while, and the activity row is that of one incarnation, so a
//! change that was in flight does not reach a new session with the same id.
//!
//! `sessions_by_user` is an index that holds keys only. Its row is written before the session is the user's, and a
//! reader of the index reads the session itself.

mod cells;
mod login;
mod rows;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use mw_codec::changes::subjects::SessionState;
use mw_domain::{Session, SessionId, Timestamp, UserId};
use mw_store::export::Record;
use mw_store::sessions::{CreateSession, LoggedIn, Login, Sessions, TouchSession};
use mw_store::{Done, Page, PageRequest, Position, Refusal, Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use crate::CassandraStore;
use crate::carts::protocol::{Stamp, stamp_above};
use crate::driver::scan::{self, Scan};
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql, ttl_seconds};
use crate::export::Spool;
use crate::revision::CasLoop;
use crate::schema::tables::Table;
use rows::{COLUMNS, SessionRow, StoredSession};

/// Rows of a CQL page.
const PAGE_ROWS: i32 = 200;
/// Sessions read or ended at the same time.
const CONCURRENT_SESSIONS: usize = 16;
/// Sessions read for one page of a user's sessions.
const READS_MAX: usize = 2_000;
/// A session as errors name it: its id is a secret.
const SUBJECT: &str = "a session";

#[derive(Debug)]
pub(crate) struct Statements {
    read: PreparedStatement,
    serial_revision: PreparedStatement,
    update: PreparedStatement,
    /// Plain, at a write timestamp below every conditional write: for an id that was never used.
    insert: PreparedStatement,
    /// Plain, at the write timestamp of the caller.
    touch: PreparedStatement,
    end: PreparedStatement,
    scan: PreparedStatement,
    insert_index: PreparedStatement,
    delete_index: PreparedStatement,
    read_index: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let (sessions, index) = (Table::SessionsById, Table::SessionsByUser);
        // The activity row of the newest incarnation comes first; the header comes with any row.
        let read = format!("SELECT {COLUMNS} FROM {{}} WHERE session_id = ? LIMIT 1");
        let serial_revision = "SELECT rev, recent_op_tokens FROM {} WHERE session_id = ? LIMIT 1";
        let header = "rev = ?, recent_op_tokens = ?, user_id = ?, geo_zone = ?, ip = ?, user_agent = ?, device_type = ?, \
             created_at = ?, op_id = ?, current_incarnation = ?, base_activity = ?, base_data = ? WHERE session_id = ?";
        let update = format!("UPDATE {{}} USING TTL ? SET {header} IF rev = ?");
        let insert = format!("UPDATE {{}} USING TIMESTAMP 1 AND TTL ? SET {header}");
        let touch = "UPDATE {} USING TIMESTAMP ? AND TTL ? SET activity = ?, data = data + ? \
             WHERE session_id = ? AND incarnation = ?";
        let end = "UPDATE {} USING TTL ? SET rev = ?, recent_op_tokens = ?, current_incarnation = ?, user_id = null, geo_zone = null, \
             ip = null, user_agent = null, device_type = null, created_at = null, op_id = null, \
             base_activity = null, base_data = null WHERE session_id = ? IF rev = ?";
        let insert_index = "INSERT INTO {} (user_id, created_at, session_id) VALUES (?, ?, ?) USING TTL ?";
        let delete_index = "DELETE FROM {} WHERE user_id = ? AND created_at = ? AND session_id = ?";
        let read_index = "SELECT created_at, session_id FROM {} WHERE user_id = ? AND created_at <= ?";
        let mut read_index = cql.prepare(index, Access::Read, read_index).await?;
        read_index.set_page_size(PAGE_ROWS);
        Ok(Self {
            read: cql.prepare(sessions, Access::Read, &read).await?,
            serial_revision: cql.prepare(sessions, Access::Serial, serial_revision).await?,
            update: cql.prepare(sessions, Access::Cas, &update).await?,
            insert: cql.prepare(sessions, Access::Write, &insert).await?,
            touch: cql.prepare(sessions, Access::Write, touch).await?,
            end: cql.prepare(sessions, Access::Cas, end).await?,
            scan: scan::prepare(cql, sessions, COLUMNS).await?,
            insert_index: cql.prepare(index, Access::Write, insert_index).await?,
            delete_index: cql.prepare(index, Access::Write, delete_index).await?,
            read_index,
        })
    }
}

/// The key under which changes of a session wait for each other in this process.
const fn lock_key(session_id: &SessionId) -> (&'static str, &SessionId) {
    ("session", session_id)
}

/// How long a session lives after its last activity.
fn lifetime_ms(session: &Session) -> i64 {
    session.expires_at.as_millis().saturating_sub(session.last_activity.as_millis())
}

/// Whether the index row that was written for `before` lives long enough for `session`. Index rows have a TTL of two
/// lifetimes and are written once in each.
fn is_indexed(before: Option<&Session>, session: &Session) -> bool {
    let lifetime = lifetime_ms(session);
    before.is_some_and(|before| {
        let period = |session: &Session| session.last_activity.as_millis().checked_div(lifetime);
        before.user_id == session.user_id
            && lifetime_ms(before) == lifetime
            && period(before) == period(session)
    })
}

#[async_trait]
impl Sessions for CassandraStore {
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>> {
        self.check_clock(command.now)?;
        let CreateSession { mut session, id_seed, now, identity } = command;
        let op_id = id_seed.unwrap_or_else(Uuid::new_v4);
        if id_seed.is_some() && identity.is_none() {
            session.session_id = SessionId::from_seed(op_id);
            return self.insert_session(op_id, session, now).await.map(Done::first);
        }
        self.idempotent(identity.as_ref(), op_id, now, |op_id, _| {
            if id_seed.is_some() {
                // A second request with the same key creates the same session.
                session.session_id = SessionId::from_seed(op_id);
            }
            self.create_under(op_id, session, now)
        })
        .await
    }

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
        Ok(self.read_session(session_id).await?.session.filter(|session| !session.is_expired(now)))
    }

    async fn touch_session(&self, command: TouchSession) -> Result<Session> {
        self.check_clock(command.now)?;
        let TouchSession { session_id, data, lifetime, now } = command;
        let mut cas_loop = CasLoop::of(SUBJECT);
        let _lock = self.locks.partition(&lock_key(&session_id)).await;
        loop {
            let stored = self.read_session(&session_id).await?;
            let before = stored.live_at(now).ok_or(Refusal::SessionNotFound)?;
            let mut session = before.clone();
            if !session.touch(&data, now, lifetime)? {
                return Ok(session);
            }
            let stamp = self.session_stamp(&stored);
            if stored.takes_plain_write(&session, now) {
                // One mutation of one row: a crash leaves it written or not, and no process has to finish it.
                self.cql.write(&self.sessions.touch, stored.touch(&session, now, stamp)?).await?;
                self.report_change(&stored, &session, (now, stamp)).await?;
                return Ok(session);
            }
            self.index_session(Some(before), &session, now).await?;
            // Crash here: the index row lives longer than the session; readers skip it, its TTL removes it.
            let update = stored.save(&self.sessions, &session, now, stamp);
            if update.apply(&self.cql, &mut cas_loop).await? {
                self.report_change(&stored, &session, (now, stamp)).await?;
                return Ok(session);
            }
        }
    }

    async fn login(&self, command: Login) -> Result<Done<LoggedIn>> {
        self.check_clock(command.now)?;
        let identity = command.identity.as_ref();
        self.idempotent(identity, Uuid::new_v4(), command.now, |op_id, _| {
            self.login_under(op_id, identity.is_some(), &command)
        })
        .await
    }

    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()> {
        self.check_clock(now)?;
        let ended = self.end_session(session_id, now, |session| !session.is_expired(now)).await?;
        if ended { Ok(()) } else { Err(Refusal::SessionNotFound.into()) }
    }

    async fn user_sessions(
        &self,
        user_id: &UserId,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Session>> {
        let after = page.after.as_ref().map(decode_cursor).transpose()?;
        let newest = after.as_ref().map_or(Timestamp::from_millis(i64::MAX), |(created_at, _)| *created_at);
        let mut reads_remaining = READS_MAX;
        let mut items: Vec<Session> = Vec::new();
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.indexed_sessions(user_id, newest, from).await?;
            let is_after = |(created_at, session_id): &(Timestamp, SessionId)| match &after {
                Some((at, id)) => created_at < at || session_id > id,
                None => true,
            };
            let reads = rows.into_iter().filter(is_after).map(|(created_at, session_id)| async move {
                let session = self.read_session(&session_id).await?.session;
                Ok::<_, StoreError>((created_at, session_id, session))
            });
            let mut reads = stream::iter(reads).buffered(CONCURRENT_SESSIONS);
            while let Some((created_at, session_id, session)) = reads.try_next().await? {
                let session = session.filter(|session| {
                    session.user_id.as_ref() == Some(user_id)
                        && session.created_at == created_at
                        && !session.is_expired(now)
                });
                if let Some(session) = session {
                    if items.len() == page.limit {
                        let next = items.last().map(|last| encode_cursor(last.created_at, &last.session_id));
                        return Ok(Page { items, next });
                    }
                    items.push(session);
                }
                reads_remaining -= 1;
                if reads_remaining == 0 {
                    return Ok(Page { items, next: Some(encode_cursor(created_at, &session_id)) });
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(Page { items, next: None }),
            }
        }
    }

    async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()> {
        self.check_clock(now)?;
        let mut from = PagingState::start();
        let mut has_effect = false;
        loop {
            let rows = self.indexed_sessions(user_id, Timestamp::from_millis(i64::MAX), from).await;
            let (rows, next) =
                rows.map_err(|error| if has_effect { error.after_first_effect() } else { error })?;
            let ends = rows.into_iter().map(|(_, session_id)| async move {
                let is_users = |session: &Session| session.user_id.as_ref() == Some(user_id);
                // The index row of a session that is not the user's stays until its TTL: a login may be about to bind
                // it.
                self.end_session(&session_id, now, is_users).await.map(drop)
            });
            // Crash here: some sessions have ended, the others live; no process goes on, the user revokes again.
            let ended =
                stream::iter(ends).buffer_unordered(CONCURRENT_SESSIONS).try_collect::<Vec<()>>().await;
            ended.map_err(StoreError::after_first_effect)?;
            has_effect = true;
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}

impl CassandraStore {
    /// Creates a session whose id this request has made: no other writer knows the id, so nothing is decided.
    async fn insert_session(&self, op_id: Uuid, session: Session, now: Timestamp) -> Result<Session> {
        self.index_session(None, &session, now).await?;
        // Crash here: an index row without a session; readers skip it, its TTL removes it.
        let unused = StoredSession::default();
        let stamp = self.session_stamp(&unused);
        let row = unused.successor(Some(op_id), stamp).insert(&session, now, stamp);
        self.cql.write(&self.sessions.insert, row).await?;
        // Crash here: a session whose id no client has; it expires.
        self.report_change(&unused, &session, (now, stamp)).await?;
        Ok(session)
    }

    /// Reports a session as a change left it.
    async fn report_change(
        &self,
        before: &StoredSession,
        session: &Session,
        (at, stamp): (Timestamp, Stamp),
    ) -> Result<()> {
        let session_id = session.session_id.clone();
        let before = before.last_change(&session_id);
        self.report_session(before, SessionState { session_id, at, stamp, session: Some(session.clone()) })
            .await
    }

    /// The stamp of a write that follows what was read.
    fn session_stamp(&self, stored: &StoredSession) -> Stamp {
        stamp_above(stored.newest_stamp(), self.clock.micros(), self.carts.lane)
    }

    async fn create_under(&self, op_id: Uuid, session: Session, now: Timestamp) -> Result<Session> {
        let mut cas_loop = CasLoop::of(SUBJECT);
        let _lock = self.locks.partition(&lock_key(&session.session_id)).await;
        loop {
            let stored = self.read_session(&session.session_id).await?;
            if let Some(live) = stored.live_at(now) {
                // Another request with the same key, or an earlier try of this one, has created it.
                if stored.op_id != Some(op_id) {
                    return Err(Refusal::SessionBound.into());
                }
                self.report_change(&stored, live, (live.last_activity, stored.newest_stamp())).await?;
                return Ok(live.clone());
            }
            self.index_session(None, &session, now).await?;
            // Crash here: an index row without a session; readers skip it, its TTL removes it.
            let stamp = self.session_stamp(&stored);
            let update = stored.successor(Some(op_id), stamp).save(&self.sessions, &session, now, stamp);
            if update.apply(&self.cql, &mut cas_loop).await? {
                // Crash here: the key has no outcome; a repeated request finds the session by its op_id, reports and stores it.
                self.report_change(&stored, &session, (now, stamp)).await?;
                return Ok(session);
            }
        }
    }

    /// Writes the index row of a session that has a user, unless the one that is there lives long enough.
    async fn index_session(&self, before: Option<&Session>, session: &Session, now: Timestamp) -> Result<()> {
        let Some(user_id) = &session.user_id else { return Ok(()) };
        if is_indexed(before, session) {
            return Ok(());
        }
        let until = session.expires_at.plus_millis(lifetime_ms(session));
        let row = (
            user_id.as_str(),
            to_cql(session.created_at),
            session.session_id.as_str(),
            ttl_seconds(now, until),
        );
        self.cql.write(&self.sessions.insert_index, row).await.map_err(StoreError::before_first_effect)
    }

    async fn unindex_session(
        &self,
        user_id: &UserId,
        created_at: Timestamp,
        session_id: &SessionId,
    ) -> Result<()> {
        let key = (user_id.as_str(), to_cql(created_at), session_id.as_str());
        self.cql.write(&self.sessions.delete_index, key).await
    }

    /// A page of a user's index: the creation and the id of each session.
    async fn indexed_sessions(
        &self,
        user_id: &UserId,
        newest: Timestamp,
        from: PagingState,
    ) -> Result<(Vec<(Timestamp, SessionId)>, Option<PagingState>)> {
        let key = (user_id.as_str(), to_cql(newest));
        let (rows, next) =
            self.cql.page::<(CqlTimestamp, String)>(&self.sessions.read_index, key, from).await?;
        let mut keys = Vec::with_capacity(rows.len());
        for (created_at, session_id) in rows {
            let session_id = SessionId::parse(&session_id).map_err(|error| {
                StoreError::Corrupt(format!(
                    "cannot read a session of {user_id} in sessions_by_user: {error}"
                ))
            })?;
            keys.push((from_cql(created_at), session_id));
        }
        Ok((keys, next))
    }

    /// Ends the session if there is one that `matches`; `false` if not.
    async fn end_session(
        &self,
        session_id: &SessionId,
        now: Timestamp,
        matches: impl Fn(&Session) -> bool + Send + Sync,
    ) -> Result<bool> {
        let mut cas_loop = CasLoop::of(SUBJECT);
        let _lock = self.locks.partition(&lock_key(session_id)).await;
        loop {
            let stored = self.read_session(session_id).await?;
            let Some(session) = stored.session.as_ref().filter(|session| matches(session)) else {
                return Ok(false);
            };
            let stamp = self.session_stamp(&stored);
            if stored.end(&self.sessions, session_id, stamp).apply(&self.cql, &mut cas_loop).await? {
                // Crash here: an index row without a session; readers skip it, its TTL removes it.
                if let Some(user_id) = &session.user_id {
                    let unindexed = self.unindex_session(user_id, session.created_at, session_id).await;
                    unindexed.map_err(StoreError::after_first_effect)?;
                }
                let ended = SessionState { session_id: session_id.clone(), at: now, stamp, session: None };
                self.report_session(stored.last_change(session_id), ended).await?;
                return Ok(true);
            }
        }
    }

    /// Writes an exported session exactly as it is, over what is stored of it. After a crash the import is started
    /// again.
    pub(crate) async fn import_session(&self, session: &Session) -> Result<()> {
        let mut cas_loop = CasLoop::of(SUBJECT);
        let _lock = self.locks.partition(&lock_key(&session.session_id)).await;
        loop {
            let stored = self.read_session(&session.session_id).await?;
            self.index_session(None, session, session.last_activity).await?;
            let stamp = self.session_stamp(&stored);
            let update =
                stored.successor(None, stamp).save(&self.sessions, session, session.last_activity, stamp);
            if update.apply(&self.cql, &mut cas_loop).await? {
                return Ok(());
            }
        }
    }

    pub(crate) async fn export_sessions(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, SessionRow> = Scan::new(&self.cql, &self.sessions.scan);
        let same_id = |a: &SessionRow, b: &SessionRow| a.session_id == b.session_id;
        while let Some(group) = rows.group(same_id).await? {
            // The activity row of the newest incarnation comes first.
            let newest = group.rows.into_iter().next();
            if let Some(session) = newest.map(SessionRow::into_stored).transpose()?.and_then(|it| it.session)
            {
                into.push(&Record::Session(session))?;
            }
        }
        Ok(())
    }
}

fn encode_cursor(created_at: Timestamp, session_id: &SessionId) -> Position {
    Position([&created_at.as_millis().to_be_bytes()[..], session_id.as_str().as_bytes()].concat())
}

fn decode_cursor(Position(bytes): &Position) -> Result<(Timestamp, SessionId)> {
    let decode = || {
        let (created_at, session_id) = bytes.split_first_chunk()?;
        let session_id = SessionId::parse(std::str::from_utf8(session_id).ok()?).ok()?;
        Some((Timestamp::from_millis(i64::from_be_bytes(*created_at)), session_id))
    };
    decode().ok_or_else(|| Refusal::InvalidCursor.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_indexed_again_in_every_lifetime() {
        const LIFE_MS: i64 = 1_000;
        let at = |ms: i64| Session {
            session_id: SessionId::parse("s").unwrap(),
            user_id: Some(UserId::parse("u").unwrap()),
            geo_zone: None,
            ip: None,
            user_agent: None,
            device_type: None,
            data: [].into(),
            created_at: Timestamp::EPOCH,
            last_activity: Timestamp::from_millis(ms),
            expires_at: Timestamp::from_millis(ms + LIFE_MS),
        };
        assert!(!is_indexed(None, &at(0)));
        assert!(is_indexed(Some(&at(5_000)), &at(5_999)));
        assert!(!is_indexed(Some(&at(5_999)), &at(6_000)));
        let longer = Session { expires_at: Timestamp::from_millis(60_000), ..at(5_500) };
        assert!(!is_indexed(Some(&at(5_000)), &longer), "the lifetime has changed");
        let unbound = Session { user_id: None, ..at(5_000) };
        assert!(!is_indexed(Some(&unbound), &at(5_001)));
    }
}
