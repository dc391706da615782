//! The frames of the internal listener: bytes of the handshake, of forwarded commands and of their decisions.
//!
//! A frame is its length (four bytes, big-endian) and a body of at most [`FRAME_MAX`] bytes, which begins with the version
//! and the kind of the frame. The fixtures hold a body of every kind; a process of another version is refused in the
//! handshake, and its commands are decided where they were submitted.

use mw_codec::{Damaged, Reader, Writer};
use mw_domain::{GeoZone, Level, ProductId, Timestamp, ZoneStock};
use mw_store::{Result as StoreResult, StoreError};
use uuid::Uuid;

use super::handshake::{NONCE_BYTES, PROOF_BYTES};
use crate::stock::decision::{Decision, StockKey};
use crate::stock::ledger::{LedgerState, Transition};

/// The longest body of a frame.
pub(super) const FRAME_MAX: usize = 1 << 20;
/// Commands or decisions of one frame: so many of the longest fit into it.
pub(super) const ITEMS_MAX: usize = 1_024;
/// Bytes of the text of an error.
const ERROR_BYTES_MAX: usize = 512;
/// Bytes of a command or decision without its texts.
const ITEM_BYTES_MAX: usize = 128;
const _: () = assert!(
    ITEMS_MAX * (ITEM_BYTES_MAX + ERROR_BYTES_MAX) < FRAME_MAX
        && ITEMS_MAX * (ITEM_BYTES_MAX + 2 * mw_domain::limits::ID_BYTES_MAX) < FRAME_MAX
);

/// Microseconds since the listener of a process started, by its monotonic clock.
pub(super) type Stamp = u64;

/// One frame. The handshake is [`Frame::Challenge`], [`Frame::Hello`], [`Frame::Welcome`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Frame {
    /// From the listener: who it is, and what to prove knowledge of the token on.
    Challenge {
        process: Uuid,
        nonce: [u8; NONCE_BYTES],
    },
    Hello {
        process: Uuid,
        nonce: [u8; NONCE_BYTES],
        proof: [u8; PROOF_BYTES],
    },
    Welcome {
        proof: [u8; PROOF_BYTES],
        stamp: Stamp,
    },
    /// `seen` is the newest stamp that the sender had received: the commands are no older than it.
    Commands {
        seen: Stamp,
        commands: Vec<ForwardedCommand>,
    },
    /// Without decisions it only says that the listener is alive, and what time it is there.
    Decisions {
        stamp: Stamp,
        decisions: Vec<(u64, Outcome)>,
    },
}

/// A command on its way to the owner; `id` is that of its decision.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ForwardedCommand {
    pub(super) id: u64,
    pub(super) stock_key: StockKey,
    pub(super) now: Timestamp,
    pub(super) action: Action,
}

/// The commands that are forwarded: each can be submitted twice and counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// `started_after`: a stamp of the owner that the submitting process had received when it created the operation.
    Hold {
        until: Timestamp,
        op_id: Uuid,
        quantity: u32,
        started_after: Option<Stamp>,
    },
    Advance {
        until: Timestamp,
        op_id: Uuid,
        quantity: u32,
        transition: Transition,
    },
    RaiseEarliestHoldEnd,
}

/// What became of a forwarded command. The partition is that of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Done { state: Option<LedgerState>, level: Level, updated_at: Timestamp },
    Short { available: u64 },
    ExpireHoldsFirst,
    Failed(StoreError),
}

impl Outcome {
    pub(super) fn of(decided: StoreResult<Decision>) -> Self {
        match decided {
            Ok(Decision::Done { state, stock }) => {
                Self::Done { state, level: stock.level, updated_at: stock.updated_at }
            }
            Ok(Decision::Short { available }) => Self::Short { available },
            Ok(Decision::ExpireHoldsFirst) => Self::ExpireHoldsFirst,
            Ok(other) => Self::Failed(other.unexpected()),
            Err(error) => Self::Failed(error),
        }
    }

