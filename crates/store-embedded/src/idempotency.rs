//! Idempotent commands: the key and the outcome of a command are written together with its effect.

use mw_codec::Damaged;
use mw_domain::{Order, Timestamp};
use mw_store::idempotency::{Outcome, StoredValue};
use mw_store::{Done, Refusal, RequestIdentity, Result, StoreError};

use crate::reader::Reader;
use crate::tables::Table;
use crate::tx::Tx;

/// The value of a command, which a second request with its key gets again.
pub(crate) trait Replayable: Sized {
    fn to_outcome(&self) -> Outcome;

    /// `None` where the outcome is of another kind, which its fingerprint rules out.
    fn replay(reader: &dyn Reader, outcome: Outcome) -> Result<Option<Self>>;
}

impl<T: StoredValue> Replayable for T {
    fn to_outcome(&self) -> Outcome {
        StoredValue::to_outcome(self)
    }

    fn replay(_: &dyn Reader, outcome: Outcome) -> Result<Option<Self>> {
        Ok(T::from_outcome(outcome))
    }
}

/// A placed order is stored by its id: the order as it was placed follows from the order as it is.
pub(crate) struct Placed(pub(crate) Order);

impl Replayable for Placed {
    fn to_outcome(&self) -> Outcome {
        Outcome::Placed(self.0.order_id)
    }

    fn replay(reader: &dyn Reader, outcome: Outcome) -> Result<Option<Self>> {
        let Outcome::Placed(order_id) = outcome else {
            return Ok(None);
        };
        let order = crate::orders::read(reader, order_id)?.ok_or_else(|| {
            StoreError::Corrupt(format!(
                "read order {order_id}: an idempotency key names it, but it is not stored"
            ))
        })?;
        Ok(Some(Self(order.as_placed())))
    }
}

/// Runs `command`, unless a first outcome is stored under its key: that is replayed.
pub(crate) fn run<T: Replayable>(
    tx: &mut Tx,
    identity: Option<RequestIdentity>,
    now: Timestamp,
    command: impl FnOnce(&mut Tx) -> Result<T>,
) -> Result<Done<T>> {
    let Some(identity) = identity else {
        return command(tx).map(Done::first);
    };
    let key = identity.key.as_str().as_bytes().to_vec();
    if let Some(row) = tx.get(Table::IdempotencyKeys, &key)? {
        let known = mw_codec::idempotency::decode(&row)?;
        if now < known.identity.keep_until {
            if known.identity.fingerprint != identity.fingerprint {
                return Err(Refusal::KeyReused.into());
            }
            let value = T::replay(tx, known.outcome)?;
            return value.map(Done::replay).ok_or_else(|| Damaged("idempotency key").into());
        }
    }
    let value = command(tx)?;
    tx.put(Table::IdempotencyKeys, key, mw_codec::idempotency::encode(&identity, &value.to_outcome()));
    Ok(Done::first(value))
}
