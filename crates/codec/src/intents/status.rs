//! The intent of changing an order's status: the version and token of the change, and the movement of the order's units.

use mw_domain::OrderId;
use mw_domain::stock::Cause;
use uuid::Uuid;

use crate::{Damaged, Reader, Writer};

/// The status itself is in the order's row, if the change was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusIntent {
    pub order_id: OrderId,
    /// The version of the order after the change.
    pub version: i64,
    /// The token in the event of the change.
    pub op_token: Uuid,
    /// Why the units move; `None` where they stay.
    pub cause: Option<Cause>,
}

pub fn encode(intent: &StatusIntent) -> Vec<u8> {
    let mut writer = Writer::new(48);
    writer.bytes(intent.order_id.as_bytes());
    writer.signed(intent.version);
    writer.bytes(intent.op_token.as_bytes());
    writer.byte(match intent.cause {
        Some(Cause::Take) => 1,
        Some(Cause::Release) => 2,
        Some(Cause::Return) => 3,
        // No status change holds, sets or adjusts units.
        Some(Cause::Hold | Cause::Set | Cause::Adjust) | None => 0,
    });
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<StatusIntent, Damaged> {
    let mut reader = Reader::new(bytes, "status intent")?;
    let order_id = OrderId::from_bytes(reader.array()?);
    let version = reader.signed()?;
    let op_token = Uuid::from_bytes(reader.array()?);
    let cause = match reader.byte()? {
        0 => None,
        1 => Some(Cause::Take),
        2 => Some(Cause::Release),
        3 => Some(Cause::Return),
        _ => return Err(reader.damaged()),
    };
    reader.end()?;
    Ok(StatusIntent { order_id, version, op_token, cause })
}
