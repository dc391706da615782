//! Unreadable rows: a row that cannot be decoded is skipped, counted and logged once, so that background work goes on with the
//! rows beside it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use mw_store::{Result, StoreError};

/// Rows that are remembered as logged.
const LOGGED_MAX: usize = 10_000;

/// The unreadable rows that this process has met.
#[derive(Debug, Default)]
pub(crate) struct UnreadableRows {
    logged: Mutex<HashSet<String>>,
    count: AtomicU64,
}

impl UnreadableRows {
    /// Skips a row that cannot be decoded: `None` in its place. Any other error is returned.
    pub(crate) fn skip<T>(&self, row: &str, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(StoreError::Corrupt(cause)) => {
                self.report(row, &cause);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Counts an unreadable row, and logs it the first time.
    pub(crate) fn report(&self, row: &str, cause: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let description = format!("{row}: {cause}");
        if logged.contains(&description) {
            return;
        }
        if logged.len() >= LOGGED_MAX {
            logged.clear();
        }
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::error!(
            row,
            cause,
            count,
            "skipped an unreadable row: it stays as it is for an operator to look at"
        );
        logged.insert(description);
    }

    /// How many different rows were skipped.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_row_is_skipped_and_counted_once() {
        let rows = UnreadableRows::default();
        for _ in 0..3 {
            let damaged = Err::<u8, _>(StoreError::Corrupt("no version".to_owned()));
            assert_eq!(rows.skip("intent 1", damaged), Ok(None));
        }
        assert_eq!(rows.skip("intent 2", Ok(7)), Ok(Some(7)));
        assert_eq!(rows.count(), 1);
    }

    #[test]
    fn other_errors_are_not_skipped() {
        let rows = UnreadableRows::default();
        let failed = StoreError::Unavailable("no quorum".to_owned());
        assert_eq!(rows.skip::<u8>("intent 1", Err(failed.clone())), Err(failed));
        assert_eq!(rows.count(), 0);
    }
}
