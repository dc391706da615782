//! The walk through a partition whose timer fired: what is due in it is ended, page by page.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use mw_store::Result;
use scylla::deserialize::row::DeserializeRow;
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;

use crate::driver::statements::Cql;
use crate::recovery::unreadable::UnreadableRows;

/// Orders or reservations of a partition that are ended at the same time: the stock keeper decides those of one product
/// together.
const CONCURRENT_ENDS: usize = 64;

/// Ends what is due in one partition, page by page; returns how much, and whether that is all of it. `select` picks what is due
/// from the rows; `end` returns whether this call ended it. A row that cannot be read, or whose end cannot be read, is skipped;
/// a failure keeps no other row from being ended and is returned when the rest is done.
pub(crate) async fn fire_partition<R, T, F>(
    (cql, unreadable): (&Cql, &UnreadableRows),
    (of_partition, partition): (&PreparedStatement, i64),
    budget: &Budget,
    select: impl Fn(R) -> Result<Option<T>>,
    end: impl Fn(T) -> F,
) -> Result<(usize, bool)>
where
    R: for<'f, 'm> DeserializeRow<'f, 'm>,
    F: Future<Output = Result<bool>>,
{
    let mut count = 0;
    let mut first_error = Ok(());
    let mut from = PagingState::start();
    let row_name = format!("row of timed partition {partition}");
    loop {
        let (rows, next) = cql.page_of_readable::<R>(of_partition, (partition,), from).await?;
        let mut due = Vec::new();
        for row in rows {
            due.extend(unreadable.skip(&row_name, row.and_then(&select))?.flatten());
        }
        let (wanted, granted) = (due.len(), budget.take(due.len()));
        let ends: Vec<F> = due.into_iter().take(granted).map(&end).collect();
        let mut ends = stream::iter(ends).buffer_unordered(CONCURRENT_ENDS);
        while let Some(ended) = ends.next().await {
            match unreadable.skip(&row_name, ended) {
                Ok(ended) => count += usize::from(ended.unwrap_or(false)),
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        match next {
            _ if granted < wanted => return first_error.map(|()| (count, false)),
            Some(next) => from = next,
            None => return first_error.map(|()| (count, true)),
        }
    }
}

/// How much a call may still end.
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) const fn new(limit: usize) -> Self {
        Self(AtomicUsize::new(limit))
    }

    /// Takes what is wanted, or as much as remains.
    pub(crate) fn take(&self, wanted: usize) -> usize {
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| {
            Some(remaining.saturating_sub(wanted))
        });
        before.unwrap_or_default().min(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_never_grants_more_than_its_limit() {
        let budget = Budget::new(5);
        assert_eq!([3, 4, 1, 0].map(|wanted| budget.take(wanted)), [3, 2, 0, 0]);
    }
}
