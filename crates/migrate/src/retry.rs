//! Repeats what failed for a reason that passes: elections, restarts, an overloaded target.

use std::time::Duration;

use tokio::time::sleep;

use crate::error::Result;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Attempts before the error is reported: some minutes, longer than any election.
const ATTEMPTS: u32 = 60;

pub(crate) async fn retry<T, F: Future<Output = Result<T>>>(
    what: &str,
    mut attempt: impl FnMut() -> F,
) -> Result<T> {
    let mut wait = FIRST_WAIT;
    for _ in 1..ATTEMPTS {
        match attempt().await {
            Err(error) if error.is_passing() => {
                tracing::warn!(%error, "{what}: trying again");
                sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            done => return done,
        }
    }
    attempt().await
}
