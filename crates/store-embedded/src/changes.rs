//! The change feed: rows of consecutive changes, written in the batch of the commands that they report.
//!
//! Invariants: changes have sequence numbers that rise with every commit, so a reader that has read up to a number has missed
//! nothing below it. A number begins with the time of its commit, so what is no longer kept is found without reading it. Rows
//! are small: a step of an order is a reference, and the changes of many commands share a row. A crash leaves changes and
//! their commands on disk, or neither.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use mw_codec::Damaged;
use mw_codec::changes::{ChangeRef, StoredChange};
use mw_domain::Timestamp;
#[cfg(test)]
use mw_store::changes::Topics;
use mw_store::changes::{ChangeEvent, Changed, Changes, ChangesPage, FeedSettings, FeedStart, ReadChanges};
use mw_store::{Position, Refusal, Result, StoreError};
use tokio::sync::watch;

use crate::keys::Key;
use crate::reader::{KeyRange, Reader};
use crate::tables::Table;
use crate::tx::Tx;
use crate::{EmbeddedStore, orders};

/// The row of [`Table::Meta`] with the newest sequence number that was purged.
const PURGED_TO_KEY: &[u8] = b"feed_purged_to";
/// A row is full with so many bytes of changes.
const ROW_BYTES: usize = 4 << 10;
/// Rows read for one page at most; a page of rare topics is returned short.
const ROWS_PER_PAGE_MAX: usize = 2_000;
/// Sequence numbers of one millisecond. A number stays below 2^53, which JSON can carry, until the year 2109.
const NUMBERS_PER_MS: u64 = 1 << 11;
const TIME_MS_MAX: i64 = (1 << 42) - 1;
/// How far the time of a command may be ahead of the time of maintenance, which runs every ten seconds. A clock that jumped
/// ahead would otherwise keep all later changes for as long as the jump.
const AHEAD_MAX_MS: i64 = 60_000;

/// What the writer and the readers of the feed share.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) settings: FeedSettings,
    /// The newest sequence number that readers see.
    newest: watch::Sender<u64>,
    /// The time of the latest maintenance; the lowest number before the first one.
    maintenance_ms: Arc<AtomicI64>,
}

impl Feed {
    /// Begins after the stored changes.
    pub(crate) fn read(
        reader: &dyn Reader,
        settings: FeedSettings,
        maintenance_ms: Arc<AtomicI64>,
    ) -> Result<Self> {
        let newest = newest(reader)?;
        Ok(Self { settings, newest: watch::Sender::new(newest), maintenance_ms })
    }

    /// Of a new store.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        let settings = FeedSettings { topics: Topics::ALL, ..FeedSettings::default() };
        Self { settings, newest: watch::Sender::new(0), maintenance_ms: Arc::new(AtomicI64::new(i64::MIN)) }
    }

    /// The number of the first change that is kept, as far as time decides.
    fn first_kept(&self, now: Timestamp) -> u64 {
        first_number(now.as_millis().saturating_sub(self.settings.retention_ms).saturating_add(1))
    }
}

/// The lowest sequence number of a millisecond.
fn first_number(ms: i64) -> u64 {
    ms.clamp(0, TIME_MS_MAX).cast_unsigned() * NUMBERS_PER_MS
}

/// The changes of the running batch.
#[derive(Debug)]
pub(crate) struct PendingChanges {
    feed: Arc<Feed>,
    /// The newest sequence number that was given out.
    newest: u64,
    /// The newest time of a change.
    at: Timestamp,
    encoded: Vec<u8>,
    /// Where each change ends.
    ends: Vec<usize>,
    /// How many of them are final.
    finals: usize,
}

impl PendingChanges {
    pub(crate) fn new(feed: Arc<Feed>) -> Self {
        let newest = *feed.newest.borrow();
        Self { feed, newest, at: Timestamp::EPOCH, encoded: Vec::new(), ends: Vec::new(), finals: 0 }
    }

