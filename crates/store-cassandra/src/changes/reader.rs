//! Reading the feed: rows of all lanes in the order of their time, and then the resources that they name (`resources.rs`).
//!
//! Rows that were written after the reading began are left for the next page. So a page that has a row has every row that was
//! acknowledged before that one was written, in whichever lane, as far as the clocks of the processes agree; where they do not, a
//! step of an order names those before it, and a resource that is read again is never older.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_codec::changes::subjects::{self, Subject};
use mw_domain::Timestamp;
use mw_store::changes::{ChangesPage, FeedStart, ReadChanges};
use mw_store::{Position, Refusal, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use super::lane::{BLOCK_ROWS, ENDED_AFTER_MS, PARTS};
use super::position::{FeedPosition, LanePosition, short_id};
use super::topic_of;
use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{at, from_cql};
use crate::schema::tables::Table;

/// Lanes that are read at the same time.
pub(super) const CONCURRENT_LANES: usize = 16;
/// Rows of a lane that are read at a time.
const ROWS_MIN: usize = 64;
const ROWS_MAX: usize = 1_000;
/// A lane is in the list of lanes before its first row, and by no clock earlier than this before it is read there.
const LISTED_LATE_MS: i64 = 600_000;
/// How far the clocks of two processes may differ without a row being returned before one that caused it.
const CLOCKS_DIFFER_MS: i64 = 100;
/// A row that is further ahead of the clock is returned all the same: some clock is wrong.
const AHEAD_MAX_MS: i64 = 1_000;

#[derive(Debug)]
pub(crate) struct Statements {
    lanes: PreparedStatement,
    rows: PreparedStatement,
    newest: PreparedStatement,
}

/// A lane, and its next number as of a second ago.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListedLane {
    pub(super) id: Uuid,
    pub(super) started_at: Timestamp,
    pub(super) renewed_at: Timestamp,
    pub(super) next: i64,
}

#[derive(Debug)]
struct LaneRow {
    number: i64,
    written_at: Timestamp,
    subjects: Vec<Subject>,
}

type StoredLane = (Uuid, Option<CqlTimestamp>, Option<CqlTimestamp>, Option<i64>);
type StoredRow = (i64, Option<CqlTimestamp>, Option<Vec<u8>>);
type NewestRow = (i64, Option<CqlTimestamp>);

/// A subject of a row, and the position after it.
pub(super) struct Found {
    pub(super) subject: Subject,
    pub(super) position: Position,
}

impl Statements {
    pub(super) async fn prepare(cql: &Cql) -> Result<Self> {
        let lanes = "SELECT lane, started_at, renewed_at, next FROM {} WHERE part = ? LIMIT 10000";
        let rows = "SELECT number, written_at, subjects FROM {} WHERE lane = ? AND block = ? AND number >= ? LIMIT ?";
        let newest =
            "SELECT number, written_at FROM {} WHERE lane = ? AND block = ? ORDER BY number DESC LIMIT 1";
        Ok(Self {
            lanes: cql.prepare(Table::ChangeLanes, Access::Read, lanes).await?,
            rows: cql.prepare(Table::Changes, Access::Read, rows).await?,
            newest: cql.prepare(Table::Changes, Access::Read, newest).await?,
        })
    }

    pub(super) async fn listed_lanes(&self, cql: &Cql) -> Result<Vec<ListedLane>> {
        let reads = (0..PARTS).map(|part| cql.rows::<StoredLane>(&self.lanes, (part,)));
        let parts: Vec<Vec<StoredLane>> =
            stream::iter(reads.collect::<Vec<_>>()).buffered(CONCURRENT_LANES).try_collect().await?;
        let lane = |(id, started_at, renewed_at, next): StoredLane| {
            Some(ListedLane {
                id,
                started_at: from_cql(started_at?),
                renewed_at: from_cql(renewed_at?),
                next: next?,
            })
        };
        let mut lanes: Vec<ListedLane> = parts.into_iter().flatten().filter_map(lane).collect();
        lanes.sort_unstable_by_key(|lane| lane.id);
        Ok(lanes)
    }

    /// The last row of a block.
    pub(super) async fn newest_in(
        &self,
        cql: &Cql,
        lane: Uuid,
        block: i64,
    ) -> Result<Option<(i64, Timestamp)>> {
        let newest: Option<NewestRow> = cql.first(&self.newest, (lane, block)).await?;
        Ok(newest.map(|(number, at)| (number, at.map_or(Timestamp::EPOCH, from_cql))))
    }

