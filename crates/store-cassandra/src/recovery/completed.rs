//! Completed intents: the rows of finished operations are removed a moment later and many at a time, since each removal by
//! itself is a mutation.
//!
//! A crash leaves the intents of the operations that were finished in that moment: recovery finds everything of them done.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::intents::Intent;

/// Completed intents are removed after this time.
const REMOVED_AFTER: Duration = Duration::from_secs(1);
/// Intents that wait to be removed; beyond that they are removed at once.
const WAITING_MAX: usize = 2_048;

#[derive(Debug, Default)]
pub(crate) struct CompletedIntents(Mutex<Vec<Intent>>);

impl CompletedIntents {
    /// Adds an intent; returns when the caller has to remove what waits, if it has to.
    pub(crate) fn add(&self, intent: Intent) -> Option<Duration> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(intent);
        match waiting.len() {
            1 => Some(REMOVED_AFTER),
            WAITING_MAX => Some(Duration::ZERO),
            _ => None,
        }
    }

    /// Takes all that wait.
    pub(crate) fn take(&self) -> Vec<Intent> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
