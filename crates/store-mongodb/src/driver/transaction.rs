//! Transactions: read concern snapshot, write concern majority, retried within the request timeout.
//!
//! The caller loops: [`Attempts::begin`], its statements with the session, [`Attempts::end`]. Nothing is applied before the
//! commit, so an error before it is never ambiguous. A commit whose result is unknown is sent again, which is safe, until it
//! is known or the time is over; then the error is `Ambiguous`.

use std::time::Duration;

use mongodb::error::{Error, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria, TransactionOptions, WriteConcern};
use mongodb::{Client, ClientSession};
use mw_store::{Refusal, Result, StoreError};
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use super::certainty;
use crate::MongoStore;

/// Attempts of one transaction that other writers conflict with.
const ATTEMPTS_MAX: u32 = 1_000;
/// Attempts of one transaction that meets a duplicate key.
const DUPLICATES_MAX: u32 = 20;
const BACKOFF: Duration = Duration::from_millis(2);
const BACKOFF_MAX: Duration = Duration::from_millis(50);

/// Why the statements of a transaction stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A rule of the shop, or a failure that a retry does not mend.
    Store(StoreError),
    /// The driver's error; it may be transient.
    Driver(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Store(refusal.into())
    }
}

impl Stop {
    /// The error of a transaction that was not committed.
    fn into_store_error(self) -> StoreError {
        match self {
            Self::Store(error) => error.before_first_effect(),
            Self::Driver(error) => certainty::of_read(&error),
        }
    }
}

/// The attempts of one transaction, within the request timeout.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    client: &'a Client,
    deadline: Instant,
    made: u32,
}

impl MongoStore {
    /// A transaction of one request.
    pub(crate) fn transaction(&self) -> Attempts<'_> {
        let deadline = Instant::now() + self.options.request_timeout;
        Attempts { client: &self.client, deadline, made: 0 }
    }
}

impl Attempts<'_> {
    /// Starts an attempt.
    pub(crate) async fn begin(&mut self) -> Result<ClientSession> {
        let options = TransactionOptions::builder()
            .read_concern(ReadConcern::snapshot())
            .write_concern(WriteConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let started = timeout_at(self.deadline, async {
            let mut session = self.client.start_session().await?;
            session.start_transaction().with_options(options).await?;
            Ok(session)
        });
        match started.await {
            Ok(session) => session.map_err(|error| certainty::of_read(&error)),
            Err(_) => Err(out_of_time()),
        }
    }

    /// Runs the statements of an attempt; they end with the request timeout.
    pub(crate) async fn run<T>(&self, statements: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
        timeout_at(self.deadline, statements).await.unwrap_or_else(|_| Err(Stop::Store(out_of_time())))
    }

    /// Commits an attempt whose statements succeeded, aborts another. `None`: begin again.
    pub(crate) async fn end<T>(
        &mut self,
        mut session: ClientSession,
        result: Result<T, Stop>,
    ) -> Result<Option<T>> {
        self.made += 1;
        let transient = match result {
            Ok(value) => match self.commit(&mut session).await? {
                Committed::Yes => return Ok(Some(value)),
                Committed::Again(error) => error,
            },
            Err(stop) => {
                // A crash here leaves the transaction to the servers, which abort it. A failed abort does not matter either.
                let aborted = timeout_at(self.deadline, session.abort_transaction()).await;
                tracing::trace!(?aborted, "abort a transaction");
                match stop {
                    Stop::Driver(error) if self.may_succeed_again(&error) => error,
                    stop => return Err(stop.into_store_error()),
                }
            }
        };
        if self.made >= ATTEMPTS_MAX || Instant::now() >= self.deadline {
            let detail = format!("gave up after {} attempts of a transaction: {transient}", self.made);
            return Err(StoreError::Unavailable(detail));
        }
        self.back_off().await;
        Ok(None)
    }

    /// Two upserts of one `_id` at once: the second may meet the first as a duplicate, and finds its document when it begins again.
    fn may_succeed_again(&self, error: &Error) -> bool {
        error.contains_label(TRANSIENT_TRANSACTION_ERROR)
            || (certainty::is_duplicate_key(error) && self.made < DUPLICATES_MAX)
    }

    async fn commit(&self, session: &mut ClientSession) -> Result<Committed> {
        let mut sent = 0;
        loop {
            sent += 1;
            let error = match timeout_at(self.deadline, session.commit_transaction()).await {
                Ok(Ok(())) => return Ok(Committed::Yes),
                Ok(Err(error)) => error,
                Err(_) => {
                    return Err(StoreError::Ambiguous(format!(
                        "commit: no answer to {sent} attempts in time"
                    )));
                }
            };
            if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) {
                if Instant::now() >= self.deadline || sent >= ATTEMPTS_MAX {
                    return Err(StoreError::Ambiguous(format!("commit: {error}")));
                }
                sleep(BACKOFF).await;
            } else if error.contains_label(TRANSIENT_TRANSACTION_ERROR) {
                return Ok(Committed::Again(error));
            } else {
                return Err(certainty::of_write(&error));
            }
        }
    }

    /// Exponential, with jitter, so that writers which conflicted once do not meet again.
    async fn back_off(&self) {
        let longest = BACKOFF.saturating_mul(1 << self.made.min(5)).min(BACKOFF_MAX);
        let (_, random) = Uuid::new_v4().as_u64_pair();
        let fraction = f64::from(u16::try_from(random & 0xffff).unwrap_or(0)) / 65_536.0;
        sleep(longest.mul_f64(fraction)).await;
    }
}

#[derive(Debug)]
enum Committed {
    Yes,
    /// Certainly not committed: the whole transaction may be tried again.
    Again(Error),
}

fn out_of_time() -> StoreError {
    StoreError::Unavailable("no answer within the request timeout".to_owned())
}
