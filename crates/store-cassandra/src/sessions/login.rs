//! Logging in: the session becomes the user's, and the guest's cart goes into the user's, under one intent.

use mw_codec::{Damaged, Reader, Writer};
use mw_domain::{Owner, Session, SessionId};
use mw_store::sessions::{LoggedIn, Login};
use mw_store::{Refusal, Result, StoreError};
use uuid::Uuid;

use super::turn;
use crate::CassandraStore;
use crate::carts::Parties;
use crate::guard::{Rounds, half_done, see_through};
use crate::intents::{Intent, Kind};

impl CassandraStore {
    pub(super) async fn login_under(&self, op_id: Uuid, shared: bool, command: &Login) -> Result<LoggedIn> {
        let parties = Parties {
            user: Owner::User(command.user_id.clone()),
            guest: Owner::Session(command.session_id.clone()),
            mode: command.mode,
            new_cart_id: command.new_cart_id,
            expected_version: None,
            lifetime: command.cart_lifetime,
            now: command.now,
        };
        let mut intent = None;
        let session = match self.bind(op_id, command, &parties, &mut intent).await {
            Ok(session) => session,
            Err(error) => {
                self.close_login(intent, &error).await;
                return Err(error);
            }
        };
        let merged = self.merge_under(op_id, shared, &parties, intent).await.map_err(half_done)?;
        Ok(LoggedIn { session, cart: merged.cart })
    }

    /// Makes the session the user's. An intent is begun before if there is a cart to merge.
    async fn bind(
        &self,
        op_id: Uuid,
        command: &Login,
        parties: &Parties,
        intent: &mut Option<Intent>,
    ) -> Result<Session> {
        let now = command.now;
        let mut rounds = Rounds::of("a session");
        let _turn = self.locks.one(&turn(&command.session_id)).await;
        loop {
            let (found, guest) = futures_util::try_join!(
                self.read_session(&command.session_id),
                self.active(&parties.guest, now)
            )?;
            let before = found.live_at(now).ok_or(Refusal::SessionNotFound)?;
            if before.user_id.as_ref().is_some_and(|user| *user != command.user_id) {
                return Err(Refusal::SessionBound.into());
            }
            let mut session = before.clone();
            session.user_id = Some(command.user_id.clone());
            session.active(now, command.session_lifetime);
            if intent.is_none() && guest.is_some_and(|guest| !guest.lines.is_empty()) {
                let payload = encode(&command.session_id, parties);
                *intent = Some(self.intents.begin(&self.cql, Kind::Login, op_id, payload).await?);
            }
            self.name_session(Some(before), &session, now).await?;
            let change = found.saving(&self.sessions, &session, found.op_id, now);
            if change.settle(&self.cql, &mut rounds).await? {
                return Ok(session);
            }
        }
    }

    /// The session did not become the user's: surely, or perhaps.
    async fn close_login(&self, intent: Option<Intent>, error: &StoreError) {
        match (intent, error) {
            (None, _) => {}
            (Some(intent), StoreError::Ambiguous(_)) => self.intents.leave(intent),
            (Some(intent), _) => self.intents.end(&self.cql, intent).await,
        }
    }

    /// Finishes what a process left of a login: where the session is the user's, the cart follows.
    pub(crate) async fn finish_login(&self, op_id: Uuid, payload: &[u8]) -> Result<()> {
        let (session_id, parties) = decode(payload)?;
        // The session may have ended since.
        if self.finish_closed(&parties.guest, op_id).await? {
            return Ok(());
        }
        see_through(&self.cql, &self.sessions.look, (session_id.as_str(),)).await?;
        let session = self.read_session(&session_id).await?.session;
        let user_id = session.and_then(|session| session.user_id);
        if user_id.map(Owner::User).as_ref() != Some(&parties.user) {
            return self.intents.wait_for(op_id);
        }
        self.merge_under(op_id, true, &parties, None).await.map(drop)
    }
}

fn encode(session_id: &SessionId, parties: &Parties) -> Vec<u8> {
    let mut writer = Writer::new(128);
    writer.text(session_id.as_str());
    parties.write(&mut writer);
    writer.done()
}

fn decode(bytes: &[u8]) -> Result<(SessionId, Parties), Damaged> {
    let mut reader = Reader::new(bytes, "the intent of a login")?;
    let session_id = reader.id(SessionId::parse)?;
    let parties = Parties::read(&mut reader)?;
    reader.end()?;
    Ok((session_id, parties))
}
