//! Keys and the first answers they remember.

use mw_domain::Timestamp;

use super::State;
use crate::once::{Outcome, Remembered};
use crate::{Done, Once, Refusal, Result};

impl State {
    /// The answer to give again, read out of what the key remembers; `None` where the key is free or there is none.
    pub(super) fn recall<T>(
        &self,
        once: Option<&Once>,
        now: Timestamp,
        read: impl FnOnce(&Outcome) -> Option<T>,
    ) -> Result<Option<Done<T>>> {
        let Some(once) = once else { return Ok(None) };
        let Some(known) = self.remembered.get(&once.key) else {
            return Ok(None);
        };
        if now >= known.once.keep_until {
            return Ok(None);
        }
        if known.once.fingerprint != once.fingerprint {
            return Err(Refusal::KeyReused.into());
        }
        // One fingerprint is one request, so an answer of another kind belongs to another request.
        let value = read(&known.outcome).ok_or(Refusal::KeyReused)?;
        Ok(Some(Done::again(value)))
    }

    pub(super) fn remember(&mut self, once: Option<Once>, outcome: impl FnOnce() -> Outcome) {
        if let Some(once) = once {
            let outcome = outcome();
            self.remembered.insert(once.key.clone(), Remembered { once, outcome });
        }
    }
}
