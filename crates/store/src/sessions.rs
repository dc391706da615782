//! The contract of sessions. No read returns an expired session.

use std::collections::BTreeMap;

use mw_domain::carts::CartLifetime;
use mw_domain::sessions::SessionLifetime;
use mw_domain::{Cart, CartId, MergeMode, Session, SessionId, Timestamp, UserId};
use uuid::Uuid;

use crate::{Done, Page, PageRequest, RequestIdentity, Result};

#[derive(Debug, Clone)]
pub struct CreateSession {
    pub session: Session,
    /// The seed of the session's id, if the client sent no id. Two processes that may run the same request at once derive
    /// the id from the operation instead.
    pub id_seed: Option<Uuid>,
    pub now: Timestamp,
    pub identity: Option<RequestIdentity>,
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
    pub identity: Option<RequestIdentity>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedIn {
    pub session: Session,
    /// The user's active cart.
    pub cart: Option<Cart>,
}

#[async_trait::async_trait]
pub trait Sessions: Send + Sync {
    /// Refuses: `SessionBound` if a live session has the id.
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>>;

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>>;

    /// Refuses: `SessionNotFound`, `InvalidField` if the merged data exceeds the limits.
    async fn touch_session(&self, command: TouchSession) -> Result<Session>;

    /// A login counts as activity. Refuses: `SessionNotFound`, `SessionBound` if the session belongs to another user.
    async fn login(&self, command: Login) -> Result<Done<LoggedIn>>;

    /// Refuses: `SessionNotFound`.
    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()>;

    /// The user's live sessions, newest first; sessions of one instant by id, ascending.
    async fn user_sessions(
        &self,
        user_id: &UserId,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Session>>;

    /// Ends all sessions of the user.
    async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()>;
}
