//! Positions in the change feed: how far each lane was read.
//!
//! A lane that is not in a position has either ended and was read whole, or it began later; the time of the position tells which.

use mw_codec::{Damaged, Reader, Writer};
use mw_domain::Timestamp;
use mw_store::{Position, Refusal, Result};
use uuid::Uuid;

/// Lanes of a position at most.
const LANES_MAX: usize = 10_000;

/// The next change of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LanePosition {
    /// The first half of the lane's id.
    pub(super) lane: u64,
    pub(super) number: i64,
    /// How many subjects of the row were read already.
    pub(super) index: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FeedPosition {
    /// Lanes that began before it and are not listed have ended and were read.
    pub(super) since: Timestamp,
    pub(super) lanes: Vec<LanePosition>,
}

pub(super) const fn short_id(lane: Uuid) -> u64 {
    lane.as_u64_pair().0
}

impl FeedPosition {
    pub(super) fn encode(&self) -> Position {
        let mut writer = Writer::new(16 + self.lanes.len() * 14);
        writer.time(self.since);
        writer.unsigned(self.lanes.len() as u64);
        for LanePosition { lane, number, index } in &self.lanes {
            writer.bytes(&lane.to_be_bytes());
            writer.signed(*number);
            writer.unsigned(*index as u64);
        }
        Position(writer.done())
    }

    pub(super) fn decode(Position(bytes): &Position) -> Result<Self> {
        let read = || -> Result<Self, Damaged> {
            let mut reader = Reader::new(bytes, "feed position")?;
            let since = reader.time()?;
            let lanes = reader.list(|reader| {
                let lane = u64::from_be_bytes(reader.array()?);
                let number = reader.signed()?;
                let index = usize::try_from(reader.unsigned()?).map_err(|_| reader.damaged())?;
                Ok(LanePosition { lane, number, index })
            })?;
            reader.end()?;
            Ok(Self { since, lanes })
        };
        let is_valid =
            |it: &Self| it.lanes.len() <= LANES_MAX && it.lanes.iter().all(|lane| lane.number >= 0);
        Ok(read().ok().filter(is_valid).ok_or(Refusal::InvalidCursor)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_read_back_and_other_bytes_are_refused() {
        let lanes = vec![
            LanePosition { lane: u64::MAX, number: 0, index: 3 },
            LanePosition { lane: 7, number: 1 << 40, index: 0 },
        ];
        let position = FeedPosition { since: Timestamp::from_millis(-5), lanes };
        assert_eq!(FeedPosition::decode(&position.encode()), Ok(position.clone()));
        let Position(bytes) = position.encode();
        for bytes in [vec![], vec![0xff; 3], bytes[1..].to_vec(), [bytes, vec![0]].concat()] {
            assert_eq!(FeedPosition::decode(&Position(bytes)), Err(Refusal::InvalidCursor.into()));
        }
    }
}
