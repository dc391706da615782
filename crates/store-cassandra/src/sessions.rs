//! Sessions: each is a partition of one row, guarded by its revision. A session that ended leaves its revision behind for
//! a while, so that nothing which was on its way to it reaches another of the same id.
//!
//! The list of a user has keys only. They are written before the session is the user's, and whoever reads them looks at
//! the session itself.

mod login;
mod rows;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use mw_domain::{Session, SessionId, Timestamp, UserId};
use mw_store::once::Outcome;
use mw_store::records::Record;
use mw_store::sessions::{CreateSession, LoggedIn, Login, Sessions, TouchSession};
use mw_store::{Done, Page, PageRequest, Position, Refusal, Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::guard::{Rounds, half_done};
use crate::records::Spool;
use crate::scan::{self, Scan};
use crate::tables::Table;
use crate::time::{from_cql, to_cql, ttl_seconds};
use rows::{COLUMNS, SessionRow};

/// Rows of a page of a walk through a list.
const PAGE_ROWS: i32 = 200;
/// Sessions read or ended at the same time.
const AT_ONCE: usize = 16;
/// Sessions of a list that are looked at for one page.
const LOOKS_MAX: usize = 2_000;

#[derive(Debug)]
pub(crate) struct Statements {
    read: PreparedStatement,
    look: PreparedStatement,
    save: PreparedStatement,
    end: PreparedStatement,
    all: PreparedStatement,
    name: PreparedStatement,
    unname: PreparedStatement,
    named: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let (sessions, of_user) = (Table::SessionsById, Table::SessionsByUser);
        let read = format!("SELECT {COLUMNS} FROM {{}} WHERE session_id = ?");
        let save = "UPDATE {} USING TTL ? SET rev = ?, marks = ?, user_id = ?, geo_zone = ?, ip = ?, user_agent = ?, \
             device_type = ?, data = ?, created_at = ?, last_activity = ?, expires_at = ?, op_id = ? \
             WHERE session_id = ? IF rev = ?";
        let end = "UPDATE {} USING TTL ? SET rev = ?, marks = ?, user_id = null, geo_zone = null, ip = null, \
             user_agent = null, device_type = null, data = null, created_at = null, last_activity = null, \
             expires_at = null, op_id = null WHERE session_id = ? IF rev = ?";
        let name = "INSERT INTO {} (user_id, created_at, session_id) VALUES (?, ?, ?) USING TTL ?";
        let named = "SELECT created_at, session_id FROM {} WHERE user_id = ? AND created_at <= ?";
        let mut named = cql.prepare(of_user, Access::Read, named).await?;
        named.set_page_size(PAGE_ROWS);
        Ok(Self {
            read: cql.prepare(sessions, Access::Read, &read).await?,
            look: cql
                .prepare(sessions, Access::Serial, "SELECT rev, marks FROM {} WHERE session_id = ?")
                .await?,
            save: cql.prepare(sessions, Access::Cas, save).await?,
            end: cql.prepare(sessions, Access::Cas, end).await?,
            all: scan::prepare(cql, sessions, COLUMNS).await?,
            name: cql.prepare(of_user, Access::Write, name).await?,
            unname: cql
                .prepare(
                    of_user,
                    Access::Write,
                    "DELETE FROM {} WHERE user_id = ? AND created_at = ? AND session_id = ?",
                )
                .await?,
            named,
        })
    }
}

/// What those take turns on who change a session.
const fn turn(session_id: &SessionId) -> (&'static str, &SessionId) {
    ("session", session_id)
}

/// How long a session lives after its last activity.
fn life_ms(session: &Session) -> i64 {
    session.expires_at.as_millis().saturating_sub(session.last_activity.as_millis())
}

/// Whether the row of the list that was written for a session is kept long enough for what it has become. Rows are kept for
/// two lifetimes and written again in each.
fn is_named(before: Option<&Session>, session: &Session) -> bool {
    let life_ms = life_ms(session);
    before.is_some_and(|before| {
        let period = |session: &Session| session.last_activity.as_millis().checked_div(life_ms);
        before.user_id == session.user_id
            && self::life_ms(before) == life_ms
            && period(before) == period(session)
    })
}

