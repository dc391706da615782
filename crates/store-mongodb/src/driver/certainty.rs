//! Write certainty: whether a failed statement was certainly not applied, or may have been.
//!
//! A statement inside of a transaction applies nothing before the commit, so only the commit and single writes can be ambiguous. The
//! driver has retried a retryable write once when it reports an error.

use mongodb::error::{
    Error, ErrorKind, NO_WRITES_PERFORMED, RETRYABLE_WRITE_ERROR, WriteError, WriteFailure,
};
use mw_store::StoreError;

/// `DuplicateKey`.
const DUPLICATE_KEY: i32 = 11_000;
/// Codes of a server that stopped a statement by its time limit.
const OUT_OF_TIME: [i32; 3] = [24, 50, 262];

/// The error of a read: certainly nothing was applied.
pub(crate) fn of_read(error: &Error) -> StoreError {
    match &*error.kind {
        ErrorKind::Bson(cause) => StoreError::Corrupt(cause.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}

/// The error of a single write outside of a transaction.
pub(crate) fn of_write(error: &Error) -> StoreError {
    if is_certainly_not_applied(error) {
        StoreError::Unavailable(error.to_string())
    } else {
        StoreError::Ambiguous(error.to_string())
    }
}

fn is_certainly_not_applied(error: &Error) -> bool {
    if error.contains_label(NO_WRITES_PERFORMED) {
        return true;
    }
    match &*error.kind {
        // No statement was sent.
        ErrorKind::ServerSelection { .. }
        | ErrorKind::Authentication { .. }
        | ErrorKind::DnsResolve { .. }
        | ErrorKind::InvalidArgument { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::SessionsNotSupported
        | ErrorKind::IncompatibleServer { .. }
        | ErrorKind::Shutdown
        // The server refused the write.
        | ErrorKind::Write(WriteFailure::WriteError(_)) => true,
        // The server refused the statement. With the label this is the answer to the second attempt: the first may have
        // been applied.
        ErrorKind::Command(command) => {
            !error.contains_label(RETRYABLE_WRITE_ERROR) && !OUT_OF_TIME.contains(&command.code)
        }
        _ => false,
    }
}

/// Whether a document with this `_id`, or with the same value in a unique index, exists.
pub(crate) fn is_duplicate_key(error: &Error) -> bool {
    match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteError(WriteError { code, .. })) => *code == DUPLICATE_KEY,
        ErrorKind::Command(command) => command.code == DUPLICATE_KEY,
        ErrorKind::InsertMany(inserts) => {
            inserts.write_errors.iter().flatten().any(|error| error.code == DUPLICATE_KEY)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_leaves_a_write_ambiguous_and_a_read_not_applied() {
        let lost = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert!(matches!(of_write(&lost), StoreError::Ambiguous(_)));
        assert!(matches!(of_read(&lost), StoreError::Unavailable(_)));
    }

    #[test]
    fn a_statement_that_was_not_sent_is_not_applied() {
        let unsent = Error::from(ErrorKind::Shutdown);
        assert!(matches!(of_write(&unsent), StoreError::Unavailable(_)));
    }
}
