//! The clients of a baseline, in a closed loop: each sends its next request after the response.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use crate::processor;
use crate::rounds::{Round, RoundOptions};
use crate::work::Work;

/// One connection, and how it does each work.
pub(crate) trait Client: Send + 'static {
    /// Runs the operation once; `sequence` is unique among all clients.
    fn work(&mut self, work: Work, sequence: u64) -> impl Future<Output = Result<()>> + Send;
}

/// The requests of one client.
struct Share {
    done: u64,
    last: Option<Instant>,
}

/// Runs a round with all clients. Sequence numbers come from `sequences`, up to `limit`.
pub(crate) async fn round<C: Client>(
    clients: &mut Vec<C>,
    work: Work,
    options: &RoundOptions,
    sequences: &Arc<AtomicU64>,
    limit: u64,
) -> Result<Round> {
    let from = Instant::now() + options.warm_up;
    let to = from + options.duration;
    let mut tasks = JoinSet::new();
    for mut client in clients.drain(..) {
        let sequences = Arc::clone(sequences);
        tasks.spawn(async move {
            let mut share = Share { done: 0, last: None };
            while Instant::now() < to {
                let sequence = sequences.fetch_add(1, Ordering::Relaxed);
                if sequence >= limit {
                    break;
                }
                client.work(work, sequence).await?;
                let now = Instant::now();
                if now >= from && now < to {
                    share.done += 1;
                    share.last = Some(now);
                }
            }
            anyhow::Ok((client, share))
        });
    }
    let own = std::process::id();
    tokio::time::sleep_until(from.into()).await;
    let cpu_before = processor::time_of(own)?;
    let (mut done, mut last) = (0, None);
    while let Some(ended) = tasks.join_next().await {
        let (client, share) = ended.context("wait for a client")??;
        done += share.done;
        last = last.max(share.last);
        clients.push(client);
    }
    let cpu = processor::time_of(own)?.saturating_sub(cpu_before);
    // Where sequence numbers ran out, the round ended with the last request.
    let is_over = sequences.load(Ordering::Relaxed) < limit;
    let ended = if is_over { to } else { last.unwrap_or(to) };
    let seconds = ended.saturating_duration_since(from).as_secs_f64();
    ensure!(done > 0 && seconds > 0.0, "no request finished in the measured time");
    let count = u32::try_from(done).context("count the requests")?;
    Ok(Round { rate: f64::from(count) / seconds, cpu_us: processor::us_for_each(cpu, done) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Counting;

    impl Client for Counting {
        async fn work(&mut self, _: Work, sequence: u64) -> Result<()> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            ensure!(sequence != 1_000, "request 1000 fails");
            Ok(())
        }
    }

    const OPTIONS: RoundOptions = RoundOptions {
        clients: 4,
        warm_up: Duration::from_millis(20),
        duration: Duration::from_millis(200),
        rounds: 1,
        practice: None,
    };

    async fn run(from: u64, limit: u64) -> Result<(Round, usize)> {
        let sequences = Arc::new(AtomicU64::new(from));
        let mut clients: Vec<Counting> = (0..OPTIONS.clients).map(|_| Counting).collect();
        let round = round(&mut clients, Work::ProductRead, &OPTIONS, &sequences, limit).await?;
        Ok((round, clients.len()))
    }

    #[tokio::test]
    async fn requests_within_the_measured_time_are_counted() {
        let (round, clients) = run(0, 900).await.unwrap();
        assert!(round.rate > 10.0 && round.rate <= 4_000.0, "{round:?}");
        assert_eq!(clients, OPTIONS.clients);
    }

    #[tokio::test]
    async fn a_failed_request_fails_the_round() {
        assert_eq!(run(998, u64::MAX).await.unwrap_err().to_string(), "request 1000 fails");
    }

    #[tokio::test]
    async fn a_round_without_measured_requests_fails() {
        assert!(run(0, 4).await.is_err());
    }
}
