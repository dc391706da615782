//! The ids the service makes: version 7 UUIDs, which rise with time also within one millisecond.

use std::sync::{Arc, Mutex, PoisonError};

use mw_domain::{CartId, OrderId, ReservationId};
use uuid::{ContextV7, Timestamp as UuidTimestamp, Uuid};

use crate::Clock;

pub struct Ids {
    clock: Arc<dyn Clock>,
    context: Mutex<ContextV7>,
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ids").finish_non_exhaustive()
    }
}

impl Ids {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, context: Mutex::new(ContextV7::new()) }
    }

    pub fn uuid(&self) -> Uuid {
        let millis = u64::try_from(self.clock.now().as_millis()).unwrap_or_default();
        let nanos = u32::try_from(millis % 1_000 * 1_000_000).unwrap_or_default();
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        Uuid::new_v7(UuidTimestamp::from_unix(&*context, millis / 1_000, nanos))
    }

    pub fn cart(&self) -> CartId {
        CartId::new(self.uuid())
    }

    pub fn order(&self) -> OrderId {
        OrderId::new(self.uuid())
    }

    pub fn reservation(&self) -> ReservationId {
        ReservationId::new(self.uuid())
    }

    /// What nobody can guess: 122 random bits, without the time in it.
    pub fn unguessable(&self) -> Uuid {
        Uuid::new_v4()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_domain::Timestamp;

    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(1_790_000_000_123)
        }
    }

    #[test]
    fn ids_rise_within_one_millisecond() {
        let ids = Ids::new(Arc::new(Stopped));
        let made: Vec<Uuid> = (0..10_000).map(|_| ids.uuid()).collect();
        assert!(made.is_sorted_by(|a, b| a < b));
        assert!(made.iter().all(|id| id.get_version_num() == 7));
    }

    #[test]
    fn what_nobody_can_guess_tells_nothing() {
        let ids = Ids::new(Arc::new(Stopped));
        let (first, second) = (ids.unguessable(), ids.unguessable());
        assert_ne!(first, second);
        assert_eq!(first.get_version_num(), 4, "no time in it");
    }
}