    /// Records a change, if its topic is written.
    pub(crate) fn record(&mut self, at: Timestamp, change: ChangeRef<'_>) {
        if !self.feed.settings.topics.contains(change.topic()) {
            return;
        }
        mw_codec::changes::append(&mut self.encoded, change);
        self.ends.push(self.encoded.len());
        self.at = self.at.max(at);
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Takes back all but the first `count` changes, as far as they are not final.
    pub(crate) fn roll_back_to(&mut self, count: usize) {
        self.ends.truncate(count.max(self.finals));
        self.encoded.truncate(self.ends.last().copied().unwrap_or(0));
    }

    pub(crate) fn make_final(&mut self) {
        self.finals = self.ends.len();
    }

    /// The rows of the batch, which takes the next sequence numbers.
    pub(crate) fn take_rows(&mut self) -> Vec<(Key, Vec<u8>)> {
        if self.ends.is_empty() {
            return Vec::new();
        }
        let maintenance_ms = self.feed.maintenance_ms.load(Ordering::Relaxed);
        let at_ms = match maintenance_ms {
            i64::MIN => self.at.as_millis(),
            maintenance_ms => self.at.as_millis().min(maintenance_ms.saturating_add(AHEAD_MAX_MS)),
        };
        let mut number = first_number(at_ms).max(self.newest + 1);
        let mut rows = Vec::new();
        let (mut row_start, mut row_number) = (0, number);
        for end in self.ends.drain(..) {
            number += 1;
            if end - row_start >= ROW_BYTES || end == self.encoded.len() {
                let changes = self.encoded.get(row_start..end).unwrap_or_default();
                rows.push((row_key(row_number), mw_codec::changes::encode(changes)));
                (row_start, row_number) = (end, number);
            }
        }
        self.newest = number - 1;
        self.encoded.clear();
        self.at = Timestamp::EPOCH;
        self.finals = 0;
        rows
    }

    /// After a commit: readers may be told of its changes.
    pub(crate) fn publish(&self) {
        self.feed.newest.send_if_modified(|newest| std::mem::replace(newest, self.newest) != self.newest);
    }
}

fn row_key(number: u64) -> Key {
    number.to_be_bytes().to_vec()
}

fn row_number(key: &[u8]) -> Result<u64, Damaged> {
    key.try_into().map(u64::from_be_bytes).map_err(|_| Damaged("change key"))
}

fn position(number: u64) -> Position {
    Position(number.to_be_bytes().to_vec())
}

fn number_of(Position(bytes): &Position) -> Result<u64> {
    Ok(bytes.as_slice().try_into().map(u64::from_be_bytes).map_err(|_| Refusal::InvalidCursor)?)
}

fn purged_to(reader: &dyn Reader) -> Result<u64> {
    let row = reader.get(Table::Meta, PURGED_TO_KEY)?;
    Ok(row.map(|row| row_number(&row)).transpose()?.unwrap_or(0))
}

/// The newest sequence number that is stored or was purged.
fn newest(reader: &dyn Reader) -> Result<u64> {
    let mut newest = purged_to(reader)?;
    let range = KeyRange { from: row_key(newest), to: None };
    reader.scan(Table::Changes, &range, true, &mut |key, row| {
        newest = last_number(row_number(key)?, row)?;
        Ok(ControlFlow::Break(()))
    })?;
    Ok(newest)
}

/// The number of the last change of a row.
fn last_number(first: u64, row: &[u8]) -> Result<u64> {
    let changes = mw_codec::changes::decode(row)?.len() as u64;
    Ok(first + changes.saturating_sub(1))
}

#[async_trait]
impl Changes for EmbeddedStore {
    fn feed(&self) -> FeedSettings {
        self.feed.settings
    }

    async fn changes(&self, request: ReadChanges) -> Result<ChangesPage> {
        if request.start == FeedStart::Now {
            return Ok(ChangesPage { items: Vec::new(), next: position(*self.feed.newest.borrow()) });
        }
        let feed = Arc::clone(&self.feed);
        self.feed_reads.run(Arc::new(self.snapshot()), move |reader| read(reader, &feed, &request)).await
    }

