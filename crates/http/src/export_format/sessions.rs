//! Sessions.

use std::collections::BTreeMap;

use mw_domain::{GeoZone, Session, SessionId, Timestamp, UserId};
use serde::{Deserialize, Serialize};

use super::form::{form, one, optional};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Session", deny_unknown_fields)]
struct SessionForm {
    #[serde(with = "one")]
    session_id: SessionId,
    #[serde(with = "optional", default, skip_serializing_if = "Option::is_none")]
    user_id: Option<UserId>,
    #[serde(with = "optional", default, skip_serializing_if = "Option::is_none")]
    geo_zone: Option<GeoZone>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_type: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    data: BTreeMap<String, String>,
    #[serde(with = "one")]
    created_at: Timestamp,
    #[serde(with = "one")]
    last_activity: Timestamp,
    #[serde(with = "one")]
    expires_at: Timestamp,
}
form!(Session as SessionForm);
