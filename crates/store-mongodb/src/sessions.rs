//! Sessions: a document each, changed by compare-and-set on its `rev`. A login is a transaction with the merge of the
//! guest's cart.

use async_trait::async_trait;
use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use mw_codec::changes::ChangeRef;
use mw_domain::{Session, SessionId, Timestamp, UserId};
use mw_store::changes::Topic;
use mw_store::idempotency::StoredValue as _;
use mw_store::sessions::{CreateSession, LoggedIn, Login, Sessions, TouchSession};
use mw_store::{Done, Freshness, Page, PageRequest, Position, Refusal, Result, StoreError};
use tokio::time::{Duration, Instant, sleep};

use crate::MongoStore;
use crate::carts::Parties;
use crate::documents::ids::to_bson_id;
use crate::documents::sessions::{read, write};
use crate::documents::times::to_bson_time;
use crate::driver::certainty::is_duplicate_key;
use crate::driver::transaction::Stop;

/// Lost CAS rounds on one session.
const ROUNDS_MAX: usize = 32;
/// Sessions that one transaction deletes.
const ENDED_AT_ONCE: i64 = 1_000;
/// The wait before an idempotent statement is sent again.
const RETRY_AFTER: Duration = Duration::from_millis(50);

impl MongoStore {
    /// A live session and its document.
    fn live(&self, document: Option<Document>, now: Timestamp) -> Option<(Session, Document)> {
        let document = document?;
        let session = self.readable(read(&document))?;
        (!session.is_expired(now)).then_some((session, document))
    }

    async fn live_session(
        &self,
        session_id: &SessionId,
        now: Timestamp,
    ) -> Result<Option<(Session, Document)>> {
        let find = self
            .collections
            .sessions
            .find_one(doc! { "_id": session_id.as_str() })
            .selection_criteria(self.reads.criteria(Freshness::Latest));
        let document = self.read(find).await?;
        Ok(self.live(document, now))
    }

    /// Creates a session in place of an expired one. A live one is a duplicate `_id`.
    async fn create_unkeyed(&self, session: &Session, now: Timestamp) -> Result<()> {
        let expired =
            doc! { "_id": session.session_id.as_str(), "expires_at": { "$lte": to_bson_time(now) } };
        let create = self.collections.sessions.replace_one(expired, write(session)).upsert(true);
        let created = self
            .write(async {
                match create.await {
                    Err(error) if is_duplicate_key(&error) => Ok(None),
                    result => result.map(Some),
                }
            })
            .await?;
        created.map(drop).ok_or_else(|| Refusal::SessionBound.into())
    }

    async fn create_in(
        &self,
        session: &mut ClientSession,
        command: &CreateSession,
    ) -> Result<Done<Session>, Stop> {
        let identity = command.identity.as_ref();
        if let Some(first) = self.replay(session, identity, command.now).await? {
            return Ok(first);
        }
        let filter = doc! { "_id": command.session.session_id.as_str() };
        let sessions = &self.collections.sessions;
        let known = sessions.find_one(filter.clone()).session(&mut *session).await?;
        if self.live(known, command.now).is_some() {
            return Err(Refusal::SessionBound.into());
        }
        sessions.replace_one(filter, write(&command.session)).upsert(true).session(&mut *session).await?;
        self.record(session, [ChangeRef::Session(&command.session)]).await?;
        self.store_outcome(session, identity, || command.session.to_outcome()).await?;
        Ok(Done::first(command.session.clone()))
    }