    pub(super) fn decision(self, stock_key: &StockKey) -> StoreResult<Decision> {
        match self {
            Self::Done { state, level, updated_at } => {
                let StockKey { product_id, geo_zone } = stock_key.clone();
                Ok(Decision::Done { state, stock: ZoneStock { product_id, geo_zone, level, updated_at } })
            }
            Self::Short { available } => Ok(Decision::Short { available }),
            Self::ExpireHoldsFirst => Ok(Decision::ExpireHoldsFirst),
            Self::Failed(error) => Err(error),
        }
    }
}

impl Frame {
    /// The body, without its length.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(64);
        match self {
            Self::Challenge { process, nonce } => {
                writer.byte(0);
                writer.bytes(process.as_bytes());
                writer.bytes(nonce);
            }
            Self::Hello { process, nonce, proof } => {
                writer.byte(1);
                writer.bytes(process.as_bytes());
                writer.bytes(nonce);
                writer.bytes(proof);
            }
            Self::Welcome { proof, stamp } => {
                writer.byte(2);
                writer.bytes(proof);
                writer.unsigned(*stamp);
            }
            Self::Commands { seen, commands } => {
                writer.byte(3);
                writer.unsigned(*seen);
                writer.unsigned(commands.len() as u64);
                for command in commands {
                    command.write(&mut writer);
                }
            }
            Self::Decisions { stamp, decisions } => {
                writer.byte(4);
                writer.unsigned(*stamp);
                writer.unsigned(decisions.len() as u64);
                for (id, outcome) in decisions {
                    writer.unsigned(*id);
                    outcome.write(&mut writer);
                }
            }
        }
        writer.done()
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(body, "internal frame")?;
        let frame = match reader.byte()? {
            0 => Self::Challenge { process: read_uuid(&mut reader)?, nonce: reader.array()? },
            1 => Self::Hello {
                process: read_uuid(&mut reader)?,
                nonce: reader.array()?,
                proof: reader.array()?,
            },
            2 => Self::Welcome { proof: reader.array()?, stamp: reader.unsigned()? },
            3 => Self::Commands { seen: reader.unsigned()?, commands: reader.list(ForwardedCommand::read)? },
            4 => Self::Decisions {
                stamp: reader.unsigned()?,
                decisions: reader.list(|reader| Ok((reader.unsigned()?, Outcome::read(reader)?)))?,
            },
            _ => return Err(reader.damaged()),
        };
        reader.end()?;
        Ok(frame)
    }
}

