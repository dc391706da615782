//! Sessions: creating, activity, login with the merge of the guest's cart, ending.

use std::collections::BTreeMap;

use mw_domain::{GeoZone, MergeMode, Session, SessionId, UserId};
use mw_store::sessions::{CreateSession, LoggedIn, Login, TouchSession};
use mw_store::{Done, Page, PageRequest, Result};

use crate::{KeyedRequest, Shop};

/// A session that a caller wants to create.
#[derive(Debug, Clone)]
pub struct SessionDraft {
    /// `None`: the shop makes an unguessable one.
    pub session_id: Option<SessionId>,
    pub user_id: Option<UserId>,
    pub geo_zone: Option<GeoZone>,
    pub ip: Option<String>,
    pub user_agent: Option<String>,
    pub device_type: Option<String>,
    pub data: BTreeMap<String, String>,
}

impl Shop {
    /// Refuses, besides what the store refuses: `InvalidField` where the draft breaks a limit.
    pub async fn create_session(
        &self,
        draft: SessionDraft,
        request: Option<KeyedRequest>,
    ) -> Result<Done<Session>> {
        let (session_id, id_seed) = if let Some(session_id) = draft.session_id {
            (session_id, None)
        } else {
            let seed = self.ids.session_seed();
            (SessionId::from_seed(seed), Some(seed))
        };
        let now = self.now();
        let session = Session {
            session_id,
            user_id: draft.user_id,
            geo_zone: draft.geo_zone,
            ip: draft.ip,
            user_agent: draft.user_agent,
            device_type: draft.device_type,
            data: draft.data,
            created_at: now,
            last_activity: now,
            expires_at: now.plus_millis(self.settings.sessions.ttl_ms),
        };
        session.check()?;
        let identity = request.map(|request| request.identity(now));
        self.store.create_session(CreateSession { session, id_seed, now, identity }).await
    }

    pub async fn session(&self, session_id: &SessionId) -> Result<Option<Session>> {
        self.store.session(session_id, self.now()).await
    }

    /// Activity: slides the expiry and merges `data`, of which `None` removes a key.
    pub async fn touch_session(
        &self,
        session_id: SessionId,
        data: BTreeMap<String, Option<String>>,
    ) -> Result<Session> {
        let command = TouchSession { session_id, data, lifetime: self.settings.sessions, now: self.now() };
        self.store.touch_session(command).await
    }

    /// Binds the user to the session and merges the guest's cart into the user's.
    pub async fn login(
        &self,
        session_id: SessionId,
        user_id: UserId,
        mode: MergeMode,
        request: Option<KeyedRequest>,
    ) -> Result<Done<LoggedIn>> {
        let now = self.now();
        let command = Login {
            session_id,
            user_id,
            mode,
            new_cart_id: self.ids.cart(),
            session_lifetime: self.settings.sessions,
            cart_lifetime: self.settings.carts,
            now,
            identity: request.map(|request| request.identity(now)),
        };
        self.store.login(command).await
    }

    pub async fn delete_session(&self, session_id: &SessionId) -> Result<()> {
        self.store.delete_session(session_id, self.now()).await
    }

    /// The user's live sessions, newest first.
    pub async fn user_sessions(&self, user_id: &UserId, page: PageRequest) -> Result<Page<Session>> {
        self.store.user_sessions(user_id, self.now(), page).await
    }

    pub async fn revoke_sessions(&self, user_id: &UserId) -> Result<()> {
        self.store.revoke_sessions(user_id, self.now()).await
    }
}
