//! How far all lanes are: one look for all readers of this process that wait for changes.
//!
//! A look is published to the readers at the next one, so that a reader who is published finds rows that are old enough to be returned.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::Timestamp;
use mw_store::Result;
use tokio::sync::watch;

use super::lane::{BLOCK_ROWS, ENDED_AFTER_MS};
use super::position::{FeedPosition, short_id};
use super::reader::{CONCURRENT_LANES, ListedLane, Statements};
use crate::driver::statements::Cql;
use crate::driver::time::at;

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// A reader that is published of changes and finds none looks again after this time.
const PAUSE: Duration = Duration::from_millis(50);

/// How far a lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    started_at: Timestamp,
    next: i64,
}

/// The lanes that are written.
type Heads = HashMap<u64, Head>;

#[derive(Debug)]
pub(super) struct Tail {
    published: Arc<watch::Sender<Heads>>,
    is_running: AtomicBool,
}

impl Tail {
    pub(super) fn new() -> Self {
        Self { published: Arc::default(), is_running: AtomicBool::new(false) }
    }

    /// Returns when there may be changes after a position.
    pub(super) async fn after(
        &self,
        position: &FeedPosition,
        (cql, statements): (&Arc<Cql>, &Arc<Statements>),
        clock: fn() -> SystemTime,
    ) {
        if !self.is_running.swap(true, Ordering::Relaxed) {
            let published = Arc::clone(&self.published);
            tokio::spawn(look(published, Arc::downgrade(cql), Arc::clone(statements), clock));
        }
        tokio::time::sleep(PAUSE).await;
        // The sender lives as long as the store.
        let _ = self.published.subscribe().wait_for(|heads| is_behind(position, heads)).await;
    }
}

/// Whether a lane goes on after a position.
fn is_behind(position: &FeedPosition, heads: &Heads) -> bool {
    let read: HashMap<u64, i64> = position.lanes.iter().map(|lane| (lane.lane, lane.number)).collect();
    heads.iter().any(|(lane, head)| match read.get(lane) {
        Some(number) => *number < head.next,
        None => head.started_at >= position.since && head.next > 0,
    })
}

/// Looks while there are readers, until the store is gone.
async fn look(
    published: Arc<watch::Sender<Heads>>,
    cql: Weak<Cql>,
    statements: Arc<Statements>,
    clock: fn() -> SystemTime,
) {
    let mut seen = Heads::new();
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let Some(cql) = cql.upgrade() else { return };
        if published.receiver_count() == 0 {
            continue;
        }
        match heads(&cql, &statements, &seen, at(clock())).await {
            Ok(heads) => {
                let before = std::mem::replace(&mut seen, heads);
                published.send_if_modified(|last| std::mem::replace(last, before.clone()) != before);
            }
            Err(error) => tracing::debug!(%error, "look for changes in the feed"),
        }
    }
}

/// How far the lanes are that may be written now, beginning with what was seen before.
async fn heads(cql: &Cql, statements: &Statements, seen: &Heads, now: Timestamp) -> Result<Heads> {
    let lanes = statements.listed_lanes(cql).await?;
    let is_live = |lane: &ListedLane| lane.renewed_at.as_millis() >= now.as_millis() - ENDED_AFTER_MS;
    let reads = lanes.into_iter().filter(is_live).map(|lane| async move {
        let before = seen.get(&short_id(lane.id)).map_or(0, |head| head.next);
        let from = before.max(lane.next);
        let newest = statements.newest_in(cql, lane.id, from / BLOCK_ROWS).await?;
        let next = newest.map_or(from, |(number, _)| from.max(number + 1));
        Ok((short_id(lane.id), Head { started_at: lane.started_at, next }))
    });
    stream::iter(reads.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_LANES).try_collect().await
}

#[cfg(test)]
mod tests {
    use super::super::position::LanePosition;
    use super::*;

    #[test]
    fn a_position_is_behind_when_a_lane_goes_on_or_a_new_one_has_rows() {
        let early = Timestamp::from_millis(5);
        let since = Timestamp::from_millis(10);
        let position = FeedPosition { since, lanes: vec![LanePosition { lane: 1, number: 7, index: 0 }] };
        let heads = |lane, started_at, next| Heads::from([(lane, Head { started_at, next })]);
        assert!(!is_behind(&position, &heads(1, early, 7)));
        assert!(is_behind(&position, &heads(1, early, 8)));
        assert!(!is_behind(&position, &heads(2, early, 3)), "has ended and was read");
        assert!(is_behind(&position, &heads(2, since, 3)));
        assert!(!is_behind(&position, &heads(2, since, 0)));
    }
}
