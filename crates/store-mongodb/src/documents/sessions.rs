//! Sessions: a collection of the engine's own. `rev` is another value after every change.

use std::collections::BTreeMap;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};
use mw_domain::{GeoZone, Session, SessionId, UserId};

use super::Unreadable;
use super::fields::{first, optional, required, text, time};
use super::ids::{read_id, to_bson_id};
use super::times::to_bson_time;

pub(crate) fn write(session: &Session) -> Document {
    let mut document = doc! { "_id": session.session_id.as_str(), "rev": ObjectId::new() };
    if let Some(user_id) = &session.user_id {
        document.insert("user_id", to_bson_id(user_id.as_str()));
    }
    let texts = [
        ("geo_zone", session.geo_zone.as_ref().map(GeoZone::as_str)),
        ("ip", session.ip.as_deref()),
        ("user_agent", session.user_agent.as_deref()),
        ("device_type", session.device_type.as_deref()),
    ];
    for (field, text) in texts {
        if let Some(text) = text {
            document.insert(field, text);
        }
    }
    let data = session.data.iter().map(|(key, value)| Bson::from(doc! { "key": key, "value": value }));
    document.insert("data", data.collect::<Vec<_>>());
    document.insert("created_at", to_bson_time(session.created_at));
    document.insert("last_activity", to_bson_time(session.last_activity));
    document.insert("expires_at", to_bson_time(session.expires_at));
    document
}

pub(crate) fn read(document: &Document) -> Result<Session, Unreadable> {
    Ok(Session {
        session_id: required(document, &["_id"], |id| SessionId::parse(id.as_str()?).ok())?,
        user_id: optional(document, &["user_id"], |id| read_id(id, UserId::parse))?,
        geo_zone: optional(document, &["geo_zone"], |zone| GeoZone::parse(zone.as_str()?).ok())?,
        ip: text(document, &["ip"])?,
        user_agent: text(document, &["user_agent"])?,
        device_type: text(document, &["device_type"])?,
        data: read_data(document)?,
        created_at: time(document, &["created_at"])?,
        last_activity: time(document, &["last_activity"])?,
        expires_at: time(document, &["expires_at"])?,
    })
}

fn read_data(document: &Document) -> Result<BTreeMap<String, String>, Unreadable> {
    let Some(Bson::Array(pairs)) = first(document, &["data"]) else { return Ok(BTreeMap::new()) };
    let read = |pair: &Bson| {
        let pair = pair.as_document()?;
        Some((pair.get_str("key").ok()?.to_owned(), pair.get_str("value").ok()?.to_owned()))
    };
    pairs.iter().map(read).collect::<Option<_>>().ok_or(Unreadable::invalid("data"))
}

#[cfg(test)]
mod tests {
    use mw_domain::Timestamp;

    use super::*;

    #[test]
    fn a_session_reads_back() {
        let session = Session {
            session_id: SessionId::parse("507f1f77bcf86cd799439011").unwrap(),
            user_id: UserId::parse("507f1f77bcf86cd799439011").ok(),
            geo_zone: GeoZone::parse("north").ok(),
            ip: Some("::1".to_owned()),
            user_agent: None,
            device_type: Some("phone".to_owned()),
            data: [("a.b".to_owned(), "$1".to_owned())].into(),
            created_at: Timestamp::from_millis(1),
            last_activity: Timestamp::from_millis(2),
            expires_at: Timestamp::from_millis(3),
        };
        let document = write(&session);
        assert_eq!(read(&document), Ok(session));
        assert!(document.get_str("_id").is_ok(), "a session id is text, whatever it looks like");
        let guest = doc! { "_id": "s", "created_at": to_bson_time(Timestamp::EPOCH),
        "last_activity": to_bson_time(Timestamp::EPOCH), "expires_at": to_bson_time(Timestamp::EPOCH) };
        assert_eq!(read(&guest).unwrap().user_id, None);
    }
}
