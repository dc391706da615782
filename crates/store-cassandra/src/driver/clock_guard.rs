//! Clock guard: a process whose clock is wrong changes nothing, because by its clock holds, payment windows and carts of other
//! processes would be over.
//!
//! Every [`COMPARE_INTERVAL`] the clock is compared with the nodes. In between, every write compares it with the monotonic clock, so
//! a jump stops writes, timers, expiry and ledger compaction at once, and the next comparison with the nodes confirms or clears it.
//! No statement is added to a request.
//!
//! The clock that decides is the one that stamps commands ([`Options::clock`], the wall clock of the machine in a served shop).
//!
//! [`Options::clock`]: super::connect::Options::clock

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use tokio::sync::Notify;

use super::connect::clock::{self, Anchor, Reading};
use super::connect::error::seconds;
use super::connect::{Options, StartError};
use super::statements::Cql;
use crate::CassandraStore;

/// Between two comparisons with the nodes.
const COMPARE_INTERVAL: Duration = Duration::from_secs(2);
/// The last comparison is trusted for this long. It is far longer than a few comparisons that fail; where the monotonic clock
/// jumps together with the wall clock, the last comparison seems this old.
const TRUSTED_FOR: Duration = Duration::from_mins(1);

/// Why the clock is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClockFault {
    /// It is ahead of the cluster's, or behind where negative.
    Skew { millis: i64 },
    /// No node has told its time for so long.
    NotCompared { age: Duration },
}

/// The last comparison, and the fault since when writes are stopped.
#[derive(Debug)]
struct ClockState {
    anchor: Anchor,
    max: Duration,
    fault: Option<ClockFault>,
}

impl ClockState {
    /// What a reading shows, by the last comparison.
    fn fault_of(&self, reading: &Reading) -> Option<ClockFault> {
        let age = reading.after.saturating_duration_since(self.anchor.received);
        let millis = self.anchor.skew_ms(reading);
        if Duration::from_millis(millis.unsigned_abs()) > self.max {
            Some(ClockFault::Skew { millis })
        } else if age > TRUSTED_FOR {
            Some(ClockFault::NotCompared { age })
        } else {
            None
        }
    }

    /// Takes note of a reading; returns the fault that it is the first to show. A fault stays until the next comparison.
    fn observe(&mut self, reading: &Reading) -> Option<ClockFault> {
        if self.fault.is_some() {
            return None;
        }
        self.fault = self.fault_of(reading);
        self.fault
    }

    /// Takes note of a comparison; returns the fault before it.
    fn compared(&mut self, anchor: Anchor, reading: &Reading) -> Option<ClockFault> {
        self.anchor = anchor;
        let before = self.fault;
        self.fault = self.fault_of(reading);
        before
    }
}

#[derive(Debug)]
pub(crate) struct ClockGuard {
    clock: fn() -> SystemTime,
    local_dc: String,
    /// Whether commands carry the time of `clock`.
    stamps_commands: bool,
    state: Mutex<ClockState>,
    round: AtomicUsize,
    suspicion: Notify,
}

