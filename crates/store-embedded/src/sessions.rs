//! Sessions: a row by id, and a row in the user's list that says until when it counts.

use async_trait::async_trait;
use mw_domain::{Owner, Session, SessionId, Timestamp, UserId};
use mw_store::carts::Merge;
use mw_store::sessions::{CreateSession, LoggedIn, Login, Sessions, TouchSession};
use mw_store::{Done, Page, PageRequest, Refusal, Result};

use crate::keys;
use crate::once;
use crate::tables::Table;
use crate::tx::Tx;
use crate::view::{List, Look, Span, page};
use crate::{EmbeddedStore, carts};

#[async_trait]
impl Sessions for EmbeddedStore {
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>> {
        self.write(command.now, move |tx| {
            let CreateSession { session, now, once, .. } = command;
            once::run(tx, once, now, |tx| {
                if read(tx, &session.session_id, now)?.is_some() {
                    return Err(Refusal::SessionBound.into());
                }
                session.check()?;
                save(tx, &session);
                Ok(session)
            })
        })
        .await
    }

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
        read(&self.view(), session_id, now)
    }

    async fn touch_session(&self, command: TouchSession) -> Result<Session> {
        // Most activity needs no write, and then no turn in the writer's queue.
        let mut session =
            read(&self.view(), &command.session_id, command.now)?.ok_or(Refusal::SessionNotFound)?;
        if !session.touch(&command.data, command.now, command.lifetime)? {
            return Ok(session);
        }
        self.write(command.now, move |tx| {
            let mut session = read(tx, &command.session_id, command.now)?.ok_or(Refusal::SessionNotFound)?;
            if session.touch(&command.data, command.now, command.lifetime)? {
                save(tx, &session);
            }
            Ok(session)
        })
        .await
    }

    async fn login(&self, command: Login) -> Result<Done<LoggedIn>> {
        self.write(command.now, move |tx| {
            let once = command.once.clone();
            once::run(tx, once, command.now, |tx| login(tx, command))
        })
        .await
    }

    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()> {
        let session_id = session_id.clone();
        self.write(now, move |tx| {
            let session = read(tx, &session_id, now)?.ok_or(Refusal::SessionNotFound)?;
            remove(tx, &session);
            Ok(())
        })
        .await
    }

    async fn user_sessions(
        &self,
        user_id: &UserId,
        now: Timestamp,
        request: PageRequest,
    ) -> Result<Page<Session>> {
        let view = self.view();
        let prefix = keys::user_sessions(user_id);
        let skip = prefix.len() + 8;
        let list = List::of(prefix, keys::is_session_position);
        page(&view, Table::SessionsByUser, &list, &request, &mut |key, _| {
            read_listed(&view, key, skip, user_id, now)
        })
    }

    async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()> {
        let user_id = user_id.clone();
        self.write(now, move |tx| {
            let prefix = keys::user_sessions(&user_id);
            let skip = prefix.len() + 8;
            let mut rows = Vec::new();
            tx.scan(Table::SessionsByUser, &Span::prefix(prefix), false, &mut |key, _| {
                rows.push(key.to_vec());
                Ok(std::ops::ControlFlow::Continue(()))
            })?;
            for key in rows {
                if let Some(session) = read_listed(tx, &key, skip, &user_id, now)? {
                    remove(tx, &session);
                }
                tx.remove(Table::SessionsByUser, key);
            }
            Ok(())
        })
        .await
    }
}

fn read(look: &dyn Look, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
    let Some(row) = look.get(Table::Sessions, &keys::session(session_id))? else {
        return Ok(None);
    };
    let session = mw_codec::sessions::decode(&row)?;
    Ok(Some(session).filter(|session| !session.is_expired(now)))
}

/// The session a row of a user's list stands for, if it is live and still the user's.
fn read_listed(
    look: &dyn Look,
    key: &[u8],
    skip: usize,
    user_id: &UserId,
    now: Timestamp,
) -> Result<Option<Session>> {
    let id =
        key.get(skip..).and_then(|id| std::str::from_utf8(id).ok()).and_then(|id| SessionId::parse(id).ok());
    let id = id.ok_or(mw_codec::Damaged("session list key"))?;
    let session = read(look, &id, now)?;
    // An id may have been used again since: the row counts only for the session that wrote it.
    Ok(session.filter(|session| {
        session.user_id.as_ref() == Some(user_id)
            && keys::user_session(user_id, session.created_at, &session.session_id) == key
    }))
}

pub(crate) fn save(tx: &mut Tx, session: &Session) {
    if let Some(user_id) = &session.user_id {
        let key = keys::user_session(user_id, session.created_at, &session.session_id);
        tx.put(Table::SessionsByUser, key, mw_codec::sessions::encode_until(session.expires_at));
    }
    tx.put(Table::Sessions, keys::session(&session.session_id), mw_codec::sessions::encode(session));
}

pub(crate) fn remove(tx: &mut Tx, session: &Session) {
    if let Some(user_id) = &session.user_id {
        tx.remove(
            Table::SessionsByUser,
            keys::user_session(user_id, session.created_at, &session.session_id),
        );
    }
    tx.remove(Table::Sessions, keys::session(&session.session_id));
}

fn login(tx: &mut Tx, command: Login) -> Result<LoggedIn> {
    let Login { session_id, user_id, mode, new_cart_id, session_lifetime, cart_lifetime, now, .. } = command;
    let mut session = read(tx, &session_id, now)?.ok_or(Refusal::SessionNotFound)?;
    match &session.user_id {
        Some(bound) if *bound != user_id => return Err(Refusal::SessionBound.into()),
        _ => session.user_id = Some(user_id.clone()),
    }
    session.active(now, session_lifetime);
    save(tx, &session);
    let owner = Owner::User(user_id.clone());
    let merge = Merge {
        user_id,
        session_id,
        mode,
        new_cart_id,
        expected_version: None,
        lifetime: cart_lifetime,
        now,
        once: None,
    };
    carts::merge(tx, &merge)?;
    let cart = carts::read_active(tx, &owner, now)?;
    Ok(LoggedIn { session, cart })
}