    /// Rows of a lane from a number on, as far as its block goes.
    async fn block_rows(&self, cql: &Cql, lane: Uuid, from: i64, limit: usize) -> Result<Vec<StoredRow>> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        cql.rows(&self.rows, (lane, from / BLOCK_ROWS, from, limit)).await
    }
}

impl CassandraStore {
    pub(super) async fn read_changes(&self, request: ReadChanges) -> Result<ChangesPage> {
        let position = match &request.start {
            FeedStart::After(position) => Some(FeedPosition::decode(position)?),
            FeedStart::Oldest | FeedStart::Now => None,
        };
        let began_at = at((self.feed.clock)());
        // Before any row: a lane that is not listed now has no acknowledged change.
        let lanes = self.feed.statements.listed_lanes(&self.cql).await?;
        let cutoff = request.now.plus_millis(-self.feed.settings.retention_ms);
        let mut current = match position {
            Some(position) => with_new_lanes(position, &lanes)?,
            None => self.start(&lanes, &request.start, cutoff).await?,
        };
        if request.start == FeedStart::Now {
            return Ok(ChangesPage { items: Vec::new(), next: current.encode() });
        }
        let rows = self.rows_after(&current, &lanes, (cutoff, began_at), request.limit).await?;
        let found = take_subjects(&mut current, rows, &request);
        let items = self.resolve(found).await?;
        current.forget_ended(&lanes, began_at);
        Ok(ChangesPage { items, next: current.encode() })
    }

    /// The position of the oldest change that is kept, or after all that are acknowledged.
    async fn start(
        &self,
        lanes: &[ListedLane],
        start: &FeedStart,
        cutoff: Timestamp,
    ) -> Result<FeedPosition> {
        let numbers = lanes.iter().map(|lane| async move {
            match start {
                FeedStart::Now => self.end_of(*lane).await,
                FeedStart::Oldest | FeedStart::After(_) => self.first_kept(*lane, cutoff).await,
            }
        });
        let numbers: Vec<i64> =
            stream::iter(numbers.collect::<Vec<_>>()).buffered(CONCURRENT_LANES).try_collect().await?;
        let position =
            |(lane, number): (&ListedLane, i64)| LanePosition { lane: short_id(lane.id), number, index: 0 };
        Ok(FeedPosition {
            since: began_before(lanes),
            lanes: lanes.iter().zip(numbers).map(position).collect(),
        })
    }

    /// The number after the last row of a lane.
    async fn end_of(&self, lane: ListedLane) -> Result<i64> {
        let mut next = lane.next;
        loop {
            let newest = self.feed.statements.newest_in(&self.cql, lane.id, next / BLOCK_ROWS).await?;
            let Some((last, _)) = newest.filter(|(last, _)| *last >= next) else { return Ok(next) };
            next = last + 1;
        }
    }