    async fn login_in(&self, session: &mut ClientSession, command: &Login) -> Result<Done<LoggedIn>, Stop> {
        let identity = command.identity.as_ref();
        if let Some(first) = self.replay(session, identity, command.now).await? {
            return Ok(first);
        }
        let filter = doc! { "_id": command.session_id.as_str() };
        let sessions = &self.collections.sessions;
        let known = sessions.find_one(filter.clone()).session(&mut *session).await?;
        let (mut bound, _) = self.live(known, command.now).ok_or(Refusal::SessionNotFound)?;
        if bound.user_id.as_ref().is_some_and(|user| *user != command.user_id) {
            return Err(Refusal::SessionBound.into());
        }
        bound.user_id = Some(command.user_id.clone());
        bound.active(command.now, command.session_lifetime);
        sessions.replace_one(filter, write(&bound)).session(&mut *session).await?;
        self.record(session, [ChangeRef::Session(&bound)]).await?;
        let parties = Parties {
            user_id: &command.user_id,
            session_id: &command.session_id,
            mode: command.mode,
            new_cart_id: command.new_cart_id,
            expected_version: None,
            lifetime: &command.cart_lifetime,
            now: command.now,
        };
        let merged = self.merge_in(session, parties).await?;
        let logged_in = LoggedIn { session: bound, cart: merged.cart };
        self.store_outcome(session, identity, || logged_in.to_outcome()).await?;
        Ok(Done::first(logged_in))
    }
}

#[async_trait]
impl Sessions for MongoStore {
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>> {
        if command.identity.is_none() && !self.feed.writes(Topic::Sessions) {
            self.create_unkeyed(&command.session, command.now).await?;
            return Ok(Done::first(command.session));
        }
        let mut attempts = self.transaction();
        loop {
            let mut session = attempts.begin().await?;
            let result = attempts.run(self.create_in(&mut session, &command)).await;
            if let Some(done) = attempts.end(session, result).await? {
                return Ok(done);
            }
        }
    }

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
        Ok(self.live_session(session_id, now).await?.map(|(session, _)| session))
    }

    async fn touch_session(&self, command: TouchSession) -> Result<Session> {
        for _ in 0..ROUNDS_MAX {
            let live = self.live_session(&command.session_id, command.now).await?;
            let (mut session, before) = live.ok_or(Refusal::SessionNotFound)?;
            if !session.touch(&command.data, command.now, command.lifetime)? {
                return Ok(session);
            }
            let rev = before.get("rev").cloned().unwrap_or_default();
            let filter = doc! { "_id": command.session_id.as_str(), "rev": rev };
            if self.replace_session(filter, &session).await? {
                return Ok(session);
            }
        }
        let detail = format!("gave up after {ROUNDS_MAX} lost CAS rounds on a session (contention)");
        Err(StoreError::Unavailable(detail))
    }

    async fn login(&self, command: Login) -> Result<Done<LoggedIn>> {
        let mut attempts = self.transaction();
        loop {
            let mut session = attempts.begin().await?;
            let result = attempts.run(self.login_in(&mut session, &command)).await;
            if let Some(done) = attempts.end(session, result).await? {
                return Ok(done);
            }
        }
    }

    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()> {
        let live = doc! { "_id": session_id.as_str(), "expires_at": { "$gt": to_bson_time(now) } };
        let is_deleted = if self.feed.writes(Topic::Sessions) {
            self.end_sessions(&live, now).await? > 0
        } else {
            self.write(self.collections.sessions.delete_one(live)).await?.deleted_count > 0
        };
        if is_deleted { Ok(()) } else { Err(Refusal::SessionNotFound.into()) }
    }

    async fn user_sessions(
        &self,
        user_id: &UserId,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Session>> {
        let mut filter = doc! {
            "user_id": to_bson_id(user_id.as_str()),
            "expires_at": { "$gt": to_bson_time(now) },
        };
        if let Some(after) = &page.after {
            let (created_at, session_id) = read_position(after)?;
            let created_at = to_bson_time(created_at);
            let later_ids = doc! { "created_at": created_at, "_id": { "$gt": session_id } };
            filter.insert("$or", vec![doc! { "created_at": { "$lt": created_at } }, later_ids]);
        }
        let find = self
            .collections
            .sessions
            .find(filter)
            .sort(doc! { "created_at": -1, "_id": 1 })
            .selection_criteria(self.reads.criteria(Freshness::Latest));
        let documents = self.read_all(find, page.limit + 1).await?;
        let is_more = documents.len() > page.limit;
        let mut sessions: Vec<Session> =
            documents.iter().filter_map(|document| self.readable(read(document))).collect();
        sessions.truncate(page.limit);
        let next = sessions.last().filter(|_| is_more).map(write_position);
        Ok(Page { items: sessions, next })
    }

    async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()> {
        let deadline = Instant::now() + self.options.request_timeout;
        let filter = doc! { "user_id": to_bson_id(user_id.as_str()) };
        if self.feed.writes(Topic::Sessions) {
            while self.end_sessions(&filter, now).await? > 0 {}
            return Ok(());
        }
        loop {
            // Neither the driver nor the servers repeat a delete of many documents; repeating it is harmless.
            match self.write(self.collections.sessions.delete_many(filter.clone())).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() + RETRY_AFTER >= deadline => return Err(error),
                Err(_) => sleep(RETRY_AFTER).await,
            }
        }
    }
}

