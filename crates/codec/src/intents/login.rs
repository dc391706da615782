//! The intent of a login that has a guest's cart to merge.

use mw_domain::SessionId;

use super::merge::{MergeSpec, read_spec, write_spec};
use crate::{Damaged, Reader, Writer};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginIntent {
    pub session_id: SessionId,
    pub merge: MergeSpec,
}

pub fn encode(intent: &LoginIntent) -> Vec<u8> {
    let mut writer = Writer::new(128);
    writer.text(intent.session_id.as_str());
    write_spec(&mut writer, &intent.merge);
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<LoginIntent, Damaged> {
    let mut reader = Reader::new(bytes, "login intent")?;
    let session_id = reader.id(SessionId::parse)?;
    let merge = read_spec(&mut reader)?;
    reader.end()?;
    Ok(LoginIntent { session_id, merge })
}