    /// The number of the first row of a lane that is kept, or of its next one. Rows leave the feed in their order, so the
    /// blocks are searched by halves.
    async fn first_kept(&self, lane: ListedLane, cutoff: Timestamp) -> Result<i64> {
        let (mut low, mut high) = (0, lane.next / BLOCK_ROWS);
        while low < high {
            let middle = i64::midpoint(low, high);
            let newest = self.feed.statements.newest_in(&self.cql, lane.id, middle).await?;
            if newest.is_some_and(|(_, written_at)| written_at > cutoff) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let mut next = low * BLOCK_ROWS;
        loop {
            let rows = self.feed.statements.block_rows(&self.cql, lane.id, next, ROWS_MAX).await?;
            let Some((last, ..)) = rows.last() else { return Ok(next.max(lane.next)) };
            let is_kept = |(_, at, _): &&StoredRow| at.is_some_and(|at| from_cql(at) > cutoff);
            if let Some((number, ..)) = rows.iter().find(is_kept) {
                return Ok(*number);
            }
            next = last + 1;
        }
    }

    /// The next rows of every lane, merged by their time; within a lane in their order. Each with the index of its lane in the
    /// position.
    async fn rows_after(
        &self,
        position: &FeedPosition,
        lanes: &[ListedLane],
        times: (Timestamp, Timestamp),
        limit: usize,
    ) -> Result<Vec<(usize, LaneRow)>> {
        let listed: HashMap<u64, ListedLane> = lanes.iter().map(|lane| (short_id(lane.id), *lane)).collect();
        let listed = &listed;
        let reads = position.lanes.iter().enumerate().map(|(index, from)| async move {
            let lane = listed.get(&from.lane).ok_or(Refusal::CursorExpired)?;
            let rows = self.lane_rows(*lane, from.number, times, limit).await?;
            Ok::<_, StoreError>(rows.into_iter().map(move |row| (index, row)).collect::<Vec<_>>())
        });
        let rows: Vec<Vec<(usize, LaneRow)>> =
            stream::iter(reads.collect::<Vec<_>>()).buffered(CONCURRENT_LANES).try_collect().await?;
        let mut rows: Vec<(usize, LaneRow)> = rows.into_iter().flatten().collect();
        rows.sort_by_key(|(index, row)| (row.written_at, *index, row.number));
        Ok(rows)
    }

    /// Consecutive rows of a lane that were written before the reading began. A missing row was kept once, if the lane goes on
    /// after it.
    async fn lane_rows(
        &self,
        lane: ListedLane,
        from: i64,
        (cutoff, began_at): (Timestamp, Timestamp),
        limit: usize,
    ) -> Result<Vec<LaneRow>> {
        let page = limit.clamp(ROWS_MIN, ROWS_MAX);
        let mut found = Vec::new();
        let mut next = from;
        loop {
            let rows = self.feed.statements.block_rows(&self.cql, lane.id, next, page).await?;
            if rows.is_empty() {
                // Recorded after it was written, so its row is gone.
                return if next < lane.next { Err(Refusal::CursorExpired.into()) } else { Ok(found) };
            }
            for (number, written_at, subjects) in rows {
                let written_at = written_at.map_or(Timestamp::EPOCH, from_cql);
                if number != next || written_at <= cutoff {
                    return Err(Refusal::CursorExpired.into());
                }
                if is_too_young(written_at, began_at) {
                    return Ok(found);
                }
                let subjects = subjects::decode(&subjects.unwrap_or_default())?;
                found.push(LaneRow { number, written_at, subjects });
                next += 1;
            }
            if found.len() >= limit {
                return Ok(found);
            }
        }
    }
}

/// Whether a row that caused this one may have been written after the reading began.
const fn is_too_young(written_at: Timestamp, began_at: Timestamp) -> bool {
    let ahead_ms = written_at.as_millis() - began_at.as_millis();
    -CLOCKS_DIFFER_MS < ahead_ms && ahead_ms < AHEAD_MAX_MS
}

/// Before it no lane began that is not listed yet.
fn began_before(lanes: &[ListedLane]) -> Timestamp {
    let newest = lanes.iter().map(|lane| lane.started_at).max();
    newest.map_or(Timestamp::EPOCH, |newest| newest.plus_millis(-LISTED_LATE_MS))
}

/// Adds the lanes that began after the position.
fn with_new_lanes(mut position: FeedPosition, lanes: &[ListedLane]) -> Result<FeedPosition> {
    let listed: HashSet<u64> = lanes.iter().map(|lane| short_id(lane.id)).collect();
    // A lane is listed for longer than its rows are kept.
    if position.lanes.iter().any(|lane| !listed.contains(&lane.lane)) {
        return Err(Refusal::CursorExpired.into());
    }
    let known: HashSet<u64> = position.lanes.iter().map(|lane| lane.lane).collect();
    let new = lanes.iter().filter(|lane| lane.started_at >= position.since);
    let new = new.filter(|lane| !known.contains(&short_id(lane.id)));
    let first = |lane: &ListedLane| LanePosition { lane: short_id(lane.id), number: 0, index: 0 };
    position.lanes.extend(new.map(first));
    Ok(position)
}

/// The subjects of rows up to the limit of the request; moves the position behind them.
fn take_subjects(
    current: &mut FeedPosition,
    rows: Vec<(usize, LaneRow)>,
    request: &ReadChanges,
) -> Vec<Found> {
    let mut found = Vec::new();
    for (index, row) in rows {
        let count = row.subjects.len();
        let Some(read) = current.lanes.get(index).map(|lane| lane.index) else { continue };
        for (number, subject) in row.subjects.into_iter().enumerate().skip(read) {
            let is_wanted = request.topics.contains(topic_of(&subject));
            if is_wanted && found.len() == request.limit {
                return found;
            }
            if let Some(lane) = current.lanes.get_mut(index) {
                let is_last = number + 1 == count;
                lane.number = if is_last { row.number + 1 } else { row.number };
                lane.index = if is_last { 0 } else { number + 1 };
            }
            if is_wanted {
                found.push(Found { subject, position: current.encode() });
            }
        }
    }
    found
}

impl FeedPosition {
    /// Leaves out lanes that have ended and were read.
    fn forget_ended(&mut self, lanes: &[ListedLane], clock_now: Timestamp) {
        self.since = self.since.max(began_before(lanes));
        let is_over = |lane: &ListedLane, from: &LanePosition| {
            lane.started_at < self.since
                && lane.renewed_at.as_millis() < clock_now.as_millis() - ENDED_AFTER_MS
                && from.number >= lane.next
        };
        self.lanes.retain(|from| {
            lanes.iter().find(|lane| short_id(lane.id) == from.lane).is_none_or(|lane| !is_over(lane, from))
        });
    }
}

#[cfg(test)]
mod tests {
    use mw_domain::{GeoZone, OrderId, ProductId};
    use mw_store::changes::{Topic, Topics};

    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_millis(1_790_000_000_000 + hours * HOUR_MS)
    }

