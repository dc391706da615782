//! The ids that the service makes: version 7 UUIDs, which rise with time also within one millisecond. Their lowest bits are
//! the lane of this process.

use std::sync::{Arc, Mutex, PoisonError};

use mw_domain::lanes::Lane;
use mw_domain::{CartId, OrderId, ReservationId};
use uuid::{ContextV7, Timestamp as UuidTimestamp, Uuid};

use crate::Clock;

pub(crate) struct Ids {
    clock: Arc<dyn Clock>,
    context: Mutex<ContextV7>,
    lane: Lane,
}

impl Ids {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, context: Mutex::new(ContextV7::new()), lane: Lane::of(Uuid::new_v4()) }
    }

    fn uuid(&self) -> Uuid {
        let millis = u64::try_from(self.clock.now().as_millis()).unwrap_or_default();
        let nanos = u32::try_from(millis % 1_000 * 1_000_000).unwrap_or_default();
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        // The counter is above the lane, so the ids still rise.
        self.lane.stamp(Uuid::new_v7(UuidTimestamp::from_unix(&*context, millis / 1_000, nanos)))
    }

    pub(crate) fn cart(&self) -> CartId {
        CartId::new(self.uuid())
    }

    pub(crate) fn order(&self) -> OrderId {
        OrderId::new(self.uuid())
    }

    pub(crate) fn reservation(&self) -> ReservationId {
        ReservationId::new(self.uuid())
    }

    /// Of one movement in the stock ledger.
    pub(crate) fn movement(&self) -> Uuid {
        self.uuid()
    }

    /// The seed of a session id, which has to be unguessable: 122 random bits (version 4), without the time.
    #[expect(clippy::unused_self, reason = "all ids come from here")]
    pub(crate) fn session_seed(&self) -> Uuid {
        Uuid::new_v4()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_domain::Timestamp;

    struct StoppedClock;

    impl Clock for StoppedClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(1_790_000_000_123)
        }
    }

    #[test]
    fn ids_rise_within_one_millisecond() {
        let ids = Ids::new(Arc::new(StoppedClock));
        let made: Vec<Uuid> = (0..10_000).map(|_| ids.uuid()).collect();
        assert!(made.is_sorted_by(|a, b| a < b));
        assert!(made.iter().all(|id| id.get_version_num() == 7));
    }

    #[test]
    fn ids_of_a_process_have_its_lane() {
        let ids = Ids::new(Arc::new(StoppedClock));
        let lane = Lane::of(ids.uuid());
        assert!((0..100).all(|_| Lane::of(ids.uuid()) == lane));
        let lanes = (0..8).map(|_| Lane::of(Ids::new(Arc::new(StoppedClock)).uuid()));
        assert!(lanes.into_iter().any(|other| other != lane), "another process has another lane");
    }

    #[test]
    fn a_session_seed_is_random_and_holds_no_time() {
        let ids = Ids::new(Arc::new(StoppedClock));
        let (first, second) = (ids.session_seed(), ids.session_seed());
        assert_ne!(first, second);
        assert_eq!(first.get_version_num(), 4);
    }
}