impl MongoStore {
    /// Replaces a session; `false` if another request was faster.
    async fn replace_session(&self, filter: Document, after: &Session) -> Result<bool> {
        if !self.feed.writes(Topic::Sessions) {
            let replace = self.collections.sessions.replace_one(filter, write(after));
            return Ok(self.write(replace).await?.matched_count > 0);
        }
        let mut attempts = self.transaction();
        loop {
            let mut session = attempts.begin().await?;
            let replaced = attempts.run(async {
                let replace = self.collections.sessions.replace_one(filter.clone(), write(after));
                let is_replaced = replace.session(&mut session).await?.matched_count > 0;
                if is_replaced {
                    self.record(&mut session, [ChangeRef::Session(after)]).await?;
                }
                Ok::<_, Stop>(is_replaced)
            });
            let replaced = replaced.await;
            if let Some(is_replaced) = attempts.end(session, replaced).await? {
                return Ok(is_replaced);
            }
        }
    }

    /// Deletes up to [`ENDED_AT_ONCE`] sessions and notes the end of those that are live; returns how many it deleted.
    async fn end_sessions(&self, filter: &Document, now: Timestamp) -> Result<usize> {
        let mut attempts = self.transaction();
        loop {
            let mut session = attempts.begin().await?;
            let ended = attempts.run(self.end_sessions_in(&mut session, filter, now)).await;
            if let Some(ended) = attempts.end(session, ended).await? {
                return Ok(ended);
            }
        }
    }

    async fn end_sessions_in(
        &self,
        session: &mut ClientSession,
        filter: &Document,
        now: Timestamp,
    ) -> Result<usize, Stop> {
        let sessions = &self.collections.sessions;
        let mut cursor = sessions.find(filter.clone()).limit(ENDED_AT_ONCE).session(&mut *session).await?;
        let (mut ids, mut live) = (Vec::new(), Vec::new());
        while let Some(document) = cursor.next(session).await {
            let document = document?;
            ids.extend(document.get("_id").cloned());
            live.extend(self.live(Some(document), now).map(|(session, _)| session.session_id));
        }
        let count = ids.len();
        if count > 0 {
            sessions.delete_many(doc! { "_id": { "$in": ids } }).session(&mut *session).await?;
        }
        self.record(session, live.iter().map(|id| ChangeRef::SessionEnded(id, now))).await?;
        Ok(count)
    }
}

fn write_position(session: &Session) -> Position {
    let created_at = session.created_at.as_millis().to_be_bytes();
    Position([&created_at[..], session.session_id.as_str().as_bytes()].concat())
}

fn read_position(position: &Position) -> Result<(Timestamp, String)> {
    let (created_at, id) = position.0.split_first_chunk().ok_or(Refusal::InvalidCursor)?;
    let id = std::str::from_utf8(id).map_err(|_| Refusal::InvalidCursor)?;
    Ok((Timestamp::from_millis(i64::from_be_bytes(*created_at)), id.to_owned()))
}
