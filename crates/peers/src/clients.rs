//! The clients of a peer: each sends its next request when it has its answer, until the time is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use crate::contest::{Pace, Round};
use crate::processor;
use crate::work::Work;

/// One connection, and how it does each work.
pub(crate) trait Client: Send + 'static {
    /// Does the work once; `turn` is a number that nobody else has.
    fn work(&mut self, work: Work, turn: u64) -> impl Future<Output = Result<()>> + Send;
}

/// What one client did.
struct Share {
    done: u64,
    last: Option<Instant>,
}

/// A round of all clients, who are there again afterwards. Turns count from `turns`, and there are no more than `limit`.
pub(crate) async fn round<C: Client>(
    clients: &mut Vec<C>,
    work: Work,
    pace: &Pace,
    turns: &Arc<AtomicU64>,
    limit: u64,
) -> Result<Round> {
    let from = Instant::now() + pace.warm_up;
    let to = from + pace.duration;
    let mut tasks = JoinSet::new();
    for mut client in clients.drain(..) {
        let turns = Arc::clone(turns);
        tasks.spawn(async move {
            let mut share = Share { done: 0, last: None };
            while Instant::now() < to {
                let turn = turns.fetch_add(1, Ordering::Relaxed);
                if turn >= limit {
                    break;
                }
                client.work(work, turn).await?;
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
    // Where turns ran out, the round ended with the last of them.
    let is_over = turns.load(Ordering::Relaxed) < limit;
    let ended = if is_over { to } else { last.unwrap_or(to) };
    let seconds = ended.saturating_duration_since(from).as_secs_f64();
    ensure!(done > 0 && seconds > 0.0, "nothing was done in the time that is measured");
    let count = u32::try_from(done).context("count the requests")?;
    Ok(Round { rate: f64::from(count) / seconds, cpu_us: processor::us_for_each(cpu, done) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Counting;

    impl Client for Counting {
        async fn work(&mut self, _: Work, turn: u64) -> Result<()> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            ensure!(turn != 1_000, "turn 1000 fails");
            Ok(())
        }
    }

    const PACE: Pace = Pace {
        clients: 4,
        warm_up: Duration::from_millis(20),
        duration: Duration::from_millis(200),
        rounds: 1,
        practice: None,
    };

    async fn run(from: u64, limit: u64) -> Result<(Round, usize)> {
        let turns = Arc::new(AtomicU64::new(from));
        let mut clients: Vec<Counting> = (0..PACE.clients).map(|_| Counting).collect();
        let round = round(&mut clients, Work::Card, &PACE, &turns, limit).await?;
        Ok((round, clients.len()))
    }

    #[tokio::test]
    async fn what_is_done_in_the_time_is_counted() {
        let (round, clients) = run(0, 900).await.unwrap();
        assert!(round.rate > 10.0 && round.rate <= 4_000.0, "{round:?}");
        assert_eq!(clients, PACE.clients);
    }

    #[tokio::test]
    async fn a_failed_request_fails_the_round() {
        assert_eq!(run(998, u64::MAX).await.unwrap_err().to_string(), "turn 1000 fails");
    }

    #[tokio::test]
    async fn without_turns_there_is_nothing_to_measure() {
        assert!(run(0, 4).await.is_err());
    }
}
