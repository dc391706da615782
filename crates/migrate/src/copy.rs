//! The copy: ranges of `_id`, several at a time, page by page. How far a range is copied is written with its documents.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures_util::future::try_join_all;
use mw_store::migration::{Change, MigrationTarget};
use tokio::sync::Mutex;

use crate::apply::{Of, Reading};
use crate::error::Result;
use crate::key::{Id, Key, Kind};
use crate::retry::retry;
use crate::shared::{Shared, Work};
use crate::source::{Bounds, Source};
use crate::state::Range;

/// Pages that are read at the same time.
const COPIERS: usize = 4;
/// Documents of a page.
const PAGE: usize = 500;
/// Ranges of a collection, if it has enough documents for them.
const RANGES: u64 = 16;
const DOCUMENTS_PER_RANGE: u64 = 10_000;

/// Divides the collections, and the changes that store the ranges.
pub(crate) async fn divide(source: &Source) -> Result<(Vec<Range>, [u64; Kind::ALL.len()])> {
    let mut ranges = Vec::new();
    let mut totals = [0; Kind::ALL.len()];
    for (kind, total) in Kind::ALL.into_iter().zip(&mut totals) {
        *total = source.count(kind).await?;
        let parts = (*total / DOCUMENTS_PER_RANGE).clamp(1, RANGES);
        let parts = source.divide(kind, usize::try_from(parts).unwrap_or(1)).await?;
        let range = |(number, bounds)| Range { kind, number, bounds, after: None, done: false };
        ranges.extend(parts.into_iter().enumerate().map(range));
    }
    Ok((ranges, totals))
}

pub(crate) async fn store(target: &dyn MigrationTarget, ranges: &[Range]) -> Result<()> {
    let changes: Vec<Change> = ranges.iter().map(Range::change).collect::<Result<_>>()?;
    Ok(target.apply(changes).await?)
}

/// Copies what is left of the ranges.
pub(crate) async fn copy(shared: &Arc<Shared>, ranges: Vec<Range>) -> Result<()> {
    let queue: VecDeque<Range> = ranges.into_iter().filter(|range| !range.done).collect();
    let queue = Arc::new(Mutex::new(queue));
    try_join_all((0..COPIERS).map(|_| copy_ranges(shared, &queue))).await?;
    shared.barrier().await
}

async fn copy_ranges(shared: &Shared, queue: &Mutex<VecDeque<Range>>) -> Result<()> {
    loop {
        let next = queue.lock().await.pop_front();
        let Some(mut range) = next else { return Ok(()) };
        while !range.done {
            shared.pace(PAGE).await;
            copy_page(shared, &mut range).await?;
        }
    }
}

async fn copy_page(shared: &Shared, range: &mut Range) -> Result<()> {
    let number = shared.readings.of_copy();
    let from = range.after.clone().or_else(|| range.bounds.from.clone());
    let bounds = Bounds { from, to: range.bounds.to.clone() };
    let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
    let page = retry("copy", || shared.source.page(range.kind, &bounds, limit)).await?;
    range.done = page.len() < PAGE;
    let last = page.last().and_then(|document| document.get("_id").cloned());
    let mut documents = BTreeMap::new();
    for document in page {
        // A page begins with the document that ended the one before.
        if range.after.is_some() && document.get("_id") == range.after.as_ref() {
            continue;
        }
        documents.insert(Key { kind: range.kind, id: Id::of(&document)? }, Some(document));
    }
    range.after = last.or(range.after.take());
    let of = Of::Copy(Box::new(range.clone()));
    shared.send(Work::Ready(Box::new(Reading { documents, number, of }))).await
}