impl ClockGuard {
    /// Compares the clock for the first time.
    pub(crate) async fn start(
        session: &scylla::client::session::Session,
        options: &Options,
    ) -> Result<Self, StartError> {
        let Options { clock, local_dc, max_clock_skew: max, stamps_commands, .. } = options;
        let anchor = clock::compare(session, local_dc, *clock, 0)
            .await
            .map_err(|cause| StartError::Clock { cause })?;
        Ok(Self {
            clock: *clock,
            local_dc: local_dc.clone(),
            stamps_commands: *stamps_commands,
            state: Mutex::new(ClockState { anchor, max: *max, fault: None }),
            round: AtomicUsize::new(1),
            suspicion: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Microseconds since 1970 by the clock of this machine, for write timestamps.
    pub(crate) fn micros(&self) -> i64 {
        let since = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    /// How far the clock of this machine is ahead of the cluster's, negative where it is behind.
    pub(crate) fn skew_ms(&self) -> i64 {
        self.state().anchor.skew_ms(&Reading::of(self.clock))
    }

    /// Refuses while the clock is not trusted.
    pub(crate) fn check(&self) -> Result<()> {
        let reading = Reading::of(self.clock);
        let mut state = self.state();
        if let Some(first) = state.observe(&reading) {
            self.suspicion.notify_one();
            log_stop(first, state.max);
        }
        match state.fault {
            Some(fault) => Err(fault.error(state.max)),
            None => Ok(()),
        }
    }

    /// Refuses a command as well that was stamped while the clock was ahead, although it is right again.
    pub(crate) fn check_command(&self, now: Timestamp) -> Result<()> {
        self.check()?;
        if !self.stamps_commands {
            return Ok(());
        }
        let state = self.state();
        let millis = now.as_millis().saturating_sub(state.anchor.latest_ms(Instant::now()));
        let fault = ClockFault::Skew { millis };
        if millis > 0 && Duration::from_millis(millis.unsigned_abs()) > state.max {
            return Err(fault.error(state.max));
        }
        Ok(())
    }

    /// Compares the clock with the nodes. Where none answers, the last comparison counts until it is too old.
    async fn compare(&self, cql: &Cql) {
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let compared = clock::compare(cql.session(), &self.local_dc, self.clock, round).await;
        let reading = Reading::of(self.clock);
        let mut state = self.state();
        let before = match compared {
            Ok(anchor) => state.compared(anchor, &reading),
            Err(error) => {
                tracing::debug!(error, "compare the clock with the nodes");
                let before = state.fault;
                state.observe(&reading);
                before
            }
        };
        match (before, state.fault) {
            (None, Some(fault)) => log_stop(fault, state.max),
            (Some(_), None) => {
                tracing::info!("the clock agrees with the nodes again: writes and background work continue");
            }
            _ => {}
        }
    }
}

fn log_stop(fault: ClockFault, max: Duration) {
    tracing::error!(
        reason = fault.describe(max),
        "writes, timers, expiry and ledger compaction are stopped until the clock agrees with the nodes"
    );
}

impl ClockFault {
    /// Nodes that do not answer are an outage; only a wrong clock waits for the operator.
    fn error(self, max: Duration) -> StoreError {
        match self {
            Self::Skew { .. } => StoreError::NotServing(self.describe(max)),
            Self::NotCompared { .. } => StoreError::Unavailable(self.describe(max)),
        }
    }

    fn describe(self, max: Duration) -> String {
        match self {
            Self::Skew { millis } => format!(
                "writes are refused: the clock of this machine is {} s {} the cluster's, and {} s is the most that may be \
                 (store.cassandra.max_clock_skew): set the clock right (NTP)",
                seconds(millis.unsigned_abs().into()),
                if millis > 0 { "ahead of" } else { "behind" },
                seconds(max.as_millis())
            ),
            Self::NotCompared { age } => format!(
                "writes are refused: no node has told its time for {} s, so the clock of this machine may be wrong",
                age.as_secs()
            ),
        }
    }
}

/// Compares the clock with the nodes until the store is dropped: regularly, and at once when a write finds that it jumped.
pub(crate) async fn run(store: Weak<CassandraStore>) {
    let Some(guard) = store.upgrade().map(|store| Arc::clone(&store.clock)) else { return };
    let mut ticks = tokio::time::interval(COMPARE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = guard.suspicion.notified() => {}
        }
        let Some(store) = store.upgrade() else { return };
        guard.compare(&store.cql).await;
    }
}

impl CassandraStore {
    /// Refuses every change while the clock of this process is not trusted. Before the first effect of a command.
    pub(crate) fn check_clock(&self, now: Timestamp) -> Result<()> {
        self.clock.check_command(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(2);
    const JUMP_MS: i64 = 40 * 60_000;

    fn anchor(node_ms: i64, at: Instant) -> Anchor {
        Anchor { node_ms, sent: at, received: at }
    }

    fn reading(wall_ms: i64, at: Instant) -> Reading {
        Reading { before: at, wall_ms, after: at }
    }

    fn state(at: Instant) -> ClockState {
        ClockState { anchor: anchor(0, at), max: MAX, fault: None }
    }

    #[test]
    fn a_jump_stops_until_the_next_comparison() {
        let start = Instant::now();
        let second = start + Duration::from_secs(1);
        let mut state = state(start);
        assert_eq!(state.observe(&reading(1_000, second)), None);
        assert_eq!(state.fault, None);
        let fault = Some(ClockFault::Skew { millis: JUMP_MS });
        assert_eq!(state.observe(&reading(1_000 + JUMP_MS, second)), fault);
        assert_eq!(state.observe(&reading(1_000 + JUMP_MS, second)), None, "told once");
        assert_eq!(state.observe(&reading(1_000, second)), None);
        assert_eq!(state.fault, fault, "right again, but not confirmed");

        let third = second + Duration::from_secs(1);
        assert_eq!(state.compared(anchor(2_000, third), &reading(2_000 + JUMP_MS, third)), fault);
        assert_eq!(state.fault, fault, "confirmed");
        assert_eq!(state.compared(anchor(2_000, third), &reading(2_000, third)), fault);
        assert_eq!(state.fault, None, "cleared");
    }

    #[test]
    fn drift_within_the_limit_is_no_fault_in_either_direction() {
        let start = Instant::now();
        for wall_ms in [-2_000, 0, 2_000] {
            assert_eq!(state(start).fault_of(&reading(wall_ms, start)), None, "{wall_ms}");
        }
        for millis in [-2_001, 2_001] {
            assert_eq!(state(start).fault_of(&reading(millis, start)), Some(ClockFault::Skew { millis }));
        }
    }

    #[test]
    fn both_clocks_jumping_together_make_the_comparison_too_old() {
        let start = Instant::now();
        let later = start + Duration::from_mins(40);
        let age = Duration::from_mins(40);
        assert_eq!(state(start).fault_of(&reading(JUMP_MS, later)), Some(ClockFault::NotCompared { age }));
        let trusted = start + TRUSTED_FOR;
        assert_eq!(state(start).fault_of(&reading(60_000, trusted)), None);
    }

    #[test]
    fn the_reason_names_skew_direction_and_setting() {
        let reason = |millis| ClockFault::Skew { millis }.describe(MAX);
        assert_eq!(
            reason(JUMP_MS),
            "writes are refused: the clock of this machine is 2400 s ahead of the cluster's, and 2 s is the most that \
              may be (store.cassandra.max_clock_skew): set the clock right (NTP)"
        );
        assert!(reason(-4_250).contains("is 4.25 s behind the cluster's"), "{}", reason(-4_250));
        let stale = ClockFault::NotCompared { age: Duration::from_secs(75) }.describe(MAX);
        assert!(stale.contains("no node has told its time for 75 s"), "{stale}");
    }
}