impl ForwardedCommand {
    fn write(&self, writer: &mut Writer) {
        writer.unsigned(self.id);
        writer.text(self.stock_key.product_id.as_str());
        writer.text(self.stock_key.geo_zone.as_str());
        writer.time(self.now);
        match &self.action {
            Action::Hold { until, op_id, quantity, started_after } => {
                writer.byte(0);
                writer.time(*until);
                writer.bytes(op_id.as_bytes());
                writer.unsigned(u64::from(*quantity));
                writer.optional(started_after.as_ref(), |writer, stamp| writer.unsigned(*stamp));
            }
            Action::Advance { until, op_id, quantity, transition } => {
                writer.byte(1);
                writer.time(*until);
                writer.bytes(op_id.as_bytes());
                writer.unsigned(u64::from(*quantity));
                writer.byte(transition_byte(*transition));
            }
            Action::RaiseEarliestHoldEnd => writer.byte(2),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Damaged> {
        Ok(Self {
            id: reader.unsigned()?,
            stock_key: StockKey {
                product_id: reader.id(ProductId::parse)?,
                geo_zone: reader.id(GeoZone::parse)?,
            },
            now: reader.time()?,
            action: match reader.byte()? {
                0 => Action::Hold {
                    until: reader.time()?,
                    op_id: read_uuid(reader)?,
                    quantity: reader.small()?,
                    started_after: reader.optional(Reader::unsigned)?,
                },
                1 => Action::Advance {
                    until: reader.time()?,
                    op_id: read_uuid(reader)?,
                    quantity: reader.small()?,
                    transition: read_transition(reader)?,
                },
                2 => Action::RaiseEarliestHoldEnd,
                _ => return Err(reader.damaged()),
            },
        })
    }
}

impl Outcome {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Done { state, level, updated_at } => {
                writer.byte(0);
                writer.optional(state.as_ref(), |writer, state| writer.byte(state_byte(*state)));
                writer.unsigned(level.on_hand);
                writer.unsigned(level.reserved);
                writer.time(*updated_at);
            }
            Self::Short { available } => {
                writer.byte(1);
                writer.unsigned(*available);
            }
            Self::ExpireHoldsFirst => writer.byte(2),
            Self::Failed(StoreError::Overloaded) => writer.byte(3),
            Self::Failed(StoreError::Unavailable(text)) => {
                writer.byte(4);
                writer.text(truncated(text));
            }
            Self::Failed(StoreError::Ambiguous(text)) => {
                writer.byte(5);
                writer.text(truncated(text));
            }
            Self::Failed(StoreError::Corrupt(text)) => {
                writer.byte(6);
                writer.text(truncated(text));
            }
            // Every other error promises that nothing was applied.
            Self::Failed(error) => {
                writer.byte(4);
                writer.text(truncated(&error.to_string()));
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Damaged> {
        Ok(match reader.byte()? {
            0 => Self::Done {
                state: reader.optional(read_state)?,
                level: Level { on_hand: reader.unsigned()?, reserved: reader.unsigned()? },
                updated_at: reader.time()?,
            },
            1 => Self::Short { available: reader.unsigned()? },
            2 => Self::ExpireHoldsFirst,
            3 => Self::Failed(StoreError::Overloaded),
            4 => Self::Failed(StoreError::Unavailable(reader.text()?.to_owned())),
            5 => Self::Failed(StoreError::Ambiguous(reader.text()?.to_owned())),
            6 => Self::Failed(StoreError::Corrupt(reader.text()?.to_owned())),
            _ => return Err(reader.damaged()),
        })
    }
}

fn read_uuid(reader: &mut Reader<'_>) -> Result<Uuid, Damaged> {
    reader.array().map(Uuid::from_bytes)
}

/// The beginning of a text, at most [`ERROR_BYTES_MAX`] bytes.
fn truncated(text: &str) -> &str {
    text.get(..text.floor_char_boundary(ERROR_BYTES_MAX)).unwrap_or_default()
}

const TRANSITIONS: [Transition; 5] = [
    Transition::Take,
    Transition::Release,
    Transition::ReleaseOrVoid,
    Transition::VoidIfAbsent,
    Transition::Return,
];

const fn transition_byte(transition: Transition) -> u8 {
    match transition {
        Transition::Take => 0,
        Transition::Release => 1,
        Transition::ReleaseOrVoid => 2,
        Transition::VoidIfAbsent => 3,
        Transition::Return => 4,
    }
}

fn read_transition(reader: &mut Reader<'_>) -> Result<Transition, Damaged> {
    let byte = reader.byte()?;
    let found = TRANSITIONS.into_iter().find(|transition| transition_byte(*transition) == byte);
    found.ok_or(reader.damaged())
}

const fn state_byte(state: LedgerState) -> u8 {
    match state {
        LedgerState::Held => 0,
        LedgerState::Taken => 1,
        LedgerState::Released => 2,
        LedgerState::Returned => 3,
        LedgerState::Void => 4,
        LedgerState::Set => 5,
        LedgerState::Adjusted => 6,
    }
}

fn read_state(reader: &mut Reader<'_>) -> Result<LedgerState, Damaged> {
    let byte = reader.byte()?;
    let found = LedgerState::ALL.into_iter().find(|state| state_byte(*state) == byte);
    found.ok_or(reader.damaged())
}

#[cfg(test)]
mod tests;
