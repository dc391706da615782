//! Sessions: a row by id, and an index row in the user's list.
//!
//! Invariant: both rows carry the session's expiry and are written in one batch. Login binds the user and merges the carts in
//! one batch too: a crash leaves all of it or none.

use async_trait::async_trait;
use mw_codec::changes::ChangeRef;
use mw_domain::{Owner, Session, SessionId, Timestamp, UserId};
use mw_store::carts::Merge;
use mw_store::sessions::{CreateSession, LoggedIn, Login, Sessions, TouchSession};
use mw_store::{Done, Page, PageRequest, Refusal, Result};

use crate::idempotency;
use crate::keys;
use crate::reader::{KeyRange, List, Reader, collect_keys, page};
use crate::tables::Table;
use crate::tx::Tx;
use crate::{EmbeddedStore, carts};

#[async_trait]
impl Sessions for EmbeddedStore {
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>> {
        self.write(move |tx| {
            let CreateSession { session, now, identity, .. } = command;
            idempotency::run(tx, identity, now, |tx| {
                if read(tx, &session.session_id, now)?.is_some() {
                    return Err(Refusal::SessionBound.into());
                }
                session.check()?;
                save_changed(tx, &session);
                Ok(session)
            })
        })
        .await
    }

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
        self.options.partitions.read(Table::Sessions.name(), session_id.as_str());
        read(&self.snapshot(), session_id, now)
    }

    async fn touch_session(&self, command: TouchSession) -> Result<Session> {
        self.options.partitions.write(Table::Sessions.name(), command.session_id.as_str());
        // Most activity changes nothing that is stored, and then the command queue is not used.
        let mut session =
            read(&self.snapshot(), &command.session_id, command.now)?.ok_or(Refusal::SessionNotFound)?;
        if !session.touch(&command.data, command.now, command.lifetime)? {
            return Ok(session);
        }
        self.write(move |tx| {
            let mut session = read(tx, &command.session_id, command.now)?.ok_or(Refusal::SessionNotFound)?;
            if session.touch(&command.data, command.now, command.lifetime)? {
                save_changed(tx, &session);
            }
            Ok(session)
        })
        .await
    }

    async fn login(&self, command: Login) -> Result<Done<LoggedIn>> {
        self.write(move |tx| {
            let identity = command.identity.clone();
            idempotency::run(tx, identity, command.now, |tx| login(tx, command))
        })
        .await
    }

    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()> {
        let session_id = session_id.clone();
        self.write(move |tx| {
            let session = read(tx, &session_id, now)?.ok_or(Refusal::SessionNotFound)?;
            end(tx, &session, now);
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
        let snapshot = self.snapshot();
        let prefix = keys::user_sessions(user_id);
        let skip = prefix.len() + 8;
        let list = List::of(prefix, keys::is_session_position);
        page(&snapshot, Table::SessionsByUser, &list, &request, &mut |key, _| {
            read_listed(&snapshot, key, skip, user_id, now)
        })
    }

    async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()> {
        let user_id = user_id.clone();
        self.write(move |tx| {
            let prefix = keys::user_sessions(&user_id);
            let skip = prefix.len() + 8;
            for key in collect_keys(tx, Table::SessionsByUser, &KeyRange::prefix(prefix))? {
                if let Some(session) = read_listed(tx, &key, skip, &user_id, now)? {
                    end(tx, &session, now);
                }
                // Also a row whose session has expired or belongs to another user by now.
                tx.remove(Table::SessionsByUser, key);
            }
            Ok(())
        })
        .await
    }
}

/// A session, unless it has expired.
fn read(reader: &dyn Reader, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
    let Some(row) = reader.get(Table::Sessions, &keys::session(session_id))? else {
        return Ok(None);
    };
    let session = mw_codec::sessions::decode(&row)?;
    Ok(Some(session).filter(|session| !session.is_expired(now)))
}

/// The session of a row in a user's list, if it is live and still the user's.
fn read_listed(
    reader: &dyn Reader,
    key: &[u8],
    skip: usize,
    user_id: &UserId,
    now: Timestamp,
) -> Result<Option<Session>> {
    let id =
        key.get(skip..).and_then(|id| std::str::from_utf8(id).ok()).and_then(|id| SessionId::parse(id).ok());
    let id = id.ok_or(mw_codec::Damaged("session list key"))?;
    let session = read(reader, &id, now)?;
    // A client may use an expired id again: the row is valid only for the session that wrote it.
    Ok(session.filter(|session| {
        session.user_id.as_ref() == Some(user_id)
            && keys::user_session(user_id, session.created_at, &session.session_id) == key
    }))
}

/// Writes a session and, once it is bound to a user, its row in the user's list.
pub(crate) fn save(tx: &mut Tx, session: &Session) {
    if let Some(user_id) = &session.user_id {
        let key = keys::user_session(user_id, session.created_at, &session.session_id);
        tx.put(Table::SessionsByUser, key, mw_codec::sessions::encode_until(session.expires_at));
    }
    tx.put(Table::Sessions, keys::session(&session.session_id), mw_codec::sessions::encode(session));
}

/// Writes a session that the running command has changed.
fn save_changed(tx: &mut Tx, session: &Session) {
    save(tx, session);
    tx.record_change(session.last_activity, ChangeRef::Session(session));
}

/// Removes a session that the running command ends.
fn end(tx: &mut Tx, session: &Session, now: Timestamp) {
    remove(tx, session);
    tx.record_change(now, ChangeRef::SessionEnded(&session.session_id, now));
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

/// Binds a session to a user and merges the guest's cart. A crash before the commit leaves the guest's session and cart as they
/// were, and the repeated request logs in; a crash after it leaves both steps done.
fn login(tx: &mut Tx, command: Login) -> Result<LoggedIn> {
    let Login { session_id, user_id, mode, new_cart_id, session_lifetime, cart_lifetime, now, .. } = command;
    let mut session = read(tx, &session_id, now)?.ok_or(Refusal::SessionNotFound)?;
    // A repeated login of the same user is no conflict.
    match &session.user_id {
        Some(bound) if *bound != user_id => return Err(Refusal::SessionBound.into()),
        _ => session.user_id = Some(user_id.clone()),
    }
    session.active(now, session_lifetime);
    save_changed(tx, &session);
    let owner = Owner::User(user_id.clone());
    let merge = Merge {
        user_id,
        session_id,
        mode,
        new_cart_id,
        expected_version: None,
        lifetime: cart_lifetime,
        now,
        identity: None,
    };
    carts::merge(tx, &merge)?;
    let cart = carts::read_active(tx, &owner, now)?;
    Ok(LoggedIn { session, cart })
}