    fn lane(id: u128, started: i64, renewed: i64, next: i64) -> ListedLane {
        ListedLane { id: Uuid::from_u128(id << 64), started_at: at(started), renewed_at: at(renewed), next }
    }

    fn read_to(lane: u64, number: i64, index: usize) -> LanePosition {
        LanePosition { lane, number, index }
    }

    #[test]
    fn lanes_that_began_later_are_read_from_their_start_and_older_ones_not_again() {
        let lanes = [lane(1, 0, 9, 5), lane(2, 0, 1, 5), lane(3, 8, 9, 5)];
        let position = FeedPosition { since: at(7), lanes: vec![read_to(1, 3, 1)] };
        let known = with_new_lanes(position, &lanes).unwrap();
        assert_eq!(known.lanes, [read_to(1, 3, 1), read_to(3, 0, 0)]);
        let gone = FeedPosition { since: at(7), lanes: vec![read_to(4, 3, 1)] };
        assert_eq!(with_new_lanes(gone, &lanes), Err(Refusal::CursorExpired.into()));
    }

    #[test]
    fn only_lanes_that_have_ended_and_were_read_are_forgotten() {
        let lanes = [lane(1, 3, 9, 5), lane(2, 0, 1, 5), lane(3, 0, 1, 5)];
        let all = vec![read_to(1, 5, 0), read_to(2, 5, 0), read_to(3, 4, 0)];
        let mut position = FeedPosition { since: at(0), lanes: all };
        position.forget_ended(&lanes, at(9));
        assert_eq!(position.lanes, [read_to(1, 5, 0), read_to(3, 4, 0)]);
        let read = position.clone();
        position.forget_ended(&lanes, at(9));
        assert_eq!(position, read, "an idle feed keeps its position");
    }

    #[test]
    fn rows_as_young_as_the_reading_are_left_for_the_next_page() {
        let began_at = at(0);
        let is_left = |ms: i64| is_too_young(began_at.plus_millis(ms), began_at);
        assert!(!is_left(-CLOCKS_DIFFER_MS) && is_left(1 - CLOCKS_DIFFER_MS) && is_left(0));
        assert!(is_left(AHEAD_MAX_MS - 1) && !is_left(AHEAD_MAX_MS), "a clock that is wrong hides no row");
    }

    #[test]
    fn a_page_may_end_within_a_row_and_goes_on_there() {
        let product = |name: &str| Subject::Stock {
            product_id: ProductId::parse(name).unwrap(),
            geo_zone: GeoZone::parse("msk").unwrap(),
        };
        let order = Subject::Order { order_id: OrderId::new(Uuid::nil()), version: 1 };
        let row = || LaneRow {
            number: 7,
            written_at: at(0),
            subjects: vec![product("a"), order.clone(), product("b")],
        };
        let mut current = FeedPosition { since: at(0), lanes: vec![read_to(1, 7, 0)] };
        let request = ReadChanges {
            start: FeedStart::Oldest,
            topics: Topics::NONE.with(Topic::Stock),
            limit: 1,
            now: at(0),
        };
        let first = take_subjects(&mut current, vec![(0, row())], &request);
        assert_eq!(first.iter().map(|found| &found.subject).collect::<Vec<_>>(), [&product("a")]);
        let second = take_subjects(&mut current, vec![(0, row())], &request);
        assert_eq!(second.iter().map(|found| &found.subject).collect::<Vec<_>>(), [&product("b")]);
        assert_eq!(current.lanes, [read_to(1, 8, 0)]);
    }
}
