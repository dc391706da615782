//! Sessions of the model.

use mw_domain::{Session, SessionId, Timestamp, UserId};

use super::carts::Parties;
use super::page::{Direction, page};
use super::{Model, State};
use crate::changes::Changed;
use crate::idempotency::StoredValue as _;
use crate::sessions::{CreateSession, LoggedIn, Login, TouchSession};
use crate::{Done, Page, PageRequest, Refusal, Result, Sessions};

impl State {
    fn live(&self, session_id: &SessionId, now: Timestamp) -> Option<Session> {
        self.sessions.get(session_id).filter(|session| !session.is_expired(now)).cloned()
    }

    /// Keeps a session that a command has changed.
    fn keep_changed_session(&mut self, session: &Session) {
        self.keep_session(session);
        self.record(session.last_activity, Changed::Session(session.clone()));
    }

    fn end_session(&mut self, session_id: &SessionId, now: Timestamp) {
        self.sessions.remove(session_id);
        self.record(now, Changed::SessionEnded(session_id.clone()));
    }

    pub(super) fn keep_session(&mut self, session: &Session) {
        self.sessions.insert(session.session_id.clone(), session.clone());
    }
}

#[async_trait::async_trait]
impl Sessions for Model {
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>> {
        let mut state = self.state();
        if let Some(first) = state.replay(command.identity.as_ref(), command.now)? {
            return Ok(first);
        }
        let session = command.session;
        if state.live(&session.session_id, command.now).is_some() {
            return Err(Refusal::SessionBound.into());
        }
        state.keep_changed_session(&session);
        state.store_outcome(command.identity, || session.to_outcome());
        Ok(Done::first(session))
    }

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
        Ok(self.state().live(session_id, now))
    }

    async fn touch_session(&self, command: TouchSession) -> Result<Session> {
        let mut state = self.state();
        let mut session = state.live(&command.session_id, command.now).ok_or(Refusal::SessionNotFound)?;
        if session.touch(&command.data, command.now, command.lifetime)? {
            state.keep_changed_session(&session);
        }
        Ok(session)
    }

    async fn login(&self, command: Login) -> Result<Done<LoggedIn>> {
        let mut state = self.state();
        if let Some(first) = state.replay(command.identity.as_ref(), command.now)? {
            return Ok(first);
        }
        let mut session = state.live(&command.session_id, command.now).ok_or(Refusal::SessionNotFound)?;
        if session.user_id.as_ref().is_some_and(|user| *user != command.user_id) {
            return Err(Refusal::SessionBound.into());
        }
        session.user_id = Some(command.user_id.clone());
        session.active(command.now, command.session_lifetime);
        state.keep_changed_session(&session);
        let merged = state.merge(Parties {
            user_id: command.user_id,
            session_id: command.session_id,
            mode: command.mode,
            new_cart_id: command.new_cart_id,
            lifetime: command.cart_lifetime,
            now: command.now,
        });
        let logged_in = LoggedIn { session, cart: merged.cart };
        state.store_outcome(command.identity, || logged_in.to_outcome());
        Ok(Done::first(logged_in))
    }

    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()> {
        let mut state = self.state();
        state.live(session_id, now).ok_or(Refusal::SessionNotFound)?;
        state.end_session(session_id, now);
        Ok(())
    }

    async fn user_sessions(
        &self,
        user_id: &UserId,
        now: Timestamp,
        request: PageRequest,
    ) -> Result<Page<Session>> {
        let state = self.state();
        let sessions = state
            .sessions
            .values()
            .filter(|session| session.user_id.as_ref() == Some(user_id) && !session.is_expired(now))
            .map(|session| {
                let key = (-session.created_at.as_millis(), session.session_id.to_string());
                (key, session.clone())
            })
            .collect();
        page(sessions, Direction::Rising, &request)
    }

    async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()> {
        let mut state = self.state();
        let of_user = state.sessions.values().filter(|session| session.user_id.as_ref() == Some(user_id));
        let (expired, live): (Vec<Session>, Vec<Session>) =
            of_user.cloned().partition(|session| session.is_expired(now));
        for session in expired {
            state.sessions.remove(&session.session_id);
        }
        for session in live {
            state.end_session(&session.session_id, now);
        }
        Ok(())
    }
}
