//! Sessions in JSON.

use std::collections::BTreeMap;

use mw_domain::{GeoZone, Owner, Session, SessionId, Timestamp, UserId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::carts::{CartView, ModeBody};
use super::scalars::At;
use super::{schema, take};

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct SessionView<'a> {
    #[schema(value_type = schema::Name)]
    session_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Name, required = false)]
    user_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Name, required = false)]
    geo_zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    ip: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    user_agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    device_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    data: Option<&'a BTreeMap<String, String>>,
    #[schema(value_type = schema::Time)]
    created_at: At,
    #[schema(value_type = schema::Time)]
    last_activity: At,
    #[schema(value_type = schema::Time)]
    expires_at: At,
}

impl<'a> From<&'a Session> for SessionView<'a> {
    fn from(session: &'a Session) -> Self {
        Self {
            session_id: session.session_id.as_str(),
            user_id: session.user_id.as_ref().map(UserId::as_str),
            geo_zone: session.geo_zone.as_ref().map(GeoZone::as_str),
            ip: session.ip.as_deref(),
            user_agent: session.user_agent.as_deref(),
            device_type: session.device_type.as_deref(),
            data: Some(&session.data).filter(|data| !data.is_empty()),
            created_at: At(session.created_at),
            last_activity: At(session.last_activity),
            expires_at: At(session.expires_at),
        }
    }
}

impl SessionView<'_> {
    /// About as many bytes as the JSON has.
    pub(crate) fn size(&self) -> usize {
        512 + self.data.map_or(0, BTreeMap::len) * 64
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LoggedIn)]
pub(crate) struct LoggedInView<'a> {
    #[schema(value_type = SessionView)]
    session: SessionView<'a>,
    /// The user's active cart.
    #[schema(value_type = CartView)]
    cart: CartView<'a>,
}

impl<'a> LoggedInView<'a> {
    pub(crate) fn new(logged_in: &'a mw_store::sessions::LoggedIn, user: &'a Owner) -> Self {
        Self { session: (&logged_in.session).into(), cart: CartView::of(logged_in.cart.as_ref(), user) }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateSession)]
pub(crate) struct SessionBody {
    /// Made by the service, unguessable, where it is absent.
    #[serde(default, deserialize_with = "take::optional_id")]
    #[schema(value_type = Option<schema::Name>)]
    pub(crate) session_id: Option<SessionId>,
    #[serde(default, deserialize_with = "take::optional_id")]
    #[schema(value_type = Option<schema::Name>)]
    user_id: Option<UserId>,
    #[serde(default, deserialize_with = "take::optional_id")]
    #[schema(value_type = Option<schema::Name>)]
    geo_zone: Option<GeoZone>,
    #[serde(default, deserialize_with = "take::optional_text")]
    #[schema(max_length = 1_024)]
    ip: Option<String>,
    #[serde(default, deserialize_with = "take::optional_text")]
    #[schema(max_length = 1_024)]
    user_agent: Option<String>,
    #[serde(default, deserialize_with = "take::optional_text")]
    #[schema(max_length = 1_024)]
    device_type: Option<String>,
    /// At most 64; keys of 1 to 64 characters, values of up to 1024.
    data: Option<BTreeMap<String, String>>,
}

impl SessionBody {
    pub(crate) fn session(self, session_id: SessionId, now: Timestamp, expires_at: Timestamp) -> Session {
        Session {
            session_id,
            user_id: self.user_id,
            geo_zone: self.geo_zone,
            ip: self.ip,
            user_agent: self.user_agent,
            device_type: self.device_type,
            data: self.data.unwrap_or_default(),
            created_at: now,
            last_activity: now,
            expires_at,
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TouchSession)]
pub(crate) struct TouchBody {
    /// Merged into what is there; null removes a key.
    pub(crate) data: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Login)]
pub(crate) struct LoginBody {
    #[serde(deserialize_with = "take::id")]
    #[schema(value_type = schema::Name)]
    pub(crate) user_id: UserId,
    pub(crate) merge_mode: Option<ModeBody>,
}
