//! The intent of confirming or releasing a reservation: the reservation as it was read, and what it is to become.

use mw_domain::{Reservation, Timestamp};

use crate::stock::{read_reservation, write_reservation};
use crate::{Damaged, Reader, Writer};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseIntent {
    /// With the requested status.
    pub requested: Reservation,
    pub now: Timestamp,
}

pub fn encode(intent: &CloseIntent) -> Vec<u8> {
    let mut writer = Writer::new(128);
    write_reservation(&mut writer, &intent.requested);
    writer.time(intent.now);
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<CloseIntent, Damaged> {
    let mut reader = Reader::new(bytes, "close intent")?;
    let requested = read_reservation(&mut reader)?;
    let now = reader.time()?;
    reader.end()?;
    Ok(CloseIntent { requested, now })
}
