//! What is known after a statement failed: surely nothing was done, or maybe something was.

use mw_store::StoreError;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};

/// What a conditional write came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Applied,
    /// The condition did not hold; nothing was written.
    NotApplied,
    /// It may be written or not: only a read at the serial level can tell.
    Unknown,
}

/// What a failed statement may have left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trace {
    /// The cluster did not take it.
    None,
    /// The cluster had too much to do and did not take it.
    Overloaded,
    /// Some replica may have it.
    Perhaps,
}

/// Whether a single attempt that ended in this error can have written anything.
pub(crate) fn trace(error: &ExecutionError) -> Trace {
    match error {
        ExecutionError::LastAttemptError(attempt) => trace_of_attempt(attempt),
        ExecutionError::RequestTimeout(_) => Trace::Perhaps,
        _ => Trace::None,
    }
}

fn trace_of_attempt(error: &RequestAttemptError) -> Trace {
    match error {
        RequestAttemptError::SerializationError(_) | RequestAttemptError::CqlRequestSerialization(_) => {
            Trace::None
        }
        RequestAttemptError::UnableToAllocStreamId => Trace::Overloaded,
        RequestAttemptError::DbError(error, _) => match error {
            DbError::Overloaded => Trace::Overloaded,
            DbError::WriteTimeout { .. }
            | DbError::WriteFailure { .. }
            | DbError::ReadTimeout { .. }
            | DbError::ReadFailure { .. }
            | DbError::ServerError
            | DbError::Other(_) => Trace::Perhaps,
            _ => Trace::None,
        },
        _ => Trace::Perhaps,
    }
}

/// The error of a read: nothing is ever written by one.
pub(crate) fn of_read(error: &ExecutionError) -> StoreError {
    match trace(error) {
        Trace::Overloaded => StoreError::Overloaded,
        Trace::None | Trace::Perhaps => StoreError::Unavailable(error.to_string()),
    }
}

/// The error of a write that had one attempt.
pub(crate) fn of_write(error: &ExecutionError, trace: Trace) -> StoreError {
    match trace {
        Trace::None => StoreError::Unavailable(error.to_string()),
        Trace::Overloaded => StoreError::Overloaded,
        Trace::Perhaps => StoreError::Ambiguous(error.to_string()),
    }
}

/// Whether the next node may do better: this one was lost, not the cluster.
pub(crate) fn is_of_node(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::ConnectionPoolError(_) => true,
        ExecutionError::LastAttemptError(attempt) => matches!(
            attempt,
            RequestAttemptError::BrokenConnectionError(_)
                | RequestAttemptError::UnableToAllocStreamId
                | RequestAttemptError::DbError(DbError::IsBootstrapping | DbError::Overloaded, _)
        ),
        _ => false,
    }
}
