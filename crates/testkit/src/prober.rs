//! An open-loop prober: one operation at each instant of a schedule, whether or not earlier ones have ended. Latency counts from the
//! scheduled instant, so that a stall of the server is not hidden.

use std::future::Future;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Operations in flight. A further one waits, and its latency counts on.
const IN_FLIGHT_MAX: usize = 256;
/// Latencies that are kept between two calls of [`Prober::take`]; later ones are counted, and not kept.
const SAMPLES_MAX: usize = 1 << 20;

/// What a prober measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measured {
    latencies: Vec<Duration>,
    pub succeeded: u64,
    pub failed: u64,
}

impl Measured {
    /// The nearest rank, in milliseconds; 0 if nothing was measured.
    pub fn quantile_ms(&self, permille: usize) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * permille / 1_000).min(sorted.len().saturating_sub(1));
        sorted.get(rank).map_or(0.0, |latency| latency.as_secs_f64() * 1_000.0)
    }

    fn record(&mut self, latency: Duration, has_succeeded: bool) {
        if has_succeeded {
            self.succeeded += 1;
        } else {
            self.failed += 1;
        }
        if self.latencies.len() < SAMPLES_MAX {
            self.latencies.push(latency);
        }
    }
}

/// Ends when it is dropped; operations in flight end with it.
#[derive(Debug)]
pub struct Prober {
    measured: Arc<Mutex<Measured>>,
    task: JoinHandle<()>,
}

impl Prober {
    /// Starts an operation at every interval; it gets its number and says whether it succeeded.
    pub fn start<F, O>(interval: Duration, operation: F) -> Self
    where
        F: Fn(u32) -> O + Send + 'static,
        O: Future<Output = bool> + Send + 'static,
    {
        let measured = Arc::default();
        let task = tokio::spawn(probe(interval, operation, Arc::clone(&measured)));
        Self { measured, task }
    }

    /// What was measured since the last call.
    pub fn take(&self) -> Measured {
        mem::take(&mut self.measured.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn probe<F, O>(interval: Duration, operation: F, measured: Arc<Mutex<Measured>>)
where
    F: Fn(u32) -> O + Send + 'static,
    O: Future<Output = bool> + Send + 'static,
{
    let begun = Instant::now();
    let mut in_flight = JoinSet::new();
    for number in 0_u32.. {
        let scheduled = begun + interval * number;
        sleep_until(scheduled).await;
        while in_flight.try_join_next().is_some() {}
        if in_flight.len() >= IN_FLIGHT_MAX {
            in_flight.join_next().await;
        }
        let (outcome, measured) = (operation(number), Arc::clone(&measured));
        in_flight.spawn(async move {
            let has_succeeded = outcome.await;
            let latency = scheduled.elapsed();
            measured.lock().unwrap_or_else(PoisonError::into_inner).record(latency, has_succeeded);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stall_counts_for_every_operation_that_was_due_meanwhile() {
        // The server stalls for a second, and then answers at once.
        let stalled_until = Instant::now() + Duration::from_secs(1);
        let prober = Prober::start(Duration::from_millis(100), move |number| async move {
            sleep_until(stalled_until).await;
            number != 3
        });
        tokio::time::sleep(Duration::from_millis(1_950)).await;
        let measured = prober.take();
        assert_eq!((measured.succeeded, measured.failed), (19, 1));
        let longest_ms = measured.quantile_ms(999);
        assert!(
            (longest_ms - 1_000.0).abs() < 1.0,
            "the first one waited for the whole stall: {longest_ms} ms"
        );
        assert!(measured.quantile_ms(250) < 1.0, "{measured:?}");
        assert_eq!(prober.take(), Measured::default(), "the next phase begins with nothing");
    }
}
