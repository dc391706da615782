//! Stored sessions.

use mw_domain::{GeoZone, Session, SessionId, Timestamp, UserId};

use crate::{Damaged, Reader, Writer};

pub fn encode(session: &Session) -> Vec<u8> {
    let mut writer = Writer::expiring(160, session.expires_at);
    write(&mut writer, session);
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<Session, Damaged> {
    let (mut reader, _) = Reader::expiring(bytes, "session")?;
    let session = read(&mut reader)?;
    reader.end()?;
    Ok(session)
}

/// A row that holds only its expiry.
pub fn encode_until(expires_at: Timestamp) -> Vec<u8> {
    Writer::expiring(9, expires_at).done()
}

pub fn write(writer: &mut Writer, session: &Session) {
    writer.text(session.session_id.as_str());
    writer.optional_text(session.user_id.as_ref().map(UserId::as_str));
    writer.optional_text(session.geo_zone.as_ref().map(GeoZone::as_str));
    writer.optional_text(session.ip.as_deref());
    writer.optional_text(session.user_agent.as_deref());
    writer.optional_text(session.device_type.as_deref());
    writer.text_map(session.data.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    writer.time(session.created_at);
    writer.time(session.last_activity);
    writer.time(session.expires_at);
}

pub fn read(reader: &mut Reader<'_>) -> Result<Session, Damaged> {
    Ok(Session {
        session_id: reader.id(SessionId::parse)?,
        user_id: reader.optional(|reader| reader.id(UserId::parse))?,
        geo_zone: reader.optional(|reader| reader.id(GeoZone::parse))?,
        ip: reader.optional_text()?,
        user_agent: reader.optional_text()?,
        device_type: reader.optional_text()?,
        data: reader.text_map()?,
        created_at: reader.time()?,
        last_activity: reader.time()?,
        expires_at: reader.time()?,
    })
}
