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

/// Whether the coordinator itself failed: it did not answer, or it reached no other replica. A replica that answers that another
/// one is slow, or that the round was lost, is healthy.
pub(crate) fn is_coordinator_failure(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::RequestTimeout(_) | ExecutionError::ConnectionPoolError(_) => true,
        ExecutionError::LastAttemptError(attempt) => match attempt {
            RequestAttemptError::BrokenConnectionError(_) | RequestAttemptError::UnableToAllocStreamId => {
                true
            }
            RequestAttemptError::DbError(error, _) => match error {
                DbError::IsBootstrapping | DbError::Overloaded | DbError::Unavailable { .. } => true,
                DbError::WriteTimeout { received, .. } | DbError::ReadTimeout { received, .. } => {
                    *received <= 1
                }
                _ => false,
            },
            _ => false,
        },
        _ => false,
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

#[cfg(test)]
mod tests {
    use scylla::errors::WriteType;
    use scylla::statement::Consistency;

    use super::*;

    #[test]
    fn coordinator_that_answers_for_others_is_healthy() {
        let failed = |error| {
            let attempt = RequestAttemptError::DbError(error, String::new());
            is_coordinator_failure(&ExecutionError::LastAttemptError(attempt))
        };
        let timeout = |received| DbError::WriteTimeout {
            consistency: Consistency::LocalQuorum,
            received,
            required: 2,
            write_type: WriteType::Cas,
        };
        assert!(!failed(timeout(2)), "a lost round");
        assert!(failed(timeout(1)), "it reached no other replica");
        assert!(failed(DbError::Overloaded) && failed(DbError::IsBootstrapping));
        assert!(!failed(DbError::ServerError) && !failed(DbError::Invalid));
        assert!(is_coordinator_failure(&ExecutionError::RequestTimeout(std::time::Duration::from_secs(5))));
    }
}
