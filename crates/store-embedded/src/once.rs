//! Doing a keyed command once: the key and what it remembers are written together with the effect.

use mw_codec::Damaged;
use mw_domain::{Order, Timestamp};
use mw_store::once::Outcome;
use mw_store::{Done, Once, Refusal, Result, StoreError};

use crate::tables::Table;
use crate::tx::Tx;
use crate::view::Look;

/// What a command answers, as a key remembers it.
pub(crate) trait Answer: Sized {
    fn remember(&self) -> Outcome;

    /// `None` where the key remembers something else, which its fingerprint rules out.
    fn recall(look: &dyn Look, outcome: Outcome) -> Result<Option<Self>>;
}

/// Runs `command` unless its key has a success already, which is answered again.
pub(crate) fn run<T: Answer>(
    tx: &mut Tx,
    once: Option<Once>,
    now: Timestamp,
    command: impl FnOnce(&mut Tx) -> Result<T>,
) -> Result<Done<T>> {
    let Some(once) = once else {
        return command(tx).map(Done::first);
    };
    let key = once.key.as_str().as_bytes().to_vec();
    if let Some(row) = tx.get(Table::Remembered, &key)? {
        let known = mw_codec::once::decode(&row)?;
        if now < known.once.keep_until {
            if known.once.fingerprint != once.fingerprint {
                return Err(Refusal::KeyReused.into());
            }
            let value = T::recall(tx, known.outcome)?;
            return value.map(Done::again).ok_or_else(|| Damaged("idempotency key").into());
        }
    }
    let value = command(tx)?;
    tx.put(Table::Remembered, key, mw_codec::once::encode(&once, &value.remember()));
    Ok(Done::first(value))
}

macro_rules! remembered_whole {
    ($($answer:ty => $outcome:ident),* $(,)?) => {$(
        impl Answer for $answer {
            fn remember(&self) -> Outcome {
                Outcome::$outcome(self.clone())
            }

            fn recall(_: &dyn Look, outcome: Outcome) -> Result<Option<Self>> {
                Ok(match outcome {
                    Outcome::$outcome(value) => Some(value),
                    _ => None,
                })
            }
        }
    )*};
}

remembered_whole! {
    mw_domain::Cart => Cart,
    mw_domain::Session => Session,
    mw_domain::ZoneStock => Stock,
    mw_domain::Reservation => Reservation,
    mw_store::carts::Merged => Merged,
    mw_store::sessions::LoggedIn => LoggedIn,
    Order => Order,
}

/// A placed order is remembered by its id: what can change of it is known.
pub(crate) struct Placed(pub(crate) Order);

impl Answer for Placed {
    fn remember(&self) -> Outcome {
        Outcome::Placed(self.0.order_id)
    }

    fn recall(look: &dyn Look, outcome: Outcome) -> Result<Option<Self>> {
        let Outcome::Placed(order_id) = outcome else {
            return Ok(None);
        };
        let order = crate::orders::read(look, order_id)?.ok_or_else(|| {
            StoreError::Corrupt(format!("an idempotency key names order {order_id}, which is not there"))
        })?;
        Ok(Some(Self(order.as_placed())))
    }
}

impl Answer for mw_store::products::Imported {
    fn remember(&self) -> Outcome {
        Outcome::Imported { product_id: self.product_id.clone(), created: self.created }
    }

    fn recall(_: &dyn Look, outcome: Outcome) -> Result<Option<Self>> {
        Ok(match outcome {
            Outcome::Imported { product_id, created } => Some(Self { product_id, created }),
            _ => None,
        })
    }
}
