//! Idempotency keys of the model and the outcomes stored under them.

use mw_domain::Timestamp;

use super::State;
use crate::idempotency::{Outcome, StoredOutcome, StoredValue};
use crate::{Done, Refusal, RequestIdentity, Result};

impl State {
    /// The stored outcome of a repeated request; `None` if its key is free or it has no key.
    pub(super) fn replay<T: StoredValue>(
        &self,
        identity: Option<&RequestIdentity>,
        now: Timestamp,
    ) -> Result<Option<Done<T>>> {
        self.replay_with(identity, now, |outcome| T::from_outcome(outcome.clone()))
    }

    pub(super) fn replay_with<T>(
        &self,
        identity: Option<&RequestIdentity>,
        now: Timestamp,
        read: impl FnOnce(&Outcome) -> Option<T>,
    ) -> Result<Option<Done<T>>> {
        let Some(identity) = identity else { return Ok(None) };
        let Some(known) = self.stored_outcomes.get(&identity.key) else {
            return Ok(None);
        };
        if now >= known.identity.keep_until {
            return Ok(None);
        }
        if known.identity.fingerprint != identity.fingerprint {
            return Err(Refusal::KeyReused.into());
        }
        // One fingerprint is one request, so an outcome of another kind belongs to another request.
        let value = read(&known.outcome).ok_or(Refusal::KeyReused)?;
        Ok(Some(Done::replay(value)))
    }

    pub(super) fn store_outcome(
        &mut self,
        identity: Option<RequestIdentity>,
        outcome: impl FnOnce() -> Outcome,
    ) {
        if let Some(identity) = identity {
            let outcome = outcome();
            self.stored_outcomes.insert(identity.key.clone(), StoredOutcome { identity, outcome });
        }
    }
}