#[async_trait]
impl Sessions for CassandraStore {
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>> {
        let CreateSession { mut session, made_of, now, once } = command;
        let recall = |outcome| match outcome {
            Outcome::Session(session) => Some(session),
            _ => None,
        };
        let answer: (fn(&Session) -> Outcome, fn(Outcome) -> Option<Session>) =
            (|session| Outcome::Session(session.clone()), recall);
        let op_id = made_of.unwrap_or_else(Uuid::new_v4);
        self.keyed(once.as_ref(), op_id, now, answer, |op_id, _| {
            if made_of.is_some() {
                // Whoever comes with the same key makes the same session.
                session.session_id = SessionId::made_of(op_id);
            }
            self.create_under(op_id, session, now)
        })
        .await
    }

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
        Ok(self.read_session(session_id).await?.session.filter(|session| !session.is_expired(now)))
    }

    async fn touch_session(&self, command: TouchSession) -> Result<Session> {
        let TouchSession { session_id, data, lifetime, now } = command;
        let mut rounds = Rounds::of("a session");
        let _turn = self.locks.one(&turn(&session_id)).await;
        loop {
            let found = self.read_session(&session_id).await?;
            let before = found.live_at(now).ok_or(Refusal::SessionNotFound)?;
            let mut session = before.clone();
            if !session.touch(&data, now, lifetime)? {
                return Ok(session);
            }
            self.name_session(Some(before), &session, now).await?;
            let change = found.saving(&self.sessions, &session, found.op_id, now);
            if change.settle(&self.cql, &mut rounds).await? {
                return Ok(session);
            }
        }
    }

    async fn login(&self, command: Login) -> Result<Done<LoggedIn>> {
        let once = command.once.as_ref();
        let recall = |outcome| match outcome {
            Outcome::LoggedIn(logged_in) => Some(logged_in),
            _ => None,
        };
        let answer: (fn(&LoggedIn) -> Outcome, fn(Outcome) -> Option<LoggedIn>) =
            (|logged_in| Outcome::LoggedIn(logged_in.clone()), recall);
        self.keyed(once, Uuid::new_v4(), command.now, answer, |op_id, _| {
            self.login_under(op_id, once.is_some(), &command)
        })
        .await
    }

    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()> {
        let ended = self.end_session(session_id, |session| !session.is_expired(now)).await?;
        if ended { Ok(()) } else { Err(Refusal::SessionNotFound.into()) }
    }

    async fn user_sessions(
        &self,
        user_id: &UserId,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Session>> {
        let after = page.after.as_ref().map(read_place).transpose()?;
        let newest = after.as_ref().map_or(Timestamp::from_millis(i64::MAX), |(created_at, _)| *created_at);
        let mut looks_left = LOOKS_MAX;
        let mut items: Vec<Session> = Vec::new();
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.named(user_id, newest, from).await?;
            let is_next = |(created_at, session_id): &(Timestamp, SessionId)| match &after {
                Some((at, id)) => created_at < at || session_id > id,
                None => true,
            };
            let reads = rows.into_iter().filter(is_next).map(|(created_at, session_id)| async move {
                let session = self.read_session(&session_id).await?.session;
                Ok::<_, StoreError>((created_at, session_id, session))
            });
            let mut reads = stream::iter(reads).buffered(AT_ONCE);
            while let Some((created_at, session_id, session)) = reads.try_next().await? {
                let session = session.filter(|session| {
                    session.user_id.as_ref() == Some(user_id)
                        && session.created_at == created_at
                        && !session.is_expired(now)
                });
                if let Some(session) = session {
                    if items.len() == page.limit {
                        let next = items.last().map(|last| write_place(last.created_at, &last.session_id));
                        return Ok(Page { items, next });
                    }
                    items.push(session);
                }
                looks_left -= 1;
                if looks_left == 0 {
                    return Ok(Page { items, next: Some(write_place(created_at, &session_id)) });
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(Page { items, next: None }),
            }
        }
    }

    async fn revoke_sessions(&self, user_id: &UserId, _now: Timestamp) -> Result<()> {
        let mut from = PagingState::start();
        let mut is_begun = false;
        loop {
            let rows = self.named(user_id, Timestamp::from_millis(i64::MAX), from).await;
            let (rows, next) = rows.map_err(|error| if is_begun { half_done(error) } else { error })?;
            let ends = rows.into_iter().map(|(_, session_id)| async move {
                let is_users = |session: &Session| session.user_id.as_ref() == Some(user_id);
                // The name of one that is not the user's stays until it expires: a login may be about to bind it.
                self.end_session(&session_id, is_users).await.map(drop)
            });
            let ended = stream::iter(ends).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await;
            // Some of them may have ended.
            ended.map_err(half_done)?;
            is_begun = true;
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}

impl CassandraStore {
    async fn create_under(&self, op_id: Uuid, session: Session, now: Timestamp) -> Result<Session> {
        let mut rounds = Rounds::of("a session");
        let _turn = self.locks.one(&turn(&session.session_id)).await;
        loop {
            let found = self.read_session(&session.session_id).await?;
            if let Some(live) = found.live_at(now) {
                // Somebody else with the same key was faster.
                return if found.op_id == Some(op_id) {
                    Ok(live.clone())
                } else {
                    Err(Refusal::SessionBound.into())
                };
            }
            self.name_session(None, &session, now).await?;
            let change = found.saving(&self.sessions, &session, Some(op_id), now);
            if change.settle(&self.cql, &mut rounds).await? {
                return Ok(session);
            }
        }
    }

    /// Puts the session into its user's list, unless it is there for long enough.
    async fn name_session(&self, before: Option<&Session>, session: &Session, now: Timestamp) -> Result<()> {
        let Some(user_id) = &session.user_id else { return Ok(()) };
        if is_named(before, session) {
            return Ok(());
        }
        let until = session.expires_at.plus_millis(life_ms(session));
        let row = (
            user_id.as_str(),
            to_cql(session.created_at),
            session.session_id.as_str(),
            ttl_seconds(now, until),
        );
        // Nothing of the change itself has happened.
        self.cql.write(&self.sessions.name, row).await.map_err(|error| match error {
            StoreError::Ambiguous(detail) => StoreError::Unavailable(detail),
            other => other,
        })
    }

    async fn unname(&self, user_id: &UserId, created_at: Timestamp, session_id: &SessionId) -> Result<()> {
        let key = (user_id.as_str(), to_cql(created_at), session_id.as_str());
        self.cql.write(&self.sessions.unname, key).await
    }

    /// A page of a list: when each was created, and its id.
    async fn named(
        &self,
        user_id: &UserId,
        newest: Timestamp,
        from: PagingState,
    ) -> Result<(Vec<(Timestamp, SessionId)>, Option<PagingState>)> {
        let key = (user_id.as_str(), to_cql(newest));
        let (rows, next) = self.cql.page::<(CqlTimestamp, String)>(&self.sessions.named, key, from).await?;
        let mut listed = Vec::with_capacity(rows.len());
        for (created_at, session_id) in rows {
            let session_id = SessionId::parse(&session_id)
                .map_err(|error| StoreError::Corrupt(format!("a session of {user_id}: {error}")))?;
            listed.push((from_cql(created_at), session_id));
        }
        Ok((listed, next))
    }

    /// Ends the session if it is there and `is_meant`; answers whether it did.
    async fn end_session(
        &self,
        session_id: &SessionId,
        is_meant: impl Fn(&Session) -> bool + Send + Sync,
    ) -> Result<bool> {
        let mut rounds = Rounds::of("a session");
        let _turn = self.locks.one(&turn(session_id)).await;
        loop {
            let found = self.read_session(session_id).await?;
            let Some(session) = found.session.as_ref().filter(|session| is_meant(session)) else {
                return Ok(false);
            };
            if found.ending(&self.sessions, session_id).settle(&self.cql, &mut rounds).await? {
                if let Some(user_id) = &session.user_id {
                    self.unname(user_id, session.created_at, session_id).await.map_err(half_done)?;
                }
                return Ok(true);
            }
        }
    }

    /// Writes the session as it is, in place of what is there of it.
    pub(crate) async fn keep_session(&self, session: &Session) -> Result<()> {
        let mut rounds = Rounds::of("a session");
        let _turn = self.locks.one(&turn(&session.session_id)).await;
        loop {
            let found = self.read_session(&session.session_id).await?;
            self.name_session(None, session, session.last_activity).await?;
            let change = found.saving(&self.sessions, session, None, session.last_activity);
            if change.settle(&self.cql, &mut rounds).await? {
                return Ok(());
            }
        }
    }

    /// Every session.
    pub(crate) async fn export_sessions(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, SessionRow> = Scan::new(&self.cql, &self.sessions.all);
        while let Some(row) = rows.next().await? {
            if let Some(session) = row.into_found()?.session {
                into.push(&Record::Session(session))?;
            }
        }
        Ok(())
    }
}

fn write_place(created_at: Timestamp, session_id: &SessionId) -> Position {
    Position([&created_at.as_millis().to_be_bytes()[..], session_id.as_str().as_bytes()].concat())
}

fn read_place(Position(bytes): &Position) -> Result<(Timestamp, SessionId)> {
    let parse = || {
        let (created_at, session_id) = bytes.split_first_chunk()?;
        let session_id = SessionId::parse(std::str::from_utf8(session_id).ok()?).ok()?;
        Some((Timestamp::from_millis(i64::from_be_bytes(*created_at)), session_id))
    };
    parse().ok_or_else(|| Refusal::InvalidCursor.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_again_in_every_lifetime() {
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
        assert!(!is_named(None, &at(0)));
        assert!(is_named(Some(&at(5_000)), &at(5_999)));
        assert!(!is_named(Some(&at(5_999)), &at(6_000)));
        let longer = Session { expires_at: Timestamp::from_millis(60_000), ..at(5_500) };
        assert!(!is_named(Some(&at(5_000)), &longer), "the lifetime has changed");
        let unbound = Session { user_id: None, ..at(5_000) };
        assert!(!is_named(Some(&unbound), &at(5_001)));
    }
}
