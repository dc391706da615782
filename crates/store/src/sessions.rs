//! The promise of sessions. An expired session is not there.

use std::collections::BTreeMap;

use mw_domain::cart::CartLifetime;
use mw_domain::session::SessionLifetime;
use mw_domain::{Cart, CartId, MergeMode, Session, SessionId, Timestamp, UserId};
use uuid::Uuid;

use crate::{Done, Once, Page, PageRequest, Result};

#[derive(Debug, Clone)]
pub struct CreateSession {
    pub session: Session,
    /// What the session's id was made of, where it came without one. Where two processes may do the same request at once,
    /// the id is made of what they share instead.
    pub made_of: Option<Uuid>,
    pub now: Timestamp,
    pub once: Option<Once>,
}

/// Activity: slides the expiry, merges data (`None` removes a key).
#[derive(Debug, Clone)]
pub struct TouchSession {
    pub session_id: SessionId,
    pub data: BTreeMap<String, Option<String>>,
    pub lifetime: SessionLifetime,
    pub now: Timestamp,
}

/// Binds the user to the session and merges the guest's cart, as one change.
#[derive(Debug, Clone)]
pub struct Login {
    pub session_id: SessionId,
    pub user_id: UserId,
    pub mode: MergeMode,
    pub new_cart_id: CartId,
    pub session_lifetime: SessionLifetime,
    pub cart_lifetime: CartLifetime,
    pub now: Timestamp,
    pub once: Option<Once>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedIn {
    pub session: Session,
    /// The user's active cart.
    pub cart: Option<Cart>,
}

#[async_trait::async_trait]
pub trait Sessions: Send + Sync {
    /// Refuses: `SessionBound` where the id is live already.
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>>;

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>>;

    /// Refuses: `SessionNotFound`, `InvalidField` where the merged data is too much.
    async fn touch_session(&self, command: TouchSession) -> Result<Session>;

    /// Logging in counts as activity. Refuses: `SessionNotFound`, `SessionBound` where another user has it.
    async fn login(&self, command: Login) -> Result<Done<LoggedIn>>;

    /// Refuses: `SessionNotFound`.
    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()>;

    /// The user's live sessions, newest first; those of one instant by id, rising.
    async fn user_sessions(
        &self,
        user_id: &UserId,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Session>>;

    /// Ends all sessions of the user.
    async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()>;
}
