//! Write certainty: what a failed statement may have written, and which [`StoreError`] follows from it.

use mw_store::StoreError;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};

/// The result of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CasResult {
    Applied,
    /// The condition did not hold; nothing was written.
    NotApplied,
    /// It may be applied or not: only a serial read can decide (see `revision.rs`).
    Unknown,
}

/// What a failed statement may have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteCertainty {
    /// The cluster did not execute it.
    NotWritten,
    /// The cluster rejected it, being overloaded.
    Overloaded,
    /// Some replica may have it.
    MaybeWritten,
}

/// Whether a single attempt that ended in this error can have written anything.
pub(crate) fn of_execution(error: &ExecutionError) -> WriteCertainty {
    match error {
        ExecutionError::LastAttemptError(attempt) => certainty_of_attempt(attempt),
        ExecutionError::RequestTimeout(_) => WriteCertainty::MaybeWritten,
        _ => WriteCertainty::NotWritten,
    }
}

fn certainty_of_attempt(error: &RequestAttemptError) -> WriteCertainty {
    match error {
        RequestAttemptError::SerializationError(_) | RequestAttemptError::CqlRequestSerialization(_) => {
            WriteCertainty::NotWritten
        }
        RequestAttemptError::UnableToAllocStreamId => WriteCertainty::Overloaded,
        RequestAttemptError::DbError(error, _) => match error {
            DbError::Overloaded => WriteCertainty::Overloaded,
            DbError::WriteTimeout { .. }
            | DbError::WriteFailure { .. }
            | DbError::ReadTimeout { .. }
            | DbError::ReadFailure { .. }
            | DbError::ServerError
            | DbError::Other(_) => WriteCertainty::MaybeWritten,
            _ => WriteCertainty::NotWritten,
        },
        _ => WriteCertainty::MaybeWritten,
    }
}

/// The error of a failed read, which never writes anything.
pub(crate) fn read_error(error: &ExecutionError) -> StoreError {
    match of_execution(error) {
        WriteCertainty::Overloaded => StoreError::Overloaded,
        WriteCertainty::NotWritten | WriteCertainty::MaybeWritten => {
            StoreError::Unavailable(error.to_string())
        }
    }
}

/// The error of a failed write.
pub(crate) fn write_error(error: &ExecutionError, certainty: WriteCertainty) -> StoreError {
    match certainty {
        WriteCertainty::NotWritten => StoreError::Unavailable(error.to_string()),
        WriteCertainty::Overloaded => StoreError::Overloaded,
        WriteCertainty::MaybeWritten => StoreError::Ambiguous(error.to_string()),
    }
}

/// Whether another node may succeed: this node failed, not the cluster.
pub(crate) fn is_node_failure(error: &ExecutionError) -> bool {
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
