//! The intent of reserving units: the whole reservation, and the key of its request.

use mw_domain::Reservation;
use mw_store::RequestIdentity;

use crate::idempotency::{read_key, write_key};
use crate::stock::{read_reservation, write_reservation};
use crate::{Damaged, Reader, Writer};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReserveIntent {
    pub reservation: Reservation,
    pub identity: Option<RequestIdentity>,
}

pub fn encode(intent: &ReserveIntent) -> Vec<u8> {
    let mut writer = Writer::new(128);
    write_reservation(&mut writer, &intent.reservation);
    writer.optional(intent.identity.as_ref(), |writer, identity| {
        writer.time(identity.keep_until);
        write_key(writer, identity);
    });
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<ReserveIntent, Damaged> {
    let mut reader = Reader::new(bytes, "reserve intent")?;
    let reservation = read_reservation(&mut reader)?;
    let identity = reader.optional(|reader| {
        let keep_until = reader.time()?;
        read_key(reader, keep_until)
    })?;
    reader.end()?;
    Ok(ReserveIntent { reservation, identity })
}