    async fn changes_after(&self, after: &Position) -> Result<()> {
        let after = number_of(after)?;
        let mut newest = self.feed.newest.subscribe();
        // The sender lives as long as the store.
        let _ = newest.wait_for(|newest| *newest > after).await;
        Ok(())
    }
}

fn read(reader: &dyn Reader, feed: &Feed, request: &ReadChanges) -> Result<ChangesPage> {
    let purged_to = purged_to(reader)?;
    let first_kept = feed.first_kept(request.now).max(purged_to + 1);
    let after = match &request.start {
        FeedStart::Oldest | FeedStart::Now => first_kept - 1,
        FeedStart::After(at) => number_of(at)?,
    };
    if after < purged_to {
        return Err(Refusal::CursorExpired.into());
    }
    let newest = newest(reader)?;
    let is_oldest = request.start == FeedStart::Oldest;
    if after > newest && !is_oldest {
        return Err(Refusal::InvalidCursor.into());
    }
    let from = row_of(reader, purged_to, after + 1)?;
    // Where nothing is kept, reading goes on after the newest change.
    let mut page = ChangesPage { items: Vec::new(), next: position(after.min(newest)) };
    let mut rows = 0;
    reader.scan(Table::Changes, &KeyRange { from, to: None }, false, &mut |key, row| {
        rows += 1;
        let first = row_number(key)?;
        for (number, change) in (first..).zip(mw_codec::changes::decode(row)?) {
            if number <= after {
                continue;
            }
            if number < first_kept {
                return Err(Refusal::CursorExpired.into());
            }
            if page.items.len() == request.limit {
                return Ok(ControlFlow::Break(()));
            }
            if request.topics.contains(change.as_ref().topic()) {
                page.items.extend(event(reader, number, change)?);
            }
            page.next = position(number);
        }
        Ok(if rows == ROWS_PER_PAGE_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(page)
}

/// The key of the row that holds a number, or of the first one after it.
fn row_of(reader: &dyn Reader, purged_to: u64, number: u64) -> Result<Key> {
    let mut from = row_key(number);
    let below = KeyRange { from: row_key(purged_to + 1), to: Some(row_key(number.saturating_add(1))) };
    reader.scan(Table::Changes, &below, true, &mut |key, _| {
        from = key.to_vec();
        Ok(ControlFlow::Break(()))
    })?;
    Ok(from)
}

/// The change as readers see it; `None` for a step of an order that an import has replaced by another history.
fn event(reader: &dyn Reader, number: u64, change: StoredChange) -> Result<Option<ChangeEvent>> {
    let (at, version, changed) = match change {
        StoredChange::Order { order_id, version } => {
            let Some((order, events)) = orders::read_with_events(reader, order_id)? else { return Ok(None) };
            let step = usize::try_from(version - 1).unwrap_or(usize::MAX);
            let Some(event) = events.get(step) else { return Ok(None) };
            let order = order.as_of(version, event);
            let is_first = version == 1;
            let changed = if is_first { Changed::OrderCreated(order) } else { Changed::OrderStatus(order) };
            (event.at, version, changed)
        }
        StoredChange::Stock(stock) => (stock.updated_at, number, Changed::Stock(stock)),
        StoredChange::ProductPut(product) => (product.updated_at, number, Changed::ProductPut(product)),
        StoredChange::ProductDeleted(product_id, at) => (at, number, Changed::ProductDeleted(product_id)),
        StoredChange::Cart(cart) => (cart.updated_at, cart.version, Changed::Cart(cart)),
        StoredChange::CartClosed(cart) => (cart.updated_at, cart.version, Changed::CartClosed(cart)),
        StoredChange::Session(session) => (session.last_activity, number, Changed::Session(session)),
        StoredChange::SessionEnded(session_id, at) => (at, number, Changed::SessionEnded(session_id)),
    };
    Ok(Some(ChangeEvent { id: number.to_string(), position: position(number), at, version, changed }))
}

/// A row whose changes are no longer kept: its key, and the number of its last change.
pub(crate) type ExpiredRow = (Key, u64);

/// Up to `limit` rows that are no longer kept, oldest first.
pub(crate) fn expired_rows(
    reader: &dyn Reader,
    feed: &Feed,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<ExpiredRow>> {
    let first_kept = feed.first_kept(now);
    let mut rows = Vec::new();
    // Reading begins behind the purged rows, so that it passes none of their tombstones.
    let range = KeyRange { from: row_key(purged_to(reader)? + 1), to: Some(row_key(first_kept)) };
    reader.scan(Table::Changes, &range, false, &mut |key, row| {
        let first = row_number(key)?;
        let last = match last_number(first, row) {
            Err(error @ StoreError::Corrupt(_)) => {
                tracing::error!(%error, "purge changes: removing a row that cannot be read");
                first
            }
            last => last?,
        };
        if rows.len() == limit || last >= first_kept {
            return Ok(ControlFlow::Break(()));
        }
        rows.push((key.to_vec(), last));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(rows)
}

/// Removes rows and remembers up to where, in one batch: a position below that has expired from then on.
pub(crate) fn purge(tx: &mut Tx, rows: &[ExpiredRow]) -> usize {
    for (key, last) in rows {
        tx.remove(Table::Changes, key.clone());
        tx.put(Table::Meta, PURGED_TO_KEY.to_vec(), last.to_be_bytes().to_vec());
    }
    rows.len()
}
